//! Logs the files found at startup: a line for each entry, a warning for each skipped file, and
//! a summary.

use repertoire_registry::{Origin, Registry};

/// Logs the skills and prompts that the configured patterns and folders produced.
pub fn log_loaded_files(registry: &Registry) {
    let snapshot = registry.snapshot();
    let (mut skills, mut prompts, mut hidden) = (0, 0, 0);
    for (entry, winner) in snapshot.all_skills() {
        let Some(path) = entry.path() else {
            continue;
        };
        match winner.map(|winner| &winner.origin) {
            None => {
                skills += 1;
                tracing::info!(id = entry.id.as_str(), path = %path.display(), "loaded skill");
            }
            Some(origin) => {
                hidden += 1;
                let by = describe_winner(origin);
                tracing::warn!(id = entry.id.as_str(), path = %path.display(), "skipped: hidden by {by}");
            }
        }
    }
    for (entry, winner) in snapshot.all_prompts() {
        let Some(path) = entry.path() else {
            continue;
        };
        let name = entry.prompt.name.as_str();
        match winner.map(|winner| &winner.origin) {
            None => {
                prompts += 1;
                tracing::info!(name, path = %path.display(), "loaded prompt");
            }
            Some(origin) => {
                hidden += 1;
                let by = describe_winner(origin);
                tracing::warn!(name, path = %path.display(), "skipped: hidden by {by}");
            }
        }
    }
    let mut notices = registry.notices();
    notices.retain(repertoire_registry::Notice::is_problem);
    for notice in &notices {
        let message = repertoire_core::text::terminal_safe(&notice.message);
        tracing::warn!(path = %notice.path.display(), code = notice.code, "skipped: {message}");
    }
    tracing::info!(
        skills,
        prompts,
        skipped = notices.len() + hidden,
        "files: {skills} skills, {prompts} prompts, {} skipped",
        notices.len() + hidden
    );
}

fn describe_winner(origin: &Origin) -> String {
    match origin {
        Origin::State => {
            "a registered entry of the same name; unregister it, or rename the file".to_owned()
        }
        other => format!("an entry of the same name from {other}"),
    }
}
