//! Plans and applies a change of a host's settings.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use super::{Host, HostScope};
use crate::error::{Error, Result, io_error_at};

/// Larger settings are not edited.
const MAX_CONFIG_BYTES: u64 = 32 * 1024 * 1024;

/// How a host reaches the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerEntry {
    /// The host starts a program.
    Program {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
    },
    /// The host connects to an address.
    Address(String),
}

/// A planned change of one file.
#[derive(Debug)]
pub struct ConfigPlan {
    /// The file.
    pub file: PathBuf,
    /// The new text; none if the file is as wanted.
    pub text: Option<String>,
    /// Whether the file was there, without the server.
    is_original: bool,
}

/// What became of a plan.
#[derive(Debug, PartialEq, Eq)]
pub enum ConfigChange {
    /// The file was as wanted.
    Unchanged,
    /// The file was written; what was there before is in the backup.
    Written {
        /// A copy of the file as it was.
        backup: Option<PathBuf>,
    },
}

impl Host {
    /// Returns the settings of a new file with this server only, to show to the user.
    pub fn config_snippet(&self, name: &str, entry: &ServerEntry) -> Result<String> {
        self.form
            .snippet(name, entry)
            .map_err(|reason| refuse(Path::new(self.id), reason))
    }

    /// Plans to add the server to the host's settings.
    pub fn plan_connect(
        &self,
        scope: HostScope,
        base: &Path,
        name: &str,
        entry: &ServerEntry,
    ) -> Result<ConfigPlan> {
        let add = |text: &str| self.form.add_server(text, name, entry);
        self.plan(scope, base, name, add)
    }

    /// Plans to remove the server from the host's settings.
    pub fn plan_disconnect(&self, scope: HostScope, base: &Path, name: &str) -> Result<ConfigPlan> {
        self.plan(scope, base, name, |text| match text {
            "" => Ok(None),
            text => self.form.remove_server(text, name),
        })
    }

    fn plan(
        &self,
        scope: HostScope,
        base: &Path,
        name: &str,
        edit: impl Fn(&str) -> Result<Option<String>, String>,
    ) -> Result<ConfigPlan> {
        let file = self.config_file(scope, base);
        let file = file.ok_or(Error::NoHostConfig {
            host: self.id,
            scope: scope.as_str(),
        })?;
        // The user's settings are often links into a folder under version control; those of a project
        // came with it, and must not lead out of it.
        let real = real_path(&file);
        if scope == HostScope::Project && !real.starts_with(real_path(base)) {
            return Err(refuse(&file, "leads out of the project".to_owned()));
        }
        let file = real;
        let (text, exists) = match file.metadata() {
            Ok(metadata) if metadata.len() > MAX_CONFIG_BYTES => {
                return Err(refuse(&file, "is too large".to_owned()));
            }
            Ok(_) => {
                let text = std::fs::read_to_string(&file).map_err(io_error_at(&file))?;
                (text, true)
            }
            Err(_) => (String::new(), false),
        };
        let is_original = exists && self.form.remove_server(&text, name) == Ok(None);
        let text = edit(&text).map_err(|reason| refuse(&file, reason))?;
        Ok(ConfigPlan {
            file,
            text,
            is_original,
        })
    }
}

/// Returns the real path of a file that may not exist yet.
pub(super) fn real_path(file: &Path) -> PathBuf {
    if let Ok(real) = file.canonicalize() {
        return real;
    }
    match (file.parent(), file.file_name()) {
        (Some(parent), Some(name)) if !parent.as_os_str().is_empty() => {
            real_path(parent).join(name)
        }
        _ => std::env::current_dir().unwrap_or_default().join(file),
    }
}

fn refuse(file: &Path, reason: String) -> Error {
    Error::HostConfig {
        path: file.to_owned(),
        reason,
    }
}

impl ConfigPlan {
    /// Writes the new text and keeps a backup of the old one.
    pub fn apply(&self) -> Result<ConfigChange> {
        let Some(text) = &self.text else {
            return Ok(ConfigChange::Unchanged);
        };
        let io = io_error_at(&self.file);
        let folder = self.file.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(&io)?;
        let mut backup = None;
        let mut new = tempfile::NamedTempFile::new_in(folder).map_err(&io)?;
        new.write_all(text.as_bytes()).map_err(&io)?;
        if self.is_original {
            let name = self.file.file_name().unwrap_or_default().to_string_lossy();
            let copy = self
                .file
                .with_file_name(format!("{name}.repertoire-backup"));
            // A link at that name is replaced, never followed.
            let before = std::fs::read(&self.file).map_err(&io)?;
            let mut old = tempfile::NamedTempFile::new_in(folder).map_err(&io)?;
            old.write_all(&before).map_err(&io)?;
            old.persist(&copy)
                .map_err(|error| io_error_at(&copy)(error.error))?;
            backup = Some(copy);
        }
        if let Ok(metadata) = self.file.metadata() {
            let permissions = metadata.permissions();
            new.as_file().set_permissions(permissions).map_err(&io)?;
        }
        new.as_file().sync_all().map_err(&io)?;
        new.persist(&self.file).map_err(|error| io(error.error))?;
        Ok(ConfigChange::Written { backup })
    }
}
