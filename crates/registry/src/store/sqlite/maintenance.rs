//! Cleanup, sizes, backup and restore of a store's file.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, limits::Limit, params};

use super::{
    GarbageReport, QueryResult, RetentionPolicy, SqliteStore, StoreOpenMode, StoreUsage,
    connection, events,
};
use crate::{
    error::{Error, Result},
    folder::sync_folder,
};

/// How long values of scripts are kept.
const CHECKPOINT_DAYS: u32 = 30;
/// How long an embedding is kept after its last use.
const VECTOR_DAYS: u32 = 90;
/// After how many days it is deleted what was chosen in a search.
const USE_DAYS: u32 = 90;

/// How long a copy waits for another process.
const MAX_COPY_WAIT: Duration = Duration::from_secs(30);
/// A file with fewer unused pages is left as it is.
const MIN_FREE_PAGES: i64 = 2048;

/// Returns a past time in the form of the columns, which compare as text.
fn time_before(age: Duration) -> String {
    let at = jiff::Timestamp::now().checked_sub(age);
    format!("{:.3}", at.unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}

/// Deletes what the policy does not keep, and returns what that was.
///
/// A revision is superseded if a newer one of the same skill exists, so the current one always stays;
/// the last revision of a removed skill is its removal.
pub(super) fn collect_garbage(
    c: &Connection,
    retention: &RetentionPolicy,
) -> QueryResult<GarbageReport> {
    let history = time_before(retention.history);
    let before = time_before(retention.traces);
    let spans = super::traces::delete_spans(c, &before)?;
    let traces = super::traces::delete_traces(c, &before)?;
    let sql = "CREATE TEMP TABLE expired AS
               SELECT path, revision FROM (
                   SELECT path, revision, at, op,
                          row_number() OVER newest AS age,
                          first_value(op) OVER newest AS last_op,
                          first_value(at) OVER newest AS last_at
                   FROM revisions WINDOW newest AS (PARTITION BY path ORDER BY revision DESC))
               WHERE (age > max(?1, 1) AND at < ?2) OR (last_op = 'remove' AND last_at < ?2)";
    c.execute(sql, params![retention.min_revisions, history])?;
    let revisions = c.execute(
        "DELETE FROM revisions WHERE (path, revision) IN (SELECT path, revision FROM expired)",
        [],
    )?;
    c.execute(
        "DELETE FROM revision_blobs WHERE (path, revision) IN (SELECT path, revision FROM expired)",
        [],
    )?;
    c.execute_batch("DROP TABLE expired")?;
    let unused = "NOT EXISTS (SELECT 1 FROM skill_files f WHERE f.digest = blobs.digest)
              AND NOT EXISTS (SELECT 1 FROM revision_blobs r WHERE r.digest = blobs.digest)
              AND NOT EXISTS (SELECT 1 FROM installed_blobs i WHERE i.digest = blobs.digest)";
    let sql = format!("SELECT coalesce(sum(octet_length(content)), 0) FROM blobs WHERE {unused}");
    let file_bytes: i64 = c.query_row(&sql, [], |row| row.get(0))?;
    let files = c.execute(&format!("DELETE FROM blobs WHERE {unused}"), [])?;
    // Of what is registered now all that is kept stays, so that its numbers go on.
    let registered = c.execute(
        "DELETE FROM state_revisions WHERE at < ?1 AND NOT EXISTS (SELECT 1 FROM state
             WHERE state.scope = state_revisions.scope AND state.key = state_revisions.key)",
        [&history],
    )?;
    let checkpoints = c.execute(
        "DELETE FROM checkpoints WHERE at < datetime('now', ?1)",
        [format!("-{CHECKPOINT_DAYS} days")],
    )?;
    let vectors = delete_old_vectors(c)?;
    let uses = delete_old_uses(c)?;
    Ok(GarbageReport {
        uses: to_count(uses),
        traces: to_count(traces),
        spans: to_count(spans),
        revisions: to_count(revisions),
        registered_revisions: to_count(registered),
        checkpoints: to_count(checkpoints),
        vectors: to_count(vectors),
        files: to_count(files),
        file_bytes: u64::try_from(file_bytes).unwrap_or(0),
    })
}

/// Deletes embeddings that were not used for long.
pub(super) fn delete_old_vectors(c: &Connection) -> QueryResult<usize> {
    let sql = "DELETE FROM vectors WHERE used_day < ?1";
    Ok(c.prepare_cached(sql)?
        .execute([today() - i64::from(VECTOR_DAYS)])?)
}

/// Deletes what was chosen in searches long ago.
pub(super) fn delete_old_uses(c: &Connection) -> QueryResult<usize> {
    let sql = "DELETE FROM skill_uses WHERE used_day < ?1";
    Ok(c.prepare_cached(sql)?.execute([oldest_use_day()])?)
}

/// The first day whose choices still count.
pub(super) fn oldest_use_day() -> i64 {
    today() - i64::from(USE_DAYS)
}

/// Returns the number of today since 1970.
pub(super) fn today() -> i64 {
    jiff::Timestamp::now().as_second() / 86_400
}

fn to_count(rows: usize) -> u64 {
    u64::try_from(rows).unwrap_or(u64::MAX)
}

/// Returns what a file holds, in numbers.
pub(super) fn usage(c: &Connection, path: &Path) -> QueryResult<StoreUsage> {
    let count = |sql: &str| -> QueryResult<u64> {
        let count: i64 = c.query_row(sql, [], |row| row.get(0))?;
        Ok(u64::try_from(count).unwrap_or(0))
    };
    let bytes = |path: &Path| path.metadata().map_or(0, |m| m.len());
    Ok(StoreUsage {
        bytes: bytes(path),
        journal_bytes: bytes(&connection::side_file(path, "-wal")),
        skills: count("SELECT count(*) FROM skills")?,
        revisions: count("SELECT count(*) FROM revisions")?,
        state_values: count("SELECT coalesce(sum(rows), 0) FROM state_usage")?,
        state_bytes: count("SELECT coalesce(sum(bytes), 0) FROM state_usage")?,
        registered_revisions: count("SELECT count(*) FROM state_revisions")?,
        traces: count("SELECT count(*) FROM skill_execution_traces")?,
        vectors: count("SELECT count(*) FROM vectors")?,
        uses: count("SELECT count(*) FROM skill_uses")?,
        example_messages: count("SELECT count(*) FROM example_messages")?,
    })
}

impl SqliteStore {
    /// Writes a consistent copy of the store to a new file, while others go on writing.
    ///
    /// The copy has its name only when it is complete and on the disk.
    pub(super) fn back_up_file(&self, file: &Path) -> Result<()> {
        if file.symlink_metadata().is_ok() {
            return Err(Error::AlreadyExists {
                what: "file",
                name: file.to_string_lossy().into_owned(),
            });
        }
        let folder = match file.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if !folder.is_dir() {
            let missing = std::io::ErrorKind::NotFound;
            return Err(Error::from_io(folder, missing.into()));
        }
        remove_leftovers(folder);
        let partial = tempfile::Builder::new()
            .prefix(&leftover_prefix(BACKUP_PREFIX))
            .tempfile_in(folder)
            .map_err(|e| Error::from_io(folder, e))?;
        {
            let source = self.connect()?;
            copy_pages(&source, partial.path())?;
        }
        let io = |e| Error::from_io(file, e);
        partial.as_file().sync_all().map_err(io)?;
        let persisted = partial.persist_noclobber(file);
        persisted.map_err(|e| Error::from_io(file, e.error))?;
        sync_folder(folder).map_err(|e| Error::from_io(folder, e))
    }

    /// Gives unused pages back to the file system, if they are many.
    pub(super) fn shrink_file(&self) -> Result<()> {
        let at = |error| connection::map_sqlite_error(&self.path, error);
        let c = self.connect()?;
        let number = |name: &str| c.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let (free, all) = (
            number("freelist_count").map_err(at)?,
            number("page_count").map_err(at)?,
        );
        if free < MIN_FREE_PAGES || free < all / 4 {
            return Ok(());
        }
        // SQLite attaches its temporary copy.
        c.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 1).map_err(at)?;
        match c.execute_batch("VACUUM") {
            // Another process is writing; next time.
            Err(error) if connection::is_busy(&error) => Ok(()),
            done => done.map_err(at),
        }
    }

    /// Checks that a file is a complete backup of a store; returns the id of that store.
    pub(super) fn check_backup_file(&self, file: &Path) -> Result<String> {
        let real = |path: &Path| path.canonicalize().map_err(|e| Error::from_io(path, e));
        if real(file)? == real(&self.path)? {
            return Err(not_a_backup(file, "it is the store itself"));
        }
        for suffix in ["-wal", "-journal"] {
            let journal = connection::side_file(file, suffix);
            if journal.metadata().is_ok_and(|m| m.len() > 0) {
                return Err(not_a_backup(
                    file,
                    "a journal is beside it, and a backup has none",
                ));
            }
        }
        read_backup_id(file)
    }

    /// Replaces the whole content by that of a backup, as one change. Other processes that have the
    /// store open read everything again.
    ///
    /// The content so far is kept in a file beside the store, whose path is returned. Writes of others
    /// wait meanwhile and come after the change.
    pub(super) fn restore_file(&self, backup: &Path) -> Result<PathBuf> {
        self.check_backup_file(backup)?;
        // Only what a guard has recorded may be written to, so one ordinary write comes first.
        self.writer()?.write_durable(|c| {
            c.execute_batch("UPDATE meta SET value = value WHERE key = 'store_id'")?;
            Ok(())
        })?;
        let folder = self.path.parent().unwrap_or(Path::new("."));
        remove_leftovers(folder);
        let staged = tempfile::Builder::new()
            .prefix(&leftover_prefix(RESTORE_PREFIX))
            .tempdir_in(folder)
            .map_err(|e| Error::from_io(folder, e))?;
        let copy = staged.path().join("agents.db");
        copy_pages(&open_backup(backup)?, &copy)?;
        // Older backups are brought to this version before anyone can see them.
        drop(Self::open(&copy, StoreOpenMode::Own)?);
        let at = |error| connection::map_sqlite_error(&self.path, error);
        let live = self.connect()?;
        live.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 1)
            .map_err(at)?;
        let name = copy.to_string_lossy();
        live.execute("ATTACH ?1 AS backup", [name.as_ref()])
            .map_err(at)?;
        live.execute_batch("BEGIN IMMEDIATE").map_err(at)?;
        // No one else can write now, so what is kept is what is replaced.
        let kept = free_name(&self.path)?;
        self.back_up_file(&kept)?;
        replace_rows(&live).map_err(|error| error.at_path(&self.path))?;
        live.execute_batch("COMMIT").map_err(at)?;
        Ok(kept)
    }
}

fn not_a_backup(file: &Path, reason: &str) -> Error {
    Error::NotABackup {
        path: file.to_owned(),
        reason: reason.to_owned(),
    }
}

/// Opens a backup for reading, and checks all of it.
/// Checks that a file is a complete store; returns its id.
pub fn read_backup_id(file: &Path) -> Result<String> {
    let source = open_backup(file)?;
    let sql = "SELECT value FROM meta WHERE key = 'store_id'";
    let id = source.query_row(sql, [], |row| row.get(0));
    id.map_err(|_| not_a_backup(file, "it has no id"))
}

/// Moves a store that cannot be opened out of the way, with its journals; returns its new path.
pub fn set_damaged_store_aside(store: &Path) -> Result<PathBuf> {
    let day = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S").to_string();
    let name = |path: &Path| PathBuf::from(format!("{}.damaged-{day}", path.display()));
    let journals = ["-wal", "-shm", "-journal"].map(|end| connection::side_file(store, end));
    for journal in journals.iter().filter(|journal| journal.exists()) {
        std::fs::rename(journal, name(journal)).map_err(|e| Error::from_io(journal, e))?;
    }
    let kept = name(store);
    std::fs::rename(store, &kept).map_err(|e| Error::from_io(store, e))?;
    Ok(kept)
}

fn open_backup(file: &Path) -> Result<Connection> {
    let source = connection::prepare_store(file, StoreOpenMode::ReadOnly, None)?;
    let version: i64 = source
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(|e| connection::map_sqlite_error(file, e))?;
    if version < 1 {
        return Err(not_a_backup(file, "it is empty"));
    }
    connection::check_pages(&source, file)?;
    Ok(source)
}

/// Replaces the rows of every table by those of the attached backup, which has the same version.
fn replace_rows(c: &Connection) -> QueryResult<()> {
    let newest = events::newest_seq(c)?;
    c.execute_batch("PRAGMA defer_foreign_keys = ON")?;
    let sql = "SELECT name, sql LIKE '%WITHOUT ROWID%' FROM main.sqlite_schema
               WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
    let mut statement = c.prepare(sql)?;
    let tables = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let tables: Vec<(String, bool)> = tables.collect::<rusqlite::Result<_>>()?;
    let sql = "SELECT value FROM main.meta WHERE key = 'store_id'";
    let id: String = c.query_row(sql, [], |row| row.get(0))?;
    // Events go on where they are.
    for (table, without_rowid) in tables.into_iter().filter(|(name, _)| name != "events") {
        c.execute_batch(&format!("DELETE FROM main.{table}"))?;
        // Rows without a key of their own keep their order.
        let order = if without_rowid { "" } else { "ORDER BY rowid" };
        let copy = format!("INSERT INTO main.{table} SELECT * FROM backup.{table} {order}");
        c.execute_batch(&copy)?;
    }
    // The store stays the one that it is: its trust depends on its id.
    let sql = "INSERT OR REPLACE INTO main.meta VALUES ('store_id', ?1)";
    c.execute(sql, [id])?;
    events::restart_after(c, newest)
}

/// What the names of unfinished copies begin with; the number of their process follows.
const BACKUP_PREFIX: &str = ".repertoire-backup-";
const RESTORE_PREFIX: &str = ".repertoire-restore-";

fn leftover_prefix(prefix: &str) -> String {
    format!("{prefix}{}-", std::process::id())
}

/// Whether a name is that of an unfinished copy whose process has ended.
pub fn is_leftover(name: &str) -> bool {
    let rest = [BACKUP_PREFIX, RESTORE_PREFIX]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix));
    let pid = rest.and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    // Without a list of processes nothing is known to have ended.
    pid.is_some_and(|pid| {
        Path::new("/proc/self").exists() && !Path::new(&format!("/proc/{pid}")).exists()
    })
}

/// Removes what interrupted commands left in a folder.
fn remove_leftovers(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        if is_leftover(&entry.file_name().to_string_lossy()) {
            let path = entry.path();
            let removed = match entry.file_type() {
                Ok(kind) if kind.is_dir() => std::fs::remove_dir_all(&path),
                _ => std::fs::remove_file(&path),
            };
            if let Err(error) = removed {
                tracing::debug!(path = %path.display(), %error, "could not delete");
            }
        }
    }
}

/// Copies all pages at once: readers see the content before or after it, and a busy writer cannot make
/// the copy begin anew for ever.
fn copy_in_one_step(backup: &rusqlite::backup::Backup<'_, '_>) -> rusqlite::Result<()> {
    use rusqlite::{backup::StepResult, ffi};
    let started = std::time::Instant::now();
    loop {
        match backup.step(-1)? {
            StepResult::Done => return Ok(()),
            // Another process has locked the file.
            _ if started.elapsed() < MAX_COPY_WAIT => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let busy = ffi::Error::new(ffi::SQLITE_BUSY);
                return Err(rusqlite::Error::SqliteFailure(busy, None));
            }
        }
    }
}

/// Copies a store into a file that is empty or missing.
fn copy_pages(source: &Connection, file: &Path) -> Result<()> {
    let at = |error| connection::map_sqlite_error(file, error);
    let mut target = Connection::open(file).map_err(at)?;
    target
        .pragma_update(None, "synchronous", "FULL")
        .map_err(at)?;
    let backup = rusqlite::backup::Backup::new(source, &mut target).map_err(at)?;
    copy_in_one_step(&backup).map_err(at)?;
    drop(backup);
    // A copy is one file: it needs no journal beside it.
    target
        .pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()))
        .map_err(at)?;
    Ok(())
}

/// Returns a name beside a store that no file has.
fn free_name(store: &Path) -> Result<PathBuf> {
    let day = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    (1..1000)
        .map(|n| connection::side_file(store, &format!(".before-restore-{day}-{n}")))
        .find(|path| path.symlink_metadata().is_err())
        .ok_or_else(|| Error::AlreadyExists {
            what: "file",
            name: format!("{}.before-restore-{day}", store.display()),
        })
}
