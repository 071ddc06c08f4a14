//! Keeps a host's folder of skills in step with the registry.
//!
//! Most hosts read skills from folders. Trusted skills are copied there, each file verified against
//! its digest. A record beside them says which copies are ours: nothing else is changed, and the
//! registry does not read copies back as sources.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    io::Write as _,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use repertoire_core::{Digest, FileEntry, Manifest, RelPath, SkillId, permission::IdPrefix};
use repertoire_registry::{
    COPIES_FILE, Registry, SkillEntry, Trusted, folder, store::create_private_dir,
};
use serde::{Deserialize, Serialize};

use crate::error::{Result, io_error_at};

/// A larger record is not read.
const MAX_RECORD_BYTES: u64 = 16 * 1024 * 1024;
/// The key that signs records, in the account's folder.
const KEY_FILE: &str = "link-key";
const KEY_BYTES: usize = 32;

/// A folder that has copies of skills.
#[derive(Debug)]
pub struct SkillLinks {
    folder: PathBuf,
    only: Vec<IdPrefix>,
    /// The account's folder, with the key that signs records.
    account: PathBuf,
    /// The host that the copies are for.
    host: Option<&'static str>,
}

/// What happened to a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkChange {
    /// It is new.
    Added,
    /// It was replaced by a newer one.
    Updated,
    /// Its skill is gone, or not selected any more.
    Removed,
}

/// What a synchronisation did.
#[derive(Debug, Default, Serialize)]
pub struct LinkReport {
    /// The copies that changed, by name.
    pub changes: Vec<(String, LinkChange)>,
    /// Folders and skills that were left alone, with the reason.
    pub conflicts: Vec<(String, &'static str)>,
    /// How many copies were as wanted.
    pub unchanged: usize,
    /// Other hosts that the copies were made for, so that they stay.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub used_by: Vec<String>,
}

/// The copies of a folder that are ours.
#[derive(Debug, Default, Serialize, Deserialize)]
struct CopyRecord {
    /// Proves that this account wrote it: a record that a repository brings names nothing of ours.
    #[serde(default)]
    signature: String,
    skills: BTreeMap<String, SkillCopy>,
    /// The hosts that the copies were made for, by their ids: several read the same folder.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    hosts: BTreeSet<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct SkillCopy {
    id: SkillId,
    digest: String,
    /// The digest of the copy that is being replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replaces: Option<String>,
}

impl SkillLinks {
    /// Names a folder, and which skills are copied there: all, or those below some paths.
    pub fn new(folder: PathBuf, only: Vec<IdPrefix>, account: PathBuf) -> Self {
        Self {
            folder,
            only,
            account,
            host: None,
        }
    }

    /// Records that the copies are for a host. When it needs them no longer, they stay as long as
    /// another one does.
    #[must_use]
    pub fn for_host(mut self, host: &'static str) -> Self {
        self.host = Some(host);
        self
    }

    /// Brings the copies up to date.
    pub fn sync(&self, registry: &Registry, stopped: &dyn Fn() -> bool) -> Result<LinkReport> {
        std::fs::create_dir_all(&self.folder).map_err(io_error_at(&self.folder))?;
        let mut record = self.read_record()?;
        record.hosts.extend(self.host.map(str::to_owned));
        let mut report = LinkReport::default();
        let snapshot = registry.snapshot();
        let mut wanted: BTreeMap<String, &SkillEntry> = BTreeMap::new();
        for entry in snapshot.skills().filter(|entry| self.is_wanted(entry)) {
            let name = entry.id.name().to_owned();
            match wanted.entry(name) {
                Entry::Vacant(place) => {
                    place.insert(entry);
                }
                Entry::Occupied(_) => {
                    let id = entry.id.to_string();
                    report.conflicts.push((id, "another skill has this name"));
                }
            }
        }
        let is_untrusted = matches!(registry.workspace(), Some((_, Trusted::No)));
        let names: BTreeSet<String> = record.skills.keys().chain(wanted.keys()).cloned().collect();
        for name in names {
            if stopped() {
                return Err(repertoire_registry::Error::Interrupted.into());
            }
            let state = self.copy_state(&name, &record);
            match (wanted.get(&name), &state) {
                (Some(entry), CopyState::Missing | CopyState::Ours(_)) => {
                    let change = self.write_copy(registry, &name, entry, &state, &mut record)?;
                    match change {
                        Some(change) => report.changes.push((name, change)),
                        None => report.unchanged += 1,
                    }
                }
                (Some(_), CopyState::Changed) => {
                    report
                        .conflicts
                        .push((name, "the copy was changed by hand"));
                }
                (Some(_), CopyState::Foreign) => {
                    report
                        .conflicts
                        .push((name, "a folder of this name is there"));
                }
                (None, CopyState::Ours(_)) if is_untrusted => {
                    // Its skills are only not seen, so the copies stay.
                    report
                        .conflicts
                        .push((name, "the workspace is not trusted"));
                }
                (None, CopyState::Changed) => {
                    // It belongs to the one who changed it.
                    record.skills.remove(&name);
                    report
                        .conflicts
                        .push((name, "the copy was changed by hand"));
                }
                (None, CopyState::Foreign) => {
                    // The user put it in the place of the copy.
                    record.skills.remove(&name);
                    report.conflicts.push((name, "it is no copy any more"));
                }
                (None, CopyState::Ours(_) | CopyState::Missing) => {
                    self.remove_copy(&name)?;
                    record.skills.remove(&name);
                    report.changes.push((name, LinkChange::Removed));
                }
            }
        }
        self.write_record(&mut record)?;
        Ok(report)
    }

    /// Returns the files of copies that differ from what was copied. Where a skill has changed since,
    /// only its folder is named.
    pub fn changed_files(&self, registry: &Registry) -> Result<Vec<PathBuf>> {
        let record = self.read_record()?;
        let snapshot = registry.snapshot();
        let mut changed = Vec::new();
        for (name, copy) in &record.skills {
            if !matches!(self.copy_state(name, &record), CopyState::Changed) {
                continue;
            }
            let folder = self.folder.join(name);
            let mut entries = snapshot.all_skills().map(|(entry, _)| entry);
            let is_source = |entry: &&std::sync::Arc<SkillEntry>| {
                entry.id == copy.id && entry.metadata.digest().to_string() == copy.digest
            };
            let (Some(entry), Ok(files)) = (entries.find(is_source), folder::read_folder(&folder))
            else {
                changed.push(folder);
                continue;
            };
            let now = file_entries(&files);
            let known = &entry.metadata.files;
            let differs = now
                .iter()
                .filter(|file| !known.contains(file))
                .map(|file| &file.path);
            let is_gone = |file: &&FileEntry| !files.contains_key(&file.path);
            let gone = known.iter().filter(is_gone).map(|file| &file.path);
            changed.extend(differs.chain(gone).map(|path| folder.join(path.as_str())));
        }
        Ok(changed)
    }

    /// Removes every copy that was not changed by hand, and the record, unless the copies were made for
    /// another host, too.
    pub fn remove_all(&self) -> Result<LinkReport> {
        let mut record = self.read_record()?;
        let mut report = LinkReport::default();
        if let Some(host) = self.host {
            record.hosts.remove(host);
            if !record.hosts.is_empty() {
                self.write_record(&mut record)?;
                report.unchanged = record.skills.len();
                report.used_by = record.hosts.into_iter().collect();
                return Ok(report);
            }
        }
        for name in record.skills.keys() {
            match self.copy_state(name, &record) {
                CopyState::Ours(_) => {
                    self.remove_copy(name)?;
                    report.changes.push((name.clone(), LinkChange::Removed));
                }
                CopyState::Missing => {}
                CopyState::Changed | CopyState::Foreign => {
                    let reason = "the copy was changed by hand";
                    report.conflicts.push((name.clone(), reason));
                }
            }
        }
        let file = self.folder.join(COPIES_FILE);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(io_error_at(&file)(error))
            }
            _ => Ok(report),
        }
    }

    fn is_wanted(&self, entry: &SkillEntry) -> bool {
        let selected = self.only.is_empty() || self.only.iter().any(|one| one.contains(&entry.id));
        let real = self.folder.canonicalize();
        // What is in the folder already needs no copy.
        let is_there = entry
            .path()
            .is_some_and(|path| real.is_ok_and(|folder| path.starts_with(folder)));
        selected
            && !is_there
            && entry.trusted == Trusted::Yes
            && entry.has_files()
            && !entry.metadata.dynamic
    }

    /// Returns what is at the place of a copy.
    fn copy_state(&self, name: &str, record: &CopyRecord) -> CopyState {
        let folder = self.folder.join(name);
        let is_folder = match folder.symlink_metadata() {
            Err(_) => return CopyState::Missing,
            Ok(metadata) => metadata.is_dir(),
        };
        let copy = match record.skills.get(name) {
            Some(copy) if is_folder => copy,
            // A link is never a copy.
            _ => return CopyState::Foreign,
        };
        let digest = folder::read_folder(&folder)
            .map_err(crate::Error::from)
            .and_then(|files| {
                has_only(&folder, &files)?;
                let manifest = Manifest::new(file_entries(&files));
                let manifest = manifest.map_err(repertoire_registry::Error::from)?;
                Ok(manifest.digest().to_string())
            });
        match digest {
            Ok(digest) if digest == copy.digest || Some(&digest) == copy.replaces.as_ref() => {
                CopyState::Ours(digest)
            }
            _ => CopyState::Changed,
        }
    }

    fn write_copy(
        &self,
        registry: &Registry,
        name: &str,
        entry: &SkillEntry,
        state: &CopyState,
        record: &mut CopyRecord,
    ) -> Result<Option<LinkChange>> {
        let digest = entry.metadata.digest().to_string();
        let replaces = match state {
            CopyState::Ours(old) if *old == digest => {
                record.skills.insert(
                    name.to_owned(),
                    SkillCopy {
                        id: entry.id.clone(),
                        digest,
                        replaces: None,
                    },
                );
                return Ok(None);
            }
            CopyState::Ours(old) => Some(old.clone()),
            _ => None,
        };
        let files = entry.metadata.files.iter();
        let files: BTreeMap<RelPath, Bytes> = files
            .map(|file| Ok((file.path.clone(), registry.read_file(entry, &file.path)?)))
            .collect::<Result<_>>()?;
        // The record comes first: a copy without a record would not be ours.
        let copy = SkillCopy {
            id: entry.id.clone(),
            digest: Manifest::new(file_entries(&files))
                .map_err(repertoire_registry::Error::from)?
                .digest()
                .to_string(),
            replaces: replaces.clone(),
        };
        record.skills.insert(name.to_owned(), copy);
        self.write_record(record)?;
        let target = self.folder.join(name);
        if replaces.is_none() {
            folder::write_folder(&target, &files, &|| false)?;
            keep_executable(entry, &files, &target)?;
        } else {
            let (new, old) = (self.hidden_path("new"), self.hidden_path("old"));
            folder::write_folder(&new, &files, &|| false)?;
            keep_executable(entry, &files, &new)?;
            std::fs::rename(&target, &old).map_err(io_error_at(&target))?;
            std::fs::rename(&new, &target).map_err(io_error_at(&target))?;
            std::fs::remove_dir_all(&old).map_err(io_error_at(&old))?;
        }
        if let Some(copy) = record.skills.get_mut(name) {
            copy.replaces = None;
        }
        Ok(Some(match replaces {
            Some(_) => LinkChange::Updated,
            None => LinkChange::Added,
        }))
    }

    /// Removes a copy; it disappears at once.
    fn remove_copy(&self, name: &str) -> Result<()> {
        let target = self.folder.join(name);
        if target.symlink_metadata().is_err() {
            return Ok(());
        }
        let old = self.hidden_path("old");
        std::fs::rename(&target, &old).map_err(io_error_at(&target))?;
        std::fs::remove_dir_all(&old).map_err(io_error_at(&old))
    }

    fn hidden_path(&self, word: &str) -> PathBuf {
        let id = uuid::Uuid::new_v4();
        self.folder.join(format!(".repertoire-{word}-{id}"))
    }

    fn read_record(&self) -> Result<CopyRecord> {
        let file = self.folder.join(COPIES_FILE);
        // Never through a link, and never more than a record can be.
        let read = folder::read_small_file(&self.folder, COPIES_FILE, MAX_RECORD_BYTES)?;
        let Some(text) = read else {
            return Ok(CopyRecord::default());
        };
        let refuse = |reason: String| crate::Error::HostConfig {
            path: file.clone(),
            reason,
        };
        let read = repertoire_core::json::from_slice(&text);
        let mut record: CopyRecord =
            read.map_err(|error| refuse(format!("is not the record of this program: {error}")))?;
        if record.signature != self.sign(&record)? {
            return Err(refuse(
                "was not written by this account, so nothing beside it is changed; remove the file to \
                 keep what is there and to add copies of your own"
                    .to_owned(),
            ));
        }
        // A name is one folder here, whatever the file says.
        record.skills.retain(|name, _| is_plain_name(name));
        Ok(record)
    }

    /// Returns the signature of a record: a keyed digest of the copies it names.
    fn sign(&self, record: &CopyRecord) -> Result<String> {
        let key = self.signing_key()?;
        let mut names = serde_json::to_vec(&record.skills).unwrap_or_default();
        if !record.hosts.is_empty() {
            names.extend(serde_json::to_vec(&record.hosts).unwrap_or_default());
        }
        // Twice, because a plain digest of key and text can be extended.
        let inner = Digest::hash_bytes(&[key.as_slice(), &names].concat());
        let outer = Digest::hash_bytes(&[key.as_slice(), inner.as_bytes()].concat());
        Ok(outer.hex_digits())
    }

    /// Returns the account's key for records, which is created when it is first needed.
    fn signing_key(&self) -> Result<Vec<u8>> {
        let file = self.account.join(KEY_FILE);
        let io = io_error_at(&file);
        match std::fs::read(&file) {
            Ok(key) if key.len() == KEY_BYTES => return Ok(key),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(io(error)),
        }
        create_private_dir(&self.account)?;
        let key = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()].map(uuid::Uuid::into_bytes);
        // Temporary files are readable by their owner only.
        let mut new = tempfile::NamedTempFile::new_in(&self.account).map_err(&io)?;
        new.write_all(&key.concat()).map_err(&io)?;
        new.as_file().sync_all().map_err(&io)?;
        match new.persist_noclobber(&file) {
            Ok(_) => {
                folder::sync_folder(&self.account).map_err(&io)?;
                Ok(key.concat())
            }
            // Another process was first.
            Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => {
                std::fs::read(&file).map_err(io)
            }
            Err(error) => Err(io(error.error)),
        }
    }

    fn write_record(&self, record: &mut CopyRecord) -> Result<()> {
        record.signature = self.sign(record)?;
        let file = self.folder.join(COPIES_FILE);
        let io = io_error_at(&file);
        let mut new = tempfile::NamedTempFile::new_in(&self.folder).map_err(&io)?;
        let text = serde_json::to_string_pretty(record).unwrap_or_default();
        new.write_all(text.as_bytes()).map_err(&io)?;
        new.as_file().sync_all().map_err(&io)?;
        new.persist(&file).map_err(|error| io(error.error))?;
        folder::sync_folder(&self.folder).map_err(&io)
    }
}

/// What is at the place of a copy.
#[derive(Debug, PartialEq, Eq)]
enum CopyState {
    Missing,
    /// A copy of ours, with its digest.
    Ours(String),
    /// A copy of ours that was changed by hand.
    Changed,
    /// Something else.
    Foreign,
}

/// Makes the copies of executable files executable: hosts run the scripts of a skill.
#[cfg(unix)]
fn keep_executable(
    entry: &SkillEntry,
    files: &BTreeMap<RelPath, Bytes>,
    target: &Path,
) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(source) = entry.path() else {
        return Ok(());
    };
    for path in files.keys() {
        let original = source.join(path.as_str()).symlink_metadata();
        if original.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o100 != 0) {
            let copy = target.join(path.as_str());
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&copy, mode).map_err(io_error_at(&copy))?;
        }
    }
    Ok(())
}

#[cfg(not(unix))]
fn keep_executable(_: &SkillEntry, _: &BTreeMap<RelPath, Bytes>, _: &Path) -> Result<()> {
    Ok(())
}

/// Fails if a folder has other files than these, including those that skills ignore.
fn has_only(folder: &Path, files: &BTreeMap<RelPath, Bytes>) -> Result<()> {
    let mut open = vec![(folder.to_owned(), String::new())];
    while let Some((here, prefix)) = open.pop() {
        for entry in std::fs::read_dir(&here).map_err(io_error_at(&here))? {
            let entry = entry.map_err(io_error_at(&here))?;
            let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
            let kind = entry.file_type().map_err(io_error_at(&here))?;
            let beneath = format!("{path}/");
            let is_known = if kind.is_dir() {
                files.keys().any(|file| file.as_str().starts_with(&beneath))
            } else {
                kind.is_file() && files.keys().any(|file| file.as_str() == path)
            };
            if !is_known {
                return Err(repertoire_registry::Error::AlreadyExists {
                    what: "file",
                    name: path,
                }
                .into());
            }
            if kind.is_dir() {
                open.push((entry.path(), beneath));
            }
        }
    }
    Ok(())
}

fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!(parts.next(), Some(std::path::Component::Normal(_))) && parts.next().is_none()
}

fn file_entries(files: &BTreeMap<RelPath, Bytes>) -> Vec<FileEntry> {
    let files = files.iter();
    files
        .map(|(path, bytes)| FileEntry::from_bytes(path.clone(), bytes))
        .collect()
}
