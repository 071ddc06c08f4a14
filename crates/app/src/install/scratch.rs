//! What is there only while a process works: a folder for fetching, and the turn to change files.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::error::{Result, io_error_at};

/// The file that one change at a time holds.
const GUARD_FILE: &str = "install.guard";
/// The file that a living process holds in its folder.
const ALIVE_FILE: &str = "alive";

/// A folder of this process. Those of processes that were killed are deleted by the next one.
#[derive(Debug)]
pub(super) struct ScratchFolder {
    // Other processes delete a folder whose file is not locked.
    folder: TempDir,
    _alive: File,
}

impl ScratchFolder {
    pub(super) fn create(account: &Path) -> Result<Self> {
        let place = account.join("cache").join("fetch");
        let io = io_error_at(&place);
        fs::create_dir_all(&place).map_err(&io)?;
        delete_abandoned(&place);
        let folder = TempDir::new_in(&place).map_err(&io)?;
        let alive = File::create(folder.path().join(ALIVE_FILE)).map_err(&io)?;
        alive.lock().map_err(&io)?;
        Ok(Self {
            folder,
            _alive: alive,
        })
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }
}

/// Deletes the folders of processes that are no longer there.
fn delete_abandoned(place: &Path) {
    let Ok(entries) = place.read_dir() else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_alive = match File::open(path.join(ALIVE_FILE)) {
            Ok(file) => file.try_lock().is_err(),
            // It may be about to be created; a folder that stays like that is deleted later.
            Err(_) => entry
                .metadata()
                .and_then(|about| about.modified())
                .is_ok_and(|at| at.elapsed().is_ok_and(|age| age.as_secs() < 60)),
        };
        if !is_alive {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// The turn to change a scope and its files; dropping it lets others go on.
#[derive(Debug)]
pub(super) struct ChangeTurn(#[allow(dead_code, reason = "holds the lock")] File);

impl ChangeTurn {
    /// Waits for the turn. Nobody waits for the network while holding it.
    pub(super) fn take(account: &Path) -> Result<Self> {
        let path = account.join(GUARD_FILE);
        let io = io_error_at(&path);
        repertoire_registry::store::create_private_dir(account)?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(&io)?;
        file.lock().map_err(io)?;
        Ok(Self(file))
    }
}
