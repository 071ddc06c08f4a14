//! Checks a registry: its stores, the trust of its workspace, and what was shadowed or skipped.

use repertoire_registry::{Error as RegistryError, Registry, StoreScope, Trusted};

/// One thing that was checked.
#[derive(Debug)]
pub struct HealthCheck {
    /// What was checked.
    pub name: &'static str,
    /// What was found.
    pub detail: String,
    /// What is wrong, if anything is.
    pub problem: Option<HealthProblem>,
}

/// What is wrong.
#[derive(Debug)]
pub enum HealthProblem {
    /// A store cannot be used.
    Store(RegistryError),
    /// Something was skipped, with the code of the reason.
    Skipped(&'static str),
}

/// Checks a registry.
pub fn check_health(registry: &Registry) -> Vec<HealthCheck> {
    let mut checks = Vec::new();
    let mut add = |name, detail, problem| {
        checks.push(HealthCheck {
            name,
            detail,
            problem,
        });
    };
    for scope in [StoreScope::Workspace, StoreScope::Account] {
        let Ok(store) = registry.store(scope) else {
            continue;
        };
        match store.check_integrity() {
            Ok(()) => add(scope.as_str(), store.location(), None),
            Err(error) => {
                let detail = error.to_string();
                add(scope.as_str(), detail, Some(HealthProblem::Store(error)));
            }
        }
    }
    if let Some((path, trusted)) = registry.workspace() {
        let word = match trusted {
            Trusted::Yes => "trusted",
            Trusted::No => "not trusted: it overrides nothing",
        };
        add("trust", format!("{}: {word}", path.display()), None);
    }
    let snapshot = registry.snapshot();
    let shadowed: Vec<String> = snapshot
        .all_skills()
        .filter_map(|(entry, by)| {
            by.map(|by| format!("{}:{} by {}", entry.origin, entry.id, by.origin))
        })
        .collect();
    let (skills, prompts) = (snapshot.len(), snapshot.prompts().count());
    let counts = format!(
        "skills: {skills}, prompts: {prompts}, shadowed: {}",
        shadowed.len()
    );
    add("catalogue", counts, None);
    for line in shadowed {
        add("shadowed", line, None);
    }
    for entry in snapshot.skills() {
        if let Some(problem) = &entry.metadata.unlisted {
            let text = format!("{}:{}: {problem}", entry.origin, entry.id);
            add("not listed", text, None);
        }
    }
    for notice in registry.notices() {
        let text = format!("[{}] {}", notice.code, notice.message);
        let problem = notice.is_problem();
        let problem = problem.then_some(HealthProblem::Skipped(notice.code));
        add("skipped", text, problem);
    }
    checks
}
