//! A folder that one process has to itself.

use std::{fs::File, path::Path};

use tempfile::TempDir;

/// A folder for one process. Whoever made it holds a lock on a file in it, so that what is left
/// behind can be told from what is in use.
pub(super) struct Own {
    // Let go before the folder goes.
    _lock: File,
    pub(super) folder: TempDir,
}

impl Own {
    /// A new one within a folder; what processes that are gone left there is tidied up.
    pub(super) fn within(folder: &Path) -> std::io::Result<Self> {
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
        // It is locked before others see it.
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
