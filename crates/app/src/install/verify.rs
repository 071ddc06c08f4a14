//! Proves that what is installed is what was locked.
//!
//! Every byte is read and hashed again: the files that are served, and the files that were installed.
//! The copies in the folders of hosts are compared too.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use repertoire_core::{Digest, FileEntry, SkillId};
use repertoire_registry::store::{InstalledFrom, Store};
use serde::Serialize;

use super::installer::Installer;
use crate::error::Result;

/// What is the matter with an installed skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SkillState {
    /// It is what was locked.
    Intact,
    /// The user changed it after it was installed.
    Edited {
        /// The files that differ.
        files: Vec<String>,
    },
    /// Its stored bytes are not what the store says.
    Damaged {
        /// The files.
        files: Vec<String>,
    },
    /// It was installed from something else than what is locked.
    NotLocked {
        /// What differs.
        reason: String,
    },
    /// It is locked and not installed.
    Missing,
}

/// An installed skill and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifiedSkill {
    /// The skill.
    pub id: SkillId,
    /// Its state.
    #[serde(flatten)]
    pub state: SkillState,
}

/// What a verification found.
#[derive(Debug, Default, Serialize)]
pub struct VerifyReport {
    /// The skills, sorted by id.
    pub skills: Vec<VerifiedSkill>,
    /// How many files were read.
    pub files: usize,
    /// How many bytes were read.
    pub bytes: u64,
}

impl Installer {
    /// Reads and hashes every installed file again and compares it with the lock.
    pub fn verify(&self) -> Result<VerifyReport> {
        let store = self.store()?;
        let installed: BTreeMap<SkillId, InstalledFrom> =
            store.all_installed()?.into_iter().collect();
        let stored: BTreeMap<SkillId, Box<[FileEntry]>> = store
            .all_metadata()?
            .into_iter()
            .filter(|(id, _)| installed.contains_key(id))
            .map(|(id, metadata)| (id, metadata.files))
            .collect();
        let work: Vec<(&SkillId, &InstalledFrom)> = installed.iter().collect();
        let next = AtomicUsize::new(0);
        let check = || -> Result<(Vec<VerifiedSkill>, usize, u64)> {
            let (mut found, mut files, mut bytes) = (Vec::new(), 0, 0);
            while let Some((id, from)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                let current = stored.get(*id).map(|files| &files[..]).unwrap_or_default();
                let (state, count, size) = self.check_skill(&**store, id, from, current)?;
                files += count;
                bytes += size;
                found.push(VerifiedSkill {
                    id: (*id).clone(),
                    state,
                });
            }
            Ok((found, files, bytes))
        };
        let threads = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(8);
        let parts: Vec<Result<_>> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(check)).collect();
            let ended = running.into_iter().filter_map(|one| one.join().ok());
            ended.collect()
        });
        let mut report = VerifyReport::default();
        for part in parts {
            let (found, files, bytes) = part?;
            report.skills.extend(found);
            report.files += files;
            report.bytes += bytes;
        }
        for locked in self.lock.skills() {
            if !installed.contains_key(&locked.id) {
                report.skills.push(VerifiedSkill {
                    id: locked.id.clone(),
                    state: SkillState::Missing,
                });
            }
        }
        report.skills.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(report)
    }

    fn check_skill(
        &self,
        store: &dyn Store,
        id: &SkillId,
        from: &InstalledFrom,
        current: &[FileEntry],
    ) -> Result<(SkillState, usize, u64)> {
        let mut damaged = Vec::new();
        let (mut files, mut bytes) = (0, 0);
        let mut hash = |file: &FileEntry, damaged: &mut Vec<String>| -> Result<()> {
            // A store may notice the damage itself.
            let content = store.read_blob(&file.digest).ok().flatten();
            files += 1;
            let same = content.is_some_and(|content| {
                bytes += content.len() as u64;
                content.len() as u64 == file.size && Digest::hash_bytes(&content) == file.digest
            });
            if !same && !damaged.contains(&file.path.to_string()) {
                damaged.push(file.path.to_string());
            }
            Ok(())
        };
        for file in current {
            hash(file, &mut damaged)?;
        }
        // What was installed and is no longer served is needed for the next update.
        for file in from.files.iter().filter(|file| !current.contains(file)) {
            hash(file, &mut damaged)?;
        }
        let state = if damaged.is_empty() {
            self.compare(id, from, current)
        } else {
            SkillState::Damaged { files: damaged }
        };
        Ok((state, files, bytes))
    }

    fn compare(&self, id: &SkillId, from: &InstalledFrom, current: &[FileEntry]) -> SkillState {
        let not_locked = |reason: String| SkillState::NotLocked { reason };
        let Some(locked) = self.lock.get(id) else {
            return not_locked("repertoire.lock does not have it".to_owned());
        };
        if locked.digest != from.digest() {
            return not_locked(format!(
                "its digest is {}, and {} is locked",
                from.digest(),
                locked.digest
            ));
        }
        let differs = |file: &&FileEntry| !from.files.contains(file);
        let changed = current
            .iter()
            .filter(differs)
            .map(|file| file.path.to_string());
        let mut files: Vec<String> = changed.collect();
        let is_gone = |file: &&FileEntry| current.iter().all(|now| now.path != file.path);
        files.extend(
            from.files
                .iter()
                .filter(is_gone)
                .map(|file| file.path.to_string()),
        );
        if files.is_empty() {
            SkillState::Intact
        } else {
            SkillState::Edited { files }
        }
    }
}
