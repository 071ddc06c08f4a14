//! Makes scripts give way every few milliseconds, while there are any.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use wasmtime::Engine;

/// How long a script runs before others have their turn.
const SLICE: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Shared {
    running: Mutex<Running>,
    changed: Condvar,
}

#[derive(Default)]
struct Running {
    scripts: usize,
    over: bool,
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut Running)) {
        change(&mut self.running.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }
}

/// A thread that only wakes while scripts run.
pub(super) struct Ticker(Arc<Shared>);

impl Ticker {
    pub(super) fn start(engine: &Engine) -> Self {
        let shared: Arc<Shared> = Arc::default();
        let (seen, engine) = (shared.clone(), engine.clone());
        std::thread::spawn(move || {
            loop {
                let running = seen.running.lock().unwrap_or_else(PoisonError::into_inner);
                let idle = |running: &mut Running| running.scripts == 0 && !running.over;
                let running = seen.changed.wait_while(running, idle);
                if running.unwrap_or_else(PoisonError::into_inner).over {
                    return;
                }
                std::thread::sleep(SLICE);
                engine.increment_epoch();
            }
        });
        Self(shared)
    }

    /// Ticks for as long as what it gives is kept.
    pub(super) fn tick(&self) -> Ticking {
        self.0.change(|running| running.scripts += 1);
        Ticking(self.0.clone())
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.0.change(|running| running.over = true);
    }
}

pub(super) struct Ticking(Arc<Shared>);

impl Drop for Ticking {
    fn drop(&mut self) {
        self.0.change(|running| running.scripts -= 1);
    }
}
