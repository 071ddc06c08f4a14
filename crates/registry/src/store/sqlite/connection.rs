//! Opens a store's file, which may be hostile.
//!
//! Before the first query runs, the connection is made defensive (no trusted schema, no triggers,
//! no views, cell checks on), the header and the schema are compared with what the version says,
//! and the pages are checked. A file that fails a check is refused with a reason, never repaired.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use rusqlite::{Connection, ErrorCode, OpenFlags, config::DbConfig, limits::Limit};

use super::schema;
use crate::error::{Error, Result};

/// How long a write waits for another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);
/// Files up to this size are checked completely at every open; larger ones only by `doctor`.
const QUICK_CHECK_BYTES: u64 = 8 * 1024 * 1024;
/// The largest untrusted file that is opened, with its journal: a small archive can unpack to much.
const MAX_UNTRUSTED_BYTES: u64 = 64 * 1024 * 1024;
/// The most rows of one kind in an untrusted file: each of them costs memory and time in a catalogue.
const MAX_UNTRUSTED_ROWS: i64 = 20_000;
/// How large a journal stays when nothing in it is needed.
const MAX_IDLE_JOURNAL_BYTES: i64 = 4 * 1024 * 1024;
/// The largest value in a file of the user, and in an untrusted one.
const MAX_VALUE_BYTES: i32 = 96 * 1024 * 1024;
const MAX_UNTRUSTED_VALUE_BYTES: i32 = 16 * 1024 * 1024;

/// Which users may have written the file, and whether it can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreOpenMode {
    /// Written by this user.
    Own,
    /// Written by this user, but opened read-only.
    ReadOnly,
    /// From an untrusted source, such as a workspace. Opened read-only and checked completely.
    Untrusted,
}

/// Decides about the journal beside a store, which SQLite would apply to it.
pub(crate) trait JournalGuard: Send + Sync {
    /// Refuses a journal that this account did not write.
    fn check_journal(&self) -> Result<()>;

    /// Remembers the files that were opened: later they must still be the same.
    fn remember_files(&self) -> Result<()>;

    /// Refuses files that were replaced since they were opened.
    fn check_files(&self) -> Result<()>;

    /// Records the journal that the next write goes to as one of this account.
    fn record_journal(&self) -> Result<()>;
}

/// Opens and checks a store's file, and creates or migrates it if needed. A guard is asked before the
/// file is opened and again before its journal can be applied, and records it before a migration.
pub(super) fn prepare_store(
    path: &Path,
    trust: StoreOpenMode,
    guard: Option<&dyn JournalGuard>,
) -> Result<Connection> {
    let fresh = !path.exists();
    if let Some(guard) = guard {
        guard.check_journal()?;
    }
    if trust == StoreOpenMode::Untrusted {
        check_untrusted_size(path)?;
    }
    let connection = open_connection(path, trust)?;
    let at = |error| map_sqlite_error(path, error);
    if fresh && trust == StoreOpenMode::Own {
        restrict_permissions(path);
    }
    // Until the journal was checked, closing the connection must not apply it.
    set_checkpoint_on_close(&connection, guard.is_none()).map_err(at)?;
    let version = check_header(&connection, path)?;
    if let (Some(_), 0) = (guard, version) {
        return Err(Error::Corrupt {
            path: path.to_owned(),
            reason: "it is empty".to_owned(),
        });
    }
    if let Some(guard) = guard {
        // The header was read, so the journal that is used is the one that is there now.
        guard.check_journal()?;
        guard.remember_files()?;
        set_checkpoint_on_close(&connection, true).map_err(at)?;
    }
    if version > 0 {
        check_schema(&connection, path, version)?;
        let size = path.metadata().map_or(0, |m| m.len());
        if trust == StoreOpenMode::Untrusted || size <= QUICK_CHECK_BYTES {
            check_pages(&connection, path)?;
        }
        if trust == StoreOpenMode::Untrusted {
            check_untrusted_rows(&connection, path)?;
        }
    }
    let mut connection = connection;
    if trust == StoreOpenMode::Own {
        set_journal(&connection).map_err(at)?;
        if version < schema::VERSION {
            if let Some(guard) = guard {
                guard.record_journal()?;
            }
            schema::migrate_schema(&mut connection, version).map_err(at)?;
        }
    }
    Ok(connection)
}

/// Opens another connection to a file that was already prepared.
pub(super) fn open_connection(path: &Path, trust: StoreOpenMode) -> Result<Connection> {
    let access = match trust {
        StoreOpenMode::Own => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        StoreOpenMode::ReadOnly | StoreOpenMode::Untrusted => OpenFlags::SQLITE_OPEN_READ_ONLY,
    };
    let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    // NOFOLLOW applies to the file itself; a parent folder may be a link.
    let real = real_path(path);
    let mut connection =
        Connection::open_with_flags(&real, flags).map_err(|e| map_sqlite_error(path, e))?;
    harden_connection(&mut connection, trust).map_err(|e| map_sqlite_error(path, e))?;
    Ok(connection)
}

/// Returns the path of a file that is kept beside a store.
pub(crate) fn side_file(store: &Path, suffix: &str) -> std::path::PathBuf {
    let mut name = store.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn real_path(path: &Path) -> std::path::PathBuf {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => parent
            .canonicalize()
            .map_or_else(|_| path.to_owned(), |parent| parent.join(name)),
        _ => path.to_owned(),
    }
}

fn harden_connection(connection: &mut Connection, trust: StoreOpenMode) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    let value = match trust {
        StoreOpenMode::Own | StoreOpenMode::ReadOnly => MAX_VALUE_BYTES,
        StoreOpenMode::Untrusted => MAX_UNTRUSTED_VALUE_BYTES,
    };
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, value)?;
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    connection.busy_handler(Some(wait_for_turn))?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "secure_delete", "FAST")?;
    // After a checkpoint a long journal shrinks to this.
    connection.pragma_update(None, "journal_size_limit", MAX_IDLE_JOURNAL_BYTES)?;
    if trust != StoreOpenMode::Own {
        connection.pragma_update(None, "query_only", true)?;
    }
    connection.set_prepared_statement_cache_capacity(64);
    Ok(())
}

fn set_checkpoint_on_close(connection: &Connection, enabled: bool) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !enabled)?;
    Ok(())
}

fn set_journal(connection: &Connection) -> rusqlite::Result<()> {
    let started = Instant::now();
    loop {
        // Switching to WAL needs exclusive access and does not call the busy handler.
        match connection
            .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0))
        {
            Ok(_) => return Ok(()),
            Err(error) if is_busy(&error) && started.elapsed() < BUSY_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Waits in short steps with jitter, so that two busy writers alternate and neither starves.
fn wait_for_turn(attempt: i32) -> bool {
    let attempt = u64::try_from(attempt).unwrap_or(0);
    if attempt > u64::try_from(BUSY_TIMEOUT.as_millis()).unwrap_or(u64::MAX) / 2 {
        return false;
    }
    let jitter = attempt.wrapping_mul(2_654_435_761) % 1500;
    std::thread::sleep(Duration::from_micros(
        500 + jitter + u64::from(std::process::id()) % 700,
    ));
    true
}

fn check_header(connection: &Connection, path: &Path) -> Result<i64> {
    let pragma = |name: &str| -> Result<i64> {
        connection
            .pragma_query_value(None, name, |row| row.get(0))
            .map_err(|e| map_sqlite_error(path, e))
    };
    let version = pragma("user_version")?;
    let application = pragma("application_id")?;
    let corrupt = |reason: &str| Error::Corrupt {
        path: path.to_owned(),
        reason: reason.to_owned(),
    };
    if application == schema::APPLICATION_ID {
        if version > schema::VERSION {
            return Err(Error::NewerSchema {
                path: path.to_owned(),
                found: version,
                known: schema::VERSION,
            });
        }
        if version < 1 {
            return Err(corrupt("its version number is invalid"));
        }
        return Ok(version);
    }
    let empty = schema::schema_objects(connection).map_err(|e| map_sqlite_error(path, e))?;
    if application == 0 && version == 0 && empty.is_empty() {
        return Ok(0);
    }
    Err(corrupt("this SQLite file is not a Repertoire store"))
}

fn check_schema(connection: &Connection, path: &Path, version: i64) -> Result<()> {
    let at = |error| map_sqlite_error(path, error);
    let found = schema::schema_objects(connection).map_err(at)?;
    let expected = schema::expected_objects(version).map_err(at)?;
    if found == expected {
        return Ok(());
    }
    let odd = found
        .iter()
        .find(|object| !expected.contains(object))
        .or_else(|| expected.iter().find(|object| !found.contains(object)));
    let reason = match odd {
        Some((kind, name, _)) => format!("its schema was changed ({kind} {name:?})"),
        None => "its schema was changed".to_owned(),
    };
    Err(Error::Corrupt {
        path: path.to_owned(),
        reason,
    })
}

/// Refuses an untrusted file that is too large, before anything of it is read.
fn check_untrusted_size(path: &Path) -> Result<()> {
    let size = |suffix: &str| side_file(path, suffix).metadata().map_or(0, |m| m.len());
    let bytes = size("").saturating_add(size("-wal"));
    if bytes <= MAX_UNTRUSTED_BYTES {
        return Ok(());
    }
    Err(Error::TooLargeForUntrusted {
        path: path.to_owned(),
        limit: format!("{} MiB", MAX_UNTRUSTED_BYTES / (1024 * 1024)),
    })
}

/// Refuses an untrusted file with too many skills, artifacts, files or state rows.
fn check_untrusted_rows(connection: &Connection, path: &Path) -> Result<()> {
    for table in ["skills", "skill_artifacts", "skill_files", "state"] {
        // Counting stops at the limit, whatever the table holds.
        let sql = format!("SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT ?1)");
        let rows: i64 = connection
            .query_row(&sql, [MAX_UNTRUSTED_ROWS + 1], |row| row.get(0))
            .map_err(|e| map_sqlite_error(path, e))?;
        if rows > MAX_UNTRUSTED_ROWS {
            return Err(Error::TooLargeForUntrusted {
                path: path.to_owned(),
                limit: format!("{MAX_UNTRUSTED_ROWS} rows"),
            });
        }
    }
    Ok(())
}

/// Checks the pages of the whole file.
pub(super) fn check_pages(connection: &Connection, path: &Path) -> Result<()> {
    let answer: String = connection
        .pragma_query_value(None, "quick_check", |row| row.get(0))
        .map_err(|e| map_sqlite_error(path, e))?;
    if answer == "ok" {
        return Ok(());
    }
    Err(Error::Corrupt {
        path: path.to_owned(),
        reason: format!("damaged: {}", answer.lines().next().unwrap_or_default()),
    })
}

pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

/// Converts an SQLite error into an error that names the file and the cause.
pub(super) fn map_sqlite_error(path: &Path, error: rusqlite::Error) -> Error {
    if let rusqlite::Error::InvalidColumnType(_, column, _) = &error {
        return Error::Corrupt {
            path: path.to_owned(),
            reason: format!("a value of the wrong type in column {column:?}"),
        };
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::Busy(path.to_owned()),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Error::Corrupt {
            path: path.to_owned(),
            reason: "damaged, or not an SQLite file".to_owned(),
        },
        Some(ErrorCode::CannotOpen) => Error::from_io(
            path,
            std::io::Error::other("cannot be opened (missing, a link, or no permission)"),
        ),
        Some(ErrorCode::DiskFull) => Error::from_io(path, std::io::ErrorKind::StorageFull.into()),
        Some(ErrorCode::ReadOnly) => {
            Error::from_io(path, std::io::ErrorKind::ReadOnlyFilesystem.into())
        }
        _ => Error::Backend(Box::new(error)),
    }
}

/// Makes a file readable by this user only, because it holds private skills and traces.
fn restrict_permissions(path: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // If the mode cannot be changed, the store is still usable.
        let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600));
    }
    #[cfg(not(unix))]
    let _ = path;
}
