//! Plans and applies a change of a host's settings.

use std::{
    collections::BTreeSet,
    io::Write as _,
    path::{Path, PathBuf},
};

use repertoire_registry::{folder::sync_folder, store::create_private_dir};

use super::{Host, HostScope};
use crate::error::{Error, Result, io_error_at};

/// Larger settings are not edited.
const MAX_CONFIG_BYTES: u64 = 32 * 1024 * 1024;

/// The addresses that this account connected, in its folder.
const ADDRESSES_FILE: &str = "connected-addresses.json";
/// How many backups of one file are kept beside it.
const MAX_BACKUPS: usize = 99;

/// The addresses of servers that this account wrote into settings of hosts. Those of others look
/// alike, so an entry is changed or removed only if its address is one of these.
#[derive(Debug, Clone, Default)]
pub struct KnownAddresses(BTreeSet<String>);

impl KnownAddresses {
    /// Reads the addresses of an account; none if there are none yet.
    pub fn read(account: &Path) -> Self {
        let text = std::fs::read(account.join(ADDRESSES_FILE)).unwrap_or_default();
        Self(repertoire_core::json::from_slice(&text).unwrap_or_default())
    }

    pub(super) fn contains(&self, url: &str) -> bool {
        self.0.contains(url)
    }

    /// Adds an address, durably, before it is written into settings.
    pub fn insert(&mut self, account: &Path, url: &str) -> Result<()> {
        if !self.0.insert(url.to_owned()) {
            return Ok(());
        }
        let file = account.join(ADDRESSES_FILE);
        let io = io_error_at(&file);
        create_private_dir(account)?;
        let text = serde_json::to_vec_pretty(&self.0).unwrap_or_default();
        let mut new = tempfile::NamedTempFile::new_in(account).map_err(&io)?;
        new.write_all(&text).map_err(&io)?;
        new.as_file().sync_all().map_err(&io)?;
        new.persist(&file).map_err(|error| io(error.error))?;
        sync_folder(account).map_err(&io)
    }
}

impl<T: Into<String>> FromIterator<T> for KnownAddresses {
    fn from_iter<I: IntoIterator<Item = T>>(addresses: I) -> Self {
        Self(addresses.into_iter().map(Into::into).collect())
    }
}

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
    /// The mode of a new file.
    scope: HostScope,
    /// Whether the user's text changes: not, if the change takes back what this program added.
    needs_backup: bool,
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
        known: &KnownAddresses,
    ) -> Result<ConfigPlan> {
        let add = |text: &str| self.form.add_server(text, name, entry, known);
        self.plan(scope, base, add)
    }

    /// Plans to remove the server from the host's settings.
    pub fn plan_disconnect(
        &self,
        scope: HostScope,
        base: &Path,
        name: &str,
        known: &KnownAddresses,
    ) -> Result<ConfigPlan> {
        self.plan(scope, base, |text| match text {
            "" => Ok(None),
            text => self.form.remove_server(text, name, known),
        })
    }

    fn plan(
        &self,
        scope: HostScope,
        base: &Path,
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
        if file.is_symlink() && !file.exists() {
            let target = std::fs::read_link(&file).unwrap_or_default();
            let reason = format!(
                "is a link to {}, which does not exist: create that file, or remove the link",
                target.display()
            );
            return Err(refuse(&file, reason));
        }
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
        let new = edit(&text).map_err(|reason| refuse(&file, reason))?;
        Ok(ConfigPlan {
            file,
            text: new,
            scope,
            needs_backup: exists && !text.trim().is_empty(),
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
        if self.needs_backup {
            backup = self.write_backup(folder, text)?;
        }
        if let Ok(metadata) = self.file.metadata() {
            let permissions = metadata.permissions();
            new.as_file().set_permissions(permissions).map_err(&io)?;
        } else if self.scope == HostScope::Project {
            set_shared_mode(new.as_file()).map_err(&io)?;
        }
        new.as_file().sync_all().map_err(&io)?;
        new.persist(&self.file).map_err(|error| io(error.error))?;
        sync_folder(folder).map_err(&io)?;
        Ok(ConfigChange::Written { backup })
    }

    /// Copies the file as it is beside it; returns the copy. Earlier backups stay, and one that is the
    /// same serves again. What brings back an earlier backup loses nothing, so it needs none.
    fn write_backup(&self, folder: &Path, new: &str) -> Result<Option<PathBuf>> {
        let io = io_error_at(&self.file);
        let name = self.file.file_name().unwrap_or_default().to_string_lossy();
        let before = std::fs::read(&self.file).map_err(&io)?;
        let mut old = tempfile::NamedTempFile::new_in(folder).map_err(&io)?;
        old.write_all(&before).map_err(&io)?;
        for number in 1..=MAX_BACKUPS {
            let ending = match number {
                1 => String::new(),
                number => format!("-{number}"),
            };
            let copy = self
                .file
                .with_file_name(format!("{name}.repertoire-backup{ending}"));
            // A link at that name is never followed.
            let is_file = copy.symlink_metadata().is_ok_and(|file| file.is_file());
            let kept = is_file.then(|| std::fs::read(&copy).ok()).flatten();
            if kept.as_deref() == Some(new.as_bytes()) {
                return Ok(None);
            }
            if kept.as_ref() == Some(&before) {
                return Ok(Some(copy));
            }
            old = match old.persist_noclobber(&copy) {
                Ok(_) => return Ok(Some(copy)),
                Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => error.file,
                Err(error) => return Err(io_error_at(&copy)(error.error)),
            };
        }
        let reason = format!("has {MAX_BACKUPS} backups: remove some of them");
        Err(refuse(&self.file, reason))
    }
}

/// Lets others read a new file of a project, as version control writes it.
fn set_shared_mode(file: &std::fs::File) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
    }
    #[cfg(not(unix))]
    let _ = file;
    Ok(())
}
