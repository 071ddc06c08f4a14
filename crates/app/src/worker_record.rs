//! Where the worker that serves on a bus leaves the identity of its connection.
//!
//! A bus keeps the functions of a worker as long as its connection is open, also if the process was
//! stopped. With the identity another worker of the same user asks the bus to drop that connection. It
//! is a secret, so it is in the account's folder and readable by this user only.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use repertoire_core::Digest;
use repertoire_registry::store::create_private_dir;
use serde::{Deserialize, Serialize};

use crate::error::{Result, io_error_at};

/// The folder of the records, in the account's folder.
const FOLDER: &str = "workers";

/// The identity of a connection to a bus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredWorker {
    /// The id that the bus gave the connection.
    pub worker_id: String,
    /// The secret by which another connection replaces it.
    pub reattach_token: Option<String>,
}

/// The record of the worker that serves on one bus, in one namespace.
#[derive(Debug)]
pub struct WorkerRecord {
    file: PathBuf,
}

impl WorkerRecord {
    /// Names the record of a bus and a namespace.
    pub fn new(account: &Path, url: &str, namespace: Option<&str>) -> Self {
        let place = format!("{url}\n{}", namespace.unwrap_or_default());
        let name = Digest::hash_bytes(place.as_bytes()).hex_digits();
        Self {
            file: account.join(FOLDER).join(format!("{}.json", &name[..32])),
        }
    }

    /// Writes the identity.
    pub fn write(&self, worker: &StoredWorker) -> Result<()> {
        let folder = self.file.parent().unwrap_or(Path::new("."));
        create_private_dir(folder)?;
        let io = io_error_at(&self.file);
        // Temporary files are readable by their owner only.
        let mut new = tempfile::NamedTempFile::new_in(folder).map_err(&io)?;
        let text = serde_json::to_vec(worker).unwrap_or_default();
        new.write_all(&text).map_err(&io)?;
        new.persist(&self.file).map_err(|error| io(error.error))?;
        Ok(())
    }

    /// Removes the record, if it is that of this worker.
    pub fn remove_of(&self, worker: &StoredWorker) {
        if self.read().as_ref() == Some(worker) {
            // What stays behind names a connection that is gone.
            let _ = std::fs::remove_file(&self.file);
        }
    }

    /// Reads the identity, if there is one.
    pub fn read(&self) -> Option<StoredWorker> {
        let text = std::fs::read(&self.file).ok()?;
        repertoire_core::json::from_slice(&text).ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_found_by_its_bus_and_namespace() {
        let account = tempfile::tempdir().unwrap();
        let record = |namespace| WorkerRecord::new(account.path(), "ws://a", namespace);
        let worker = StoredWorker {
            worker_id: "w".to_owned(),
            reattach_token: Some("t".to_owned()),
        };
        record(None).write(&worker).unwrap();
        assert_eq!(record(None).read(), Some(worker.clone()));
        assert_eq!(record(Some("team")).read(), None);
        record(None).remove_of(&StoredWorker {
            worker_id: "another".to_owned(),
            reattach_token: None,
        });
        assert_eq!(record(None).read(), Some(worker.clone()));
        record(None).remove_of(&worker);
        assert_eq!(record(None).read(), None);
    }
}
