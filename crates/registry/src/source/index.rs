//! The index of a root: every folder, and for skills every file with its digest.
//!
//! The index is kept between scans (in memory, and in a cache file between runs). A scan compares
//! the stamps of known files and reads only changed ones; a reconcile after a change rescans only
//! the folders that the change touched. Files outside skills are known by name only.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use rayon::prelude::*;
use repertoire_core::{MAX_BYTES, MAX_FILES, path::is_ignored};

use super::{
    record::{FileRecord, FolderRecord, RefusalReason, SeededMap, read_file, scan_folder},
    root::{RootDir, join_path, now_nanos, parent_path},
};
use crate::error::Result;

/// The deepest folder level that is scanned.
const MAX_DEPTH: usize = 32;
/// The most folders of one root.
const MAX_FOLDERS: usize = 400_000;

/// The files of a folder that were read, by their position in its record.
type ReadFolder = (String, Vec<(usize, Result<FileRecord>)>);

/// The folders and files that a reconcile touched.
#[derive(Debug, Default)]
pub(crate) struct IndexDelta {
    /// Folders that were listed again.
    pub(crate) listed: BTreeSet<String>,
    /// Folders that were scanned with everything beneath.
    pub(crate) scanned: BTreeSet<String>,
    /// Files and folders that were removed.
    pub(crate) removed: BTreeSet<String>,
    /// Folders whose changed files have not been read yet.
    unread: BTreeSet<String>,
}

/// The known folders and files of a root.
#[derive(Debug, Default)]
pub(crate) struct FolderIndex {
    pub(crate) folders: SeededMap<Box<str>, FolderRecord>,
    /// Why a file of a skill could not be read.
    pub(crate) read_errors: BTreeMap<String, RefusalReason>,
    /// Folders that differ from the disk, according to the last comparison.
    pub(crate) changed: BTreeSet<String>,
    /// The first folder that was skipped because of the limits.
    pub(crate) first_skipped: Option<String>,
    /// How many files the last scan had to read.
    pub(crate) files_read: usize,
}

impl FolderIndex {
    /// Compares all known folders with the disk.
    pub(crate) fn compare_with_disk(&mut self, root: &RootDir) {
        self.changed = self
            .folders
            .par_iter()
            .filter(|(folder, record)| !record.is_current(root, folder))
            .map(|(folder, _)| folder.to_string())
            .collect();
    }

    /// Brings the whole index up to date after it was compared with the disk.
    pub(crate) fn update_changed(&mut self, root: &RootDir) {
        let changed = std::mem::take(&mut self.changed);
        // With many changes, walking the tree is faster than comparing folders one by one.
        if self.folders.is_empty() || changed.len() > self.folders.len() / 4 {
            self.scan_tree(root, "");
            return;
        }
        let mut delta = IndexDelta::default();
        for folder in changed {
            // It may already have been removed together with its parent folder.
            if self.folders.contains_key(folder.as_str()) {
                self.refresh_folder(root, &folder, &mut delta);
            }
        }
        self.read_delta(root, &mut delta);
    }

    /// Scans the whole tree beneath a folder, reusing unchanged records.
    pub(crate) fn scan_tree(&mut self, root: &RootDir, start: &str) {
        let mut old: SeededMap<Box<str>, FolderRecord> = self
            .folders_beneath(start)
            .iter()
            .filter_map(|folder| self.folders.remove_entry(folder.as_str()))
            .collect();
        let in_skill = self.enclosing_skills(start).next().is_some();
        let mut level = vec![(start.to_owned(), in_skill)];
        for _ in path_depth(start)..MAX_DEPTH {
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
                    let record = scan_folder(root, &folder, in_skill, old)?;
                    Some((folder, record))
                })
                .collect();
            level = Vec::new();
            self.folders.reserve(found.len());
            for (folder, record) in found {
                let inside = record.in_skill;
                level.extend(
                    record
                        .folders
                        .iter()
                        .map(|f| (join_path(&folder, f), inside)),
                );
                self.folders.insert(folder.into(), record);
            }
            if level.is_empty() || self.folders.len() + level.len() > MAX_FOLDERS {
                break;
            }
        }
        let within = |cut: &String| start.is_empty() || cut.starts_with(start);
        self.first_skipped = match level.into_iter().next() {
            Some((folder, _)) => Some(folder),
            None => self.first_skipped.take().filter(|cut| !within(cut)),
        };
        self.read_changed(root, start);
    }

    /// Updates the index after changes at these paths, and returns the touched paths.
    pub(crate) fn reconcile_paths(
        &mut self,
        root: &RootDir,
        paths: &BTreeSet<String>,
    ) -> IndexDelta {
        let mut delta = IndexDelta::default();
        let ours =
            |path: &&String| path_depth(path) <= MAX_DEPTH && !path.split('/').any(is_ignored);
        for path in paths.iter().filter(ours) {
            // A removed folder is detected from its nearest existing parent.
            let mut folder = parent_path(path);
            while !folder.is_empty() && root.file_stamp(folder).is_none() {
                folder = parent_path(folder);
            }
            if !delta.listed.contains(folder) {
                delta.listed.insert(folder.to_owned());
                self.refresh_folder(root, folder, &mut delta);
            }
            let is_folder = self
                .folders
                .get(folder)
                .is_some_and(|record| record.folders.iter().any(|f| join_path(folder, f) == *path));
            if is_folder && delta.scanned.insert(path.clone()) {
                // An event for the folder means that its content changed, possibly within one
                // clock tick of its stamp, so the stamp is not used.
                if let Some(record) = self.folders.get_mut(path.as_str()) {
                    record.stamp = None;
                }
                self.rescan_tree(root, path, &mut delta);
            }
        }
        self.read_delta(root, &mut delta);
        delta
    }

    /// Scans the whole tree beneath a folder, and records the removed paths.
    fn rescan_tree(&mut self, root: &RootDir, start: &str, delta: &mut IndexDelta) {
        let mut before = Vec::new();
        for folder in self.folders_beneath(start) {
            if let Some(record) = self.folders.get(folder.as_str()) {
                let files: Vec<Box<str>> = record.files.iter().map(|f| f.name.clone()).collect();
                before.push((folder, files));
            }
        }
        self.scan_tree(root, start);
        for (folder, files) in before {
            let Some(record) = self.folders.get(folder.as_str()) else {
                delta.removed.insert(folder);
                continue;
            };
            let gone = files.iter().filter(|name| record.find_file(name).is_none());
            delta
                .removed
                .extend(gone.map(|name| join_path(&folder, name)));
        }
    }

    /// Rescans one folder and its new subfolders.
    fn refresh_folder(&mut self, root: &RootDir, folder: &str, delta: &mut IndexDelta) {
        let before = self.folders.remove(folder).unwrap_or_default();
        let in_skill = self.enclosing_skills(folder).next().is_some();
        // The folder must be listed again, so its stamp is discarded.
        let old = FolderRecord {
            stamp: None,
            ..before.clone()
        };
        let Some(record) = scan_folder(root, folder, in_skill, Some(old)) else {
            self.folders.insert(folder.into(), before);
            self.remove_subtree(folder);
            delta.removed.insert(folder.to_owned());
            return;
        };
        let became = before.in_skill != record.in_skill;
        for gone in before
            .folders
            .iter()
            .filter(|f| !record.folders.contains(f))
        {
            let gone = join_path(folder, gone);
            self.remove_subtree(&gone);
            delta.removed.insert(gone);
        }
        for gone in before
            .files
            .iter()
            .filter(|f| record.find_file(&f.name).is_none())
        {
            delta.removed.insert(join_path(folder, &gone.name));
        }
        let new: Vec<String> = record
            .folders
            .iter()
            .filter(|f| became || !before.folders.contains(f))
            .map(|f| join_path(folder, f))
            .collect();
        self.folders.insert(folder.into(), record);
        for new in new {
            self.rescan_tree(root, &new, delta);
            delta.scanned.insert(new);
        }
        delta.unread.insert(folder.to_owned());
    }

    /// Reads changed files of a delta's folders, and files of their skills that a limit held back.
    fn read_delta(&mut self, root: &RootDir, delta: &mut IndexDelta) {
        let unread = std::mem::take(&mut delta.unread);
        let mut skills: BTreeSet<String> = BTreeSet::new();
        for folder in &unread {
            // The limits of the outermost skill decide which of its files are read.
            let own = self.folders.get(folder.as_str());
            let own = own
                .filter(|record| record.has_document())
                .map(|_| folder.as_str());
            skills.extend(
                own.into_iter()
                    .chain(self.enclosing_skills(folder))
                    .last()
                    .map(str::to_owned),
            );
        }
        let mut folders = unread;
        for skill in skills {
            folders.extend(self.folders_beneath(&skill));
        }
        let folders: Vec<String> = folders.into_iter().collect();
        self.read_changed_in(root, &folders);
    }

    fn remove_subtree(&mut self, folder: &str) {
        for gone in self.folders_beneath(folder) {
            self.folders.remove(gone.as_str());
        }
    }

    /// Returns the skills that contain a folder, innermost first, without the folder itself.
    pub(crate) fn enclosing_skills<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = &'a str> {
        let mut at = Some(folder);
        std::iter::from_fn(move || {
            let here = at.filter(|f| !f.is_empty())?;
            let above = parent_path(here);
            at = Some(above);
            Some(above)
        })
        .filter(|f| self.folders.get(*f).is_some_and(FolderRecord::has_document))
    }

    /// Returns every folder with a document, a misnamed document or a refused name, sorted.
    pub(crate) fn folders_with_document(&self) -> Vec<String> {
        let mut folders: Vec<String> = self
            .folders
            .par_iter()
            .filter(|(_, record)| {
                record.has_document()
                    || record.has_misnamed_document()
                    || !record.refused.is_empty()
            })
            .map(|(folder, _)| folder.to_string())
            .collect();
        folders.par_sort_unstable();
        folders
    }

    /// Returns every folder at or beneath this one, in order.
    pub(crate) fn folders_beneath(&self, folder: &str) -> Vec<String> {
        let mut out = vec![folder.to_owned()];
        let mut at = 0;
        while let Some(here) = out.get(at).cloned() {
            at += 1;
            if let Some(record) = self.folders.get(here.as_str()) {
                out.extend(record.folders.iter().map(|f| join_path(&here, f)));
            }
        }
        out
    }

    fn read_changed(&mut self, root: &RootDir, start: &str) {
        let folders = self.folders_beneath(start);
        self.read_changed_in(root, &folders);
    }

    /// Reads every file of a skill without a known digest, unless the skill is too large.
    fn read_changed_in(&mut self, root: &RootDir, folders: &[String]) {
        let wanted: Vec<&String> = folders
            .iter()
            .filter(|folder| {
                let record = self.folders.get(folder.as_str());
                record.is_some_and(|r| r.in_skill && r.files.iter().any(|f| f.digest.is_none()))
            })
            .collect();
        let mut limits: SeededMap<String, bool> = SeededMap::default();
        let wanted: Vec<&String> = wanted
            .into_iter()
            .filter(|folder| self.is_readable(folder, &mut limits))
            .collect();
        let now = now_nanos();
        let read: Vec<ReadFolder> = wanted
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
        self.read_errors
            .retain(|path, _| !looked_at.contains(parent_path(path)));
        for (folder, files) in read {
            self.files_read += files.len();
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
                        let path = join_path(&folder, &place.name);
                        self.read_errors.insert(path, RefusalReason::from(&error));
                    }
                }
            }
        }
    }

    /// Whether a skill around a folder is within the limits; each skill is checked once.
    fn is_readable(&self, folder: &str, limits: &mut SeededMap<String, bool>) -> bool {
        let own = self
            .folders
            .get(folder)
            .is_some_and(FolderRecord::has_document);
        own.then_some(folder)
            .into_iter()
            .chain(self.enclosing_skills(folder))
            .any(|skill| {
                if let Some(within) = limits.get(skill) {
                    return *within;
                }
                let within = self.check_limits(skill).is_ok();
                limits.insert(skill.to_owned(), within);
                within
            })
    }

    /// Checks a skill's file count and size without reading it.
    pub(crate) fn check_limits(&self, skill: &str) -> Result<(), repertoire_core::Error> {
        let mut count = 0;
        let mut size = 0u64;
        let mut open = vec![skill.to_owned()];
        let mut folders = 0;
        while let Some(folder) = open.pop() {
            let Some(record) = self.folders.get(folder.as_str()) else {
                continue;
            };
            // Walking a folder costs as much as a file, so folders are limited as well.
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
            open.extend(record.folders.iter().map(|f| join_path(&folder, f)));
        }
        Ok(())
    }
}

/// Returns the depth of a path in folders; the root is 0.
fn path_depth(path: &str) -> usize {
    if path.is_empty() {
        return 0;
    }
    path.split('/').count()
}
