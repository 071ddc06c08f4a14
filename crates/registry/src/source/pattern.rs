//! Glob patterns for loose markdown files.

use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

use crate::error::{Error, Result};

/// A pattern, split into its base folder and the glob that is matched beneath it.
#[derive(Debug, Clone)]
pub(crate) struct GlobPattern {
    folder: PathBuf,
    matcher: GlobMatcher,
}

impl GlobPattern {
    /// Parses a pattern; a relative one starts from `base`.
    pub(crate) fn new(base: &Path, text: &str) -> Result<Self> {
        let refuse = |reason: String| Error::InvalidPattern {
            pattern: text.to_owned(),
            reason,
        };
        let wildcard = text.find(['*', '?', '[', '{']).unwrap_or(text.len());
        let cut = text[..wildcard].rfind('/').map_or(0, |slash| slash + 1);
        let (prefix, rest) = text.split_at(cut);
        if rest.is_empty() {
            return Err(refuse("must name files, such as `docs/**/*.md`".to_owned()));
        }
        let glob = GlobBuilder::new(rest)
            .literal_separator(true)
            .build()
            .map_err(|e| refuse(e.kind().to_string()))?;
        Ok(Self {
            folder: resolve_dots(&base.join(prefix)),
            matcher: glob.compile_matcher(),
        })
    }

    /// Returns the folder that contains every possible match.
    pub(crate) fn base_folder(&self) -> &Path {
        &self.folder
    }

    /// Whether a path beneath the folder matches.
    pub(crate) fn is_match(&self, relative: &str) -> bool {
        self.matcher.is_match(relative)
    }
}

/// Checks that a text is a valid file pattern.
pub fn check_pattern(base: &Path, text: &str) -> Result<()> {
    GlobPattern::new(base, text).map(|_| ())
}

/// Resolves `.` and `..` lexically, so that folders can be compared.
fn resolve_dots(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_folder_ends_at_the_last_slash_before_a_wildcard() {
        let folder = |text: &str| GlobPattern::new(Path::new("/c"), text).unwrap().folder;
        assert_eq!(folder("my-skills/**/*.md"), Path::new("/c/my-skills"));
        assert_eq!(folder("*.md"), Path::new("/c"));
        assert_eq!(folder("docs/team-a.md"), Path::new("/c/docs"));
        assert_eq!(folder("docs/te?m/*.md"), Path::new("/c/docs"));
        assert_eq!(folder("./a/../b/*.md"), Path::new("/c/b"));
        assert_eq!(folder("/abs/{x,y}/*.md"), Path::new("/abs"));
    }

    #[test]
    fn braces_expand_and_stars_stop_at_slashes() {
        let pattern = GlobPattern::new(Path::new("/c"), "d/{a,b}/*.md").unwrap();
        assert!(pattern.is_match("a/x.md") && pattern.is_match("b/x.md"));
        assert!(!pattern.is_match("c/x.md") && !pattern.is_match("a/b/x.md"));
        let deep = GlobPattern::new(Path::new("/c"), "d/**/*.md").unwrap();
        assert!(deep.is_match("x.md") && deep.is_match("a/b/x.md"));
        assert!(GlobPattern::new(Path::new("/c"), "d/").is_err());
        assert!(GlobPattern::new(Path::new("/c"), "d/{a").is_err());
    }
}
