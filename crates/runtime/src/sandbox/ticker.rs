//! Makes running scripts yield every few milliseconds.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use wasmtime::Engine;

/// How long a script runs before it yields.
const TIME_SLICE: Duration = Duration::from_millis(5);

#[derive(Default)]
struct TickerShared {
    running: Mutex<TickerState>,
    changed: Condvar,
}

#[derive(Default)]
struct TickerState {
    scripts: usize,
    stopped: bool,
}

impl TickerShared {
    fn update_state(&self, change: impl FnOnce(&mut TickerState)) {
        change(&mut self.running.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }
}

/// A thread that increments the engine epoch while scripts run.
pub(super) struct Ticker(Arc<TickerShared>);

impl Ticker {
    pub(super) fn start(engine: &Engine) -> Self {
        let shared: Arc<TickerShared> = Arc::default();
        let (seen, engine) = (shared.clone(), engine.clone());
        std::thread::spawn(move || {
            loop {
                let running = seen.running.lock().unwrap_or_else(PoisonError::into_inner);
                let idle = |running: &mut TickerState| running.scripts == 0 && !running.stopped;
                let running = seen.changed.wait_while(running, idle);
                if running.unwrap_or_else(PoisonError::into_inner).stopped {
                    return;
                }
                std::thread::sleep(TIME_SLICE);
                engine.increment_epoch();
            }
        });
        Self(shared)
    }

    /// Keeps the ticker running until the returned guard is dropped.
    pub(super) fn keep_ticking(&self) -> TickGuard {
        self.0.update_state(|running| running.scripts += 1);
        TickGuard(self.0.clone())
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.0.update_state(|running| running.stopped = true);
    }
}

pub(super) struct TickGuard(Arc<TickerShared>);

impl Drop for TickGuard {
    fn drop(&mut self) {
        self.0.update_state(|running| running.scripts -= 1);
    }
}
