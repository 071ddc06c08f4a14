//! YAML frontmatter, read within a budget and kept without loss.
//!
//! The block is cut off by lines (`---` … `---`), then read event by event from the YAML parser
//! so that depth, node count and alias expansion are bounded *while* reading: a bomb costs what
//! its text costs. Order, every field and the JSON type of every scalar survive; duplicate keys
//! and tags do not get in. What the reference validator refuses although YAML allows it (flow
//! collections, anchors, uneven indentation) is noted, not refused: serving passes it through and
//! validation reports it.

mod compose;

use compose::Composer;
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// The most bytes a frontmatter block may have.
pub const MAX_BYTES: usize = 64 * 1024;

/// A document cut into its frontmatter block and its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split<'a> {
    /// The YAML between the fences.
    pub yaml: &'a str,
    /// Everything after the closing fence's line.
    pub body: &'a str,
    /// The whole block, both fences included.
    pub block: &'a str,
    /// Line of the body's first character, from 1.
    pub body_line: usize,
}

/// Cuts a document at its fences.
///
/// ```
/// use repertoire_core::frontmatter::split;
///
/// let cut = split("---\nname: a\n---\n# Title\n")?;
/// assert_eq!((cut.yaml, cut.body, cut.body_line), ("name: a\n", "# Title\n", 4));
/// # Ok::<(), repertoire_core::Error>(())
/// ```
pub fn split(text: &str) -> Result<Split<'_>> {
    let missing = |line, rule| Error::NoFrontmatter { line, rule };
    if text.starts_with('\u{feff}') {
        return Err(missing(1, "starts with a byte order mark before `---`"));
    }
    let mut lines = text.split_inclusive('\n');
    let first = lines.next().unwrap_or_default();
    if !is_fence(first) {
        return Err(missing(1, "must start with YAML frontmatter (`---`)"));
    }
    let mut at = first.len();
    for (index, line) in lines.enumerate() {
        if is_fence(line) {
            let end = at + line.len();
            return Ok(Split {
                yaml: &text[first.len()..at],
                body: &text[end..],
                block: &text[..end],
                body_line: index + 3,
            });
        }
        at += line.len();
        if at > MAX_BYTES + first.len() {
            return Err(Error::FrontmatterBudget {
                line: index + 2,
                rule: format!("no closing `---` within {MAX_BYTES} bytes"),
            });
        }
    }
    Err(missing(1, "frontmatter is not closed with a line `---`"))
}

/// The body of a document: without its frontmatter if it has one, whole otherwise.
pub fn body(text: &str) -> &str {
    split(text).map_or(text, |cut| cut.body)
}

fn is_fence(line: &str) -> bool {
    line.strip_prefix("---").is_some_and(|rest| {
        rest.chars()
            .all(|c| c == ' ' || c == '\t' || c == '\r' || c == '\n')
    })
}

/// Something YAML allows and the reference validator does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Oddity {
    /// `{a: b}` or `[a, b]`.
    Flow,
    /// `&anchor` or `*alias`.
    Anchor,
    /// Sibling mappings indented differently.
    Indentation,
}

/// One top-level field.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// The key.
    pub key: String,
    /// Line of the key in the document, from 1.
    pub line: usize,
    /// The value as JSON.
    pub value: Value,
    /// The text of a scalar exactly as written, before any typing.
    pub text: Option<String>,
    /// Lines of the keys of a mapping, in order.
    pub child_lines: Vec<usize>,
}

/// The fields of a frontmatter block, in the author's order.
///
/// ```
/// use repertoire_core::Frontmatter;
///
/// let front = Frontmatter::of("---\nname: pdf\nmetadata:\n  stars: 5\n---\n")?;
/// assert_eq!(front.text("name"), Some("pdf"));
/// assert_eq!(serde_json::to_string(&front.to_json()).unwrap(), r#"{"name":"pdf","metadata":{"stars":5}}"#);
/// # Ok::<(), repertoire_core::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Frontmatter {
    fields: Vec<Field>,
    oddities: Vec<(usize, Oddity)>,
}

impl Frontmatter {
    /// Reads the frontmatter of a whole document.
    pub fn of(document: &str) -> Result<Self> {
        let cut = split(document)?;
        Self::parse(cut.yaml, 2)
    }

    /// Reads YAML whose first line stands at `first_line` of its document.
    pub fn parse(yaml: &str, first_line: usize) -> Result<Self> {
        if yaml.len() > MAX_BYTES {
            return Err(Error::FrontmatterBudget {
                line: first_line,
                rule: format!("{} bytes, at most {MAX_BYTES}", yaml.len()),
            });
        }
        // The parser passes over these markers; one document is all there can be.
        if let Some(at) = yaml.lines().position(|line| line.trim_end() == "...") {
            return Err(Error::Frontmatter {
                line: first_line + at,
                rule: "must be a single YAML document, without `...`".to_owned(),
            });
        }
        Composer::new(yaml, first_line).compose()
    }

    /// The fields in order.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// A field by its key.
    pub fn get(&self, key: &str) -> Option<&Field> {
        self.fields.iter().find(|f| f.key == key)
    }

    /// The text of a scalar field.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key)?.text.as_deref()
    }

    /// What the reference validator would refuse, with its line.
    pub fn oddities(&self) -> &[(usize, Oddity)] {
        &self.oddities
    }

    /// Every field the author wrote, in order, as JSON.
    pub fn to_json(&self) -> Map<String, Value> {
        self.fields
            .iter()
            .map(|f| (f.key.clone(), f.value.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests;
