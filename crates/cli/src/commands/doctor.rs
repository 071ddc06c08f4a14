//! `doctor`: is everything in order, and if not, what to do.

use std::process::ExitCode;

use anyhow::Result;
use repertoire_core::text::terminal_safe;
use repertoire_registry::{Error, Registry, Scope, Trusted};
use serde_json::{Value, json};

use crate::{failure::PROBLEMS, output::Output, settings::Settings};

struct Check {
    name: &'static str,
    ok: bool,
    detail: String,
    hint: Option<&'static str>,
}

pub(crate) fn run(settings: &Settings, output: &Output) -> Result<ExitCode> {
    let mut checks = Vec::new();
    let mut add = |name, ok, detail: String, hint| {
        checks.push(Check {
            name,
            ok,
            detail,
            hint,
        });
    };
    add("version", true, env!("CARGO_PKG_VERSION").to_owned(), None);
    let sources = settings.sources.clone();
    match output.working("reading skills", || Registry::open(sources)) {
        Ok(registry) => inspect(&registry, &mut add),
        Err(error) => add("registry", false, error.to_string(), error.hint()),
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
            output.print(&format!("{mark}  {:<10} {detail}\n", check.name))?;
            if let Some(hint) = check.hint.filter(|_| !check.ok) {
                output.hint(hint);
            }
        }
    }
    Ok(if failed {
        ExitCode::from(PROBLEMS)
    } else {
        ExitCode::SUCCESS
    })
}

fn inspect(
    registry: &Registry,
    add: &mut impl FnMut(&'static str, bool, String, Option<&'static str>),
) {
    for scope in [Scope::Workspace, Scope::Account] {
        let Ok(store) = registry.store(scope) else {
            continue;
        };
        let path = store.path().display().to_string();
        match store.check() {
            Ok(()) => add(scope.as_str(), true, path, None),
            Err(error) => add(scope.as_str(), false, error.to_string(), error.hint()),
        }
    }
    if let Some((path, trusted)) = registry.workspace() {
        let word = match trusted {
            Trusted::Yes => "trusted",
            Trusted::No => "not trusted: it overrides nothing until `repertoire trust`",
        };
        add("trust", true, format!("{}: {word}", path.display()), None);
    }
    let snapshot = registry.snapshot();
    let shadowed: Vec<String> = snapshot
        .all_skills()
        .filter_map(|(entry, by)| {
            by.map(|by| format!("{}:{} by {}", entry.origin, entry.id, by.origin))
        })
        .collect();
    let prompts = snapshot.prompts().count();
    add(
        "catalogue",
        true,
        format!(
            "{} skills, {prompts} prompts, {} shadowed",
            snapshot.len(),
            shadowed.len()
        ),
        None,
    );
    for line in shadowed {
        add("shadowed", true, line, None);
    }
    for notice in registry.notices() {
        let error = Error::Skipped {
            code: notice.code,
            message: format!("[{}] {}", notice.code, notice.message),
        };
        let hint = "correct the file or move it out of the folder";
        add("skipped", false, error.to_string(), Some(hint));
    }
}
