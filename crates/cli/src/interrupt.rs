//! Handles Ctrl-C and SIGTERM without leaving partial work.
//!
//! Stores change in transactions, so most of the time the process can simply end. While files are
//! being written, the writer is asked to stop instead, and cleans up before the process ends.

use std::{
    io::Write,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::failure::EXIT_INTERRUPTED;

static PROTECTED: AtomicBool = AtomicBool::new(false);
static STOP_REQUESTED: AtomicBool = AtomicBool::new(false);
static FIRST_SIGNAL_AT: OnceLock<Instant> = OnceLock::new();
/// Signals within this time of the first one count as the same signal.
const DUPLICATE_SIGNAL_WINDOW: Duration = Duration::from_millis(200);
static SHUTDOWN_HANDLER: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Listens for Ctrl-C and SIGTERM.
pub(crate) fn install_handler() {
    let installed = ctrlc::set_handler(|| {
        let first = *FIRST_SIGNAL_AT.get_or_init(Instant::now);
        let again = STOP_REQUESTED.swap(true, Ordering::SeqCst);
        // Some callers signal a process and then its whole process group.
        if again && first.elapsed() < DUPLICATE_SIGNAL_WINDOW {
            return;
        }
        if let Some(shut_down) = SHUTDOWN_HANDLER.get()
            && !again
        {
            shut_down();
            return;
        }
        if again || !PROTECTED.load(Ordering::SeqCst) {
            repertoire_remote::kill_all_programs();
            // Stores change in transactions, so unreported changes were not made.
            let _ = writeln!(std::io::stderr(), "interrupted");
            std::process::exit(i32::from(EXIT_INTERRUPTED));
        }
    });
    if let Err(error) = installed {
        tracing::debug!(%error, "signals are not handled");
    }
}

/// Sets the action for the first signal; the second signal still ends the process.
pub(crate) fn set_shutdown_handler(shut_down: impl Fn() + Send + Sync + 'static) {
    let _ = SHUTDOWN_HANDLER.set(Box::new(shut_down));
}

/// Runs work that cleans up after itself; it polls the given function to see whether to stop.
pub(crate) fn run_protected<T>(work: impl FnOnce(&dyn Fn() -> bool) -> T) -> T {
    PROTECTED.store(true, Ordering::SeqCst);
    let result = work(&|| STOP_REQUESTED.load(Ordering::SeqCst));
    PROTECTED.store(false, Ordering::SeqCst);
    if STOP_REQUESTED.load(Ordering::SeqCst) {
        std::process::exit(i32::from(EXIT_INTERRUPTED));
    }
    result
}
