//! `doctor`: checks the installation and suggests repairs.

use std::process::ExitCode;

use anyhow::Result;
use repertoire_app::{ComponentKind, DiskUsage, HealthProblem, check_health, disk_usage};
use repertoire_core::text::terminal_safe;
use repertoire_registry::Registry;
use repertoire_runtime::ModelAvailability;
use serde_json::{Value, json};

use super::{serve::build_runtime, setup::install_hint};
use crate::{
    failure::EXIT_PROBLEMS,
    hint::{registry_hint, run_hint},
    output::{Output, format_size},
    settings::CliSettings,
};

struct DoctorLine {
    name: &'static str,
    ok: bool,
    detail: String,
    hint: Option<&'static str>,
}

pub(crate) fn run(settings: Result<CliSettings>, output: &Output) -> Result<ExitCode> {
    let mut checks = Vec::new();
    let mut add = |name, ok, detail: String, hint| {
        checks.push(DoctorLine {
            name,
            ok,
            detail,
            hint,
        });
    };
    add("version", true, env!("CARGO_PKG_VERSION").to_owned(), None);
    match settings {
        Err(error) => add(
            "settings",
            false,
            format!("{error:#}"),
            Some("correct the file"),
        ),
        Ok(settings) => {
            if let Some(problem) = &settings.workspace_problem {
                add("settings", false, problem.clone(), Some("correct the file"));
            }
            check_components(&settings, output, &mut add);
            let (sources, account) = (settings.sources, settings.account);
            match output.with_spinner("reading skills", || Registry::open(sources)) {
                Ok(registry) => {
                    for check in check_health(&registry) {
                        let hint = check.problem.as_ref().and_then(problem_hint);
                        add(check.name, check.problem.is_none(), check.detail, hint);
                    }
                    match disk_usage(&registry, &account) {
                        Ok(usage) => {
                            for line in usage_lines(&usage) {
                                add("space", true, line, None);
                            }
                        }
                        Err(error) => add("space", false, error.to_string(), None),
                    }
                }
                Err(error) => add("registry", false, error.to_string(), registry_hint(&error)),
            }
        }
    }
    let failed = checks.iter().any(|check| !check.ok);
    if output.json {
        let list: Vec<Value> = checks
            .iter()
            .map(|c| json!({"check": c.name, "ok": c.ok, "detail": c.detail, "hint": c.hint}))
            .collect();
        output.print_json(&json!({"ok": !failed, "checks": list}))?;
    } else {
        for check in &checks {
            let mark = if check.ok { "ok  " } else { "FAIL" };
            let detail = terminal_safe(&check.detail).into_owned();
            output.print_text(&format!("{mark}  {:<10} {detail}\n", check.name))?;
            if let Some(hint) = check.hint.filter(|_| !check.ok) {
                output.print_hint(hint);
            }
        }
    }
    Ok(if failed {
        ExitCode::from(EXIT_PROBLEMS)
    } else {
        ExitCode::SUCCESS
    })
}

/// Describes what takes space.
fn usage_lines(usage: &DiskUsage) -> Vec<String> {
    let mut lines = Vec::new();
    for (scope, store) in &usage.stores {
        lines.push(format!(
            "{scope} store: {} and {} of journal; skills: {}, revisions: {}, state: {} values in {}, \
             earlier registered values: {}, traces: {}, embeddings: {}, choices in searches: {}, skills with example messages: {}",
            format_size(store.bytes),
            format_size(store.journal_bytes),
            store.skills,
            store.revisions,
            store.state_values,
            format_size(store.state_bytes),
            store.registered_revisions,
            store.traces,
            store.vectors,
            store.uses,
            store.example_messages
        ));
    }
    for (name, bytes) in usage.folders.iter().filter(|(_, bytes)| *bytes > 0) {
        lines.push(format!("{name}: {}", format_size(*bytes)));
    }
    lines
}

/// Checks every installed component and the configured model.
fn check_components(
    settings: &CliSettings,
    output: &Output,
    add: &mut impl FnMut(&'static str, bool, String, Option<&'static str>),
) {
    let components = settings.components();
    for kind in ComponentKind::ALL {
        let (name, folder) = (kind.as_str(), components.folder(*kind));
        let at = folder.display();
        if !components.is_installed(*kind) {
            if folder.exists() {
                let old = format!("{at}: of another version, or not whole");
                add(name, false, old, Some(repair_hint(*kind)));
            } else {
                add(name, true, install_hint(*kind), None);
            }
            continue;
        }
        let checked = output.with_spinner("checking installed components", || {
            Ok::<_, anyhow::Error>(build_runtime()?.block_on(components.check(*kind))?)
        });
        match checked {
            Ok(what) => add(name, true, format!("{what}, in {at}"), None),
            Err(error) => add(
                name,
                false,
                format!("{at}: {error:#}"),
                Some(repair_hint(*kind)),
            ),
        }
    }
    match &settings.model {
        None => {
            let none = "none is configured: `--model PROVIDER/MODEL`, or `model` in the settings";
            add("model", true, none.to_owned(), None);
        }
        Some(id) if id == "host" => add("model", true, "the host's own".to_owned(), None),
        Some(id) => {
            let providers = settings.resolved_providers();
            let checked = output.with_spinner("contacting the model's server", || {
                let runtime = build_runtime()?;
                anyhow::Ok(runtime.block_on(providers.check_model(id)))
            });
            match checked {
                Ok(Ok(ModelAvailability::Listed)) => {
                    add("model", true, format!("{id} is there"), None);
                }
                Ok(Ok(ModelAvailability::NotListed(known))) => add(
                    "model",
                    false,
                    format!("{id} is not there; the server has {}", known.join(", ")),
                    Some("correct `model` in the settings, or load the model"),
                ),
                // A server without a list.
                Ok(Ok(_)) => add("model", true, format!("{id}: its server answers"), None),
                Ok(Err(error)) => {
                    let hint =
                        run_hint(&error).or(Some("start the server, or correct its base_url"));
                    add("model", false, error.to_string(), hint);
                }
                Err(error) => add("model", false, error.to_string(), None),
            }
        }
    }
}

/// Says how to repair a broken installation.
fn repair_hint(kind: ComponentKind) -> &'static str {
    match kind {
        ComponentKind::Embeddings => {
            "`repertoire setup embeddings --remove`, then `repertoire setup embeddings`"
        }
        ComponentKind::Sandbox => "`repertoire setup sandbox --again` installs it anew",
        ComponentKind::Sidecar => "`repertoire setup sidecar --again` installs it anew",
    }
}

/// Says what to do about a problem of the registry.
fn problem_hint(problem: &HealthProblem) -> Option<&'static str> {
    match problem {
        HealthProblem::Store(error) => registry_hint(error),
        HealthProblem::Skipped(code) => Some(match *code {
            "foreign_journal" => {
                "move the journal away if you did not expect it; `repertoire trust --with-journal` \
                 applies it"
            }
            "untrusted" => "run `repertoire trust` if you know the workspace",
            "io_error" => "make it readable, create it, or remove it from the settings",
            "store_corrupt" | "store_newer" => "move the file away, or get a newer version",
            _ => "correct it, or move it out of the folder",
        }),
    }
}
