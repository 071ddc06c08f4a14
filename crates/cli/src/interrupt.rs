//! Ctrl-C leaves nothing half-done.
//!
//! Stores change in transactions, so most of the time the process can simply end. While files are
//! being written, the writer is told instead, and cleans up before it ends.

use std::{
    io::Write,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::failure::INTERRUPTED;

static BUSY: AtomicBool = AtomicBool::new(false);
static STOP: AtomicBool = AtomicBool::new(false);
static FIRST: OnceLock<Instant> = OnceLock::new();
/// Signals within so long of the first are one.
const ONE: Duration = Duration::from_millis(200);
static SHUT_DOWN: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Listens for Ctrl-C and SIGTERM.
pub(crate) fn install() {
    let installed = ctrlc::set_handler(|| {
        let first = *FIRST.get_or_init(Instant::now);
        let again = STOP.swap(true, Ordering::SeqCst);
        // Some send one to a process and then one to its whole group.
        if again && first.elapsed() < ONE {
            return;
        }
        if let Some(shut_down) = SHUT_DOWN.get()
            && !again
        {
            shut_down();
            return;
        }
        if again || !BUSY.load(Ordering::SeqCst) {
            repertoire_serve::client::end_all();
            // Stores change in transactions: what was not reported as done was not done.
            let _ = writeln!(std::io::stderr(), "interrupted");
            std::process::exit(i32::from(INTERRUPTED));
        }
    });
    if let Err(error) = installed {
        tracing::debug!(%error, "signals are not handled");
    }
}

/// From now on the first signal asks for this instead; the second one ends the process.
pub(crate) fn shut_down_with(shut_down: impl Fn() + Send + Sync + 'static) {
    let _ = SHUT_DOWN.set(Box::new(shut_down));
}

/// Runs work that has to clean up after itself; it asks the given function whether to stop.
pub(crate) fn protect<T>(work: impl FnOnce(&dyn Fn() -> bool) -> T) -> T {
    BUSY.store(true, Ordering::SeqCst);
    let result = work(&|| STOP.load(Ordering::SeqCst));
    BUSY.store(false, Ordering::SeqCst);
    if STOP.load(Ordering::SeqCst) {
        std::process::exit(i32::from(INTERRUPTED));
    }
    result
}
