//! Ctrl-C leaves nothing half-done.
//!
//! Stores change in transactions, so most of the time the process can simply end. While files are
//! being written, the writer is told instead, and cleans up before it ends.

use std::{
    io::Write,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::failure::INTERRUPTED;

static BUSY: AtomicBool = AtomicBool::new(false);
static STOP: AtomicBool = AtomicBool::new(false);

/// Listens for Ctrl-C and SIGTERM.
pub(crate) fn install() {
    let installed = ctrlc::set_handler(|| {
        let again = STOP.swap(true, Ordering::SeqCst);
        if again || !BUSY.load(Ordering::SeqCst) {
            // Stores change in transactions: what was not reported as done was not done.
            let _ = writeln!(std::io::stderr(), "interrupted");
            std::process::exit(i32::from(INTERRUPTED));
        }
    });
    if let Err(error) = installed {
        tracing::debug!(%error, "signals are not handled");
    }
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
