//! `watch`: changes of the catalogue as they happen, one line each.

use std::{collections::HashSet, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use repertoire_core::text::terminal_safe;
use repertoire_registry::Op;

use super::open;
use crate::{
    output::{ID, Output, count},
    settings::Settings,
};

pub(crate) fn run(paths: &[PathBuf], settings: &Settings, output: &Output) -> Result<ExitCode> {
    let registry = open(paths, settings, output)?;
    let mut seen = registry.snapshot().seq();
    let watch = registry.watch()?;
    if let Some(reason) = &watch.fallback {
        output.warn(format!(
            "the system cannot watch ({reason}): looking every second instead"
        ));
    }
    output.note(format!(
        "watching {}; Ctrl-C ends",
        count(registry.snapshot().len(), "skill")
    ));
    let mut known: HashSet<String> = registry.notices().into_iter().map(|n| n.message).collect();
    loop {
        let Ok(events) = registry.wait_events(seen, Duration::from_millis(500)) else {
            output.warn("too many changes at once; some were not shown");
            seen = registry.snapshot().seq();
            continue;
        };
        // What is no longer taken, or never was, is told with its reason.
        let notices = registry.notices();
        for notice in notices.iter().filter(|n| !known.contains(&n.message)) {
            let message = terminal_safe(&notice.message);
            output.warn(format!("skipped [{}] {message}", notice.code));
        }
        known = notices.into_iter().map(|n| n.message).collect();
        for event in events {
            seen = event.seq;
            if output.json {
                output.print(&format!("{}\n", serde_json::to_string(&event)?))?;
                continue;
            }
            let sign = match event.op {
                Op::Add => '+',
                Op::Update => '~',
                Op::Remove => '-',
            };
            output.print(&format!("{sign} {ID}{}:{}{ID:#}\n", event.origin, event.id))?;
        }
    }
}
