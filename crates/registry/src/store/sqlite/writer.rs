//! One writer thread with group commit.
//!
//! Writes wait in a queue; the writer puts all waiting ones into one transaction, each in its own
//! savepoint, and responds only after the commit has reached the disk. So an acknowledged write is
//! durable, and many writers share one `fsync`.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread::JoinHandle,
    time::Duration,
};

use rusqlite::Connection;

use super::{
    QueryResult,
    connection::{JournalGuard, map_sqlite_error},
};
use crate::error::{Error, Result};

/// Runs in a savepoint, or receives the error; returns what to do once the commit is decided.
type WriteJob = Box<dyn FnOnce(Result<&Connection>) -> JobOutcome + Send>;

struct JobOutcome {
    /// Whether the savepoint is committed.
    commit: bool,
    /// Notifies the waiting caller; `Some` is the reason why the commit failed.
    on_commit: CommitCallback,
}

type CommitCallback = Box<dyn FnOnce(Option<Error>) + Send>;

/// The most writes in one commit, which bounds the memory and the latency of the first one.
const MAX_GROUP: usize = 128;

/// A handle to the writer thread. Dropping it finishes the queued writes.
#[derive(Debug)]
pub(super) struct StoreWriter {
    queue: Option<Sender<WriteJob>>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

impl StoreWriter {
    /// Starts the thread. A guard records the journal before the first write goes to it.
    pub(super) fn start(
        connection: Connection,
        path: PathBuf,
        guard: Option<Arc<dyn JournalGuard>>,
    ) -> Result<Self> {
        let (queue, jobs) = mpsc::channel();
        let file = path.clone();
        let thread = std::thread::Builder::new()
            .name("repertoire-store".to_owned())
            .spawn(move || run_writer(&connection, &jobs, &file, guard))
            .map_err(|e| Error::from_io(&path, e))?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
            path,
        })
    }

    /// Runs a write and waits until it is durable.
    pub(super) fn write_durable<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> QueryResult<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = mpsc::sync_channel::<Result<T>>(1);
        self.enqueue(work, move |result| {
            // The caller may have stopped waiting.
            let _ = answer.send(result);
        })?;
        answered.recv().map_err(|_| Error::WriterStopped)?
    }

    /// Queues a write; `then` is called when it is durable, on the writer's thread.
    ///
    /// Writes and their callbacks run in the order in which they were queued.
    pub(super) fn enqueue<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> QueryResult<T> + Send + 'static,
        then: impl FnOnce(Result<T>) + Send + 'static,
    ) -> Result<()> {
        let path = self.path.clone();
        let job: WriteJob = Box::new(move |connection| {
            let result = connection.and_then(|c| work(c).map_err(|error| error.at_path(&path)));
            JobOutcome {
                commit: result.is_ok(),
                on_commit: Box::new(move |failed| {
                    then(match failed {
                        Some(error) => Err(error),
                        None => result,
                    });
                }),
            }
        });
        let queue = self.queue.as_ref().ok_or(Error::WriterStopped)?;
        queue.send(job).map_err(|_| Error::WriterStopped)
    }
}

impl Drop for StoreWriter {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            // The last handle may be dropped on the writer thread itself, inside a callback.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

fn run_writer(
    connection: &Connection,
    jobs: &Receiver<WriteJob>,
    path: &Path,
    mut guard: Option<Arc<dyn JournalGuard>>,
) {
    let mut has_written = false;
    while let Ok(first) = jobs.recv() {
        has_written = true;
        let mut group: VecDeque<WriteJob> = std::iter::once(first)
            .chain(jobs.try_iter().take(MAX_GROUP - 1))
            .collect();
        // After a crash the journal holds acknowledged writes only if it was recorded before them.
        if let Some(Err(error)) = guard.as_ref().map(|guard| guard.record_journal()) {
            fail_jobs(&mut group, error);
            continue;
        }
        guard = None;
        // A second transaction is needed only if SQLite rolled the first one back.
        while !group.is_empty() {
            commit_group(connection, &mut group, path);
        }
    }
    if has_written {
        empty_journal(connection);
    }
}

/// Moves what the journal holds into the store's file and empties the journal, so that a long one
/// does not stay behind. If another process uses the store, the journal is left to it.
fn empty_journal(connection: &Connection) {
    let emptied = connection
        .busy_timeout(Duration::ZERO)
        .and_then(|()| connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())));
    if let Err(error) = emptied {
        tracing::debug!(%error, "the journal was not emptied");
    }
}

/// Fails every waiting job with the same reason.
fn fail_jobs(group: &mut VecDeque<WriteJob>, error: Error) {
    let mut reason = SharedError::new(error);
    for job in group.drain(..) {
        (job(Err(reason.next_error())).on_commit)(None);
    }
}

/// Runs waiting jobs in one transaction and notifies each caller.
fn commit_group(connection: &Connection, group: &mut VecDeque<WriteJob>, path: &Path) {
    if !connection.is_autocommit() {
        // A rollback failed before.
        let _ = execute_cached(connection, "ROLLBACK");
    }
    if let Err(error) = execute_cached(connection, "BEGIN IMMEDIATE") {
        fail_jobs(group, map_sqlite_error(path, error));
        return;
    }
    let mut answers: Vec<CommitCallback> = Vec::new();
    // A single job needs no savepoint: the transaction is its own.
    let is_single = group.len() == 1;
    while let Some(job) = group.pop_front() {
        let answer = if is_single {
            run_job(connection, job)
        } else {
            run_in_savepoint(connection, job, path)
        };
        if is_single && !answer.commit && !connection.is_autocommit() {
            let _ = execute_cached(connection, "ROLLBACK");
            (answer.on_commit)(None);
            return;
        }
        if connection.is_autocommit() {
            // After a full disk or an I/O error SQLite has rolled the transaction back.
            let lost = "the store could not be written".to_owned();
            let mut reason = SharedError::new(Error::NotSaved(lost));
            let own = answer.commit.then(|| reason.next_error());
            (answer.on_commit)(own);
            for tell in answers {
                tell(Some(reason.next_error()));
            }
            return;
        }
        answers.push(answer.on_commit);
    }
    match execute_cached(connection, "COMMIT") {
        Ok(()) => answers.into_iter().for_each(|tell| tell(None)),
        Err(error) => {
            let _ = connection.execute_batch("ROLLBACK");
            let mut reason = SharedError::new(map_sqlite_error(path, error));
            for tell in answers {
                tell(Some(reason.next_error()));
            }
        }
    }
}

/// Runs a statement without parsing it each time.
fn execute_cached(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

fn run_job(connection: &Connection, job: WriteJob) -> JobOutcome {
    // A job that panics drops its caller's channel, who learns that the write failed; the thread and
    // the writes of others go on.
    let run = std::panic::AssertUnwindSafe(|| job(Ok(connection)));
    std::panic::catch_unwind(run).unwrap_or_else(|_| {
        tracing::error!("a write panicked and was rolled back");
        JobOutcome {
            commit: false,
            on_commit: Box::new(|_| {}),
        }
    })
}

fn run_in_savepoint(connection: &Connection, job: WriteJob, path: &Path) -> JobOutcome {
    if let Err(error) = execute_cached(connection, "SAVEPOINT job") {
        return job(Err(map_sqlite_error(path, error)));
    }
    let answer = run_job(connection, job);
    let end = if answer.commit {
        "RELEASE job"
    } else {
        "ROLLBACK TO job; RELEASE job"
    };
    match connection.execute_batch(end) {
        Err(error) if answer.commit => {
            let error = map_sqlite_error(path, error);
            JobOutcome {
                commit: false,
                on_commit: Box::new(move |_| (answer.on_commit)(Some(error))),
            }
        }
        // A failed job reports its own error, whatever happened to its savepoint.
        _ => answer,
    }
}

/// One error for several callers: the first gets the error, the others its message.
struct SharedError {
    error: Option<Error>,
    text: String,
}

impl SharedError {
    fn new(error: Error) -> Self {
        Self {
            text: error.to_string(),
            error: Some(error),
        }
    }

    fn next_error(&mut self) -> Error {
        self.error
            .take()
            .unwrap_or_else(|| Error::NotSaved(self.text.clone()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn t46_a_write_that_panics_fails_alone() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE t (x)").unwrap();
        let writer = StoreWriter::start(connection, PathBuf::from("memory"), None).unwrap();
        let insert = |c: &Connection| {
            c.execute("INSERT INTO t VALUES (1)", [])?;
            Ok(())
        };
        let failed = writer.write_durable::<()>(move |c| {
            insert(c)?;
            panic!("a fault in a job");
        });
        assert!(matches!(failed, Err(Error::WriterStopped)), "{failed:?}");
        writer.write_durable(insert).unwrap();
        let rows = writer.write_durable(|c| {
            let rows = c.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0))?;
            Ok(rows)
        });
        assert_eq!(rows.unwrap(), 1, "the failed write was rolled back");
    }
}
