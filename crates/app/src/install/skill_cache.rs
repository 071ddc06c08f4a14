//! What was fetched, kept by its digest, so that the same need not be fetched again.
//!
//! A kept skill is one file: its list of files, then their bytes. Invariant: it is used only if the
//! digest of what it holds is the wanted one; a damaged file counts as missing. The cache has a bound:
//! the files that were used longest ago are deleted.

use std::{
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use bytes::Bytes;
use repertoire_core::{Digest, FileEntry, MAX_BYTES, Manifest, Signer};
use repertoire_registry::store::create_private_dir;
use serde::{Deserialize, Serialize};

use crate::SkillFiles;

/// The most bytes that are kept.
const MAX_CACHE_BYTES: u64 = 1024 * 1024 * 1024;
/// The most bytes of the list of files.
const MAX_HEAD_BYTES: u64 = 4 * 1024 * 1024;

/// A skill of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptSkill {
    /// Its files.
    pub files: SkillFiles,
    /// Who signed it, as it was verified when it was kept.
    pub signer: Option<Signer>,
}

/// What stands before the bytes of a kept skill.
#[derive(Serialize, Deserialize)]
struct KeptHead {
    files: Vec<(String, u64)>,
    signer: Option<Signer>,
}

/// The skills that were fetched earlier.
#[derive(Debug, Clone)]
pub struct SkillCache {
    folder: PathBuf,
}

impl SkillCache {
    /// Uses the cache in a folder, such as the one of the account.
    pub fn new(cache: &Path) -> Self {
        Self {
            folder: cache.join("skills"),
        }
    }

    fn file(&self, digest: &Digest) -> PathBuf {
        self.folder.join(digest.hex_digits())
    }

    /// Returns a kept skill.
    pub fn get(&self, digest: &Digest) -> Option<KeptSkill> {
        let path = self.file(digest);
        let kept = read_kept(&path)?;
        let files = &kept.files;
        let entries = files
            .iter()
            .map(|(path, bytes)| FileEntry::from_bytes(path.clone(), bytes));
        let manifest = Manifest::new(entries).ok()?;
        if manifest.digest() != *digest {
            // It would never be right again.
            let _ = std::fs::remove_file(&path);
            return None;
        }
        // What is used stays longest.
        if let Ok(file) = std::fs::File::options().append(true).open(&path) {
            let _ = file.set_modified(SystemTime::now());
        }
        Some(kept)
    }

    /// Keeps a skill with the signer that was verified. A failure is ignored, because it can be fetched again.
    pub fn put(&self, digest: &Digest, files: &SkillFiles, signer: Option<&Signer>) {
        let path = self.file(digest);
        let known = read_kept(&path).is_some_and(|kept| kept.signer.as_ref() == signer);
        if known {
            return;
        }
        if let Err(error) = self.write(&path, files, signer) {
            tracing::debug!(%error, "a fetched skill could not be kept");
        }
    }

    fn write(
        &self,
        path: &Path,
        files: &SkillFiles,
        signer: Option<&Signer>,
    ) -> std::io::Result<()> {
        create_private_dir(&self.folder).map_err(std::io::Error::other)?;
        let head = KeptHead {
            files: files
                .iter()
                .map(|(path, bytes)| (path.to_string(), bytes.len() as u64))
                .collect(),
            signer: signer.cloned(),
        };
        let head = serde_json::to_vec(&head)?;
        let mut new = tempfile::Builder::new()
            .prefix(".new-")
            .tempfile_in(&self.folder)?;
        new.write_all(&(head.len() as u64).to_le_bytes())?;
        new.write_all(&head)?;
        for bytes in files.values() {
            new.write_all(bytes)?;
        }
        new.persist(path).map_err(|error| error.error)?;
        Ok(())
    }

    /// Deletes the oldest files until the cache is within its bound; returns how many bytes.
    pub fn trim(&self) -> u64 {
        self.trim_to(MAX_CACHE_BYTES)
    }

    fn trim_to(&self, bound: u64) -> u64 {
        let Ok(entries) = self.folder.read_dir() else {
            return 0;
        };
        let mut kept: Vec<(SystemTime, u64, PathBuf)> = entries
            .flatten()
            .filter_map(|entry| {
                let about = entry.metadata().ok()?;
                Some((about.modified().ok()?, about.len(), entry.path()))
            })
            .collect();
        kept.sort();
        let mut size: u64 = kept.iter().map(|(_, size, _)| size).sum();
        let mut freed = 0;
        for (_, bytes, path) in kept {
            if size <= bound {
                break;
            }
            if std::fs::remove_file(path).is_ok() {
                size -= bytes;
                freed += bytes;
            }
        }
        freed
    }
}

fn read_kept(path: &Path) -> Option<KeptSkill> {
    let file = std::fs::File::open(path).ok()?;
    let mut input = file.take(MAX_HEAD_BYTES + MAX_BYTES + 8);
    let mut length = [0; 8];
    input.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEAD_BYTES {
        return None;
    }
    let mut head = Vec::new();
    input.by_ref().take(length).read_to_end(&mut head).ok()?;
    let head: KeptHead = repertoire_core::json::from_slice(&head).ok()?;
    let mut rest = Vec::new();
    input.read_to_end(&mut rest).ok()?;
    let mut rest = Bytes::from(rest);
    let mut files = SkillFiles::new();
    for (path, size) in head.files {
        let size = usize::try_from(size)
            .ok()
            .filter(|size| *size <= rest.len())?;
        files.insert(path.parse().ok()?, rest.split_to(size));
    }
    rest.is_empty().then_some(KeptSkill {
        files,
        signer: head.signer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skill(body: &str) -> (Digest, SkillFiles) {
        let files: SkillFiles = [("SKILL.md", body), ("a/b.txt", "more")]
            .into_iter()
            .map(|(path, text)| (path.parse().unwrap(), Bytes::from(text.to_owned())))
            .collect();
        let entries = files
            .iter()
            .map(|(path, bytes)| FileEntry::from_bytes(path.clone(), bytes));
        (Manifest::new(entries).unwrap().digest(), files)
    }

    #[test]
    fn kept_skills_come_back_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let cache = SkillCache::new(folder.path());
        let (digest, files) = skill("---\nname: a\n---\n");
        assert_eq!(cache.get(&digest), None);
        cache.put(&digest, &files, None);
        assert_eq!(cache.get(&digest).unwrap().files, files);
        // A flipped byte, a cut and foreign bytes count as missing.
        let path = cache.file(&digest);
        let whole = std::fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        for bad in [
            flipped,
            whole[..whole.len() - 1].to_vec(),
            b"else".to_vec(),
            vec![0xff; 64],
        ] {
            std::fs::write(&path, bad).unwrap();
            assert_eq!(cache.get(&digest), None);
        }
    }

    #[test]
    fn the_cache_keeps_within_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let cache = SkillCache::new(folder.path());
        let (first, files) = skill("---\nname: a\n---\n1");
        cache.put(&first, &files, None);
        let old = SystemTime::now() - std::time::Duration::from_secs(1000);
        let file = std::fs::File::options()
            .append(true)
            .open(cache.file(&first));
        file.unwrap().set_modified(old).unwrap();
        let (second, files) = skill("---\nname: a\n---\n2");
        cache.put(&second, &files, None);
        let bound = cache.file(&second).metadata().unwrap().len();
        assert!(cache.trim_to(bound) > 0);
        assert!(cache.get(&first).is_none() && cache.get(&second).is_some());
    }
}
