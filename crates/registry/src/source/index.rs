//! What a root holds: every folder, and in skills every file with its digest.
//!
//! The index is kept between scans (in memory, and in a cache file between runs). A scan stats
//! what it knows and reads only what changed; a reconcile after a change looks at the folders the
//! change touched and no others. Files outside of skills are known by name only.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use rayon::prelude::*;
use repertoire_core::{MAX_BYTES, MAX_FILES, path::is_ignored};

use super::{
    record::{FileRecord, FolderRecord, Map, Refusal, look, read_file},
    root::{Root, join, now_nanos, parent},
};
use crate::error::Result;

/// Folders deeper than this are not walked into.
const MAX_DEPTH: usize = 32;
/// The most folders of one root.
const MAX_FOLDERS: usize = 400_000;

/// The files of a folder that were read, by their place in its record.
type Read = (String, Vec<(usize, Result<FileRecord>)>);

/// What a reconcile touched.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    /// Folders that were listed again.
    pub(crate) listed: BTreeSet<String>,
    /// Folders that were looked at with everything beneath.
    pub(crate) scanned: BTreeSet<String>,
    /// Files and folders that are no longer there.
    pub(crate) gone: BTreeSet<String>,
    /// Folders whose changed files are still to be read.
    unread: BTreeSet<String>,
}

/// Everything known of a root.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) folders: Map<Box<str>, FolderRecord>,
    /// Why a file of a skill could not be read.
    pub(crate) failed: BTreeMap<String, Refusal>,
    /// Folders that differ from the disk, as far as was compared.
    pub(crate) changed: BTreeSet<String>,
    /// The first folder that was not looked into, because of the limits.
    pub(crate) cut: Option<String>,
    /// How many files the last scan had to read.
    pub(crate) read: usize,
}

impl Index {
    /// Compares everything known with the disk.
    pub(crate) fn compare(&mut self, root: &Root) {
        self.changed = self
            .folders
            .par_iter()
            .filter(|(folder, record)| !record.is_current(root, folder))
            .map(|(folder, _)| folder.to_string())
            .collect();
    }

    /// Brings the whole index up to date after it was compared with the disk.
    pub(crate) fn update(&mut self, root: &Root) {
        let changed = std::mem::take(&mut self.changed);
        // Past some point walking the tree is less work than comparing piece by piece.
        if self.folders.is_empty() || changed.len() > self.folders.len() / 4 {
            self.scan(root, "");
            return;
        }
        let mut delta = Delta::default();
        for folder in changed {
            // Going with the folder above it, it is gone from the index already.
            if self.folders.contains_key(folder.as_str()) {
                self.refresh(root, &folder, &mut delta);
            }
        }
        self.read_delta(root, &mut delta);
    }

    /// Looks at the whole tree beneath a folder, reusing whatever did not change.
    pub(crate) fn scan(&mut self, root: &Root, start: &str) {
        let mut old: Map<Box<str>, FolderRecord> = self
            .beneath(start)
            .iter()
            .filter_map(|folder| self.folders.remove_entry(folder.as_str()))
            .collect();
        let in_skill = self.enclosing(start).next().is_some();
        let mut level = vec![(start.to_owned(), in_skill)];
        for _ in depth(start)..MAX_DEPTH {
            let known: Vec<_> = level
                .into_iter()
                .map(|(folder, in_skill)| {
                    let record = old.remove(folder.as_str());
                    (folder, in_skill, record)
                })
                .collect();
            let found: Vec<(String, FolderRecord)> = known
                .into_par_iter()
                .filter_map(|(folder, in_skill, old)| {
                    let record = look(root, &folder, in_skill, old)?;
                    Some((folder, record))
                })
                .collect();
            level = Vec::new();
            self.folders.reserve(found.len());
            for (folder, record) in found {
                let inside = record.in_skill;
                level.extend(record.folders.iter().map(|f| (join(&folder, f), inside)));
                self.folders.insert(folder.into(), record);
            }
            if level.is_empty() || self.folders.len() + level.len() > MAX_FOLDERS {
                break;
            }
        }
        let within = |cut: &String| start.is_empty() || cut.starts_with(start);
        self.cut = match level.into_iter().next() {
            Some((folder, _)) => Some(folder),
            None => self.cut.take().filter(|cut| !within(cut)),
        };
        self.read_changed(root, start);
    }

    /// Brings the index up to date after changes at these paths, and says what that touched.
    pub(crate) fn reconcile(&mut self, root: &Root, paths: &BTreeSet<String>) -> Delta {
        let mut delta = Delta::default();
        let ours = |path: &&String| depth(path) <= MAX_DEPTH && !path.split('/').any(is_ignored);
        for path in paths.iter().filter(ours) {
            // A folder that is gone is noticed from the nearest one that is still there.
            let mut folder = parent(path);
            while !folder.is_empty() && root.stamp(folder).is_none() {
                folder = parent(folder);
            }
            if !delta.listed.contains(folder) {
                delta.listed.insert(folder.to_owned());
                self.refresh(root, folder, &mut delta);
            }
            let is_folder = self
                .folders
                .get(folder)
                .is_some_and(|record| record.folders.iter().any(|f| join(folder, f) == *path));
            if is_folder && delta.scanned.insert(path.clone()) {
                // It was named because something happened in it, maybe within one tick of the
                // clock that stamps it.
                if let Some(record) = self.folders.get_mut(path.as_str()) {
                    record.stamp = None;
                }
                self.scan_again(root, path, &mut delta);
            }
        }
        self.read_delta(root, &mut delta);
        delta
    }

    /// Looks at the whole tree beneath a folder, and says what of it is no longer there.
    fn scan_again(&mut self, root: &Root, start: &str, delta: &mut Delta) {
        let mut before = Vec::new();
        for folder in self.beneath(start) {
            if let Some(record) = self.folders.get(folder.as_str()) {
                let files: Vec<Box<str>> = record.files.iter().map(|f| f.name.clone()).collect();
                before.push((folder, files));
            }
        }
        self.scan(root, start);
        for (folder, files) in before {
            let Some(record) = self.folders.get(folder.as_str()) else {
                delta.gone.insert(folder);
                continue;
            };
            let gone = files.iter().filter(|name| record.file(name).is_none());
            delta.gone.extend(gone.map(|name| join(&folder, name)));
        }
    }

    /// Looks at one folder again, and at the folders that are new in it.
    fn refresh(&mut self, root: &Root, folder: &str, delta: &mut Delta) {
        let before = self.folders.remove(folder).unwrap_or_default();
        let in_skill = self.enclosing(folder).next().is_some();
        // Listing again is the point here, so the folder's own stamp is not believed.
        let old = FolderRecord {
            stamp: None,
            ..before.clone()
        };
        let Some(record) = look(root, folder, in_skill, Some(old)) else {
            self.folders.insert(folder.into(), before);
            self.forget(folder);
            delta.gone.insert(folder.to_owned());
            return;
        };
        let became = before.in_skill != record.in_skill;
        for gone in before
            .folders
            .iter()
            .filter(|f| !record.folders.contains(f))
        {
            let gone = join(folder, gone);
            self.forget(&gone);
            delta.gone.insert(gone);
        }
        for gone in before
            .files
            .iter()
            .filter(|f| record.file(&f.name).is_none())
        {
            delta.gone.insert(join(folder, &gone.name));
        }
        let new: Vec<String> = record
            .folders
            .iter()
            .filter(|f| became || !before.folders.contains(f))
            .map(|f| join(folder, f))
            .collect();
        self.folders.insert(folder.into(), record);
        for new in new {
            self.scan_again(root, &new, delta);
            delta.scanned.insert(new);
        }
        delta.unread.insert(folder.to_owned());
    }

    /// Reads what changed in the folders of a delta, and around them where a limit held it back.
    fn read_delta(&mut self, root: &Root, delta: &mut Delta) {
        let unread = std::mem::take(&mut delta.unread);
        let mut skills: BTreeSet<String> = BTreeSet::new();
        for folder in &unread {
            // The outermost skill decides which of its files may be read.
            let own = self.folders.get(folder.as_str());
            let own = own
                .filter(|record| record.has_document())
                .map(|_| folder.as_str());
            skills.extend(
                own.into_iter()
                    .chain(self.enclosing(folder))
                    .last()
                    .map(str::to_owned),
            );
        }
        let mut folders = unread;
        for skill in skills {
            folders.extend(self.beneath(&skill));
        }
        let folders: Vec<String> = folders.into_iter().collect();
        self.read_changed_in(root, &folders);
    }

    fn forget(&mut self, folder: &str) {
        for gone in self.beneath(folder) {
            self.folders.remove(gone.as_str());
        }
    }

    /// The skills a folder lies in, innermost first, itself not included.
    pub(crate) fn enclosing<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = &'a str> {
        let mut at = Some(folder);
        std::iter::from_fn(move || {
            let here = at.filter(|f| !f.is_empty())?;
            let above = parent(here);
            at = Some(above);
            Some(above)
        })
        .filter(|f| self.folders.get(*f).is_some_and(FolderRecord::has_document))
    }

    /// Every folder that has a document, or what should be one, or cannot be read, sorted.
    pub(crate) fn with_document(&self) -> Vec<String> {
        let mut folders: Vec<String> = self
            .folders
            .par_iter()
            .filter(|(_, record)| {
                record.has_document() || record.misnamed() || !record.refused.is_empty()
            })
            .map(|(folder, _)| folder.to_string())
            .collect();
        folders.par_sort_unstable();
        folders
    }

    /// Every folder at or beneath this one, in order.
    pub(crate) fn beneath(&self, folder: &str) -> Vec<String> {
        let mut out = vec![folder.to_owned()];
        let mut at = 0;
        while let Some(here) = out.get(at).cloned() {
            at += 1;
            if let Some(record) = self.folders.get(here.as_str()) {
                out.extend(record.folders.iter().map(|f| join(&here, f)));
            }
        }
        out
    }

    fn read_changed(&mut self, root: &Root, start: &str) {
        let folders = self.beneath(start);
        self.read_changed_in(root, &folders);
    }

    /// Reads every file of a skill whose digest is not known, unless its skill is too large.
    fn read_changed_in(&mut self, root: &Root, folders: &[String]) {
        let wanted: Vec<&String> = folders
            .iter()
            .filter(|folder| {
                let record = self.folders.get(folder.as_str());
                record.is_some_and(|r| r.in_skill && r.files.iter().any(|f| f.digest.is_none()))
            })
            .collect();
        let mut limits: Map<String, bool> = Map::default();
        let wanted: Vec<&String> = wanted
            .into_iter()
            .filter(|folder| self.is_readable(folder, &mut limits))
            .collect();
        let now = now_nanos();
        let read: Vec<Read> = wanted
            .into_par_iter()
            .map(|folder| {
                let files = self
                    .folders
                    .get(folder.as_str())
                    .map(|r| r.files.as_slice());
                let read = files
                    .unwrap_or_default()
                    .iter()
                    .enumerate()
                    .filter(|(_, file)| file.digest.is_none())
                    .map(|(at, file)| (at, read_file(root, folder, &file.name, now)))
                    .collect();
                (folder.clone(), read)
            })
            .collect();
        let looked_at: HashSet<&str> = folders.iter().map(String::as_str).collect();
        self.failed
            .retain(|path, _| !looked_at.contains(parent(path)));
        for (folder, files) in read {
            self.read += files.len();
            for (at, file) in files {
                let Some(place) = self
                    .folders
                    .get_mut(folder.as_str())
                    .and_then(|record| record.files.get_mut(at))
                else {
                    continue;
                };
                match file {
                    Ok(file) => *place = file,
                    Err(error) => {
                        let path = join(&folder, &place.name);
                        self.failed.insert(path, Refusal::from(&error));
                    }
                }
            }
        }
    }

    /// Whether at least one skill around a folder is within the limits; each is asked once.
    fn is_readable(&self, folder: &str, limits: &mut Map<String, bool>) -> bool {
        let own = self
            .folders
            .get(folder)
            .is_some_and(FolderRecord::has_document);
        own.then_some(folder)
            .into_iter()
            .chain(self.enclosing(folder))
            .any(|skill| {
                if let Some(within) = limits.get(skill) {
                    return *within;
                }
                let within = self.limits(skill).is_ok();
                limits.insert(skill.to_owned(), within);
                within
            })
    }

    /// Checks a skill's file count and size without reading it.
    pub(crate) fn limits(&self, skill: &str) -> Result<(), repertoire_core::Error> {
        let mut count = 0;
        let mut size = 0u64;
        let mut open = vec![skill.to_owned()];
        let mut folders = 0;
        while let Some(folder) = open.pop() {
            let Some(record) = self.folders.get(folder.as_str()) else {
                continue;
            };
            // Folders cost as much as files to walk, and are bounded like them.
            folders += record.folders.len();
            if folders > 4 * MAX_FILES {
                return Err(repertoire_core::Error::TooManyFiles {
                    count: folders,
                    max: MAX_FILES,
                });
            }
            count += record.files.len();
            let sizes = record.files.iter().filter_map(|f| f.stamp);
            size = sizes.fold(size, |sum, stamp| sum.saturating_add(stamp.size));
            if count > MAX_FILES {
                return Err(repertoire_core::Error::TooManyFiles {
                    count,
                    max: MAX_FILES,
                });
            }
            if size > MAX_BYTES {
                return Err(repertoire_core::Error::TooLarge {
                    what: "the skill".to_owned(),
                    size,
                    max: MAX_BYTES,
                });
            }
            open.extend(record.folders.iter().map(|f| join(&folder, f)));
        }
        Ok(())
    }
}

/// How many folders deep a path lies; the root is 0.
fn depth(path: &str) -> usize {
    if path.is_empty() {
        return 0;
    }
    path.split('/').count()
}
