//! One writer thread with group commit.
//!
//! Writes wait in a queue; the writer takes all that are waiting into one transaction, each in a
//! savepoint of its own, and answers them only after the commit has reached the disk. So a write
//! that was acknowledged is durable, and many writers share one `fsync`.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver, Sender},
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
    tell: Tell,
}

type Tell = Box<dyn FnOnce(Option<Error>) + Send>;

/// The most writes in one commit: bounds the memory and the wait of the first one.
const GROUP: usize = 128;

/// A handle to the writer thread. Dropping it finishes what was accepted.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

impl Writer {
    pub(super) fn start(connection: Connection, path: PathBuf) -> Result<Self> {
        let (queue, jobs) = mpsc::channel();
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
        self.enqueue(work, move |result| {
            // A caller that went away does not need the answer.
            let _ = answer.send(result);
        })?;
        answered.recv().map_err(|_| stopped())?
    }

    /// Puts a write into the queue; `then` is told when it is durable, on the writer's thread.
    ///
    /// Writes are made in the order in which they are put there, and so are they told of.
    pub(super) fn enqueue<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
        then: impl FnOnce(Result<T>) + Send + 'static,
    ) -> Result<()> {
        let path = self.path.clone();
        let job: Job = Box::new(move |connection| {
            let result = connection.and_then(work).map_err(|error| match error {
                Error::Sqlite(error) => describe(&path, error),
                other => other,
            });
            Answer {
                keep: result.is_ok(),
                tell: Box::new(move |failed| {
                    then(match failed {
                        Some(error) => Err(error),
                        None => result,
                    });
                }),
            }
        });
        let queue = self.queue.as_ref().ok_or_else(stopped)?;
        queue.send(job).map_err(|_| stopped())
    }
}

fn stopped() -> Error {
    Error::Conflict("the store's writer has stopped".to_owned())
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            // The last one to let go may be the thread itself, telling of a write.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

fn run(connection: &Connection, jobs: &Receiver<Job>, path: &Path) {
    while let Ok(first) = jobs.recv() {
        let mut group: VecDeque<Job> = std::iter::once(first)
            .chain(jobs.try_iter().take(GROUP - 1))
            .collect();
        // More than one transaction only where SQLite itself gave one up in the middle.
        while !group.is_empty() {
            transact(connection, &mut group, path);
        }
    }
}

/// Runs waiting jobs in one transaction and answers each of them.
fn transact(connection: &Connection, group: &mut VecDeque<Job>, path: &Path) {
    if let Err(error) = connection.execute_batch("BEGIN IMMEDIATE") {
        // Nobody was let in; each caller learns the same reason.
        let mut reason = Reason::new(describe(path, error));
        for job in group.drain(..) {
            (job(Err(reason.next())).tell)(None);
        }
        return;
    }
    let mut answers: Vec<Tell> = Vec::new();
    while let Some(job) = group.pop_front() {
        let answer = in_savepoint(connection, job);
        if connection.is_autocommit() {
            // A full disk or a failing one: SQLite rolled everything back by itself.
            (answer.tell)(None);
            let lost = Error::Conflict("not saved: the store could not be written".to_owned());
            let mut reason = Reason::new(lost);
            for tell in answers {
                tell(Some(reason.next()));
            }
            return;
        }
        answers.push(answer.tell);
    }
    match connection.execute_batch("COMMIT") {
        Ok(()) => answers.into_iter().for_each(|tell| tell(None)),
        Err(error) => {
            let _ = connection.execute_batch("ROLLBACK");
            let mut reason = Reason::new(describe(path, error));
            for tell in answers {
                tell(Some(reason.next()));
            }
        }
    }
}

fn in_savepoint(connection: &Connection, job: Job) -> Answer {
    if let Err(error) = connection.execute_batch("SAVEPOINT job") {
        return job(Err(Error::Sqlite(error)));
    }
    let answer = job(Ok(connection));
    let end = if answer.keep {
        "RELEASE job"
    } else {
        "ROLLBACK TO job; RELEASE job"
    };
    match connection.execute_batch(end) {
        Err(error) if answer.keep => Answer {
            keep: false,
            tell: Box::new(move |_| (answer.tell)(Some(Error::Sqlite(error)))),
        },
        // A job that failed tells why itself, whatever became of its savepoint.
        _ => answer,
    }
}

/// One error for several callers: the first gets it, the others its words.
struct Reason {
    error: Option<Error>,
    text: String,
}

impl Reason {
    fn new(error: Error) -> Self {
        Self {
            text: error.to_string(),
            error: Some(error),
        }
    }

    fn next(&mut self) -> Error {
        self.error
            .take()
            .unwrap_or_else(|| Error::Conflict(self.text.clone()))
    }
}
