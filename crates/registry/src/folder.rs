//! Reading and writing of whole skill folders, for adding, packing and unpacking.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use repertoire_core::{DOCUMENT, MAX_BYTES, ManifestBuilder, RelPath, path::is_ignored};

use crate::{
    error::{Error, Result},
    source::{EntryKind, LinkPolicy, RootDir, join_path},
};

/// Reads every file of a folder, within the limits of a skill and never outside of the folder.
pub fn read_folder(folder: &Path) -> Result<BTreeMap<RelPath, Bytes>> {
    let root = RootDir::open(folder)?;
    let mut limits = ManifestBuilder::default();
    let mut files = BTreeMap::new();
    let mut open = vec![String::new()];
    let at = |path: &str, error| Error::InvalidAt {
        path: root.full_path(path),
        error,
    };
    while let Some(here) = open.pop() {
        if here.matches('/').count() > 32 {
            return Err(at(
                &here,
                repertoire_core::Error::Path {
                    path: here.clone(),
                    rule: "too deep: a skill has at most 32 levels of folders",
                },
            ));
        }
        for (name, kind) in root.list_folder(&here)? {
            if is_ignored(&name) {
                continue;
            }
            let relative = join_path(&here, &name);
            match kind? {
                EntryKind::Folder => open.push(relative),
                EntryKind::Other => return Err(Error::NotRegular(root.full_path(&relative))),
                EntryKind::File => {
                    let path: RelPath = relative.parse().map_err(|e| at(&relative, e))?;
                    let size = root.file_stamp(&relative).map_or(0, |stamp| stamp.size);
                    limits
                        .reserve_file(&path, size)
                        .map_err(|e| at(&relative, e))?;
                    files.insert(path, root.read_file(&relative, MAX_BYTES)?.0);
                }
            }
        }
    }
    Ok(files)
}

/// Reads a single document with the same checks as a whole folder.
///
/// Returns its file name as well: `SKILL.md`, or `skill.md` if only that exists.
pub fn read_document(folder: &Path) -> Result<Option<(&'static str, Bytes)>> {
    let root = RootDir::open(folder)?;
    let names = root.list_folder("")?;
    for wanted in [DOCUMENT, "skill.md"] {
        if names.iter().any(|(name, _)| name == wanted) {
            return Ok(Some((wanted, root.read_file(wanted, MAX_BYTES)?.0)));
        }
    }
    Ok(None)
}

/// Reads a small file of a folder, `None` if it is missing. It must be regular and in the folder.
pub fn read_small_file(folder: &Path, name: &str, max: u64) -> Result<Option<Bytes>> {
    if folder.join(name).symlink_metadata().is_err() {
        return Ok(None);
    }
    Ok(Some(RootDir::open(folder)?.read_file(name, max)?.0))
}

/// Finds every folder with a document at or beneath a folder, sorted, and the entries that were
/// skipped. Only the folder itself must be readable.
pub fn find_skills(folder: &Path) -> Result<(Vec<PathBuf>, Vec<Error>)> {
    let root = RootDir::open(folder)?;
    let (mut found, mut passed) = (Vec::new(), Vec::new());
    let links = LinkPolicy::new(folder, None, None);
    let mut open = vec![String::new()];
    while let Some(here) = open.pop() {
        let mut is_skill = false;
        let names = match root.list_folder(&here) {
            Err(error) if !here.is_empty() => {
                passed.push(error);
                continue;
            }
            names => names?,
        };
        for (name, kind) in names {
            match kind {
                Ok(EntryKind::Folder) if !is_ignored(&name) && here.matches('/').count() < 32 => {
                    open.push(join_path(&here, &name));
                }
                _ if name == DOCUMENT || name == "skill.md" => is_skill = true,
                Ok(EntryKind::Other) | Err(_)
                    if here.is_empty()
                        && matches!(links.open_target(&root, &name), Some(Ok(_))) =>
                {
                    found.push(folder.join(&name));
                }
                Ok(EntryKind::Other) => {
                    passed.push(Error::NotRegular(root.full_path(&join_path(&here, &name))));
                }
                Err(error) => passed.push(error),
                Ok(EntryKind::File | EntryKind::Folder) => {}
            }
        }
        if is_skill {
            found.push(if here.is_empty() {
                folder.to_owned()
            } else {
                folder.join(&here)
            });
        }
    }
    found.sort();
    Ok((found, passed))
}

/// Writes a folder atomically: it appears complete or not at all. Refuses an existing target. Files
/// that begin with `#!` are executable.
pub fn write_folder(
    target: &Path,
    files: &BTreeMap<RelPath, Bytes>,
    stopped: &dyn Fn() -> bool,
) -> Result<()> {
    let io = |error| Error::from_io(target, error);
    if target.symlink_metadata().is_ok() {
        return Err(Error::AlreadyExists {
            what: "folder",
            name: target.to_string_lossy().into_owned(),
        });
    }
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    std::fs::create_dir_all(&parent).map_err(io)?;
    let partial = PartialFolder(parent.join(format!(".repertoire-{}.tmp", uuid::Uuid::new_v4())));
    std::fs::create_dir(&partial.0).map_err(io)?;
    for (path, bytes) in files {
        if stopped() {
            return Err(Error::Interrupted);
        }
        let file = partial.0.join(path.as_str());
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder).map_err(io)?;
        }
        write_synced(&file, bytes).map_err(|e| Error::from_io(&file, e))?;
    }
    // The entries of a folder are durable only once the folder is, too.
    let folders: BTreeSet<&str> = files
        .keys()
        .flat_map(|path| {
            path.as_str()
                .rmatch_indices('/')
                .map(|(at, _)| &path.as_str()[..at])
        })
        .chain([""])
        .collect();
    for folder in folders.into_iter().rev() {
        sync_folder(&partial.0.join(folder)).map_err(io)?;
    }
    std::fs::rename(&partial.0, target).map_err(io)?;
    sync_folder(&parent).map_err(io)
}

fn write_synced(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = std::fs::File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if bytes.starts_with(b"#!") {
        // Stores and packages keep no modes; a skill that says `run scripts/x.sh` needs it.
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o777);
    }
    let mut file = options.open(file)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Waits until the entries of a folder are on the disk.
pub fn sync_folder(folder: &Path) -> std::io::Result<()> {
    // Other systems cannot open folders as files.
    if cfg!(unix) {
        std::fs::File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// A folder that is being written; it is deleted unless it was renamed to its target.
struct PartialFolder(PathBuf);

impl Drop for PartialFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
