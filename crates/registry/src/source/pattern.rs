//! Glob patterns for loose markdown: which files match, and what id they derive.

use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

use crate::error::{Error, Result};

/// A pattern, cut into the folder it starts from and what is matched beneath.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    folder: PathBuf,
    matcher: GlobMatcher,
}

impl Pattern {
    /// Reads a pattern; a relative one starts from `base`.
    pub(crate) fn new(base: &Path, text: &str) -> Result<Self> {
        let refuse = |reason: String| Error::Pattern {
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
            folder: tidy(&base.join(prefix)),
            matcher: glob.compile_matcher(),
        })
    }

    /// The folder everything it can match lies beneath.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether a path beneath the folder matches.
    pub(crate) fn matches(&self, relative: &str) -> bool {
        self.matcher.is_match(relative)
    }
}

/// Says whether a text is a pattern of files beneath a folder.
pub fn check_pattern(base: &Path, text: &str) -> Result<()> {
    Pattern::new(base, text).map(|_| ())
}

/// Resolves `.` and `..` by name, so that the folder can be compared with others.
fn tidy(path: &Path) -> PathBuf {
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
    fn prefixes_are_cut_at_the_last_slash_before_a_wildcard() {
        let folder = |text: &str| Pattern::new(Path::new("/c"), text).unwrap().folder;
        assert_eq!(folder("my-skills/**/*.md"), Path::new("/c/my-skills"));
        assert_eq!(folder("*.md"), Path::new("/c"));
        assert_eq!(folder("docs/team-a.md"), Path::new("/c/docs"));
        assert_eq!(folder("docs/te?m/*.md"), Path::new("/c/docs"));
        assert_eq!(folder("./a/../b/*.md"), Path::new("/c/b"));
        assert_eq!(folder("/abs/{x,y}/*.md"), Path::new("/abs"));
    }

    #[test]
    fn braces_expand_and_stars_stop_at_slashes() {
        let pattern = Pattern::new(Path::new("/c"), "d/{a,b}/*.md").unwrap();
        assert!(pattern.matches("a/x.md") && pattern.matches("b/x.md"));
        assert!(!pattern.matches("c/x.md") && !pattern.matches("a/b/x.md"));
        let deep = Pattern::new(Path::new("/c"), "d/**/*.md").unwrap();
        assert!(deep.matches("x.md") && deep.matches("a/b/x.md"));
        assert!(Pattern::new(Path::new("/c"), "d/").is_err());
        assert!(Pattern::new(Path::new("/c"), "d/{a").is_err());
    }
}
