//! The complete file set of a skill: paths, sizes, digests, MIME types.
//!
//! Invariant: a [`Manifest`] holds `SKILL.md`, each file once, no two names that some file system
//! treats as equal, at most [`MAX_FILES`] files and [`MAX_BYTES`] bytes. It is sorted by path,
//! so equal sets are equal values with equal digests.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use unicode_normalization::UnicodeNormalization;

use crate::{
    digest::{Digest, Hasher},
    error::{Error, Result},
    mime,
    path::RelPath,
};

/// The most files a skill may have: the limit every host accepts.
pub const MAX_FILES: usize = 512;
/// The most bytes a skill may have: the limit every host accepts.
pub const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// One file of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its path below the skill's root.
    pub path: RelPath,
    /// Its size in bytes.
    pub size: u64,
    /// The digest of its raw bytes.
    pub digest: Digest,
}

impl FileEntry {
    /// Creates the entry of a file with this path and content.
    pub fn from_bytes(path: RelPath, bytes: &[u8]) -> Self {
        Self {
            path,
            size: bytes.len() as u64,
            digest: Digest::hash_bytes(bytes),
        }
    }

    /// The file's MIME type; the document is always markdown.
    pub fn mime_type(&self) -> &'static str {
        mime::of_path(self.path.as_str())
    }
}

/// The complete file set of one skill.
///
/// ```
/// use repertoire_core::{FileEntry, Manifest, RelPath};
///
/// let manifest = Manifest::new([FileEntry::from_bytes(RelPath::document(), b"---\n...")])?;
/// assert_eq!(manifest.files().len(), 1);
/// # Ok::<(), repertoire_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Manifest {
    files: Box<[FileEntry]>,
}

impl Manifest {
    /// A manifest of these files, in any order.
    pub fn new(files: impl IntoIterator<Item = FileEntry>) -> Result<Self> {
        let mut builder = ManifestBuilder::default();
        for file in files {
            builder.reserve_file(&file.path, file.size)?;
            builder.push(file);
        }
        builder.finish()
    }

    /// The files, sorted by path.
    pub fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// The files, sorted by path, without a copy.
    pub fn into_files(self) -> Box<[FileEntry]> {
        self.files
    }

    /// One file by its path.
    pub fn get(&self, path: &RelPath) -> Option<&FileEntry> {
        let at = self.files.binary_search_by(|f| f.path.cmp(path)).ok()?;
        self.files.get(at)
    }

    /// The bytes of all files together.
    pub fn total_size(&self) -> u64 {
        self.files.iter().map(|f| f.size).sum()
    }

    /// One digest over the whole set; approvals are bound to it.
    pub fn digest(&self) -> Digest {
        Self::digest_of(&self.files)
    }

    /// The whole-skill digest of a set of files that came from a manifest.
    ///
    /// SHA-256 over, for each file in bytewise order of the paths: the path, a NUL byte, the raw
    /// SHA-256 of the content, and a line feed. File modes and times are not part of it.
    ///
    /// ```
    /// use repertoire_core::{FileEntry, Manifest};
    ///
    /// let files = [
    ///     FileEntry::from_bytes("SKILL.md".parse()?, b"---\nname: a\n---\n"),
    ///     FileEntry::from_bytes("scripts/x.sh".parse()?, b"echo\n"),
    /// ];
    /// let digest = "sha256:ca68cc62e37c8b84d2287c57e4c211375260c1314b6aaa27840f0add9dea9be8";
    /// assert_eq!(Manifest::digest_of(&files).to_string(), digest);
    /// # Ok::<(), repertoire_core::Error>(())
    /// ```
    pub fn digest_of(files: &[FileEntry]) -> Digest {
        hash_files(files, b"\n")
    }

    /// The digest as it was before its final form, without the line feeds. Only for recognising
    /// approvals that were given then.
    pub fn legacy_digest_of(files: &[FileEntry]) -> Digest {
        hash_files(files, b"")
    }
}

/// Hashes paths and content digests in bytewise order of the paths.
fn hash_files(files: &[FileEntry], separator: &[u8]) -> Digest {
    let mut files: Vec<&FileEntry> = files.iter().collect();
    files.sort_by(|a, b| a.path.as_str().cmp(b.path.as_str()));
    let mut hasher = Hasher::default();
    for file in files {
        hasher.update(file.path.as_str().as_bytes());
        hasher.update(&[0]);
        hasher.update(file.digest.as_bytes());
        hasher.update(separator);
    }
    hasher.finish()
}

/// Collects a file set and refuses excess files before their bytes are read.
#[derive(Debug, Default)]
pub struct ManifestBuilder {
    files: Vec<FileEntry>,
    count: usize,
    bytes: u64,
}

impl ManifestBuilder {
    /// Reserves room for a file of this size; call it before reading the file.
    pub fn reserve_file(&mut self, path: &RelPath, size: u64) -> Result<()> {
        self.count += 1;
        if self.count > MAX_FILES {
            return Err(Error::TooManyFiles {
                count: self.count,
                max: MAX_FILES,
            });
        }
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > MAX_BYTES {
            return Err(Error::TooLarge {
                what: format!("the skill with {path}"),
                size: self.bytes,
                max: MAX_BYTES,
            });
        }
        Ok(())
    }

    /// Adds a file that was reserved.
    pub fn push(&mut self, file: FileEntry) {
        self.files.push(file);
    }

    /// Builds the manifest, if the set has a document and no colliding names.
    pub fn finish(mut self) -> Result<Manifest> {
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
        self.check_names()?;
        let manifest = Manifest {
            files: self.files.into_boxed_slice(),
        };
        match manifest.get(&RelPath::document()) {
            Some(_) => Ok(manifest),
            None => Err(Error::NoDocument),
        }
    }

    fn check_names(&self) -> Result<()> {
        let mut names: Vec<(Cow<'_, str>, &RelPath)> = self
            .files
            .iter()
            .map(|file| (fold_path(file.path.as_str()), &file.path))
            .collect();
        // Sorting by segments puts the files below a name directly after it.
        names.sort_by(|a, b| a.0.split('/').cmp(b.0.split('/')));
        for pair in names.windows(2) {
            let [(one, first), (two, second)] = pair else {
                continue;
            };
            let inside = two
                .strip_prefix(&**one)
                .is_some_and(|rest| rest.starts_with('/'));
            if one == two || inside {
                return Err(if first == second {
                    Error::DuplicatePath(first.to_string())
                } else {
                    Error::CollidingPaths {
                        first: first.to_string(),
                        second: second.to_string(),
                    }
                });
            }
        }
        Ok(())
    }
}

/// The name under which a normalising, case-insensitive file system would store a path.
fn fold_path(path: &str) -> Cow<'_, str> {
    if path.is_ascii() {
        if path.bytes().any(|b| b.is_ascii_uppercase()) {
            return path.to_ascii_lowercase().into();
        }
        return path.into();
    }
    let folded: String = caseless::default_case_fold_str(&path.nfc().collect::<String>());
    folded.nfc().collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_entry(path: &str, size: u64) -> FileEntry {
        FileEntry {
            path: path.parse().unwrap(),
            size,
            digest: Digest::hash_bytes(path.as_bytes()),
        }
    }

    fn error_code(files: Vec<FileEntry>) -> &'static str {
        Manifest::new(files).unwrap_err().code()
    }

    #[test]
    fn t3_names_that_fold_together_are_refused() {
        for pair in [
            ["SKILL.md", "Skill.md"],
            ["SKILL.md", "skill.MD"],
            ["é.md", "e\u{301}.md"],
            ["É.md", "e\u{301}.md"],
            ["straße.md", "STRASSE.md"],
            ["refs/A.md", "Refs/a.md"],
            ["refs", "Refs/a.md"],
            ["a", "a/b"],
        ] {
            let mut files: Vec<_> = pair.iter().map(|p| file_entry(p, 1)).collect();
            if pair[0] != "SKILL.md" {
                files.push(file_entry("SKILL.md", 1));
            }
            assert_eq!(error_code(files), "colliding_paths", "{pair:?}");
        }
        assert_eq!(
            error_code(vec![
                file_entry("SKILL.md", 1),
                file_entry("a", 1),
                file_entry("a", 1)
            ]),
            "duplicate_path"
        );
    }

    #[test]
    fn t7_limits_hold_exactly() {
        let many = |n: usize| {
            std::iter::once(file_entry("SKILL.md", 1))
                .chain((1..n).map(|i| file_entry(&format!("f{i}"), 1)))
                .collect::<Vec<_>>()
        };
        assert!(Manifest::new(many(MAX_FILES)).is_ok());
        assert_eq!(error_code(many(MAX_FILES + 1)), "too_many_files");
        assert!(Manifest::new([file_entry("SKILL.md", MAX_BYTES)]).is_ok());
        assert_eq!(
            error_code(vec![file_entry("SKILL.md", MAX_BYTES + 1)]),
            "too_large"
        );
        assert_eq!(
            error_code(vec![
                file_entry("SKILL.md", u64::MAX),
                file_entry("a", u64::MAX)
            ]),
            "too_large"
        );
    }

    #[test]
    fn a_manifest_needs_a_document_and_ignores_file_order() {
        assert_eq!(error_code(vec![file_entry("a", 1)]), "missing_document");
        let one = Manifest::new([file_entry("b", 1), file_entry("SKILL.md", 1)]).unwrap();
        let two = Manifest::new([file_entry("SKILL.md", 1), file_entry("b", 1)]).unwrap();
        assert_eq!(one, two);
        assert_eq!(one.digest(), two.digest());
        let three = Manifest::new([file_entry("SKILL.md", 1)]).unwrap();
        assert_ne!(one.digest(), three.digest());
    }
}
