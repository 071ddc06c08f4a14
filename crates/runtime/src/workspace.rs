//! The workspace: what skills can ask about, whoever keeps it.
//!
//! An application brings its own; [`Vault`] is a folder of markdown pages.

mod vault;

use serde::Serialize;

use crate::error::Result;

pub use vault::Vault;

/// A page that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hit {
    /// Its slug.
    pub slug: String,
    /// Its title.
    pub title: String,
    /// What of it fits, shortened.
    pub excerpt: String,
    /// How well it fits, within this answer.
    pub score: f64,
}

/// What is known of a page without its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PageInfo {
    /// The path within the workspace, without its ending.
    pub slug: String,
    /// The title.
    pub title: String,
    /// What sort of page it is, if it says so.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Its tags.
    pub tags: Vec<String>,
}

/// A page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Page {
    /// What is known of it.
    #[serde(flatten)]
    pub info: PageInfo,
    /// Its text without the frontmatter.
    pub text: String,
}

/// A tag and how many pages have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tag {
    /// The tag.
    pub name: String,
    /// How many pages have it.
    pub pages: usize,
}

/// How a page is bound to others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct References {
    /// Slugs of pages it links to.
    pub links: Vec<String>,
    /// Slugs of pages that link to it.
    pub backlinks: Vec<String>,
    /// What it links to and is not there.
    pub missing: Vec<String>,
}

/// One change of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Revision {
    /// The id of the change.
    pub id: String,
    /// Who made it.
    pub author: String,
    /// When, RFC 3339.
    pub at: String,
    /// What was said about it.
    pub summary: String,
}

/// What skills can ask about.
///
/// Calls may wait for a disk; whoever is on an async runtime makes them elsewhere.
pub trait Workspace: Send + Sync + std::fmt::Debug {
    /// The pages that fit some words best, best first.
    fn search(&self, query: &str, limit: usize) -> Result<Vec<Hit>>;

    /// One page, by its slug, its title or another name it has.
    fn page(&self, name: &str) -> Result<Option<Page>>;

    /// Several pages; those that are not there are left out.
    fn pages(&self, names: &[String]) -> Result<Vec<Page>> {
        let pages = names.iter().map(|name| self.page(name));
        pages.filter_map(Result::transpose).collect()
    }

    /// The pages of a type, sorted by slug.
    fn pages_by_type(&self, kind: &str) -> Result<Vec<PageInfo>>;

    /// Every tag, the most used first.
    fn tags(&self) -> Result<Vec<Tag>>;

    /// What a page links to, and what links to it.
    fn references(&self, name: &str) -> Result<References>;

    /// The changes of a page, newest first.
    fn history(&self, name: &str, limit: usize) -> Result<Vec<Revision>>;
}
