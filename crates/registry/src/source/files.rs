//! Skills and prompts found in files, by one of three plans.
//!
//! - [`Plan::Folders`]: every folder with a `SKILL.md`, at any depth, is a skill; its id is
//!   its path beneath the root.
//! - [`Plan::Skills`]: every markdown file a pattern matches is a body; a matched `SKILL.md`
//!   makes its folder one skill, and the files beneath belong to it.
//! - [`Plan::Prompts`]: every markdown file a pattern matches is a prompt.
//!
//! Files that cannot be served are skipped with a [`Notice`] that gives the reason. Nothing here
//! blocks on a file. Only metadata is cached: bodies are read on demand.

mod build;
mod linked;

use linked::COPIES_CODE;
pub use linked::COPIES_FILE;
pub(crate) use linked::read_copy_names;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use rayon::prelude::*;
use repertoire_core::{Prompt, RelPath, SkillId};

use super::{
    cache,
    index::FolderIndex,
    links::LinkPolicy,
    names::NameClaims,
    pattern::GlobPattern,
    record::{RefusalReason, SeededMap, UNREADABLE_NAME},
    root::{FileStamp, RootDir, join_path, parent_path},
};
use crate::{
    catalogue::{CatalogueChange, PromptEntry, RepeatPolicy, SkillEntry},
    error::{Result, display_path},
    origin::{Origin, Trusted},
    skill_metadata::SkillMetadata,
};

/// The most bytes of a loose body or a prompt, the same as for registered ones.
const MAX_BODY_BYTES: u64 = 256 * 1024;

/// A file or folder that was skipped, and why.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Notice {
    /// The file or folder.
    pub path: PathBuf,
    /// The stable code of the reason.
    pub code: &'static str,
    /// The reason.
    pub message: String,
}

impl Notice {
    /// Whether something is wrong; copies that `link` made are left out on purpose.
    pub fn is_problem(&self) -> bool {
        self.code != COPIES_CODE
    }
}

/// How a source finds skills or prompts.
#[derive(Debug)]
pub(crate) enum SourcePlan {
    Folders,
    Skills(GlobPattern),
    Prompts(GlobPattern),
}

/// Where the bodies of an entry are stored.
#[derive(Debug, Clone)]
pub(crate) enum ContentLocation {
    /// A folder beneath a root.
    Folder(Arc<RootDir>, Arc<str>),
    /// A single file beneath a root.
    LooseFile(Arc<RootDir>, Arc<str>),
    /// A package in the store of a scope.
    Stored(crate::StoreScope),
    /// A body or a prompt registered at run time, in the store of a scope.
    State(crate::StoreScope),
    /// A body or a prompt registered at run time, stored on a bus.
    Bus,
    /// A skill embedded in the program.
    Embedded(Arc<repertoire_core::Skill>),
    /// A skill on another server.
    Remote(Arc<crate::remote::RemoteLocation>),
}

/// A skill or prompt found at a path.
#[derive(Debug, Clone)]
pub(crate) enum FoundItem {
    Skill(SkillId, Arc<SkillMetadata>, ContentLocation),
    Prompt(Arc<Prompt>, ContentLocation),
}

impl FoundItem {
    fn is_loose(&self) -> bool {
        matches!(self, Self::Skill(_, _, ContentLocation::LooseFile(..)))
    }

    /// Returns its key in the catalogue; a source has each key once.
    fn catalogue_key(&self) -> String {
        match self {
            Self::Skill(id, ..) => id.to_string(),
            Self::Prompt(prompt, _) => prompt.name.to_string(),
        }
    }
}

/// The result at one path: the item found there, or why it was skipped.
type ScanOutcome = Result<FoundItem, Notice>;

/// A root with a plan, and the items found in it.
#[derive(Debug)]
pub(crate) struct FileSource {
    pub(crate) origin: Origin,
    pub(crate) trusted: Trusted,
    root: Arc<RootDir>,
    plan: SourcePlan,
    index: FolderIndex,
    cache: Option<PathBuf>,
    outcomes: BTreeMap<String, ScanOutcome>,
    /// The path that owns each key: the first one in path order.
    key_owners: SeededMap<String, String>,
    /// Folders that are named differently in their documents.
    name_claims: NameClaims,
    /// Folders to rebuild because a name beside them was claimed or released.
    affected: BTreeSet<String>,
    /// Paths that were refused a key because another path owns it.
    key_waiters: SeededMap<String, BTreeSet<String>>,
    /// Refused paths in folders that are not skills, by folder.
    refused: SeededMap<String, Vec<String>>,
    /// Changes since [`Self::take_changes`] was last called.
    pending_changes: Vec<CatalogueChange>,
    /// Stamps of loose files, so that only changed ones are read again.
    loose_stamps: BTreeMap<String, FileStamp>,
    /// Folders at the top that are copies of skills of the registry.
    copies: BTreeSet<String>,
    /// Which links at the top are followed; none without it.
    link_policy: Option<LinkPolicy>,
    /// The skills that links at the top lead to, by the names of the links.
    links: BTreeMap<String, FileSource>,
    /// The skills of links that are in the catalogue.
    published_links: BTreeSet<SkillId>,
    /// Skills of links whose ids are taken.
    link_conflicts: Vec<Notice>,
    /// The name of the link that leads to this root, if one does.
    link_name: Option<String>,
    /// Whether the root has the name of its folder or link, whatever its document says.
    has_path_name: bool,
}

impl FileSource {
    /// Opens a root and scans it.
    pub(crate) fn open(
        folder: &Path,
        plan: SourcePlan,
        origin: Origin,
        trusted: Trusted,
        cache: Option<PathBuf>,
        link_policy: Option<LinkPolicy>,
        scope: Option<&str>,
    ) -> Result<Self> {
        let root = RootDir::open(folder)?;
        let mut source = Self::from_root(root, plan, origin, trusted, cache);
        source.link_policy = link_policy;
        if let Some(scope) = scope {
            source.index.scan_tree(&source.root, scope);
        }
        source.rebuild_all();
        Ok(source)
    }

    /// Creates a source that has not been scanned.
    fn from_root(
        root: RootDir,
        plan: SourcePlan,
        origin: Origin,
        trusted: Trusted,
        cache: Option<PathBuf>,
    ) -> Self {
        let root = Arc::new(root);
        let index = match &cache {
            Some(cache) => cache::load_index(cache, &root),
            None => FolderIndex::default(),
        };
        Self {
            origin,
            trusted,
            root,
            plan,
            index,
            cache,
            outcomes: BTreeMap::new(),
            key_owners: SeededMap::default(),
            name_claims: NameClaims::default(),
            affected: BTreeSet::new(),
            key_waiters: SeededMap::default(),
            refused: SeededMap::default(),
            pending_changes: Vec::new(),
            loose_stamps: BTreeMap::new(),
            copies: BTreeSet::new(),
            link_policy: None,
            links: BTreeMap::new(),
            published_links: BTreeSet::new(),
            link_conflicts: Vec::new(),
            link_name: None,
            has_path_name: false,
        }
    }

    pub(crate) fn root_path(&self) -> &Path {
        self.root.path()
    }

    /// Returns the folders that have to be watched.
    pub(crate) fn watched_roots(&self) -> impl Iterator<Item = &Path> {
        let links = self.links.values().map(Self::root_path);
        std::iter::once(self.root_path()).chain(links)
    }

    /// Returns the catalogue changes since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<CatalogueChange> {
        let mut changes = std::mem::take(&mut self.pending_changes);
        self.publish_links(&mut changes);
        changes
    }

    /// Returns the number of items found.
    pub(crate) fn len(&self) -> usize {
        let own = self.outcomes.values().filter(|place| place.is_ok());
        own.count() + self.links.values().map(Self::len).sum::<usize>()
    }

    /// Returns everything that was skipped.
    pub(crate) fn notices(&self) -> impl Iterator<Item = Notice> {
        let cut = self.index.first_skipped.iter().map(|folder| Notice {
            path: self.root.full_path(folder),
            code: "too_deep",
            message: format!(
                "{}: skipped, the tree is too deep or too large",
                display_path(&self.root.full_path(folder))
            ),
        });
        let refused = self.outcomes.values().filter_map(|p| p.as_ref().err());
        let linked = self.links.values();
        let linked =
            linked.flat_map(|link| link.outcomes.values().filter_map(|p| p.as_ref().err()));
        let conflicts = self.link_conflicts.iter().chain(linked);
        let notices = refused.chain(conflicts).cloned();
        cut.chain(notices).chain(self.copies_notice())
    }

    /// Scans the whole root again.
    pub(crate) fn rescan(&mut self) {
        if !self.root.is_in_place() {
            // The root was replaced or removed, so the index of the old folder is invalid.
            self.index = FolderIndex::default();
            self.loose_stamps.clear();
            let Some(root) = self.root.reopen() else {
                let places: Vec<String> = self.outcomes.keys().cloned().collect();
                for place in places {
                    self.set_outcome(&place, None);
                }
                self.links.clear();
                return;
            };
            self.root = Arc::new(root);
        }
        self.index.compare_with_disk(&self.root);
        self.rebuild_all();
    }

    /// Recomputes the items of all folders, after the index was compared with the disk.
    fn rebuild_all(&mut self) {
        self.read_copies();
        self.index.update_changed(&self.root);
        let gone: Vec<String> = self
            .outcomes
            .keys()
            .filter(|place| !self.is_present(place))
            .cloned()
            .collect();
        for place in gone {
            self.set_outcome(&place, None);
        }
        let folders = match self.plan {
            // This plan ignores folders that are not skills.
            SourcePlan::Folders => {
                let found = self.index.folders_with_document();
                let gone = self
                    .outcomes
                    .keys()
                    .filter(|place| found.binary_search(place).is_err());
                // Removals come first: a parent folder may report a notice at the same path.
                let mut folders: Vec<String> = gone.cloned().collect();
                folders.extend(found);
                folders
            }
            SourcePlan::Skills(_) | SourcePlan::Prompts(_) => self.index.folders_beneath(""),
        };
        self.rebuild_folders(&folders);
        if let Some(cache) = &self.cache {
            cache::save_index(cache, self.root.path(), &mut self.index);
        }
        for link in self.links.values_mut() {
            link.rescan();
        }
        self.refresh_links();
    }

    /// Rescans changed paths. The paths are absolute; those outside the root are ignored.
    pub(crate) fn reconcile_paths<'a>(&mut self, paths: impl Iterator<Item = &'a Path>) {
        let paths: Vec<&Path> = paths.collect();
        for link in self.links.values_mut() {
            link.reconcile_paths(paths.iter().copied());
        }
        let relative: BTreeSet<String> = paths
            .into_iter()
            .filter_map(|path| path.strip_prefix(self.root.path()).ok())
            .map(|path| path.to_string_lossy().replace('\\', "/"))
            .collect();
        if relative.contains("") || relative.contains(COPIES_FILE) {
            // The root itself changed, or what belongs to it.
            self.rescan();
            return;
        }
        if relative.is_empty() {
            return;
        }
        let delta = self.index.reconcile_paths(&self.root, &relative);
        for gone in &delta.removed {
            self.remove_subtree(gone);
        }
        let mut folders = delta.listed;
        for scanned in delta.scanned {
            folders.extend(self.index.folders_beneath(&scanned));
        }
        let around: Vec<String> = folders
            .iter()
            .flat_map(|folder| self.index.enclosing_skills(folder).map(str::to_owned))
            .collect();
        folders.extend(around);
        let folders: Vec<String> = folders.into_iter().collect();
        self.rebuild_folders(&folders);
        self.refresh_links();
    }

    /// Records a notice for each refused name (such as a linked folder) in a non-skill folder.
    fn record_refusals(&mut self, folder: &str) {
        let before = self.refused.remove(folder).unwrap_or_default();
        for place in before {
            self.set_outcome(&place, None);
        }
        let Some(record) = self.index.folders.get(folder) else {
            return;
        };
        if record.refused.is_empty() || record.in_skill {
            return;
        }
        let is_reported = |name: &str| name != UNREADABLE_NAME && name != repertoire_core::DOCUMENT;
        let refused: Vec<(String, RefusalReason)> = record
            .refused
            .iter()
            .filter(|(name, _)| is_reported(name))
            .map(|(name, why)| (join_path(folder, name), why.clone()))
            .collect();
        let places = refused.iter().map(|(place, _)| place.clone()).collect();
        self.refused.insert(folder.to_owned(), places);
        for (place, why) in refused {
            let notice = self.make_notice(&place, why);
            self.set_outcome(&place, Some(Err(notice)));
        }
    }

    fn is_present(&self, place: &str) -> bool {
        self.index.folders.contains_key(place)
            || self
                .index
                .folders
                .get(parent_path(place))
                .is_some_and(|record| record.find_file(file_name(place)).is_some())
    }

    fn remove_subtree(&mut self, path: &str) {
        self.set_outcome(path, None);
        // Paths beneath sort directly after the path with a trailing slash.
        let beneath = format!("{path}/");
        let gone: Vec<String> = self
            .outcomes
            .range(beneath.clone()..)
            .map(|(place, _)| place.clone())
            .take_while(|place| place.starts_with(&beneath))
            .collect();
        for place in gone {
            self.set_outcome(&place, None);
        }
    }

    /// Stores the outcome at a path and queues the resulting catalogue change.
    fn set_outcome(&mut self, place: &str, outcome: Option<ScanOutcome>) {
        if outcome.is_none() {
            self.loose_stamps.remove(place);
            let affected = &mut self.affected;
            self.name_claims.update(place, &self.index, affected);
        }
        let outcome = outcome.map(|found| self.claim_key(place, found));
        let old = match &outcome {
            Some(outcome) => self.outcomes.insert(place.to_owned(), outcome.clone()),
            None => self.outcomes.remove(place),
        };
        if let Some(Ok(old)) = old {
            let key = old.catalogue_key();
            let same = matches!(&outcome, Some(Ok(new)) if new.catalogue_key() == key);
            if !same {
                self.key_owners.remove(&key);
                self.pending_changes.push(match &old {
                    FoundItem::Skill(id, ..) => {
                        CatalogueChange::RemoveSkill(id.clone(), self.origin.clone())
                    }
                    FoundItem::Prompt(prompt, _) => {
                        CatalogueChange::RemovePrompt(prompt.name.clone(), self.origin.clone())
                    }
                });
                self.release_key(&key);
            }
        }
        if let Some(Ok(found)) = outcome {
            self.pending_changes.push(self.put_change(found));
        }
    }

    fn put_change(&self, found: FoundItem) -> CatalogueChange {
        let (origin, trusted) = (self.origin.clone(), self.trusted);
        match found {
            FoundItem::Skill(id, head, location) => CatalogueChange::PutSkill(
                SkillEntry {
                    alias: self.find_alias(&id, &location),
                    id,
                    origin,
                    trusted,
                    metadata: head,
                    complete: None,
                    location,
                },
                RepeatPolicy::Ignore,
            ),
            FoundItem::Prompt(prompt, location) => CatalogueChange::PutPrompt(
                PromptEntry {
                    prompt,
                    origin,
                    trusted,
                    registered_at: None,
                    location,
                },
                RepeatPolicy::Ignore,
            ),
        }
    }

    /// Returns the id that a folder has by its path, if it is served under another one.
    fn find_alias(&self, id: &SkillId, location: &ContentLocation) -> Option<SkillId> {
        let ContentLocation::Folder(_, folder) = location else {
            return None;
        };
        self.path_id(folder).ok().filter(|path| path != id)
    }

    /// Assigns a key to a path, unless another path of this source owns it.
    fn claim_key(&mut self, place: &str, outcome: ScanOutcome) -> ScanOutcome {
        let found = outcome?;
        let key = found.catalogue_key();
        // Most folders have their path as their key, and nothing else claims it.
        let is_plain = matches!(self.plan, SourcePlan::Folders) && key == place;
        if is_plain && self.key_owners.is_empty() {
            return Ok(found);
        }
        let is_folder =
            matches!(self.outcomes.get(&key), Some(Ok(other)) if other.catalogue_key() == key);
        let owner = match self.key_owners.get(&key) {
            Some(owner) => Some(owner.clone()),
            None => is_folder.then(|| key.clone()),
        };
        let owner = owner.filter(|owner| owner != place);
        if let Some(owner) = owner {
            let taken = |at: &str| RefusalReason {
                code: "duplicate",
                message: format!(
                    "{}: its id {key:?} is that of {}: rename one of the folders",
                    display_path(&self.root.full_path(place)),
                    display_path(&self.root.full_path(at))
                ),
            };
            // A skill folder takes precedence over a loose file of the same name.
            let loose = matches!(&self.outcomes.get(&owner), Some(Ok(found)) if found.is_loose());
            let (loser, notice) = if found.is_loose() || !loose {
                (place.to_owned(), self.make_notice(place, taken(&owner)))
            } else {
                (owner.clone(), self.make_notice(&owner, taken(place)))
            };
            self.key_waiters
                .entry(key.clone())
                .or_default()
                .insert(loser.clone());
            if loser == place {
                return Err(notice);
            }
            self.outcomes.insert(loser, Err(notice));
        }
        self.key_owners.insert(key, place.to_owned());
        Ok(found)
    }

    /// Rebuilds the paths that were refused a key, because the key is free again.
    fn release_key(&mut self, key: &str) {
        let mut folders = BTreeSet::new();
        for place in self.key_waiters.remove(key).unwrap_or_default() {
            if matches!(self.outcomes.get(&place), Some(Err(n)) if n.code == "duplicate") {
                self.loose_stamps.remove(&place);
                folders.insert(match self.plan {
                    SourcePlan::Folders => place,
                    SourcePlan::Skills(_) | SourcePlan::Prompts(_) => {
                        parent_path(&place).to_owned()
                    }
                });
            }
        }
        let folders: Vec<String> = folders.into_iter().collect();
        self.rebuild_folders(&folders);
    }

    /// Rescans one file after a read returned bytes that differ from the index.
    pub(crate) fn refresh_file(&mut self, location: &ContentLocation, path: &RelPath) {
        let path = match location {
            ContentLocation::Folder(_, folder) => {
                self.root.full_path(&join_path(folder, path.as_str()))
            }
            ContentLocation::LooseFile(_, file) => self.root.full_path(file),
            ContentLocation::Stored(_)
            | ContentLocation::State(_)
            | ContentLocation::Bus
            | ContentLocation::Embedded(_)
            | ContentLocation::Remote(_) => return,
        };
        self.reconcile_paths(std::iter::once(path.as_path()));
    }

    /// Recomputes the items of these folders.
    fn rebuild_folders(&mut self, folders: &[String]) {
        for folder in folders {
            let affected = &mut self.affected;
            self.name_claims.update(folder, &self.index, affected);
        }
        for folder in folders {
            self.affected.remove(folder);
        }
        self.build_folders(folders);
        // Building may affect others in turn; each time at least one claim is settled.
        let affected: Vec<String> = std::mem::take(&mut self.affected).into_iter().collect();
        if !affected.is_empty() {
            self.build_folders(&affected);
        }
    }

    fn build_folders(&mut self, folders: &[String]) {
        match &self.plan {
            SourcePlan::Folders => {
                let outcomes: Vec<Option<ScanOutcome>> = folders
                    .par_iter()
                    .map(|folder| self.build_skill(folder))
                    .collect();
                for (folder, outcome) in folders.iter().zip(outcomes) {
                    let is_skill = matches!(outcome, Some(Ok(_)));
                    if outcome.is_some() || self.outcomes.contains_key(folder) {
                        self.set_outcome(folder, outcome);
                    }
                    // A skill reports its refused files itself.
                    if !is_skill || !self.refused.is_empty() {
                        self.record_refusals(folder);
                    }
                }
            }
            SourcePlan::Skills(_) | SourcePlan::Prompts(_) => {
                for folder in folders {
                    self.rebuild_loose(folder);
                }
            }
        }
    }
}

impl ContentLocation {
    /// Whether two locations are equal.
    pub(crate) fn is_same_location(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Folder(a, x), Self::Folder(b, y))
            | (Self::LooseFile(a, x), Self::LooseFile(b, y)) => x == y && Arc::ptr_eq(a, b),
            (Self::Stored(a), Self::Stored(b)) | (Self::State(a), Self::State(b)) => a == b,
            (Self::Embedded(a), Self::Embedded(b)) => a == b,
            (Self::Remote(a), Self::Remote(b)) => a == b,
            (Self::Bus, Self::Bus) => true,
            _ => false,
        }
    }

    /// Whether it was found through a link.
    pub(crate) fn is_linked(&self) -> bool {
        matches!(self, Self::Folder(root, _) if root.is_linked)
    }

    /// Returns the file or folder on disk.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Folder(root, place) | Self::LooseFile(root, place) => Some(root.full_path(place)),
            Self::Stored(_) | Self::State(_) | Self::Bus | Self::Embedded(_) | Self::Remote(_) => {
                None
            }
        }
    }

    /// Reads one file of a skill from disk if it is unchanged since the last scan.
    pub(crate) fn read_if_unchanged(&self, known: &repertoire_core::FileEntry) -> Option<Bytes> {
        match self {
            Self::Folder(root, folder) => {
                root.read_if_unchanged(&join_path(folder, known.path.as_str()), known)
            }
            Self::LooseFile(root, file) => root.read_if_unchanged(file, known),
            Self::Stored(_) | Self::State(_) | Self::Bus | Self::Embedded(_) | Self::Remote(_) => {
                None
            }
        }
    }

    /// Reads one file of a skill from disk; `None` for locations that are not on disk.
    pub(crate) fn read_file(&self, path: &RelPath) -> Option<Result<Bytes>> {
        Some(match self {
            Self::Folder(root, folder) => root
                .read_file(
                    &join_path(folder, path.as_str()),
                    repertoire_core::MAX_BYTES,
                )
                .map(|(bytes, _)| bytes),
            Self::LooseFile(root, file) => {
                root.read_file(file, MAX_BODY_BYTES).map(|(bytes, _)| bytes)
            }
            Self::Stored(_) | Self::State(_) | Self::Bus | Self::Embedded(_) | Self::Remote(_) => {
                return None;
            }
        })
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
