//! The one view over all sources.
//!
//! A [`Snapshot`] is an immutable, structurally shared map from id to entries; readers take no
//! lock. A change costs O(log n), publishes a new snapshot and leaves events. Invariant: at every
//! moment the entries of a snapshot are the fold of the events up to its number.

use std::{
    borrow::Cow,
    collections::VecDeque,
    ops::Bound,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use repertoire_core::{FileEntry, Prompt, PromptName, RelPath, SkillId, SkillUri, mime};
use rpds::RedBlackTreeMapSync;

use crate::{
    head::{Head, Text},
    origin::{Origin, Reference, Trusted},
    source::Location,
};

/// A skill in the catalogue.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its id.
    pub id: SkillId,
    /// Where it comes from.
    pub origin: Origin,
    /// Whether it may override others and run.
    pub trusted: Trusted,
    /// Its metadata.
    pub head: Arc<Head>,
    pub(crate) location: Location,
}

impl Entry {
    /// Whether its files are served under `skill://`.
    pub fn has_files(&self) -> bool {
        self.head.is_skill() || matches!(self.location, Location::Embedded(_))
    }

    /// The file or folder it is read from, where it is on disk.
    pub fn path(&self) -> Option<PathBuf> {
        self.location.path()
    }

    /// Whether reading it asks another server.
    pub fn is_remote(&self) -> bool {
        matches!(self.location, Location::Remote(_))
    }

    /// Whether its body is kept by a bus, and has to be asked for there.
    pub fn is_on_bus(&self) -> bool {
        matches!(self.location, Location::Bus)
    }

    /// Its files in the order in which they are served: as given in code, else by path.
    pub fn files(&self) -> impl Iterator<Item = &FileEntry> {
        let given = match &self.location {
            Location::Embedded(skill) => Some(skill),
            _ => None,
        };
        let in_order = given.into_iter().flat_map(|skill| {
            let paths = skill
                .references()
                .iter()
                .filter_map(|r| r.path().parse().ok());
            std::iter::once(RelPath::document())
                .chain(paths)
                .filter_map(|path| self.head.file(&path))
        });
        let sorted = match given {
            Some(_) => &[],
            None => &*self.head.files,
        };
        in_order.chain(sorted)
    }

    /// The MIME type of one of its files.
    pub fn mime(&self, path: &RelPath) -> Cow<'static, str> {
        if let Location::Embedded(skill) = &self.location
            && let Some(reference) = skill
                .references()
                .iter()
                .find(|r| r.path() == path.as_str())
        {
            return reference.mime_type().to_owned().into();
        }
        mime::of_path(path.as_str()).into()
    }
}

/// A prompt in the catalogue.
#[derive(Debug, Clone)]
pub struct PromptEntry {
    /// Its definition.
    pub prompt: Arc<Prompt>,
    /// Where it comes from.
    pub origin: Origin,
    /// Whether it may override others.
    pub trusted: Trusted,
    /// When it was registered, RFC 3339 in UTC.
    pub registered_at: Option<Text>,
    pub(crate) location: Location,
}

impl PromptEntry {
    /// The file it is read from, where it is on disk.
    pub fn path(&self) -> Option<PathBuf> {
        self.location.path()
    }

    /// Whether it is kept by a bus, and has to be asked for there.
    pub fn is_on_bus(&self) -> bool {
        matches!(self.location, Location::Bus)
    }
}

/// Something that can be in the catalogue under a key.
pub(crate) trait Item: Clone {
    type Key: Ord + Clone + Send + Sync;
    fn key(&self) -> &Self::Key;
    fn origin(&self) -> &Origin;
    fn rank(&self) -> u32;
    fn same(&self, other: &Self) -> bool;
}

impl Item for Entry {
    type Key = SkillId;
    fn key(&self) -> &SkillId {
        &self.id
    }
    fn origin(&self) -> &Origin {
        &self.origin
    }
    fn rank(&self) -> u32 {
        self.origin.rank(self.trusted)
    }
    fn same(&self, other: &Self) -> bool {
        self.rank() == other.rank() && self.head == other.head && self.location.is(&other.location)
    }
}

impl Item for PromptEntry {
    type Key = PromptName;
    fn key(&self) -> &PromptName {
        &self.prompt.name
    }
    fn origin(&self) -> &Origin {
        &self.origin
    }
    fn rank(&self) -> u32 {
        self.origin.rank(self.trusted)
    }
    fn same(&self, other: &Self) -> bool {
        self.prompt == other.prompt
            && self.registered_at == other.registered_at
            && self.location.is(&other.location)
    }
}

/// All entries of one key, the one that wins first.
type Slot<T> = Arc<[Arc<T>]>;
type Table<T> = RedBlackTreeMapSync<<T as Item>::Key, Slot<T>>;

/// What happened to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// It is new.
    Add,
    /// It is different, or was registered again.
    Update,
    /// It is gone.
    Remove,
}

/// What kind of entry an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A skill.
    Skill,
    /// A prompt.
    Prompt,
}

/// One change of the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Event {
    /// Its number; it grows by one with each event.
    pub seq: u64,
    /// What happened.
    pub op: Op,
    /// To what kind of entry.
    pub kind: Kind,
    /// Its id or name.
    pub id: String,
    /// Where it comes from.
    pub origin: Origin,
}

/// The catalogue at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    seq: u64,
    skills: Table<Entry>,
    prompts: Table<PromptEntry>,
}

impl Snapshot {
    fn empty() -> Self {
        Self {
            seq: 0,
            skills: Table::<Entry>::new_sync(),
            prompts: Table::<PromptEntry>::new_sync(),
        }
    }

    /// The number of the last event in it.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// How many skills are visible.
    pub fn len(&self) -> usize {
        self.skills.size()
    }

    /// Whether no skill is visible.
    pub fn is_empty(&self) -> bool {
        self.skills.is_empty()
    }

    /// The visible skills, sorted by id.
    pub fn skills(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.skills.values().filter_map(|slot| slot.first())
    }

    /// The visible skills behind an id, sorted by id: one page, found without counting.
    ///
    /// ```
    /// # use repertoire_registry::{Registry, Settings};
    /// # let registry = Registry::open(Settings::default())?;
    /// let snapshot = registry.snapshot();
    /// let first: Vec<_> = snapshot.skills_after(None).take(100).collect();
    /// let next = snapshot.skills_after(first.last().map(|entry| &entry.id)).take(100);
    /// # assert_eq!(next.count(), 0);
    /// # Ok::<(), repertoire_registry::Error>(())
    /// ```
    pub fn skills_after(&self, id: Option<&SkillId>) -> impl Iterator<Item = &Arc<Entry>> {
        let start = id.map_or(Bound::Unbounded, Bound::Excluded);
        self.skills
            .range::<SkillId, _>((start, Bound::Unbounded))
            .filter_map(|(_, slot)| slot.first())
    }

    /// Every entry with those that hide it, sorted by id.
    pub fn all_skills(&self) -> impl Iterator<Item = (&Arc<Entry>, Option<&Arc<Entry>>)> {
        self.skills.values().flat_map(with_winner)
    }

    /// A skill by its id, or by origin and id.
    pub fn skill(&self, reference: &Reference) -> Option<&Arc<Entry>> {
        find(&self.skills, &reference.id, reference.origin.as_ref())
    }

    /// A visible skill by its id.
    pub fn get(&self, id: &SkillId) -> Option<&Arc<Entry>> {
        self.skills.get(id)?.first()
    }

    /// The skill and the file that a `skill://` URI names.
    ///
    /// Skills nest: the innermost one has the file, but never a stranger's before ours, and never
    /// another server's before one of this. Among a server's own the innermost one answers for its
    /// files, trusted or not.
    pub fn locate(&self, uri: &SkillUri) -> Option<(Arc<Entry>, RelPath)> {
        uri.splits()
            .filter_map(|(id, path)| {
                let entry = self.get(&id).filter(|entry| entry.has_files())?;
                let known = entry.head.dynamic || entry.head.file(&path).is_some();
                known.then(|| (entry.clone(), path))
            })
            .min_by_key(|(entry, _)| match (entry.is_remote(), entry.trusted) {
                (true, _) => 2,
                (false, Trusted::No) => 1,
                (false, Trusted::Yes) => 0,
            })
    }

    /// The visible prompts behind a name, sorted by name.
    pub fn prompts_after(
        &self,
        name: Option<&PromptName>,
    ) -> impl Iterator<Item = &Arc<PromptEntry>> {
        let start = name.map_or(Bound::Unbounded, Bound::Excluded);
        self.prompts
            .range::<PromptName, _>((start, Bound::Unbounded))
            .filter_map(|(_, slot)| slot.first())
    }

    /// The visible prompts, sorted by name.
    pub fn prompts(&self) -> impl Iterator<Item = &Arc<PromptEntry>> {
        self.prompts.values().filter_map(|slot| slot.first())
    }

    /// Every prompt with the one that hides it, sorted by name.
    pub fn all_prompts(
        &self,
    ) -> impl Iterator<Item = (&Arc<PromptEntry>, Option<&Arc<PromptEntry>>)> {
        self.prompts.values().flat_map(with_winner)
    }

    /// A visible prompt by its name.
    pub fn prompt(&self, name: &PromptName) -> Option<&Arc<PromptEntry>> {
        find(&self.prompts, name, None)
    }
}

/// Every entry of a key with the one that hides it.
fn with_winner<T>(slot: &Slot<T>) -> impl Iterator<Item = (&Arc<T>, Option<&Arc<T>>)> {
    let winner = slot.first();
    slot.iter()
        .enumerate()
        .map(move |(at, entry)| (entry, winner.filter(|_| at > 0)))
}

fn find<'a, T: Item>(
    table: &'a Table<T>,
    key: &T::Key,
    origin: Option<&Origin>,
) -> Option<&'a Arc<T>> {
    let slot = table.get(key)?;
    match origin {
        Some(origin) => slot.iter().find(|entry| entry.origin() == origin),
        None => slot.first(),
    }
}

/// One change to make.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    PutSkill(Entry, Again),
    RemoveSkill(SkillId, Origin),
    PutPrompt(PromptEntry, Again),
    RemovePrompt(PromptName, Origin),
}

/// Whether putting what is already there is an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    Tell,
    Ignore,
}

/// How many events are kept for those who follow.
const KEEP: usize = 65_536;

/// The events are gone that a follower asked for; it has to start from a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lagged;

#[derive(Debug, Default)]
struct Log {
    events: VecDeque<Event>,
    seq: u64,
}

/// The published snapshot and the events that led to it.
#[derive(Debug)]
pub(crate) struct Catalogue {
    current: ArcSwap<Snapshot>,
    log: Mutex<Log>,
    changed: Condvar,
}

impl Catalogue {
    pub(crate) fn new() -> Self {
        Self {
            current: ArcSwap::from_pointee(Snapshot::empty()),
            log: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        // The log is appended to in one step, so a poisoned one is still whole.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes all changes in one step: readers see none of them or all.
    pub(crate) fn apply(&self, changes: impl IntoIterator<Item = Change>) {
        let mut log = self.lock();
        let mut next = (**self.current.load()).clone();
        let before = log.seq;
        for change in changes {
            let done = match change {
                Change::PutSkill(entry, again) => {
                    let (id, origin) = (entry.id.to_string(), entry.origin.clone());
                    put(&mut next.skills, entry, again).map(|op| (op, Kind::Skill, id, origin))
                }
                Change::RemoveSkill(id, origin) => remove(&mut next.skills, &id, &origin)
                    .map(|op| (op, Kind::Skill, id.to_string(), origin)),
                Change::PutPrompt(entry, again) => {
                    let (id, origin) = (entry.prompt.name.to_string(), entry.origin.clone());
                    put(&mut next.prompts, entry, again).map(|op| (op, Kind::Prompt, id, origin))
                }
                Change::RemovePrompt(name, origin) => remove(&mut next.prompts, &name, &origin)
                    .map(|op| (op, Kind::Prompt, name.to_string(), origin)),
            };
            if let Some((op, kind, id, origin)) = done {
                log.seq += 1;
                let seq = log.seq;
                if log.events.len() == KEEP {
                    log.events.pop_front();
                }
                log.events.push_back(Event {
                    seq,
                    op,
                    kind,
                    id,
                    origin,
                });
            }
        }
        if log.seq > before {
            next.seq = log.seq;
            self.current.store(Arc::new(next));
            self.changed.notify_all();
        }
    }

    /// The events after a number; waits for one until the time is up.
    pub(crate) fn wait(&self, after: u64, patience: Duration) -> Result<Vec<Event>, Lagged> {
        let deadline = Instant::now() + patience;
        let mut log = self.lock();
        while log.seq <= after {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return Ok(Vec::new());
            };
            let (guard, _) = self
                .changed
                .wait_timeout(log, left)
                .unwrap_or_else(PoisonError::into_inner);
            log = guard;
        }
        let oldest = log.events.front().map_or(log.seq + 1, |event| event.seq);
        if oldest > after + 1 {
            return Err(Lagged);
        }
        let skip = usize::try_from(after + 1 - oldest).unwrap_or(usize::MAX);
        Ok(log.events.iter().skip(skip).cloned().collect())
    }
}

fn put<T: Item>(table: &mut Table<T>, item: T, again: Again) -> Option<Op> {
    let key = item.key().clone();
    let Some(slot) = table.get(&key) else {
        table.insert_mut(key, Arc::from([Arc::new(item)]));
        return Some(Op::Add);
    };
    let mut slot: Vec<Arc<T>> = slot.to_vec();
    let place = slot.iter().position(|e| e.origin() == item.origin());
    let op = match place {
        Some(at) if again == Again::Ignore && slot[at].same(&item) => return None,
        Some(at) => {
            slot[at] = Arc::new(item);
            Op::Update
        }
        None => {
            slot.push(Arc::new(item));
            Op::Add
        }
    };
    slot.sort_by_key(|entry| entry.rank());
    table.insert_mut(key, slot.into());
    Some(op)
}

fn remove<T: Item>(table: &mut Table<T>, key: &T::Key, origin: &Origin) -> Option<Op> {
    let slot = table.get(key)?;
    let left: Vec<Arc<T>> = slot
        .iter()
        .filter(|entry| entry.origin() != origin)
        .cloned()
        .collect();
    if left.len() == slot.len() {
        return None;
    }
    if left.is_empty() {
        table.remove_mut(key);
    } else {
        table.insert_mut(key.clone(), left.into());
    }
    Some(Op::Remove)
}

#[cfg(test)]
mod tests;
