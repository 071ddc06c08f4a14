//! Index records of one folder and of one file, and how they are read from disk.
//!
//! A record is current as long as the stamps on disk equal the stamps in the record.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use repertoire_core::{DOCUMENT, Digest, MAX_BYTES, package::PACKAGE_FILE, path::is_ignored};
use serde::{Deserialize, Serialize};

use super::root::{DirEntryKind, FileStamp, RootDir, join_path, now_nanos};
use crate::{
    error::{Error, Result},
    skill_metadata::{DocumentMetadata, PackageMetadata},
    trust::WORKSPACE_FOLDER,
};

/// A hash map with a random seed, because its keys are paths from untrusted sources.
pub(crate) type SeededMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// The index record of a file in a skill.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub(crate) name: Box<str>,
    pub(crate) stamp: Option<FileStamp>,
    pub(crate) digest: Option<Digest>,
    pub(crate) note: Option<FileNote>,
}

/// Metadata parsed from a document or a package file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum FileNote {
    Document(Box<DocumentMetadata>),
    Package(Arc<PackageMetadata>),
}

/// The index record of a folder.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct FolderRecord {
    pub(super) stamp: Option<FileStamp>,
    pub(crate) files: Vec<FileRecord>,
    pub(crate) folders: Vec<Box<str>>,
    /// Names that cannot be part of a skill; listed again at every scan.
    #[serde(skip)]
    pub(crate) refused: Vec<(Box<str>, RefusalReason)>,
    /// Whether the files were scanned, because the folder is in a skill.
    pub(super) in_skill: bool,
}

/// The name in the refused list that stands for a folder that cannot be listed.
pub(crate) const UNREADABLE_NAME: &str = "";

/// Why a file or folder cannot be part of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusalReason {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl From<&Error> for RefusalReason {
    fn from(error: &Error) -> Self {
        Self {
            code: error.code(),
            message: error.to_string(),
        }
    }
}

impl FolderRecord {
    /// Whether the folder itself is unchanged according to its stamps.
    pub(super) fn is_current(&self, root: &RootDir, folder: &str) -> bool {
        let same = |file: &FileRecord| {
            file.digest.is_some() && file.stamp == root.file_stamp(&join_path(folder, &file.name))
        };
        self.refused.is_empty()
            && self.stamp.is_some()
            && self.stamp == root.file_stamp(folder)
            && (!self.in_skill || self.files.iter().all(same))
    }

    pub(crate) fn has_document(&self) -> bool {
        self.find_file(DOCUMENT).is_some()
    }

    /// Whether the folder has a document under a name that hosts do not recognise.
    pub(crate) fn has_misnamed_document(&self) -> bool {
        !self.has_document() && self.find_file("skill.md").is_some()
    }

    pub(crate) fn find_file(&self, name: &str) -> Option<&FileRecord> {
        let at = self.files.binary_search_by(|f| (*f.name).cmp(name)).ok()?;
        self.files.get(at)
    }
}

/// Scans one folder: its names, and in a skill the stamps of its files.
pub(super) fn scan_folder(
    root: &RootDir,
    folder: &str,
    in_skill: bool,
    old: Option<FolderRecord>,
) -> Option<FolderRecord> {
    let stamp = root.file_stamp(folder)?;
    let mut record = match old {
        Some(old) if old.stamp == Some(stamp) && old.refused.is_empty() => old,
        old => list_folder(root, folder, stamp, old.as_ref())?,
    };
    record.in_skill = in_skill || record.has_document();
    if record.in_skill {
        for file in &mut record.files {
            let now = root.file_stamp(&join_path(folder, &file.name));
            if now.is_none() || now != file.stamp {
                file.stamp = now;
                file.digest = None;
                file.note = None;
            }
        }
    }
    Some(record)
}

fn list_folder(
    root: &RootDir,
    folder: &str,
    stamp: FileStamp,
    old: Option<&FolderRecord>,
) -> Option<FolderRecord> {
    let mut record = FolderRecord {
        // A file could still be added within the same clock tick.
        stamp: (!stamp.is_fresh(now_nanos())).then_some(stamp),
        ..FolderRecord::default()
    };
    let names = match root.list_folder(folder) {
        Ok(names) => names,
        // A folder removed during the scan is no error; an existing unreadable one is.
        Err(error) => {
            let is_gone = matches!(&error, Error::Io { error, .. }
                if error.kind() == std::io::ErrorKind::NotFound);
            if is_gone {
                return None;
            }
            root.file_stamp(folder)?;
            record.stamp = None;
            record
                .refused
                .push((UNREADABLE_NAME.into(), RefusalReason::from(&error)));
            return Some(record);
        }
    };
    let is_workspace = |(name, kind): &(String, Result<DirEntryKind>)| {
        name == WORKSPACE_FOLDER && matches!(kind, Ok(DirEntryKind::Folder))
    };
    if !folder.is_empty() && names.iter().any(is_workspace) {
        // A clone within a folder of skills: its trust is asked for where it is named itself.
        let error = Error::NestedWorkspace(root.full_path(folder));
        record
            .refused
            .push((UNREADABLE_NAME.into(), RefusalReason::from(&error)));
        record.stamp = None;
        return Some(record);
    }
    // Copies of skills of the registry are not read back, wherever they are.
    let has_copies = !folder.is_empty() && names.iter().any(|(name, _)| name == super::COPIES_FILE);
    let copies = if has_copies {
        super::read_copy_names(root, folder)
    } else {
        BTreeSet::new()
    };
    for (name, kind) in names {
        if is_ignored(&name) || copies.contains(&name) {
            continue;
        }
        let name = name.into_boxed_str();
        match kind {
            Ok(DirEntryKind::Folder) => record.folders.push(name),
            Ok(DirEntryKind::File) => {
                let known = old.and_then(|old| old.find_file(&name)).cloned();
                record.files.push(known.unwrap_or(FileRecord {
                    name,
                    stamp: None,
                    digest: None,
                    note: None,
                }));
            }
            Ok(DirEntryKind::Other) => {
                let path = root.full_path(&join_path(folder, &name));
                let error = if path.is_symlink() && !folder.is_empty() {
                    Error::NestedLink(path)
                } else {
                    Error::NotRegular(path)
                };
                record.refused.push((name, RefusalReason::from(&error)));
            }
            Err(error) => record.refused.push((name, RefusalReason::from(&error))),
        }
    }
    if !record.refused.is_empty() {
        // Refusals are not cached between runs, so the folder must be listed again.
        record.stamp = None;
    }
    Some(record)
}

pub(super) fn read_file(root: &RootDir, folder: &str, name: &str, now: i64) -> Result<FileRecord> {
    let relative = join_path(folder, name);
    let (bytes, stamp) = root.read_file(&relative, MAX_BYTES)?;
    let note = match name {
        DOCUMENT => {
            let head = DocumentMetadata::from_bytes(&bytes).map_err(|error| Error::InvalidAt {
                path: root.full_path(&relative),
                error,
            })?;
            Some(FileNote::Document(Box::new(head)))
        }
        PACKAGE_FILE => {
            PackageMetadata::from_json(&bytes).map(|head| FileNote::Package(Arc::new(head)))
        }
        _ => None,
    };
    Ok(FileRecord {
        name: name.into(),
        // A stamp within one clock tick proves nothing, so the next scan reads the file again.
        stamp: (!stamp.is_fresh(now)).then_some(stamp),
        digest: Some(Digest::hash_bytes(&bytes)),
        note,
    }
    .with_size(stamp))
}

impl FileRecord {
    /// Keeps the size, which the manifest needs, even if the stamp cannot be trusted.
    fn with_size(mut self, stamp: FileStamp) -> Self {
        if self.stamp.is_none() {
            self.stamp = Some(stamp.as_unverified());
        }
        self
    }
}
