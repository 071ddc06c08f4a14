//! One writer thread with group commit.
//!
//! Writes wait in a queue; the writer takes all that are waiting into one transaction, each in a
//! savepoint of its own, and answers them only after the commit has reached the disk. So a write
//! that was acknowledged is durable, and many writers share one `fsync`.

use std::{
    path::PathBuf,
    sync::mpsc::{self, Receiver, SyncSender},
    thread::JoinHandle,
};

use rusqlite::Connection;

use super::connection::describe;
use crate::error::{Error, Result};

/// Runs in a savepoint, or learns why it cannot; gives back what to do once the commit is known.
type Job = Box<dyn FnOnce(Result<&Connection>) -> Answer + Send>;

struct Answer {
    /// Whether the savepoint is kept.
    keep: bool,
    /// Tells the waiting caller; `Some` is why the commit failed.
    tell: Box<dyn FnOnce(Option<Error>) + Send>,
}

/// The most writes in one commit: bounds the memory and the wait of the first one.
const GROUP: usize = 128;

/// A handle to the writer thread. Dropping it finishes what was accepted.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

impl Writer {
    pub(super) fn start(connection: Connection, path: PathBuf) -> Result<Self> {
        let (queue, jobs) = mpsc::sync_channel(GROUP);
        let file = path.clone();
        let thread = std::thread::Builder::new()
            .name("repertoire-store".to_owned())
            .spawn(move || run(&connection, &jobs, &file))
            .map_err(|e| Error::io(&path, e))?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
            path,
        })
    }

    /// Runs a write and waits until it is durable.
    pub(super) fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = mpsc::sync_channel::<Result<T>>(1);
        let path = self.path.clone();
        let job: Job = Box::new(move |connection| {
            let result = connection.and_then(work).map_err(|error| match error {
                Error::Sqlite(error) => describe(&path, error),
                other => other,
            });
            Answer {
                keep: result.is_ok(),
                tell: Box::new(move |failed| {
                    // A caller that went away does not need the answer.
                    let _ = answer.send(match failed {
                        Some(error) => Err(error),
                        None => result,
                    });
                }),
            }
        });
        let stopped = || Error::Conflict("the store's writer has stopped".to_owned());
        let queue = self.queue.as_ref().ok_or_else(stopped)?;
        queue.send(job).map_err(|_| stopped())?;
        answered.recv().map_err(|_| stopped())?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(connection: &Connection, jobs: &Receiver<Job>, path: &std::path::Path) {
    while let Ok(first) = jobs.recv() {
        let group = std::iter::once(first).chain(jobs.try_iter().take(GROUP - 1));
        if let Err(error) = connection.execute_batch("BEGIN IMMEDIATE") {
            // Nobody was let in; each caller learns the same reason.
            let error = describe(path, error);
            let text = error.to_string();
            let mut error = Some(error);
            for job in group {
                let reason = error
                    .take()
                    .unwrap_or_else(|| Error::Conflict(text.clone()));
                (job(Err(reason)).tell)(None);
            }
            continue;
        }
        let mut answers = Vec::new();
        for job in group {
            answers.push(in_savepoint(connection, job));
        }
        match connection.execute_batch("COMMIT") {
            Ok(()) => answers.into_iter().for_each(|tell| tell(None)),
            Err(error) => {
                let error = describe(path, error);
                let text = format!("not saved: {error}");
                let _ = connection.execute_batch("ROLLBACK");
                let mut error = Some(error);
                for tell in answers {
                    tell(Some(
                        error
                            .take()
                            .unwrap_or_else(|| Error::Conflict(text.clone())),
                    ));
                }
            }
        }
    }
}

fn in_savepoint(connection: &Connection, job: Job) -> Box<dyn FnOnce(Option<Error>) + Send> {
    if let Err(error) = connection.execute_batch("SAVEPOINT job") {
        return job(Err(Error::Sqlite(error))).tell;
    }
    let answer = job(Ok(connection));
    let end = if answer.keep {
        "RELEASE job"
    } else {
        "ROLLBACK TO job; RELEASE job"
    };
    match connection.execute_batch(end) {
        Ok(()) => answer.tell,
        Err(error) => Box::new(move |_| (answer.tell)(Some(Error::Sqlite(error)))),
    }
}
