//! Cleanup of stores and caches, and what they take on the disk.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use repertoire_registry::{
    Registry, StoreScope, Trusted,
    store::{GarbageReport, RetentionPolicy, StoreUsage, WriteMode, is_leftover},
};
use serde::Serialize;

use crate::error::Result;

/// How much the cache of remote files holds; the files used longest ago go first.
const MAX_REMOTE_CACHE_BYTES: u64 = 256 * 1024 * 1024;
/// After how many days an unused file of another cache goes.
const CACHE_DAYS: u64 = 90;
/// After how many days a copy made by a restore, and a leftover of an interrupted one, go.
const RESTORE_COPY_DAYS: u64 = 30;
const LEFTOVER_DAYS: u64 = 1;
/// How often a server cleans up.
const CLEANUP_INTERVAL: Duration = Duration::from_hours(24);
/// How long after its start a server cleans up for the first time.
const FIRST_CLEANUP: Duration = Duration::from_mins(10);

/// What a cleanup deletes, or would delete.
#[derive(Debug, Default, Serialize)]
pub struct CleanupReport {
    /// Rows and files of each store, by scope.
    pub stores: Vec<(&'static str, GarbageReport)>,
    /// Files of caches.
    pub cache_files: u64,
    /// The bytes of those files.
    pub cache_bytes: u64,
}

impl CleanupReport {
    /// Whether there is nothing to delete.
    pub fn is_empty(&self) -> bool {
        self.cache_files == 0 && self.stores.iter().all(|(_, report)| report.is_empty())
    }
}

/// Deletes what is superseded or old from the stores that the user may change and from the caches of
/// the account, or only reports what that would be.
pub fn clean_up(
    registry: &Registry,
    account: &Path,
    retention: &RetentionPolicy,
    mode: WriteMode,
) -> Result<CleanupReport> {
    let mut report = CleanupReport::default();
    let mut folders = vec![account.to_owned()];
    for scope in [StoreScope::Workspace, StoreScope::Account] {
        let Ok(store) = registry.store(scope) else {
            continue;
        };
        if !store.is_writable() {
            continue;
        }
        if let (StoreScope::Workspace, Some((path, Trusted::Yes))) = (scope, registry.workspace()) {
            folders.push(path.join(repertoire_registry::trust::WORKSPACE_FOLDER));
        }
        let garbage = store.collect_garbage(retention, mode)?;
        report.stores.push((scope.as_str(), garbage));
    }
    // Without the account it is not known which files are approved.
    let mut expired = match registry.store(StoreScope::Account) {
        Ok(_) => expired_cache_files(account, &approved_digests(registry)),
        Err(_) => Vec::new(),
    };
    for folder in &folders {
        expired.extend(expired_restore_files(folder));
    }
    for file in expired {
        report.cache_files += 1;
        report.cache_bytes += file.bytes;
        if mode == WriteMode::Commit {
            let removed = if file.path.is_dir() {
                std::fs::remove_dir_all(&file.path)
            } else {
                std::fs::remove_file(&file.path)
            };
            if let Err(error) = removed {
                // Another process may have removed it; a file that stays is found next time.
                tracing::debug!(path = %file.path.display(), %error, "could not delete");
            }
        }
    }
    Ok(report)
}

/// Cleans up once a day while a server runs.
pub async fn clean_up_periodically(
    registry: Arc<Registry>,
    account: PathBuf,
    retention: RetentionPolicy,
) {
    let mut pause = FIRST_CLEANUP;
    loop {
        tokio::time::sleep(pause).await;
        pause = CLEANUP_INTERVAL;
        let (registry, account, retention) = (registry.clone(), account.clone(), retention.clone());
        let work = move || clean_up(&registry, &account, &retention, WriteMode::Commit);
        match tokio::task::spawn_blocking(work).await {
            Ok(Ok(report)) if !report.is_empty() => {
                let bytes = report.cache_bytes;
                tracing::info!(files = report.cache_files, bytes, "cleaned up");
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "could not clean up"),
            Err(error) => tracing::error!(%error, "cleaning up failed"),
        }
    }
}

/// The digests of the files of approved skills, which stay readable without their server.
fn approved_digests(registry: &Registry) -> HashSet<String> {
    let snapshot = registry.snapshot();
    let approved = snapshot
        .all_skills()
        .filter(|(entry, _)| entry.is_remote() && entry.trusted == Trusted::Yes);
    approved
        .flat_map(|(entry, _)| entry.complete_metadata().files.iter())
        .map(|file| file.digest.hex_digits())
        .collect()
}

#[derive(Debug)]
struct AgedFile {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
    is_file: bool,
}

/// Returns the regular files and folders directly in a folder.
fn aged_files(folder: &Path) -> Vec<AgedFile> {
    // A link leads to files that are not ours.
    if folder.symlink_metadata().is_ok_and(|m| m.is_symlink()) {
        return Vec::new();
    }
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let files = entries.flatten().filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        let modified = metadata.modified().ok()?;
        Some(AgedFile {
            bytes: metadata.len(),
            used: modified.max(metadata.accessed().unwrap_or(modified)),
            is_file: metadata.is_file(),
            path: entry.path(),
        })
    });
    files.collect()
}

fn is_older(file: &AgedFile, days: u64) -> bool {
    let age = SystemTime::now().duration_since(file.used);
    age.is_ok_and(|age| age > Duration::from_hours(days * 24))
}

fn expired_cache_files(account: &Path, approved: &HashSet<String>) -> Vec<AgedFile> {
    let cache = account.join("cache");
    let has_end = |file: &AgedFile, end: &str| file.path.extension().is_some_and(|e| e == end);
    let mut expired: Vec<AgedFile> = aged_files(&cache)
        .into_iter()
        .filter(|file| has_end(file, "bin"))
        .chain(aged_files(&cache.join("instructions")))
        .filter(|file| file.is_file && is_older(file, CACHE_DAYS))
        .collect();
    let name = |file: &AgedFile| {
        file.path
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
    };
    let mut remote = aged_files(&cache.join("remote"));
    remote.retain(|file| name(file).is_none_or(|name| !approved.contains(&name)));
    remote.sort_by_key(|file| std::cmp::Reverse(file.used));
    let mut kept = 0u64;
    for file in remote {
        let part = file.path.extension().is_some_and(|end| end == "part");
        if part {
            // The rest of a write that was interrupted.
            if is_older(&file, LEFTOVER_DAYS) {
                expired.push(file);
            }
            continue;
        }
        kept = kept.saturating_add(file.bytes);
        if kept > MAX_REMOTE_CACHE_BYTES || is_older(&file, CACHE_DAYS) {
            expired.push(file);
        }
    }
    expired
}

fn expired_restore_files(folder: &Path) -> Vec<AgedFile> {
    let mut files = aged_files(folder);
    files.retain(|file| {
        let name = file.path.file_name().map(|n| n.to_string_lossy());
        let Some(name) = name else { return false };
        let is_copy = file.is_file && name.starts_with("agents.db.before-restore-");
        (is_copy && is_older(file, RESTORE_COPY_DAYS)) || is_leftover(&name)
    });
    files
}

/// What the account and the workspace take on the disk.
#[derive(Debug, Serialize)]
pub struct DiskUsage {
    /// What each store holds, by scope.
    pub stores: Vec<(&'static str, StoreUsage)>,
    /// The bytes below each part of the account's folder, largest first.
    pub folders: Vec<(String, u64)>,
}

/// Measures what the account and the workspace take on the disk.
pub fn disk_usage(registry: &Registry, account: &Path) -> Result<DiskUsage> {
    let mut stores = Vec::new();
    for scope in [StoreScope::Workspace, StoreScope::Account] {
        if let Ok(store) = registry.store(scope) {
            stores.push((scope.as_str(), store.usage()?));
        }
    }
    let mut folders: Vec<(String, u64)> = aged_files(account)
        .into_iter()
        .filter(|file| file.path.is_dir())
        .map(|file| {
            let name = file.path.file_name().unwrap_or_default();
            (
                name.to_string_lossy().into_owned(),
                folder_bytes(&file.path),
            )
        })
        .collect();
    let copies = aged_files(account).into_iter().filter(|file| {
        let name = file.path.file_name().unwrap_or_default();
        name.to_string_lossy().contains(".before-restore-")
    });
    folders.push((
        "copies made by restores".to_owned(),
        copies.map(|file| file.bytes).sum(),
    ));
    folders.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    Ok(DiskUsage { stores, folders })
}

fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => folder_bytes(&entry.path()),
        Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |m| m.len()),
        _ => 0,
    });
    sizes.sum()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    fn write_aged(path: &Path, bytes: usize, days: u64) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, vec![b'x'; bytes]).unwrap();
        let past = SystemTime::now() - Duration::from_hours(days * 24);
        let times = std::fs::FileTimes::new()
            .set_modified(past)
            .set_accessed(past);
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_times(times).unwrap();
    }

    #[test]
    fn t47_caches_are_cleaned_by_age_and_approved_files_stay() {
        let account = tempfile::tempdir().unwrap();
        let cache = account.path().join("cache");
        write_aged(&cache.join("index-old.bin"), 10, 100);
        write_aged(&cache.join("index-new.bin"), 10, 1);
        write_aged(&cache.join("instructions/old"), 10, 100);
        write_aged(&cache.join("remote/approved"), 10, 400);
        write_aged(&cache.join("remote/old"), 10, 100);
        write_aged(&cache.join("remote/new"), 10, 2);
        write_aged(&cache.join("remote/x.part"), 10, 2);
        let approved = HashSet::from(["approved".to_owned()]);
        let mut names: Vec<String> = expired_cache_files(account.path(), &approved)
            .iter()
            .map(|file| {
                file.path
                    .strip_prefix(&cache)
                    .unwrap()
                    .display()
                    .to_string()
            })
            .collect();
        names.sort();
        let expected = [
            "index-old.bin",
            "instructions/old",
            "remote/old",
            "remote/x.part",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn t47_copies_of_restores_go_after_a_month() {
        let account = tempfile::tempdir().unwrap();
        write_aged(&account.path().join("agents.db"), 10, 400);
        write_aged(
            &account.path().join("agents.db.before-restore-2026-01-01-1"),
            10,
            40,
        );
        write_aged(
            &account.path().join("agents.db.before-restore-2026-11-01-1"),
            10,
            4,
        );
        let expired = expired_restore_files(account.path());
        assert_eq!(expired.len(), 1, "{expired:?}");
    }
}
