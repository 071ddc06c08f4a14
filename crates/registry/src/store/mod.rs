//! What a scope holds, behind one trait.
//!
//! [`Store`] is the seam for other databases: an implementation provides the required methods and
//! passes the contract suite (`tests/contract`). [`SqliteStore`] is the embedded one. Everything
//! that can be said in terms of the trait is written once over it: package editing
//! (`package_editing`), rollback, and the system skills.
//!
//! What belongs to one user on one machine (approvals, trust, other servers, cached vectors) is
//! not part of a scope: see [`LocalStore`].

mod event;
mod installed;
mod maintenance;
mod new_skill;
mod package_editing;
mod sqlite;
mod state_value;
mod system_skills;
mod token;
mod trace;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use repertoire_core::{
    Artifact, ArtifactKind, CallGroup, Digest, ExecutionRecord, RelPath, SkillId, Span,
};
use uuid::Uuid;

pub use event::{EventBatch, EventCursor, EventId, StoreEvent, StoreItem};
pub use installed::{InstalledFrom, OriginChange};
pub use maintenance::{GarbageReport, RetentionPolicy, StoreUsage};
pub use new_skill::{
    CurrentSkill, NewSkill, OptimizedModule, RevisionKind, SkillKey, SkillRevision, SkillSummary,
    SkillWrite, WriteMode,
};
pub use sqlite::{
    Approval, ExampleMessages, LocalEvents, LocalStore, NewSkillUse, SqliteStore, StoreOpenMode,
    StoredRemote, StoredSkillUse,
};
pub(crate) use sqlite::{JournalGuard, side_file};
pub use sqlite::{is_leftover, read_backup_id, set_damaged_store_aside};
pub use state_value::{
    StateCallback, StateChange, StateOutcome, StateRevision, StateRow, StateValue, StateWork,
};
pub use system_skills::system_skill_ids;
pub use token::StoredToken;
pub use trace::TraceFilter;

use crate::{
    error::{Error, Result},
    registry::HistoryPolicy,
    skill_metadata::SkillMetadata,
    trust::STORE_FILE_NAME,
};

/// What one scope holds.
///
/// The methods block until they are done; a write is durable when it returns. Reads never wait for
/// a writer. Whatever is sorted by a text is sorted by its bytes, as Rust compares strings, in every
/// locale of a database. An implementation may be shared by several processes, which follow each other through
/// [`events_since`](Store::events_since).
///
/// ```
/// use repertoire_registry::store::{NewSkill, SqliteStore, Store, StoreOpenMode};
///
/// let folder = tempfile::tempdir()?;
/// let store: std::sync::Arc<dyn Store> =
///     SqliteStore::open(&folder.path().join("agents.db"), StoreOpenMode::Own)?;
/// let document = "---\nname: hello\ndescription: Greets. Use when greeted.\n---\n# Hello\n";
/// let skill = NewSkill::from_files("hello".parse()?, [("SKILL.md".parse()?, document.into())].into())?;
/// store.put_skills(vec![skill])?;
/// assert_eq!(store.all_metadata()?.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Store: Send + Sync + fmt::Debug {
    /// Returns the id that the store got at its creation.
    fn store_id(&self) -> Result<String>;

    /// Returns where the store is, for messages: a path, or an address without secrets.
    fn location(&self) -> String;

    /// Whether it can be written to.
    fn is_writable(&self) -> bool;

    /// Checks the stored data completely.
    fn check_integrity(&self) -> Result<()>;

    // Skills and packages.

    /// Returns the metadata of every skill, sorted by id.
    fn all_metadata(&self) -> Result<Vec<(SkillId, SkillMetadata)>>;

    /// Returns the metadata of one skill.
    fn skill_metadata(&self, id: &SkillId) -> Result<Option<SkillMetadata>>;

    /// Reads one file of a skill and checks its digest.
    fn read_file(&self, id: &SkillId, path: &RelPath) -> Result<Bytes>;

    /// Reads a file of any skill or revision by its digest.
    fn read_blob(&self, digest: &Digest) -> Result<Option<Bytes>>;

    /// Performs several writes as one change: all of them or none.
    ///
    /// Each write is checked against the current content ([`SkillWrite::current`]) in the same
    /// transaction. Returns the new revision of each skill, `None` where nothing changed.
    fn write_skills(&self, writes: Vec<SkillWrite>, mode: WriteMode) -> Result<Vec<Option<i64>>>;

    /// Returns where a skill was installed from, if it was.
    fn installed_from(&self, id: &SkillId) -> Result<Option<InstalledFrom>>;

    /// Returns every installed skill with its origin, sorted by id.
    fn all_installed(&self) -> Result<Vec<(SkillId, InstalledFrom)>>;

    /// Returns the digest of what was installed of a skill, if it was.
    fn installed_digest(&self, id: &SkillId) -> Result<Option<Digest>>;

    /// Returns the digests of what was installed, sorted by id.
    fn installed_digests(&self) -> Result<Vec<(SkillId, Digest)>>;

    /// Removes a skill; returns whether there was one. With [`HistoryPolicy::Purge`] its history
    /// goes too, and every file that is no longer referenced.
    fn remove_skill(&self, id: &SkillId, history: HistoryPolicy) -> Result<bool>;

    /// Returns all revisions of a skill, newest first.
    fn history(&self, id: &SkillId) -> Result<Vec<SkillRevision>>;

    /// Returns every skill without its artifacts, sorted by name.
    fn list_skills(&self) -> Result<Vec<SkillSummary>>;

    /// Finds one skill.
    fn find_skill(&self, key: SkillKey<'_>) -> Result<Option<SkillSummary>>;

    /// Returns the artifacts of some kinds, by ordinal; of every kind if `kinds` is empty.
    fn get_artifacts(&self, skill_id: Uuid, kinds: &[ArtifactKind]) -> Result<Vec<Artifact>>;

    /// Returns one artifact.
    fn get_artifact(&self, artifact_id: Uuid) -> Result<Option<Artifact>>;

    /// Returns the modules that have a learned state.
    fn optimized_modules(&self) -> Result<Vec<OptimizedModule>>;

    // Key-value state, which also holds registered skills and prompts.

    /// Returns one value.
    fn state_get(&self, scope: &str, key: &str) -> Result<Option<String>>;

    /// Returns the length of one value in bytes, without reading the value where that is possible.
    fn state_value_size(&self, scope: &str, key: &str) -> Result<Option<usize>> {
        Ok(self.state_get(scope, key)?.map(|value| value.len()))
    }

    /// Returns values sorted by key, after a key, within a number of rows and bytes. A first value
    /// larger than the limit is returned alone.
    fn state_page(
        &self,
        scope: &str,
        after: Option<&str>,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<(String, String)>>;

    /// Returns the scopes that have a value.
    fn state_scopes(&self) -> Result<Vec<String>>;

    /// Returns the metadata of every row of a scope, sorted by key; no value is read.
    fn state_rows(&self, scope: &str) -> Result<Vec<StateRow>>;

    /// Returns the metadata of one row.
    fn state_row(&self, scope: &str, key: &str) -> Result<Option<StateRow>>;

    /// Returns the current value of registered content and some earlier ones, newest first. Values of
    /// other scopes have no history.
    fn state_history(&self, scope: &str, key: &str) -> Result<Vec<StateRevision>>;

    /// Deletes the earlier values of a key.
    fn purge_state_history(&self, scope: &str, key: &str) -> Result<()>;

    /// Changes one value, atomically: `work` gets the current value and decides.
    ///
    /// It returns at once; `then` is called when the change is durable. The changes of one process
    /// and their callbacks happen in the order of the calls. `work` is called once, while no other
    /// change of this key can happen; it must not call the store. A value that would exceed the quota
    /// of its scope is refused ([`Error::QuotaExceeded`]). `then` may wait for a change of
    /// another store, so two stores never share the thread that calls it.
    fn state_change(
        &self,
        scope: &str,
        key: &str,
        work: StateWork,
        then: StateCallback,
    ) -> Result<()>;

    // Events.

    /// Returns the cursor after all events so far.
    fn event_cursor(&self) -> Result<EventCursor>;

    /// Returns the events after a cursor; `None` if some are no longer kept, and everything has to
    /// be read again.
    ///
    /// Every committed change is returned after any cursor that was taken before its commit, once
    /// for each cursor that is followed. Events of the same item come in the order of their
    /// commits. There is no order between different items, and ids are not ordered at all: a
    /// database that assigns numbers before it commits may deliver a smaller one later.
    fn events_since(&self, cursor: &EventCursor) -> Result<Option<EventBatch>>;

    // Traces, checkpoints, tokens, and the store's own notes.

    /// Stores a trace; the oldest traces are deleted when there are too many.
    fn put_trace(&self, trace: ExecutionRecord) -> Result<()>;

    /// Returns traces, newest first.
    fn traces(&self, filter: &TraceFilter) -> Result<Vec<ExecutionRecord>>;

    /// Finds one trace by its id or a prefix of it.
    fn find_trace(&self, id: &str) -> Result<Option<ExecutionRecord>>;

    /// Stores spans of a run; the oldest spans are deleted when there are too many.
    fn put_spans(&self, spans: Vec<Span>) -> Result<()>;

    /// Returns spans, newest first. The spans of artifacts are their traces.
    fn spans(&self, filter: &TraceFilter) -> Result<Vec<Span>>;

    /// Returns the model calls that belong to no stored artifact, in groups, newest first.
    fn model_calls(&self, filter: &TraceFilter) -> Result<Vec<CallGroup>>;

    /// Finds a session by its id, by the id of one of its traces or spans, or by a prefix of these.
    fn find_session(&self, id: &str) -> Result<Option<String>>;

    /// Deletes traces and spans that began before a time; returns how many traces.
    fn delete_traces(&self, before: &str) -> Result<usize>;

    /// Returns the JSON value that an artifact stored under a name in a session.
    fn checkpoint(&self, session: &str, artifact: &str, name: &str) -> Result<Option<String>>;

    /// Stores a value, replacing an older one; deletes expired values.
    fn put_checkpoint(&self, session: &str, artifact: &str, name: &str, value: &str) -> Result<()>;

    /// Stores a token under an unused name; the name of an expired one can be reused.
    fn add_token(&self, token: &StoredToken) -> Result<()>;

    /// Returns every token, sorted by name.
    fn tokens(&self) -> Result<Vec<StoredToken>>;

    /// Deletes a token; returns whether there was one.
    fn revoke_token(&self, name: &str) -> Result<bool>;

    /// Returns a note about the store itself, such as which system skill it has.
    fn note(&self, key: &str) -> Result<Option<String>>;

    /// Stores a note.
    fn put_note(&self, key: &str, value: &str) -> Result<()>;

    // Sizes, cleanup and backup.

    /// Returns what the store holds, in numbers.
    fn usage(&self) -> Result<StoreUsage>;

    /// Deletes what is superseded or old, or only reports what that would be. Nothing current is
    /// deleted.
    fn collect_garbage(
        &self,
        retention: &RetentionPolicy,
        mode: WriteMode,
    ) -> Result<GarbageReport>;

    /// Writes a consistent copy to a file that does not exist yet, while others go on writing.
    fn back_up(&self, file: &Path) -> Result<()>;

    /// Checks that a file is a complete backup; returns the id of the store it was made of.
    fn check_backup(&self, file: &Path) -> Result<String>;

    /// Replaces the whole content by that of a backup, as one change that every follower notices.
    /// Returns the file in which the content so far is kept.
    fn restore(&self, backup: &Path) -> Result<PathBuf>;

    // Provided: the same for every implementation.

    /// Stores skills, whatever was there before. Returns the new revision of each, `None` where
    /// nothing changed.
    fn put_skills(&self, skills: Vec<NewSkill>) -> Result<Vec<Option<i64>>> {
        let writes = skills.into_iter().map(SkillWrite::put).collect();
        self.write_skills(writes, WriteMode::Commit)
    }

    /// Reads every file of a skill.
    fn read_files(&self, id: &SkillId) -> Result<BTreeMap<RelPath, Bytes>> {
        let metadata = self
            .skill_metadata(id)?
            .ok_or_else(|| Error::no_skill(id))?;
        let files = metadata.files.iter();
        files
            .map(|f| Ok((f.path.clone(), self.read_file(id, &f.path)?)))
            .collect()
    }

    /// Returns the files of a skill at a revision.
    fn files_at(&self, id: &SkillId, revision: i64) -> Result<BTreeMap<RelPath, Bytes>> {
        let missing = || Error::NotFound {
            what: "revision",
            name: format!("{id}@{revision}"),
        };
        let mut history = self.history(id)?.into_iter();
        let found = history.find(|one| one.revision == revision);
        let state = found
            .filter(|one| one.op != RevisionKind::Remove.as_str())
            .ok_or_else(missing)?;
        let files = state.files.into_iter();
        files
            .map(|file| {
                let content = self.read_blob(&file.digest)?.ok_or_else(missing)?;
                Ok((file.path, content))
            })
            .collect()
    }

    /// Restores an earlier revision as a new one, with where it was installed from: what came from
    /// elsewhere stays so.
    fn rollback_skill(&self, id: &SkillId, revision: i64) -> Result<i64> {
        let skill = NewSkill::from_files(id.clone(), self.files_at(id, revision)?)?;
        let mut history = self.history(id)?.into_iter();
        let origin = history.find(|one| one.revision == revision);
        let origin = match origin.and_then(|one| one.origin) {
            Some(from) => OriginChange::Set(Box::new(from)),
            None => OriginChange::Clear,
        };
        let write = SkillWrite {
            kind: RevisionKind::Rollback,
            origin,
            ..SkillWrite::put(skill)
        };
        let revisions = self.write_skills(vec![write], WriteMode::Commit)?;
        // A rollback always leaves a revision.
        Ok(revisions.into_iter().next().flatten().unwrap_or_default())
    }
}

impl dyn Store + '_ {
    /// Changes one value and waits until the change is durable.
    pub fn state_change_wait(
        &self,
        scope: &str,
        key: &str,
        work: impl FnOnce(Option<String>) -> Result<StateChange> + Send + 'static,
    ) -> Result<StateOutcome> {
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        let then = move |outcome| {
            // The caller may have stopped waiting.
            let _ = answer.send(outcome);
        };
        self.state_change(scope, key, Box::new(work), Box::new(then))?;
        answered.recv().map_err(|_| Error::WriterStopped)?
    }

    /// Sets a value and returns the previous one.
    pub fn state_set(&self, scope: &str, key: &str, value: StateValue) -> Result<Option<String>> {
        let outcome = self.state_change_wait(scope, key, |_| Ok(StateChange::Put(value)))?;
        Ok(outcome.previous)
    }

    /// Deletes a value and returns it.
    pub fn state_delete(&self, scope: &str, key: &str) -> Result<Option<String>> {
        let outcome = self.state_change_wait(scope, key, |_| Ok(StateChange::Delete))?;
        Ok(outcome.previous)
    }
}

/// The account: its scope, and what the user keeps on this machine.
#[derive(Debug, Clone)]
pub struct Account {
    /// The account's scope.
    pub store: Arc<dyn Store>,
    /// Approvals, other servers and caches of this user.
    pub local: Arc<LocalStore>,
}

impl Account {
    /// Opens the account in a folder, creating it if there is none.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::open_as(folder, StoreOpenMode::Own)
    }

    /// Opens the account in a folder without write permission.
    pub fn open_read_only(folder: &Path) -> Result<Self> {
        Self::open_as(folder, StoreOpenMode::ReadOnly)
    }

    fn open_as(folder: &Path, trust: StoreOpenMode) -> Result<Self> {
        let sqlite = SqliteStore::open(&folder.join(STORE_FILE_NAME), trust)?;
        Ok(Self {
            store: sqlite.clone(),
            local: Arc::new(LocalStore::new(sqlite)),
        })
    }

    /// Whether the folder has no account yet.
    pub fn is_missing(folder: &Path) -> bool {
        let file = folder.join(STORE_FILE_NAME).symlink_metadata();
        file.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    }
}

/// Returns the current time, RFC 3339 in UTC.
pub(crate) fn now_rfc3339() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

/// Creates a folder that only this user can read; an existing folder keeps its mode.
pub fn create_private_dir(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(path).map_err(|e| Error::from_io(path, e))
}
