//! Relative paths of files within a skill.
//!
//! Invariant: a [`RelPath`] joined to any root stays beneath it on every platform, and means the
//! same file there. Traversal, absolute and drive paths, streams, device names and percent-encoded
//! text are refused here, once, for every surface.

use std::{
    fmt,
    str::FromStr,
    sync::{Arc, LazyLock},
};

use crate::{
    error::{Error, Result, input_excerpt},
    id::name_type,
};

/// The document every skill has at its root.
pub const DOCUMENT: &str = "SKILL.md";

/// A path of a file below a skill's root: relative, `/`-separated and decoded.
///
/// ```
/// use repertoire_core::RelPath;
///
/// let path: RelPath = "references/schema.graphql".parse()?;
/// assert_eq!(path.file_name(), "schema.graphql");
/// assert!("../secrets".parse::<RelPath>().is_err());
/// # Ok::<(), repertoire_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelPath(Arc<str>);
name_type!(RelPath);

impl RelPath {
    /// The path of the document, `SKILL.md`.
    pub fn document() -> Self {
        // Shared, because every skill has one.
        static PATH: LazyLock<RelPath> = LazyLock::new(|| RelPath(DOCUMENT.into()));
        PATH.clone()
    }

    /// Whether this is the document at the root.
    pub fn is_document(&self) -> bool {
        &*self.0 == DOCUMENT
    }

    /// The last segment.
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// The segments, outermost first.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// Parses the path of a supporting file, which must not be the document.
    pub fn parse_reference(text: &str) -> Result<Self> {
        let path: Self = text.parse()?;
        if path.is_document() {
            return Err(Error::Path {
                path: input_excerpt(text),
                rule: "SKILL.md is the document, not a supporting file",
            });
        }
        Ok(path)
    }
}

/// Whether a file name belongs to a tool (version control, editor) and never to a skill.
///
/// ```
/// use repertoire_core::path::is_ignored;
///
/// assert!(is_ignored(".git") && is_ignored("notes.md~"));
/// assert!(!is_ignored("notes.md") && !is_ignored(".env"));
/// ```
pub fn is_ignored(name: &str) -> bool {
    matches!(
        name,
        ".git" | ".hg" | ".svn" | ".DS_Store" | "__pycache__" | "node_modules" | "Thumbs.db"
    ) || name.ends_with('~')
        || name.starts_with(".repertoire-")
        || (name.starts_with('.') && name.strip_suffix(".swp").is_some())
}

impl FromStr for RelPath {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == DOCUMENT {
            return Ok(Self::document());
        }
        match find_path_error(text) {
            None => Ok(Self(text.into())),
            Some(rule) => Err(Error::Path {
                path: input_excerpt(text),
                rule,
            }),
        }
    }
}

/// The rule a path breaks, if any.
fn find_path_error(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("must be non-empty");
    }
    if text.len() > 1024 {
        return Some("too long: a path has at most 1024 bytes");
    }
    if text.contains('\0') {
        return Some("must not contain a NUL byte");
    }
    if text.contains("://") {
        return Some("must be a relative path, not a URI");
    }
    if text.starts_with('/') {
        return Some("must be relative, without a leading `/`");
    }
    if text.contains('\\') {
        return Some("must use `/` between segments, never a back-slash");
    }
    if text.contains(':') {
        return Some("must not contain `:` (drives and streams)");
    }
    if text.chars().any(char::is_control) {
        return Some("must not contain control characters");
    }
    if has_percent_encoding(text) {
        return Some("must not contain percent-encoded text");
    }
    text.split('/').find_map(find_segment_error)
}

fn find_segment_error(segment: &str) -> Option<&'static str> {
    if segment.is_empty() {
        Some("must not contain an empty segment")
    } else if segment == ".." || segment == "." {
        Some("must not contain a `.` or `..` segment")
    } else if segment.len() > 255 {
        Some("too long: a segment has at most 255 bytes")
    } else if segment.ends_with('.') || segment.ends_with(' ') || segment.starts_with(' ') {
        Some("a segment must not start with a space or end with a space or a dot")
    } else if is_device_name(segment) {
        Some("must not be a device name")
    } else {
        None
    }
}

fn has_percent_encoding(text: &str) -> bool {
    text.as_bytes()
        .windows(3)
        .any(|w| w[0] == b'%' && w[1].is_ascii_hexdigit() && w[2].is_ascii_hexdigit())
}

fn is_device_name(segment: &str) -> bool {
    let stem = segment.split('.').next().unwrap_or(segment).trim_end();
    let upper = stem.to_ascii_uppercase();
    match upper.as_str() {
        "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$" => true,
        _ => {
            let numbered = upper
                .strip_prefix("COM")
                .or_else(|| upper.strip_prefix("LPT"));
            matches!(
                numbered,
                Some("1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9" | "¹" | "²" | "³")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t1_every_spelling_of_an_escape_is_refused() {
        for bad in [
            "",
            "..",
            "a/../b",
            "./a",
            "a/.",
            "/etc/passwd",
            "//host/share",
            "\\\\host\\share",
            "a\\b",
            "C:/x",
            "c:x",
            "file.txt:stream",
            "a\0b",
            "%2e%2e/x",
            "%252e%252e/x",
            "a%2Fb",
            "trailing.",
            "trailing ",
            "a./b",
            "con",
            "NUL.txt",
            "com1.log",
            "lpt9",
            "a//b",
            "skill://x",
            "new\nline",
            " lead",
        ] {
            assert_eq!(
                bad.parse::<RelPath>().unwrap_err().code(),
                "invalid_path",
                "{bad:?}"
            );
        }
    }

    #[test]
    fn ordinary_paths_are_accepted() {
        for good in [
            "SKILL.md",
            "references/a b.md",
            "scripts/run.py",
            "données/é.txt",
            "100%.md",
            ".hidden",
            "console/x",
            "com10",
        ] {
            assert!(good.parse::<RelPath>().is_ok(), "{good:?}");
        }
        assert!(RelPath::parse_reference("SKILL.md").is_err());
        assert!(RelPath::parse_reference("nested/SKILL.md").is_ok());
    }
}
