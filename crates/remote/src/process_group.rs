//! Programs that were started together with everything they start.
//!
//! Each one is the leader of a process group, which is killed as a whole, so that a wrapper leaves
//! no processes behind.

use std::sync::{Mutex, PoisonError};

/// The process groups of all running programs.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Kills every program that was started here, for when this process exits.
pub fn kill_all_programs() {
    for group in RUNNING
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .drain(..)
    {
        kill_group(group);
    }
}

/// The process group of a program; dropping it kills what is left of it.
#[derive(Debug)]
pub(crate) struct ProcessGroup(u32);

impl ProcessGroup {
    /// Keeps track of a program that leads a process group of its own.
    pub(crate) fn new(leader: u32) -> Self {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.push(leader);
        Self(leader)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        kill_group(self.0);
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|known| *known != self.0);
    }
}

fn kill_group(group: u32) {
    #[cfg(unix)]
    if let Some(group) = i32::try_from(group)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    #[cfg(not(unix))]
    let _ = group;
}
