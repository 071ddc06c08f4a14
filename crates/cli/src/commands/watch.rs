//! `watch`: prints changes of the catalogue, one line each.

use std::{collections::HashSet, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use repertoire_core::text::terminal_safe;
use repertoire_registry::EventOp;

use super::open_registry;
use crate::{
    output::{ID, Output, format_count},
    settings::CliSettings,
};

pub(crate) fn run(paths: &[PathBuf], settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let registry = open_registry(paths, settings, output)?;
    let mut seen = registry.snapshot().seq();
    let watch = registry.start_watching()?;
    if let Some(reason) = &watch.fallback {
        output.print_warning(format!(
            "the system cannot watch ({reason}): polling every second instead"
        ));
    }
    output.print_note(format!(
        "watching {}; Ctrl-C ends",
        format_count(registry.snapshot().len(), "skill")
    ));
    let mut known: HashSet<String> = registry.notices().into_iter().map(|n| n.message).collect();
    loop {
        let Ok(events) = registry.wait_events(seen, Duration::from_millis(500)) else {
            output.print_warning("too many changes at once; some were not shown");
            seen = registry.snapshot().seq();
            continue;
        };
        // Report newly skipped skills with the reason.
        let notices = registry.notices();
        for notice in notices.iter().filter(|n| !known.contains(&n.message)) {
            let message = terminal_safe(&notice.message);
            output.print_warning(format!("skipped [{}] {message}", notice.code));
        }
        known = notices.into_iter().map(|n| n.message).collect();
        for event in events {
            seen = event.seq;
            if output.json {
                output.print_text(&format!("{}\n", serde_json::to_string(&event)?))?;
                continue;
            }
            let sign = match event.op {
                EventOp::Add => '+',
                EventOp::Update => '~',
                EventOp::Remove => '-',
            };
            output.print_text(&format!("{sign} {ID}{}:{}{ID:#}\n", event.origin, event.id))?;
        }
    }
}
