//! What is known of one folder and of one file, and how that is found out.
//!
//! A record is current as long as the stamps on disk are the ones it was made from.

use std::{collections::HashMap, sync::Arc};

use repertoire_core::{DOCUMENT, Digest, MAX_BYTES, package::PACKAGE_FILE, path::is_ignored};
use serde::{Deserialize, Serialize};

use super::root::{Kind, Root, Stamp, join, now_nanos};
use crate::{
    error::{Error, Result},
    head::{DocumentHead, PackageHead},
};

/// Paths come from disks of strangers, so the hash is seeded; it is quick all the same.
pub(crate) type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// What is known of a file in a skill.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub(crate) name: Box<str>,
    pub(crate) stamp: Option<Stamp>,
    pub(crate) digest: Option<Digest>,
    pub(crate) note: Option<Note>,
}

/// What a file says, where it says something about its skill.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Note {
    Document(Box<DocumentHead>),
    Package(Arc<PackageHead>),
}

/// What is known of a folder.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct FolderRecord {
    pub(super) stamp: Option<Stamp>,
    pub(crate) files: Vec<FileRecord>,
    pub(crate) folders: Vec<Box<str>>,
    /// Names that cannot be part of a skill; listed again at every scan.
    #[serde(skip)]
    pub(crate) refused: Vec<(Box<str>, Refusal)>,
    /// Whether the files were looked at, because the folder is in a skill.
    pub(super) in_skill: bool,
}

/// The name under which a folder that cannot be listed is refused.
pub(crate) const UNREADABLE: &str = "";

/// Why something cannot be part of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl From<&Error> for Refusal {
    fn from(error: &Error) -> Self {
        Self {
            code: error.code(),
            message: error.to_string(),
        }
    }
}

impl FolderRecord {
    /// Whether nothing changed in the folder itself, as far as stamps tell.
    pub(super) fn is_current(&self, root: &Root, folder: &str) -> bool {
        let same = |file: &FileRecord| {
            file.digest.is_some() && file.stamp == root.stamp(&join(folder, &file.name))
        };
        self.refused.is_empty()
            && self.stamp.is_some()
            && self.stamp == root.stamp(folder)
            && (!self.in_skill || self.files.iter().all(same))
    }

    pub(crate) fn has_document(&self) -> bool {
        self.file(DOCUMENT).is_some()
    }

    /// Whether there is a document under a name that hosts do not look for.
    pub(crate) fn misnamed(&self) -> bool {
        !self.has_document() && self.file("skill.md").is_some()
    }

    pub(crate) fn file(&self, name: &str) -> Option<&FileRecord> {
        let at = self.files.binary_search_by(|f| (*f.name).cmp(name)).ok()?;
        self.files.get(at)
    }
}

/// Looks at one folder: its names, and in a skill the stamps of its files.
pub(super) fn look(
    root: &Root,
    folder: &str,
    in_skill: bool,
    old: Option<FolderRecord>,
) -> Option<FolderRecord> {
    let stamp = root.stamp(folder)?;
    let mut record = match old {
        Some(old) if old.stamp == Some(stamp) && old.refused.is_empty() => old,
        old => list(root, folder, stamp, old.as_ref())?,
    };
    record.in_skill = in_skill || record.has_document();
    if record.in_skill {
        for file in &mut record.files {
            let now = root.stamp(&join(folder, &file.name));
            if now.is_none() || now != file.stamp {
                file.stamp = now;
                file.digest = None;
                file.note = None;
            }
        }
    }
    Some(record)
}

fn list(
    root: &Root,
    folder: &str,
    stamp: Stamp,
    old: Option<&FolderRecord>,
) -> Option<FolderRecord> {
    let mut record = FolderRecord {
        // Something could still be added within the same tick of the clock.
        stamp: (!stamp.is_fresh(now_nanos())).then_some(stamp),
        ..FolderRecord::default()
    };
    let names = match root.list(folder) {
        Ok(names) => names,
        // Gone while we looked is no problem; there and not to be read is one.
        Err(error) => {
            root.stamp(folder)?;
            record.stamp = None;
            record
                .refused
                .push((UNREADABLE.into(), Refusal::from(&error)));
            return Some(record);
        }
    };
    for (name, kind) in names {
        if is_ignored(&name) {
            continue;
        }
        let name = name.into_boxed_str();
        match kind {
            Ok(Kind::Folder) => record.folders.push(name),
            Ok(Kind::File) => {
                let known = old.and_then(|old| old.file(&name)).cloned();
                record.files.push(known.unwrap_or(FileRecord {
                    name,
                    stamp: None,
                    digest: None,
                    note: None,
                }));
            }
            Ok(Kind::Other) => {
                let error = Error::NotRegular(root.join(&join(folder, &name)));
                record.refused.push((name, Refusal::from(&error)));
            }
            Err(error) => record.refused.push((name, Refusal::from(&error))),
        }
    }
    if !record.refused.is_empty() {
        // What was refused is not kept between runs, so the folder has to be listed again.
        record.stamp = None;
    }
    Some(record)
}

pub(super) fn read_file(root: &Root, folder: &str, name: &str, now: i64) -> Result<FileRecord> {
    let relative = join(folder, name);
    let (bytes, stamp) = root.read(&relative, MAX_BYTES)?;
    let note = match name {
        DOCUMENT => {
            let head = DocumentHead::of(&bytes).map_err(|error| Error::InvalidAt {
                path: root.join(&relative),
                error,
            })?;
            Some(Note::Document(Box::new(head)))
        }
        PACKAGE_FILE => PackageHead::of_json(&bytes).map(|head| Note::Package(Arc::new(head))),
        _ => None,
    };
    Ok(FileRecord {
        name: name.into(),
        // A stamp within the clock's tick proves nothing, so the next scan reads again.
        stamp: (!stamp.is_fresh(now)).then_some(stamp),
        digest: Some(Digest::of(&bytes)),
        note,
    }
    .sized(stamp))
}

impl FileRecord {
    /// Keeps the size, which the manifest needs, also where the stamp is not to be believed.
    fn sized(mut self, stamp: Stamp) -> Self {
        if self.stamp.is_none() {
            self.stamp = Some(stamp.unproven());
        }
        self
    }
}
