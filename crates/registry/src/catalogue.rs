//! The catalogue: one view over all sources.
//!
//! A [`Snapshot`] is an immutable, structurally shared map from id to entries; readers take no
//! lock. A change costs O(log n), publishes a new snapshot and appends events. Invariant: the
//! visible entries of a snapshot are always the fold of the events up to its sequence number.

use std::{
    borrow::Cow,
    collections::{BTreeSet, VecDeque},
    ops::Bound,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use repertoire_core::{
    FileEntry, Prompt, PromptName, RelPath, SkillId, SkillUri, mime, permission::IdPrefix,
};
use rpds::RedBlackTreeMapSync;
use tokio::sync::watch;

mod nested;

use crate::{
    origin::{Origin, QualifiedSkillId, Trusted},
    skill_metadata::{SharedText, SkillMetadata},
    source::ContentLocation,
};

/// A skill in the catalogue.
#[derive(Debug, Clone)]
pub struct SkillEntry {
    /// Its id.
    pub id: SkillId,
    /// Another id that finds it if no skill has that id: the path of its folder.
    pub alias: Option<SkillId>,
    /// Its origin.
    pub origin: Origin,
    /// Whether it may override others and run.
    pub trusted: Trusted,
    /// Its metadata, without the files of nested skills that are hidden.
    pub metadata: Arc<SkillMetadata>,
    /// Its metadata with all files, if `metadata` lacks some.
    pub(crate) complete: Option<Arc<SkillMetadata>>,
    pub(crate) location: ContentLocation,
}

impl SkillEntry {
    /// Returns the name of its origin if the origin is not trusted, to label its text with (T44).
    pub fn untrusted_origin(&self) -> Option<String> {
        (self.trusted == Trusted::No).then(|| self.origin.to_string())
    }

    /// Whether its files are served under `skill://`.
    pub fn has_files(&self) -> bool {
        let metadata = &self.metadata;
        metadata.frontmatter.is_some()
            || metadata.unlisted.is_some()
            || matches!(self.location, ContentLocation::Embedded(_))
    }

    /// Returns the file or folder it is read from, if it is on disk.
    pub fn path(&self) -> Option<PathBuf> {
        self.location.path()
    }

    /// Whether it was found through a link, so that its path is not beneath its origin.
    pub fn is_linked(&self) -> bool {
        self.location.is_linked()
    }

    /// Whether reading it sends a request to another server.
    pub fn is_remote(&self) -> bool {
        matches!(self.location, ContentLocation::Remote(_))
    }

    /// Whether its body is stored on a bus and must be requested there.
    pub fn is_on_bus(&self) -> bool {
        matches!(self.location, ContentLocation::Bus)
    }

    /// Returns its files in serving order: for embedded skills as declared, else by path.
    pub fn files(&self) -> impl Iterator<Item = &FileEntry> {
        let given = match &self.location {
            ContentLocation::Embedded(skill) => Some(skill),
            _ => None,
        };
        let in_order = given.into_iter().flat_map(|skill| {
            let paths = skill
                .references()
                .iter()
                .filter_map(|r| r.path().parse().ok());
            std::iter::once(RelPath::document())
                .chain(paths)
                .filter_map(|path| self.metadata.find_file(&path))
        });
        let sorted = match given {
            Some(_) => &[],
            None => &*self.metadata.files,
        };
        in_order.chain(sorted)
    }

    /// Returns the MIME type of one of its files.
    pub fn mime_type(&self, path: &RelPath) -> Cow<'static, str> {
        if let ContentLocation::Embedded(skill) = &self.location
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
    /// Its origin.
    pub origin: Origin,
    /// Whether it may override others.
    pub trusted: Trusted,
    /// When it was registered, RFC 3339 in UTC.
    pub registered_at: Option<SharedText>,
    pub(crate) location: ContentLocation,
}

impl PromptEntry {
    /// Returns the file it is read from, if it is on disk.
    pub fn path(&self) -> Option<PathBuf> {
        self.location.path()
    }

    /// Whether it is stored on a bus and must be requested there.
    pub fn is_on_bus(&self) -> bool {
        matches!(self.location, ContentLocation::Bus)
    }
}

/// An entry that the catalogue stores under a key.
pub(crate) trait CatalogueItem: Clone {
    type Key: Ord + Clone + Send + Sync;
    fn catalogue_key(&self) -> &Self::Key;
    fn origin(&self) -> &Origin;
    fn precedence_rank(&self) -> u32;
    fn is_same_as(&self, other: &Self) -> bool;
}

impl CatalogueItem for SkillEntry {
    type Key = SkillId;
    fn catalogue_key(&self) -> &SkillId {
        &self.id
    }
    fn origin(&self) -> &Origin {
        &self.origin
    }
    fn precedence_rank(&self) -> u32 {
        self.origin.precedence_rank(self.trusted)
    }
    fn is_same_as(&self, other: &Self) -> bool {
        self.precedence_rank() == other.precedence_rank()
            && self.complete_metadata() == other.complete_metadata()
            && self.alias == other.alias
            && self.location.is_same_location(&other.location)
    }
}

impl CatalogueItem for PromptEntry {
    type Key = PromptName;
    fn catalogue_key(&self) -> &PromptName {
        &self.prompt.name
    }
    fn origin(&self) -> &Origin {
        &self.origin
    }
    fn precedence_rank(&self) -> u32 {
        self.origin.precedence_rank(self.trusted)
    }
    fn is_same_as(&self, other: &Self) -> bool {
        self.prompt == other.prompt
            && self.registered_at == other.registered_at
            && self.location.is_same_location(&other.location)
    }
}

/// All entries of one key, the winning one first.
type EntrySlot<T> = Arc<[Arc<T>]>;
type EntryTable<T> = RedBlackTreeMapSync<<T as CatalogueItem>::Key, EntrySlot<T>>;

/// How an entry changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EventOp {
    /// It was added.
    Add,
    /// It was changed or registered again.
    Update,
    /// It was removed.
    Remove,
}

/// The kind of entry that an event concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ItemKind {
    /// A skill.
    Skill,
    /// A prompt.
    Prompt,
}

/// One change of the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct CatalogueEvent {
    /// Its sequence number, which grows by one with each event.
    pub seq: u64,
    /// How the entry changed.
    pub op: EventOp,
    /// The kind of the entry.
    pub kind: ItemKind,
    /// The id or name of the entry.
    pub id: String,
    /// The origin of the entry.
    pub origin: Origin,
}

/// Which skills of the catalogue are served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Visibility {
    /// Only skills below these paths, if there are any.
    pub(crate) only: Vec<IdPrefix>,
    /// Skills that the user disabled.
    pub(crate) disabled: BTreeSet<SkillId>,
    /// Whether packages of the account's store are shown.
    pub(crate) account: AccountSkills,
}

/// Whether packages of the account's store are shown, the system skills among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AccountSkills {
    /// They are.
    #[default]
    Shown,
    /// They are not.
    Hidden,
}

impl Visibility {
    fn hides_some(&self) -> bool {
        !self.only.is_empty() || !self.disabled.is_empty() || self.account == AccountSkills::Hidden
    }

    fn hides(&self, id: &SkillId) -> bool {
        let is_selected = self.only.is_empty() || self.only.iter().any(|one| one.contains(id));
        !is_selected || self.disabled.contains(id)
    }
}

/// An immutable state of the catalogue.
#[derive(Debug, Clone)]
pub struct Snapshot {
    seq: u64,
    visibility: Arc<Visibility>,
    /// Whether it has only some of the skills, see [`Snapshot::restricted_to`].
    is_restricted: bool,
    skills: EntryTable<SkillEntry>,
    /// Ids that stand for others.
    aliases: RedBlackTreeMapSync<SkillId, SkillId>,
    prompts: EntryTable<PromptEntry>,
}

impl Snapshot {
    fn empty() -> Self {
        Self {
            seq: 0,
            visibility: Arc::default(),
            is_restricted: false,
            skills: EntryTable::<SkillEntry>::new_sync(),
            aliases: RedBlackTreeMapSync::new_sync(),
            prompts: EntryTable::<PromptEntry>::new_sync(),
        }
    }

    /// Returns the sequence number of its last event.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Returns the part of the catalogue below some paths. Prompts are kept by their names. The cost
    /// depends on the size of the part and the number of prompts.
    #[must_use]
    pub fn restricted_to(&self, prefixes: &[IdPrefix]) -> Self {
        let mut part = Self {
            seq: self.seq,
            visibility: self.visibility.clone(),
            is_restricted: true,
            ..Self::empty()
        };
        for prefix in prefixes {
            let below = self.skills.range::<SkillId, _>(prefix.path()..);
            let below = below.take_while(|(id, _)| id.as_str().starts_with(prefix.path().as_str()));
            for (id, slot) in below.filter(|(id, _)| prefix.contains(id)) {
                part.skills.insert_mut(id.clone(), slot.clone());
                for alias in slot.iter().filter_map(|entry| entry.alias.as_ref()) {
                    part.aliases.insert_mut(alias.clone(), id.clone());
                }
            }
        }
        for (name, slot) in &self.prompts {
            if prefixes.iter().any(|one| one.contains_str(name.as_str())) {
                part.prompts.insert_mut(name.clone(), slot.clone());
            }
        }
        part
    }

    /// Returns the catalogue without the packages of the account's store.
    #[must_use]
    pub fn without_account(&self) -> Self {
        let visibility = Visibility {
            account: AccountSkills::Hidden,
            ..(*self.visibility).clone()
        };
        Self {
            visibility: Arc::new(visibility),
            ..self.clone()
        }
    }

    pub(crate) fn hides_account(&self) -> bool {
        self.visibility.account == AccountSkills::Hidden
    }

    /// Whether it has only a part of the catalogue.
    pub fn is_restricted(&self) -> bool {
        self.is_restricted
    }

    /// Returns the number of visible skills.
    pub fn len(&self) -> usize {
        if self.visibility.hides_some() {
            return self.skills().count();
        }
        self.skills.size()
    }

    /// Whether no skill is visible.
    pub fn is_empty(&self) -> bool {
        self.skills().next().is_none()
    }

    /// Whether skills of this id are not served: disabled, or not selected.
    pub fn is_hidden(&self, id: &SkillId) -> bool {
        self.visibility.hides(id)
    }

    fn is_visible(&self, entry: &SkillEntry) -> bool {
        if !self.visibility.hides_some() {
            return true;
        }
        if self.hides_account() && entry.origin == Origin::Account {
            return false;
        }
        // A disabled folder stays disabled under another name.
        let alias = entry.alias.as_ref();
        !self.visibility.hides(&entry.id)
            && !alias.is_some_and(|alias| self.visibility.disabled.contains(alias))
            && !self.claims_disabled_name(entry)
    }

    /// Whether the document of a skill claims a name that was disabled: two folders that claim it have
    /// other ids than one that does.
    fn claims_disabled_name(&self, entry: &SkillEntry) -> bool {
        let Some(frontmatter) = entry.metadata.frontmatter.as_deref() else {
            return false;
        };
        let is_beside = |id: &&SkillId| id.parent() == entry.id.parent();
        let mut disabled = self.visibility.disabled.iter().filter(is_beside);
        disabled.any(|id| {
            // Parsed only if it may be there.
            frontmatter.contains(id.name())
                && repertoire_core::json::from_str::<serde_json::Value>(frontmatter)
                    .is_ok_and(|fields| fields["name"] == id.name())
        })
    }

    /// Returns the visible skills, sorted by id.
    pub fn skills(&self) -> impl Iterator<Item = &Arc<SkillEntry>> {
        let first = self.skills.values().filter_map(|slot| slot.first());
        first.filter(|entry| self.is_visible(entry))
    }

    /// Returns the visible skills after an id, sorted by id; a page is found in O(log n).
    ///
    /// ```
    /// # use repertoire_registry::{Registry, RegistrySettings};
    /// # let registry = Registry::open(RegistrySettings::default())?;
    /// let snapshot = registry.snapshot();
    /// let first: Vec<_> = snapshot.skills_after(None).take(100).collect();
    /// let next = snapshot.skills_after(first.last().map(|entry| &entry.id)).take(100);
    /// # assert_eq!(next.count(), 0);
    /// # Ok::<(), repertoire_registry::Error>(())
    /// ```
    pub fn skills_after(&self, id: Option<&SkillId>) -> impl Iterator<Item = &Arc<SkillEntry>> {
        let start = id.map_or(Bound::Unbounded, Bound::Excluded);
        self.skills
            .range::<SkillId, _>((start, Bound::Unbounded))
            .filter_map(|(_, slot)| slot.first())
            .filter(|entry| self.is_visible(entry))
    }

    /// Returns every entry with the entry that hides it, sorted by id, also those that are not served.
    pub fn all_skills(&self) -> impl Iterator<Item = (&Arc<SkillEntry>, Option<&Arc<SkillEntry>>)> {
        self.skills.values().flat_map(entries_with_winner)
    }

    /// Finds a skill by its id, or by origin and id.
    pub fn find_skill(&self, reference: &QualifiedSkillId) -> Option<&Arc<SkillEntry>> {
        let find = |id: &SkillId| find_entry(&self.skills, id, reference.origin.as_ref());
        find(&reference.id)
            .or_else(|| find(self.aliases.get(&reference.id)?))
            .filter(|entry| self.is_visible(entry))
    }

    /// Returns a visible skill by its id.
    pub fn get(&self, id: &SkillId) -> Option<&Arc<SkillEntry>> {
        let slot = self.skills.get(id);
        slot.or_else(|| self.skills.get(self.aliases.get(id)?))?
            .first()
            .filter(|entry| self.is_visible(entry))
    }

    /// Replaces the alias of the entry of an origin, before the entry itself is changed.
    fn replace_alias(&mut self, id: &SkillId, origin: &Origin, alias: Option<&SkillId>) {
        let old = find_entry(&self.skills, id, Some(origin));
        let old = old.and_then(|entry| entry.alias.clone());
        if old.as_ref() == alias {
            return;
        }
        if let Some(old) = old.filter(|old| self.aliases.get(old) == Some(id)) {
            self.aliases.remove_mut(&old);
        }
        if let Some(alias) = alias {
            self.aliases.insert_mut(alias.clone(), id.clone());
        }
    }

    /// Changes which skills are served; returns whether that is a change.
    fn set_visibility(&mut self, visibility: Visibility, log: &mut EventLog) -> bool {
        if visibility == *self.visibility {
            return false;
        }
        for (id, slot) in &self.skills {
            let op = match (self.visibility.hides(id), visibility.hides(id)) {
                (false, true) => EventOp::Remove,
                (true, false) => EventOp::Add,
                _ => continue,
            };
            for entry in slot.iter() {
                log.push(op, ItemKind::Skill, id.to_string(), entry.origin.clone());
            }
        }
        self.visibility = Arc::new(visibility);
        self.trim_all();
        true
    }

    /// Finds the skill and the file that a `skill://` URI names.
    ///
    /// For nested skills the innermost one provides the file, but trusted local skills come before
    /// untrusted ones, and local skills before those of another server. Among the skills of one
    /// server the innermost one provides its files, trusted or not.
    pub fn locate_file(&self, uri: &SkillUri) -> Option<(Arc<SkillEntry>, RelPath)> {
        // The files of a hidden skill are not read through the skill around it either.
        let is_hidden = |id: &SkillId| self.skills.contains_key(id) && self.visibility.hides(id);
        let hides_some = self.visibility.hides_some();
        uri.possible_splits()
            .take_while(|(id, _)| !hides_some || !is_hidden(id))
            .filter_map(|(id, path)| {
                let entry = self.get(&id).filter(|entry| entry.has_files())?;
                let known = entry.metadata.dynamic || entry.metadata.find_file(&path).is_some();
                known.then(|| (entry.clone(), path))
            })
            .min_by_key(|(entry, _)| match (entry.is_remote(), entry.trusted) {
                (true, _) => 2,
                (false, Trusted::No) => 1,
                (false, Trusted::Yes) => 0,
            })
    }

    /// Returns the visible prompts after a name, sorted by name.
    pub fn prompts_after(
        &self,
        name: Option<&PromptName>,
    ) -> impl Iterator<Item = &Arc<PromptEntry>> {
        let start = name.map_or(Bound::Unbounded, Bound::Excluded);
        self.prompts
            .range::<PromptName, _>((start, Bound::Unbounded))
            .filter_map(|(_, slot)| slot.first())
    }

    /// Returns the visible prompts, sorted by name.
    pub fn prompts(&self) -> impl Iterator<Item = &Arc<PromptEntry>> {
        self.prompts.values().filter_map(|slot| slot.first())
    }

    /// Returns every prompt with the prompt that hides it, sorted by name.
    pub fn all_prompts(
        &self,
    ) -> impl Iterator<Item = (&Arc<PromptEntry>, Option<&Arc<PromptEntry>>)> {
        self.prompts.values().flat_map(entries_with_winner)
    }

    /// Returns a visible prompt by its name.
    pub fn find_prompt(&self, name: &PromptName) -> Option<&Arc<PromptEntry>> {
        find_entry(&self.prompts, name, None)
    }
}

/// Returns every entry of a key with the entry that hides it.
fn entries_with_winner<T>(slot: &EntrySlot<T>) -> impl Iterator<Item = (&Arc<T>, Option<&Arc<T>>)> {
    let winner = slot.first();
    slot.iter()
        .enumerate()
        .map(move |(at, entry)| (entry, winner.filter(|_| at > 0)))
}

fn find_entry<'a, T: CatalogueItem>(
    table: &'a EntryTable<T>,
    key: &T::Key,
    origin: Option<&Origin>,
) -> Option<&'a Arc<T>> {
    let slot = table.get(key)?;
    match origin {
        Some(origin) => slot.iter().find(|entry| entry.origin() == origin),
        None => slot.first(),
    }
}

/// A change to apply to the catalogue.
#[derive(Debug, Clone)]
pub(crate) enum CatalogueChange {
    PutSkill(SkillEntry, RepeatPolicy),
    RemoveSkill(SkillId, Origin),
    PutPrompt(PromptEntry, RepeatPolicy),
    RemovePrompt(PromptName, Origin),
    SetVisibility(Visibility),
}

/// Whether putting an unchanged entry causes an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RepeatPolicy {
    Notify,
    Ignore,
}

/// The number of events kept for followers. A follower that is further behind starts from a snapshot;
/// more of them would keep pages of memory in use that are empty otherwise.
const MAX_EVENTS: usize = 8192;

/// The requested events are no longer kept; the follower has to start from a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lagged;

#[derive(Debug, Default)]
struct EventLog {
    events: VecDeque<CatalogueEvent>,
    seq: u64,
}

impl EventLog {
    fn push(&mut self, op: EventOp, kind: ItemKind, id: String, origin: Origin) {
        self.seq += 1;
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(CatalogueEvent {
            seq: self.seq,
            op,
            kind,
            id,
            origin,
        });
    }
}

/// The published snapshot and the events that led to it.
#[derive(Debug)]
pub(crate) struct Catalogue {
    current: ArcSwap<Snapshot>,
    log: Mutex<EventLog>,
    changed: Condvar,
    /// The number of the last event, for those who wait asynchronously.
    seq: watch::Sender<u64>,
}

impl Catalogue {
    pub(crate) fn new() -> Self {
        Self {
            current: ArcSwap::from_pointee(Snapshot::empty()),
            log: Mutex::default(),
            changed: Condvar::new(),
            seq: watch::Sender::new(0),
        }
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// The number of the last event, as it changes.
    pub(crate) fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.seq.subscribe()
    }

    fn lock_log(&self) -> MutexGuard<'_, EventLog> {
        // Events are appended atomically, so the log is valid even if the lock is poisoned.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies all changes atomically: readers see none of them or all.
    pub(crate) fn apply_changes(&self, changes: impl IntoIterator<Item = CatalogueChange>) {
        let mut log = self.lock_log();
        let mut next = (**self.current.load()).clone();
        let mut is_changed = false;
        let mut changed_ids = Vec::new();
        for change in changes {
            let done = match change {
                CatalogueChange::SetVisibility(visibility) => {
                    is_changed |= next.set_visibility(visibility, &mut log);
                    continue;
                }
                CatalogueChange::PutSkill(entry, again) => {
                    changed_ids.push((entry.id.clone(), entry.alias.clone()));
                    next.replace_alias(&entry.id, &entry.origin, entry.alias.as_ref());
                    let (id, origin) = (entry.id.to_string(), entry.origin.clone());
                    put_item(&mut next.skills, entry, again)
                        .map(|op| (op, ItemKind::Skill, id, origin))
                }
                CatalogueChange::RemoveSkill(id, origin) => {
                    changed_ids.push((id.clone(), None));
                    next.replace_alias(&id, &origin, None);
                    remove_item(&mut next.skills, &id, &origin)
                        .map(|op| (op, ItemKind::Skill, id.to_string(), origin))
                }
                CatalogueChange::PutPrompt(entry, again) => {
                    let (id, origin) = (entry.prompt.name.to_string(), entry.origin.clone());
                    put_item(&mut next.prompts, entry, again)
                        .map(|op| (op, ItemKind::Prompt, id, origin))
                }
                CatalogueChange::RemovePrompt(name, origin) => {
                    remove_item(&mut next.prompts, &name, &origin)
                        .map(|op| (op, ItemKind::Prompt, name.to_string(), origin))
                }
            };
            if let Some((op, kind, id, origin)) = done {
                is_changed = true;
                let is_hidden = kind == ItemKind::Skill
                    && next.visibility.hides_some()
                    && id.parse().is_ok_and(|id| next.visibility.hides(&id));
                if !is_hidden {
                    log.push(op, kind, id, origin);
                }
            }
        }
        if is_changed {
            next.trim_around(&changed_ids);
            next.seq = log.seq;
            self.current.store(Arc::new(next));
            self.changed.notify_all();
            self.seq.send_replace(log.seq);
        }
    }

    /// Returns the events after a sequence number; waits for one until the timeout.
    pub(crate) fn wait_events(
        &self,
        after: u64,
        patience: Duration,
    ) -> Result<Vec<CatalogueEvent>, Lagged> {
        let deadline = Instant::now() + patience;
        let mut log = self.lock_log();
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

fn put_item<T: CatalogueItem>(
    table: &mut EntryTable<T>,
    item: T,
    again: RepeatPolicy,
) -> Option<EventOp> {
    let key = item.catalogue_key().clone();
    let Some(slot) = table.get(&key) else {
        table.insert_mut(key, Arc::from([Arc::new(item)]));
        return Some(EventOp::Add);
    };
    let mut slot: Vec<Arc<T>> = slot.to_vec();
    let place = slot.iter().position(|e| e.origin() == item.origin());
    let op = match place {
        Some(at) if again == RepeatPolicy::Ignore && slot[at].is_same_as(&item) => return None,
        Some(at) => {
            slot[at] = Arc::new(item);
            EventOp::Update
        }
        None => {
            slot.push(Arc::new(item));
            EventOp::Add
        }
    };
    slot.sort_by_key(|entry| entry.precedence_rank());
    table.insert_mut(key, slot.into());
    Some(op)
}

fn remove_item<T: CatalogueItem>(
    table: &mut EntryTable<T>,
    key: &T::Key,
    origin: &Origin,
) -> Option<EventOp> {
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
    Some(EventOp::Remove)
}

#[cfg(test)]
mod tests;
