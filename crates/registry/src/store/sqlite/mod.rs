//! The SQLite store: one file per scope.
//!
//! Only this module knows SQL. Reads come from a small pool of connections and never wait for a
//! writer; writes go through one thread with group commit and are durable when they
//! return. Every change records an event, so that other processes on the same file can follow.

mod artifacts;
mod checkpoints;
mod connection;
mod events;
mod history;
mod installed;
mod local;
mod maintenance;
mod schema;
mod skills;
mod spans;
mod state;
mod tokens;
mod traces;
mod writer;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use repertoire_core::{
    Artifact, ArtifactKind, CallGroup, Digest, ExecutionRecord, RelPath, SkillId, Span,
};
use rusqlite::{Connection, OptionalExtension};
use uuid::Uuid;

pub use connection::StoreOpenMode;
pub(crate) use connection::{JournalGuard, side_file};
pub use local::{
    Approval, ExampleMessages, LocalEvents, LocalStore, NewSkillUse, StoredRemote, StoredSkillUse,
};
pub use maintenance::{is_leftover, read_backup_id, set_damaged_store_aside};

use super::{
    EventBatch, EventCursor, GarbageReport, InstalledFrom, OptimizedModule, RetentionPolicy,
    SkillKey, SkillRevision, SkillSummary, SkillWrite, StateCallback, StateRevision, StateRow,
    StateWork, Store, StoreUsage, StoredToken, TraceFilter, WriteMode, create_private_dir,
    now_rfc3339,
};
use crate::{
    error::{Error, Result},
    registry::HistoryPolicy,
    skill_metadata::SkillMetadata,
};

/// The most idle read connections that are kept.
const MAX_POOLED: usize = 4;

/// A failure within a query: one of SQLite's, which does not name the file yet, or one of ours.
#[derive(Debug)]
enum QueryError {
    Sqlite(rusqlite::Error),
    Registry(Error),
}

/// The result of a query.
type QueryResult<T> = std::result::Result<T, QueryError>;

impl QueryError {
    /// Adds the file to SQLite's failures.
    fn at_path(self, path: &Path) -> Error {
        match self {
            Self::Sqlite(error) => connection::map_sqlite_error(path, error),
            Self::Registry(error) => error,
        }
    }
}

impl From<rusqlite::Error> for QueryError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<Error> for QueryError {
    fn from(error: Error) -> Self {
        Self::Registry(error)
    }
}

impl From<repertoire_core::Error> for QueryError {
    fn from(error: repertoire_core::Error) -> Self {
        Self::Registry(error.into())
    }
}

/// A store in one SQLite file.
pub struct SqliteStore {
    path: PathBuf,
    trust: StoreOpenMode,
    pool: Mutex<Vec<Connection>>,
    writer: Option<writer::StoreWriter>,
    /// Decides about the files of a workspace, which a pull can replace at any time.
    guard: Option<Arc<dyn JournalGuard>>,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore")
            .field("path", &self.path)
            .field("trust", &self.trust)
            .finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens a store, creating it if it is the user's own and does not exist yet.
    pub fn open(path: &Path, trust: StoreOpenMode) -> Result<Arc<Self>> {
        Self::open_as(path, trust, None)
    }

    /// Opens a store of the user whose journal a guard decides about.
    pub(crate) fn open_guarded(path: &Path, guard: Arc<dyn JournalGuard>) -> Result<Arc<Self>> {
        Self::open_as(path, StoreOpenMode::Own, Some(guard))
    }

    fn open_as(
        path: &Path,
        trust: StoreOpenMode,
        guard: Option<Arc<dyn JournalGuard>>,
    ) -> Result<Arc<Self>> {
        if trust == StoreOpenMode::Own
            && let Some(parent) = path.parent()
        {
            create_private_dir(parent)?;
        }
        let connection = connection::prepare_store(path, trust, guard.as_deref())?;
        let writer = match trust {
            StoreOpenMode::Own => Some(writer::StoreWriter::start(
                connection::open_connection(path, trust)?,
                path.to_owned(),
                guard.clone(),
            )?),
            StoreOpenMode::ReadOnly | StoreOpenMode::Untrusted => None,
        };
        Ok(Arc::new(Self {
            path: path.to_owned(),
            trust,
            pool: Mutex::new(vec![connection]),
            writer,
            guard,
        }))
    }

    /// Returns the path of the store's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Limits the file to a number of pages, to simulate a full disk.
    #[doc(hidden)]
    pub fn limit_pages_for_test(&self, pages: i64) -> Result<()> {
        self.write_durable(move |c| Ok(c.pragma_update(None, "max_page_count", pages)?))
    }

    /// Runs a read on a pooled connection.
    fn with_reader<T>(&self, work: impl FnOnce(&Connection) -> QueryResult<T>) -> Result<T> {
        let pooled = self.lock_pool().pop();
        let connection = match pooled {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let result = work(&connection).map_err(|error| error.at_path(&self.path));
        let mut pool = self.lock_pool();
        if pool.len() < MAX_POOLED {
            pool.push(connection);
        }
        result
    }

    /// Opens another connection to the files that were opened first.
    fn connect(&self) -> Result<Connection> {
        let connection = connection::open_connection(&self.path, self.trust)?;
        if let Some(guard) = &self.guard {
            // Nothing was read yet, so nothing of a replaced file was used or applied.
            guard.check_files()?;
        }
        Ok(connection)
    }

    fn lock_pool(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        // The list of connections stays valid even if a reader panicked.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a write and waits until it is durable.
    fn write_durable<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> QueryResult<T> + Send + 'static,
    ) -> Result<T> {
        self.writer()?.write_durable(work)
    }

    fn writer(&self) -> Result<&writer::StoreWriter> {
        self.writer.as_ref().ok_or_else(|| match self.trust {
            StoreOpenMode::Untrusted => Error::Untrusted(self.path.clone()),
            StoreOpenMode::Own | StoreOpenMode::ReadOnly => Error::ReadOnly(self.path.clone()),
        })
    }

    fn verify_digest(&self, digest: &[u8], content: Vec<u8>) -> Result<Bytes> {
        if Digest::hash_bytes(&content).as_bytes() != digest {
            return Err(self.corrupt("a stored file differs from its digest"));
        }
        Ok(content.into())
    }

    fn corrupt(&self, reason: impl Into<String>) -> Error {
        Error::Corrupt {
            path: self.path.clone(),
            reason: reason.into(),
        }
    }
}

impl Store for SqliteStore {
    fn store_id(&self) -> Result<String> {
        let id = self.note("store_id")?;
        id.ok_or_else(|| self.corrupt("it has no id"))
    }

    fn location(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    fn is_writable(&self) -> bool {
        self.writer.is_some()
    }

    fn check_integrity(&self) -> Result<()> {
        let path = self.path.clone();
        self.with_reader(|c| Ok(connection::check_pages(c, &path)?))
    }

    fn all_metadata(&self) -> Result<Vec<(SkillId, SkillMetadata)>> {
        self.with_reader(|c| skills::all_metadata(c, &self.path))
    }

    fn skill_metadata(&self, id: &SkillId) -> Result<Option<SkillMetadata>> {
        self.with_reader(|c| skills::skill_metadata(c, id, &self.path))
    }

    fn read_file(&self, id: &SkillId, path: &RelPath) -> Result<Bytes> {
        let found = self.with_reader(|c| skills::file_content(c, id, path))?;
        let (digest, content) = found.ok_or_else(|| Error::NotFound {
            what: "file",
            name: format!("{id}/{path}"),
        })?;
        self.verify_digest(&digest, content)
    }

    fn read_blob(&self, digest: &Digest) -> Result<Option<Bytes>> {
        let content = self.with_reader(|c| skills::blob_content(c, digest))?;
        let content = content.map(|content| self.verify_digest(digest.as_bytes(), content));
        content.transpose()
    }

    fn write_skills(&self, writes: Vec<SkillWrite>, mode: WriteMode) -> Result<Vec<Option<i64>>> {
        let path = self.path.clone();
        self.write_durable(move |c| skills::write_skills(c, &writes, mode, &path))
    }

    fn installed_from(&self, id: &SkillId) -> Result<Option<InstalledFrom>> {
        self.with_reader(|c| installed::installed_from(c, id))
    }

    fn all_installed(&self) -> Result<Vec<(SkillId, InstalledFrom)>> {
        self.with_reader(installed::all_installed)
    }

    fn installed_digest(&self, id: &SkillId) -> Result<Option<Digest>> {
        self.with_reader(|c| installed::installed_digest(c, id))
    }

    fn installed_digests(&self) -> Result<Vec<(SkillId, Digest)>> {
        self.with_reader(installed::installed_digests)
    }

    fn remove_skill(&self, id: &SkillId, history: HistoryPolicy) -> Result<bool> {
        let id = id.clone();
        self.write_durable(move |c| match history {
            HistoryPolicy::Keep => skills::remove_skill(c, &id),
            HistoryPolicy::Purge => skills::purge_skill(c, &id),
        })
    }

    fn history(&self, id: &SkillId) -> Result<Vec<SkillRevision>> {
        self.with_reader(|c| history::history(c, id, &self.path))
    }

    fn list_skills(&self) -> Result<Vec<SkillSummary>> {
        self.with_reader(artifacts::list_skills)
    }

    fn find_skill(&self, key: SkillKey<'_>) -> Result<Option<SkillSummary>> {
        self.with_reader(|c| artifacts::find_skill(c, key))
    }

    fn get_artifacts(&self, skill_id: Uuid, kinds: &[ArtifactKind]) -> Result<Vec<Artifact>> {
        self.with_reader(|c| artifacts::get_artifacts(c, skill_id, kinds))
    }

    fn get_artifact(&self, artifact_id: Uuid) -> Result<Option<Artifact>> {
        self.with_reader(|c| artifacts::get_artifact(c, artifact_id))
    }

    fn optimized_modules(&self) -> Result<Vec<OptimizedModule>> {
        self.with_reader(artifacts::optimized_modules)
    }

    fn state_get(&self, scope: &str, key: &str) -> Result<Option<String>> {
        self.with_reader(|c| state::get_value(c, scope, key))
    }

    fn state_value_size(&self, scope: &str, key: &str) -> Result<Option<usize>> {
        self.with_reader(|c| state::value_size(c, scope, key))
    }

    fn state_page(
        &self,
        scope: &str,
        after: Option<&str>,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<(String, String)>> {
        self.with_reader(|c| state::page(c, scope, after, limit, max_bytes))
    }

    fn state_scopes(&self) -> Result<Vec<String>> {
        self.with_reader(state::scopes)
    }

    fn state_rows(&self, scope: &str) -> Result<Vec<StateRow>> {
        self.with_reader(|c| state::rows(c, scope))
    }

    fn state_row(&self, scope: &str, key: &str) -> Result<Option<StateRow>> {
        self.with_reader(|c| state::row(c, scope, key))
    }

    fn state_history(&self, scope: &str, key: &str) -> Result<Vec<StateRevision>> {
        self.with_reader(|c| state::history(c, scope, key))
    }

    fn purge_state_history(&self, scope: &str, key: &str) -> Result<()> {
        let row = [scope, key].map(str::to_owned);
        self.write_durable(move |c| {
            let sql = "DELETE FROM state_revisions WHERE scope = ?1 AND key = ?2";
            c.execute(sql, row)?;
            Ok(())
        })
    }

    fn state_change(
        &self,
        scope: &str,
        key: &str,
        work: StateWork,
        then: StateCallback,
    ) -> Result<()> {
        let (scope, key) = (scope.to_owned(), key.to_owned());
        let job = move |c: &Connection| state::change(c, &scope, &key, work);
        self.writer()?.enqueue(job, then)
    }

    fn event_cursor(&self) -> Result<EventCursor> {
        self.with_reader(events::cursor)
    }

    fn events_since(&self, cursor: &EventCursor) -> Result<Option<EventBatch>> {
        self.with_reader(|c| events::events_since(c, cursor))
    }

    fn put_trace(&self, trace: ExecutionRecord) -> Result<()> {
        self.write_durable(move |c| traces::put_trace(c, &trace))
    }

    fn traces(&self, filter: &TraceFilter) -> Result<Vec<ExecutionRecord>> {
        self.with_reader(|c| traces::traces(c, filter))
    }

    fn find_trace(&self, id: &str) -> Result<Option<ExecutionRecord>> {
        self.with_reader(|c| traces::find_trace(c, id))
    }

    fn put_spans(&self, spans: Vec<Span>) -> Result<()> {
        self.write_durable(move |c| spans::put_spans(c, &spans))
    }

    fn spans(&self, filter: &TraceFilter) -> Result<Vec<Span>> {
        self.with_reader(|c| spans::spans(c, filter))
    }

    fn model_calls(&self, filter: &TraceFilter) -> Result<Vec<CallGroup>> {
        self.with_reader(|c| spans::model_calls(c, filter))
    }

    fn find_session(&self, id: &str) -> Result<Option<String>> {
        self.with_reader(|c| spans::find_session(c, id))
    }

    fn delete_traces(&self, before: &str) -> Result<usize> {
        let before = before.to_owned();
        self.write_durable(move |c| traces::delete_traces(c, &before))
    }

    fn checkpoint(&self, session: &str, artifact: &str, name: &str) -> Result<Option<String>> {
        self.with_reader(|c| checkpoints::checkpoint(c, session, artifact, name))
    }

    fn put_checkpoint(&self, session: &str, artifact: &str, name: &str, value: &str) -> Result<()> {
        let row = [session, artifact, name, value].map(str::to_owned);
        self.write_durable(move |c| checkpoints::put_checkpoint(c, row))
    }

    fn add_token(&self, token: &StoredToken) -> Result<()> {
        let token = token.clone();
        self.write_durable(move |c| tokens::add_token(c, &token))
    }

    fn tokens(&self) -> Result<Vec<StoredToken>> {
        self.with_reader(tokens::tokens)
    }

    fn revoke_token(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.write_durable(
            move |c| Ok(c.execute("DELETE FROM tokens WHERE name = ?1", [name])? > 0),
        )
    }

    fn usage(&self) -> Result<StoreUsage> {
        self.with_reader(|c| maintenance::usage(c, &self.path))
    }

    fn collect_garbage(
        &self,
        retention: &RetentionPolicy,
        mode: WriteMode,
    ) -> Result<GarbageReport> {
        let retention = retention.clone();
        let report = self.write_durable(move |c| {
            c.execute_batch("SAVEPOINT cleanup")?;
            let report = maintenance::collect_garbage(c, &retention);
            let end = match (&report, mode) {
                (Ok(_), WriteMode::Commit) => "RELEASE cleanup",
                _ => "ROLLBACK TO cleanup; RELEASE cleanup",
            };
            c.execute_batch(end)?;
            report
        })?;
        if mode == WriteMode::Commit {
            self.shrink_file()?;
        }
        Ok(report)
    }

    fn back_up(&self, file: &Path) -> Result<()> {
        self.back_up_file(file)
    }

    fn check_backup(&self, file: &Path) -> Result<String> {
        self.check_backup_file(file)
    }

    fn restore(&self, backup: &Path) -> Result<PathBuf> {
        self.restore_file(backup)
    }

    fn note(&self, key: &str) -> Result<Option<String>> {
        self.with_reader(|c| {
            let sql = "SELECT value FROM meta WHERE key = ?1";
            let value = c.prepare_cached(sql)?.query_row([key], |row| row.get(0));
            Ok(value.optional()?)
        })
    }

    fn put_note(&self, key: &str, value: &str) -> Result<()> {
        let row = [key, value].map(str::to_owned);
        self.write_durable(move |c| {
            let sql = "INSERT OR REPLACE INTO meta VALUES (?1, ?2)";
            c.prepare_cached(sql)?.execute(row)?;
            Ok(())
        })
    }
}
