//! Skills and prompts found in files, by one of three plans.
//!
//! - [`Plan::Folders`]: every folder with a `SKILL.md`, at any depth, is a skill; its id is its
//!   path beneath the root.
//! - [`Plan::Skills`]: every markdown file a pattern matches is a body; a matched `SKILL.md` makes
//!   its folder one skill, and what lies beneath belongs to it.
//! - [`Plan::Prompts`]: every markdown file a pattern matches is a prompt.
//!
//! What cannot be served is skipped with a [`Notice`] that says why. Nothing here blocks on a
//! file, and nothing is cached but heads: bodies are read when asked for.

mod build;

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
    index::Index,
    pattern::Pattern,
    record::{Map, Refusal, UNREADABLE},
    root::{Root, Stamp, join, parent},
};
use crate::{
    catalogue::{Again, Change, Entry, PromptEntry},
    error::{Result, show},
    head::Head,
    origin::{Origin, Trusted},
};

/// The most bytes of a loose body or a prompt, as for registered ones.
const MAX_BODY: u64 = 256 * 1024;

/// Something that was found and not taken, and why.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Notice {
    /// The file or folder.
    pub path: PathBuf,
    /// The stable code of the reason.
    pub code: &'static str,
    /// The reason.
    pub message: String,
}

/// What a source looks for.
#[derive(Debug)]
pub(crate) enum Plan {
    Folders,
    Skills(Pattern),
    Prompts(Pattern),
}

/// Where the bodies of an entry are.
#[derive(Debug, Clone)]
pub(crate) enum Location {
    /// A folder beneath a root.
    Folder(Arc<Root>, Arc<str>),
    /// A single file beneath a root.
    Loose(Arc<Root>, Arc<str>),
    /// A package in the store of a scope.
    Stored(crate::Scope),
    /// A body or a prompt registered at run time, in the store of a scope.
    State(crate::Scope),
    /// A body or a prompt registered at run time, kept by a bus.
    Bus,
    /// A skill of the program itself.
    Embedded(Arc<repertoire_core::Skill>),
    /// A skill on another server.
    Remote(Arc<crate::remote::Place>),
}

/// What a source has at one place.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    Skill(SkillId, Arc<Head>, Location),
    Prompt(Arc<Prompt>, Location),
}

impl Found {
    fn is_loose(&self) -> bool {
        matches!(self, Self::Skill(_, _, Location::Loose(..)))
    }

    /// What it is known by; a source has it once.
    fn key(&self) -> String {
        match self {
            Self::Skill(id, ..) => id.to_string(),
            Self::Prompt(prompt, _) => prompt.name.to_string(),
        }
    }
}

/// The state of one place: what was found, or why it was not taken.
type Outcome = Result<Found, Notice>;

/// A root with a plan, and what was found in it.
#[derive(Debug)]
pub(crate) struct FileSource {
    pub(crate) origin: Origin,
    pub(crate) trusted: Trusted,
    root: Arc<Root>,
    plan: Plan,
    index: Index,
    cache: Option<PathBuf>,
    places: BTreeMap<String, Outcome>,
    /// Which place has which key: the first one, in the order of paths.
    owners: Map<String, String>,
    /// Places that were refused a key because another one has it.
    waiting: Map<String, BTreeSet<String>>,
    /// Places in folders that are no skills that were refused, by folder.
    refused: Map<String, Vec<String>>,
    /// What was found or lost since it was last asked for.
    pending: Vec<Change>,
    /// Stamps of loose files, so that only changed ones are read again.
    loose: BTreeMap<String, Stamp>,
}

impl FileSource {
    /// Opens a root and looks at all of it.
    pub(crate) fn open(
        folder: &Path,
        plan: Plan,
        origin: Origin,
        trusted: Trusted,
        cache: Option<PathBuf>,
    ) -> Result<Self> {
        let root = Arc::new(Root::open(folder)?);
        let index = match &cache {
            Some(cache) => cache::load(cache, &root),
            None => Index::default(),
        };
        let mut source = Self {
            origin,
            trusted,
            root,
            plan,
            index,
            cache,
            places: BTreeMap::new(),
            owners: Map::default(),
            waiting: Map::default(),
            refused: Map::default(),
            pending: Vec::new(),
            loose: BTreeMap::new(),
        };
        source.take_stock();
        Ok(source)
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// What has to change in the catalogue since this was last asked.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.pending)
    }

    /// How much was found.
    pub(crate) fn len(&self) -> usize {
        self.places.values().filter(|place| place.is_ok()).count()
    }

    /// Everything skipped.
    pub(crate) fn notices(&self) -> impl Iterator<Item = Notice> {
        let cut = self.index.cut.iter().map(|folder| Notice {
            path: self.root.join(folder),
            code: "too_deep",
            message: format!(
                "{}: not looked into, the tree is too deep or too large",
                show(&self.root.join(folder))
            ),
        });
        let refused = self.places.values().filter_map(|p| p.as_ref().err());
        cut.chain(refused.cloned())
    }

    /// Looks at the whole root again.
    pub(crate) fn scan(&mut self) {
        if !self.root.is_in_place() {
            // Another folder stands where it was, or none; whatever was known is of the old one.
            self.index = Index::default();
            self.loose.clear();
            let Some(root) = self.root.again() else {
                let places: Vec<String> = self.places.keys().cloned().collect();
                for place in places {
                    self.set_place(&place, None);
                }
                return;
            };
            self.root = Arc::new(root);
        }
        self.index.compare(&self.root);
        self.take_stock();
    }

    /// Decides anew what is where, once the index was compared with the disk.
    fn take_stock(&mut self) {
        self.index.update(&self.root);
        let gone: Vec<String> = self
            .places
            .keys()
            .filter(|place| !self.still_there(place))
            .cloned()
            .collect();
        for place in gone {
            self.set_place(&place, None);
        }
        let folders = match self.plan {
            // Folders that are no skills have no say in this plan.
            Plan::Folders => {
                let found = self.index.with_document();
                let gone = self
                    .places
                    .keys()
                    .filter(|place| found.binary_search(place).is_err());
                // What is gone goes first: a folder above may have something to say there.
                let mut folders: Vec<String> = gone.cloned().collect();
                folders.extend(found);
                folders
            }
            Plan::Skills(_) | Plan::Prompts(_) => self.index.beneath(""),
        };
        self.rebuild(&folders);
        if let Some(cache) = &self.cache {
            cache::save(cache, self.root.path(), &mut self.index);
        }
    }

    /// Looks at what changed. The paths are absolute; those outside of the root are ignored.
    pub(crate) fn reconcile<'a>(&mut self, paths: impl Iterator<Item = &'a Path>) {
        let relative: BTreeSet<String> = paths
            .filter_map(|path| path.strip_prefix(self.root.path()).ok())
            .map(|path| path.to_string_lossy().replace('\\', "/"))
            .collect();
        if relative.contains("") {
            // Something happened to the root itself.
            self.scan();
            return;
        }
        if relative.is_empty() {
            return;
        }
        let delta = self.index.reconcile(&self.root, &relative);
        for gone in &delta.gone {
            self.forget(gone);
        }
        let mut folders = delta.listed;
        for scanned in delta.scanned {
            folders.extend(self.index.beneath(&scanned));
        }
        let around: Vec<String> = folders
            .iter()
            .flat_map(|folder| self.index.enclosing(folder).map(str::to_owned))
            .collect();
        folders.extend(around);
        let folders: Vec<String> = folders.into_iter().collect();
        self.rebuild(&folders);
    }

    /// Says why names in a folder that is no skill were not looked at, such as linked folders.
    fn tell_refused(&mut self, folder: &str) {
        let before = self.refused.remove(folder).unwrap_or_default();
        for place in before {
            self.set_place(&place, None);
        }
        let Some(record) = self.index.folders.get(folder) else {
            return;
        };
        if record.refused.is_empty() || record.in_skill {
            return;
        }
        let told = |name: &str| name != UNREADABLE && name != repertoire_core::DOCUMENT;
        let refused: Vec<(String, Refusal)> = record
            .refused
            .iter()
            .filter(|(name, _)| told(name))
            .map(|(name, why)| (join(folder, name), why.clone()))
            .collect();
        let places = refused.iter().map(|(place, _)| place.clone()).collect();
        self.refused.insert(folder.to_owned(), places);
        for (place, why) in refused {
            let notice = self.notice(&place, why);
            self.set_place(&place, Some(Err(notice)));
        }
    }

    fn still_there(&self, place: &str) -> bool {
        self.index.folders.contains_key(place)
            || self
                .index
                .folders
                .get(parent(place))
                .is_some_and(|record| record.file(file_name(place)).is_some())
    }

    fn forget(&mut self, path: &str) {
        self.set_place(path, None);
        // Everything beneath sorts right behind the path with its slash.
        let beneath = format!("{path}/");
        let gone: Vec<String> = self
            .places
            .range(beneath.clone()..)
            .map(|(place, _)| place.clone())
            .take_while(|place| place.starts_with(&beneath))
            .collect();
        for place in gone {
            self.set_place(&place, None);
        }
    }

    /// Writes down what is at a place, and what that changes in the catalogue.
    fn set_place(&mut self, place: &str, outcome: Option<Outcome>) {
        if outcome.is_none() {
            self.loose.remove(place);
        }
        let outcome = outcome.map(|found| self.claim(place, found));
        let old = match &outcome {
            Some(outcome) => self.places.insert(place.to_owned(), outcome.clone()),
            None => self.places.remove(place),
        };
        if let Some(Ok(old)) = old {
            let key = old.key();
            let same = matches!(&outcome, Some(Ok(new)) if new.key() == key);
            if !same {
                self.owners.remove(&key);
                self.pending.push(match &old {
                    Found::Skill(id, ..) => Change::RemoveSkill(id.clone(), self.origin.clone()),
                    Found::Prompt(prompt, _) => {
                        Change::RemovePrompt(prompt.name.clone(), self.origin.clone())
                    }
                });
                self.reconsider(&key);
            }
        }
        if let Some(Ok(found)) = outcome {
            self.pending.push(self.put(found));
        }
    }

    fn put(&self, found: Found) -> Change {
        let (origin, trusted) = (self.origin.clone(), self.trusted);
        match found {
            Found::Skill(id, head, location) => Change::PutSkill(
                Entry {
                    id,
                    origin,
                    trusted,
                    head,
                    location,
                },
                Again::Ignore,
            ),
            Found::Prompt(prompt, location) => Change::PutPrompt(
                PromptEntry {
                    prompt,
                    origin,
                    trusted,
                    registered_at: None,
                    location,
                },
                Again::Ignore,
            ),
        }
    }

    /// Gives a key to a place, unless another place of this source has it.
    fn claim(&mut self, place: &str, outcome: Outcome) -> Outcome {
        let found = outcome?;
        // Folders are their own keys; only a root and a folder of its name beneath it can meet.
        let named_as_root = || {
            self.root
                .path()
                .file_name()
                .is_some_and(|name| name == place)
        };
        if matches!(self.plan, Plan::Folders) && !place.is_empty() && !named_as_root() {
            return Ok(found);
        }
        let key = found.key();
        let owner = self
            .owners
            .get(&key)
            .filter(|owner| *owner != place)
            .cloned();
        if let Some(owner) = owner {
            let taken = |at: &str| Refusal {
                code: "duplicate",
                message: format!("{key:?} is already found at {}", show(&self.root.join(at))),
            };
            // A whole folder is more of a skill than a loose file of the same name.
            let loose = matches!(&self.places.get(&owner), Some(Ok(found)) if found.is_loose());
            let (loser, notice) = if found.is_loose() || !loose {
                (place.to_owned(), self.notice(place, taken(&owner)))
            } else {
                (owner.clone(), self.notice(&owner, taken(place)))
            };
            self.waiting
                .entry(key.clone())
                .or_default()
                .insert(loser.clone());
            if loser == place {
                return Err(notice);
            }
            self.places.insert(loser, Err(notice));
        }
        self.owners.insert(key, place.to_owned());
        Ok(found)
    }

    /// A key is free again: whoever was refused it gets another chance.
    fn reconsider(&mut self, key: &str) {
        let mut folders = BTreeSet::new();
        for place in self.waiting.remove(key).unwrap_or_default() {
            if matches!(self.places.get(&place), Some(Err(n)) if n.code == "duplicate") {
                self.loose.remove(&place);
                folders.insert(match self.plan {
                    Plan::Folders => place,
                    Plan::Skills(_) | Plan::Prompts(_) => parent(&place).to_owned(),
                });
            }
        }
        let folders: Vec<String> = folders.into_iter().collect();
        self.rebuild(&folders);
    }

    /// Looks at one skill again, because a read found other bytes than expected.
    pub(crate) fn refresh(&mut self, location: &Location, path: &RelPath) {
        let path = match location {
            Location::Folder(_, folder) => self.root.join(&join(folder, path.as_str())),
            Location::Loose(_, file) => self.root.join(file),
            Location::Stored(_)
            | Location::State(_)
            | Location::Bus
            | Location::Embedded(_)
            | Location::Remote(_) => return,
        };
        self.reconcile(std::iter::once(path.as_path()));
    }

    /// Decides anew what is at each of these folders.
    fn rebuild(&mut self, folders: &[String]) {
        match &self.plan {
            Plan::Folders => {
                let outcomes: Vec<Option<Outcome>> = folders
                    .par_iter()
                    .map(|folder| self.skill_folder(folder))
                    .collect();
                for (folder, outcome) in folders.iter().zip(outcomes) {
                    let is_skill = matches!(outcome, Some(Ok(_)));
                    if outcome.is_some() || self.places.contains_key(folder) {
                        self.set_place(folder, outcome);
                    }
                    // A skill tells what is refused in it by itself.
                    if !is_skill || !self.refused.is_empty() {
                        self.tell_refused(folder);
                    }
                }
            }
            Plan::Skills(_) | Plan::Prompts(_) => {
                for folder in folders {
                    self.rebuild_loose(folder);
                }
            }
        }
    }
}

impl Location {
    /// Whether two locations are the same place.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Folder(a, x), Self::Folder(b, y)) | (Self::Loose(a, x), Self::Loose(b, y)) => {
                x == y && Arc::ptr_eq(a, b)
            }
            (Self::Stored(a), Self::Stored(b)) | (Self::State(a), Self::State(b)) => a == b,
            (Self::Embedded(a), Self::Embedded(b)) => a == b,
            (Self::Remote(a), Self::Remote(b)) => a == b,
            (Self::Bus, Self::Bus) => true,
            _ => false,
        }
    }

    /// The file or folder on disk.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Folder(root, place) | Self::Loose(root, place) => Some(root.join(place)),
            Self::Stored(_) | Self::State(_) | Self::Bus | Self::Embedded(_) | Self::Remote(_) => {
                None
            }
        }
    }

    /// Reads one file of a skill from disk, if it still is what it was when it was looked at.
    pub(crate) fn read_known(&self, known: &repertoire_core::FileEntry) -> Option<Bytes> {
        match self {
            Self::Folder(root, folder) => {
                root.read_known(&join(folder, known.path.as_str()), known)
            }
            Self::Loose(root, file) => root.read_known(file, known),
            Self::Stored(_) | Self::State(_) | Self::Bus | Self::Embedded(_) | Self::Remote(_) => {
                None
            }
        }
    }

    /// Reads one file of a skill from disk; `None` for places that are not on disk.
    pub(crate) fn read(&self, path: &RelPath) -> Option<Result<Bytes>> {
        Some(match self {
            Self::Folder(root, folder) => root
                .read(&join(folder, path.as_str()), repertoire_core::MAX_BYTES)
                .map(|(bytes, _)| bytes),
            Self::Loose(root, file) => root.read(file, MAX_BODY).map(|(bytes, _)| bytes),
            Self::Stored(_) | Self::State(_) | Self::Bus | Self::Embedded(_) | Self::Remote(_) => {
                return None;
            }
        })
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
