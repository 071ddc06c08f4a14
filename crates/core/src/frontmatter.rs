//! Parses YAML frontmatter within a budget and without loss.
//!
//! The block is delimited by lines (`---` … `---`) and read event by event from the YAML parser,
//! so depth, node count and alias expansion are bounded *while* reading: an alias bomb costs no
//! more than its text. Field order, every field and the JSON type of every scalar are preserved;
//! duplicate keys and tags are refused. Constructs that YAML allows and the reference validator
//! refuses (flow collections, anchors, uneven indentation) are recorded, not refused: serving
//! passes them through and validation reports them.

mod compose;

use compose::Composer;
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// The most bytes a frontmatter block may have.
pub const MAX_BYTES: usize = 64 * 1024;
/// The most values of a frontmatter block.
const MAX_VALUES: usize = 4096;
/// The most bytes of a YAML file.
const MAX_FILE_BYTES: usize = 8 * 1024 * 1024;
/// The most values of a YAML file.
const MAX_FILE_VALUES: usize = 200_000;

/// A document split into its frontmatter block and its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitDocument<'a> {
    /// The YAML between the fences.
    pub yaml: &'a str,
    /// Everything after the closing fence's line.
    pub body: &'a str,
    /// The whole block, both fences included.
    pub block: &'a str,
    /// Line of the body's first character, from 1.
    pub body_line: usize,
}

/// Splits a document at its frontmatter fences.
///
/// ```
/// use repertoire_core::frontmatter::split_document;
///
/// let cut = split_document("---\nname: a\n---\n# Title\n")?;
/// assert_eq!((cut.yaml, cut.body, cut.body_line), ("name: a\n", "# Title\n", 4));
/// # Ok::<(), repertoire_core::Error>(())
/// ```
pub fn split_document(text: &str) -> Result<SplitDocument<'_>> {
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
            return Ok(SplitDocument {
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

/// Returns the body of a document: without its frontmatter if it has one, whole otherwise.
pub fn strip_frontmatter(text: &str) -> &str {
    split_document(text).map_or(text, |cut| cut.body)
}

pub(crate) fn is_fence(line: &str) -> bool {
    line.strip_prefix("---").is_some_and(|rest| {
        rest.chars()
            .all(|c| c == ' ' || c == '\t' || c == '\r' || c == '\n')
    })
}

/// A YAML construct that the reference validator refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnsupportedYaml {
    /// `{a: b}` or `[a, b]`.
    Flow,
    /// `&anchor` or `*alias`.
    Anchor,
    /// Sibling mappings indented differently.
    Indentation,
}

/// A YAML construct that hosts read differently. They compare what they read with the listing, and
/// refuse the skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AmbiguousYaml {
    /// Text without quotes that was a date, a truth value or a number in YAML 1.1.
    Yaml11Scalar,
    /// A line break at the very end, after a block that begins with `|` or `>`.
    LastLineBreak,
}

/// One top-level field.
#[derive(Debug, Clone, PartialEq)]
pub struct FrontmatterField {
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
/// let front = Frontmatter::from_document("---\nname: pdf\nmetadata:\n  stars: 5\n---\n")?;
/// assert_eq!(front.get_text("name"), Some("pdf"));
/// assert_eq!(serde_json::to_string(&front.to_json()).unwrap(), r#"{"name":"pdf","metadata":{"stars":5}}"#);
/// # Ok::<(), repertoire_core::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Frontmatter {
    fields: Vec<FrontmatterField>,
    unsupported_yaml: Vec<(usize, UnsupportedYaml)>,
    ambiguous_yaml: Vec<(usize, AmbiguousYaml)>,
}

impl Frontmatter {
    /// Parses the frontmatter of a whole document.
    pub fn from_document(document: &str) -> Result<Self> {
        let cut = split_document(document)?;
        Self::parse(cut.yaml, 2)
    }

    /// Parses YAML whose first line is line `first_line` of its document.
    pub fn parse(yaml: &str, first_line: usize) -> Result<Self> {
        Self::parse_within(yaml, first_line, MAX_BYTES, MAX_VALUES)
    }

    /// Parses a YAML file of the user, which may be larger than a frontmatter block.
    ///
    /// ```
    /// use repertoire_core::Frontmatter;
    ///
    /// let long = format!("notes: {}", "tide ".repeat(20_000));
    /// assert!(Frontmatter::parse(&long, 1).is_err());
    /// assert!(Frontmatter::parse_file(&long).is_ok());
    /// ```
    pub fn parse_file(yaml: &str) -> Result<Self> {
        Self::parse_within(yaml, 1, MAX_FILE_BYTES, MAX_FILE_VALUES)
    }

    fn parse_within(
        yaml: &str,
        first_line: usize,
        max_bytes: usize,
        max_values: usize,
    ) -> Result<Self> {
        if yaml.len() > max_bytes {
            return Err(Error::FrontmatterBudget {
                line: first_line,
                rule: format!("{} bytes, at most {max_bytes}", yaml.len()),
            });
        }
        // The parser skips these markers, so a second document would go unnoticed.
        if let Some(at) = yaml.lines().position(|line| line.trim_end() == "...") {
            return Err(Error::Frontmatter {
                line: first_line + at,
                rule: "must be a single YAML document, without `...`".to_owned(),
            });
        }
        Composer::new(yaml, first_line, max_values).compose()
    }

    /// The fields in order.
    pub fn fields(&self) -> &[FrontmatterField] {
        &self.fields
    }

    /// A field by its key.
    pub fn get(&self, key: &str) -> Option<&FrontmatterField> {
        self.fields.iter().find(|f| f.key == key)
    }

    /// The text of a scalar field.
    pub fn get_text(&self, key: &str) -> Option<&str> {
        self.get(key)?.text.as_deref()
    }

    /// Constructs that the reference validator refuses, each with its line.
    pub fn unsupported_yaml(&self) -> &[(usize, UnsupportedYaml)] {
        &self.unsupported_yaml
    }

    /// Constructs that hosts read differently, each with its line.
    pub fn ambiguous_yaml(&self) -> &[(usize, AmbiguousYaml)] {
        &self.ambiguous_yaml
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
