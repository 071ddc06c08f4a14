//! The workspace: the pages skills can query, independent of their storage.
//!
//! An application can provide its own; [`Vault`] is a folder of Markdown pages.

mod vault;

use serde::Serialize;

use crate::error::Result;

pub use vault::Vault;

/// A search result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PageHit {
    /// Its slug.
    pub slug: String,
    /// Its title.
    pub title: String,
    /// The best matching excerpt.
    pub excerpt: String,
    /// The score, comparable only within one result list.
    pub score: f64,
}

/// The metadata of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PageInfo {
    /// The path within the workspace, without its extension.
    pub slug: String,
    /// The title.
    pub title: String,
    /// Its type, if it has one.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Its tags.
    pub tags: Vec<String>,
}

/// A page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkspacePage {
    /// Its metadata.
    #[serde(flatten)]
    pub info: PageInfo,
    /// Its text without the frontmatter.
    pub text: String,
}

/// A tag and how many pages have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TagCount {
    /// The tag.
    pub name: String,
    /// How many pages have it.
    pub pages: usize,
}

/// The links of a page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PageReferences {
    /// Slugs of pages it links to.
    pub links: Vec<String>,
    /// Slugs of pages that link to it.
    pub backlinks: Vec<String>,
    /// Link targets that do not exist.
    pub missing: Vec<String>,
}

/// One change of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PageRevision {
    /// The id of the change.
    pub id: String,
    /// The author.
    pub author: String,
    /// When, RFC 3339.
    pub at: String,
    /// The subject of the change.
    pub summary: String,
}

/// The pages that skills can query.
///
/// Calls may wait for a disk; in async code, make them on a blocking thread.
pub trait Workspace: Send + Sync + std::fmt::Debug {
    /// Returns the pages that match a query, best first.
    fn search_pages(&self, query: &str, limit: usize) -> Result<Vec<PageHit>>;

    /// Returns one page by its slug, title or alias.
    fn find_page(&self, name: &str) -> Result<Option<WorkspacePage>>;

    /// Returns several pages; missing ones are skipped.
    fn pages(&self, names: &[String]) -> Result<Vec<WorkspacePage>> {
        let pages = names.iter().map(|name| self.find_page(name));
        pages.filter_map(Result::transpose).collect()
    }

    /// The pages of a type, sorted by slug.
    fn pages_by_type(&self, kind: &str) -> Result<Vec<PageInfo>>;

    /// Every tag, the most used first.
    fn tags(&self) -> Result<Vec<TagCount>>;

    /// Returns the links and backlinks of a page.
    fn references(&self, name: &str) -> Result<PageReferences>;

    /// The changes of a page, newest first.
    fn history(&self, name: &str, limit: usize) -> Result<Vec<PageRevision>>;
}
