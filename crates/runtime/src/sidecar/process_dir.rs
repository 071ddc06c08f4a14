//! A temporary folder for one sidecar process.

use std::{fs::File, path::Path};

use tempfile::TempDir;

/// A folder for one process. Its owner holds a lock on a file in it, so that stale folders can be
/// distinguished from those in use.
pub(super) struct ProcessDir {
    // Dropped first: the lock is released before the folder is removed.
    _lock: File,
    pub(super) folder: TempDir,
}

impl ProcessDir {
    /// Creates a folder below `folder`, and removes the folders of ended processes.
    pub(super) fn create_in(folder: &Path) -> std::io::Result<Self> {
        const BEGINS: &str = "process-";
        const LOCK: &str = "lock";
        for entry in std::fs::read_dir(folder)?.flatten() {
            let left = entry.path();
            let locked = || File::open(left.join(LOCK)).map(|lock| lock.try_lock().is_err());
            if entry.file_name().to_string_lossy().starts_with(BEGINS)
                && locked().is_ok_and(|locked| !locked)
            {
                let _ = std::fs::remove_dir_all(left);
            }
        }
        let folder = tempfile::Builder::new().prefix(BEGINS).tempdir_in(folder)?;
        // Lock the file before it becomes visible under its final name.
        let hidden = folder.path().join("new-lock");
        let lock = File::create(&hidden)?;
        lock.lock()?;
        std::fs::rename(hidden, folder.path().join(LOCK))?;
        Ok(Self {
            _lock: lock,
            folder,
        })
    }
}
