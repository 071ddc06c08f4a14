//! `add mcp`, `remote` and `approve`: skills of other servers.

use std::process::ExitCode;

use anyhow::{Result, bail};
use repertoire_core::text::terminal_safe;
use repertoire_registry::{
    Error, Origin, Reference, Registry, Scope,
    remote::{Label, Refused},
};
use repertoire_serve::client::{Pool, Reach, Target};
use serde_json::json;

use super::open;
use crate::{
    args::{AddFrom, RemoteCommand},
    failure::{PROBLEMS, Usage},
    output::{DIM, ID, Output, count},
    settings::Settings,
};

pub(crate) fn add(from: AddFrom, settings: &Settings, output: &Output) -> Result<ExitCode> {
    let AddFrom::Mcp {
        label,
        url,
        bearer_env,
        private,
        env,
        command,
    } = from;
    let target = match url {
        Some(url) => Target::http(&url, bearer_env, private.then_some(Reach::Private))?,
        None => Target::command(command, env)?,
    };
    let registry = open(&[], settings, output)?;
    need_account(&registry)?;
    let pool = Pool::of(&registry);
    let refused = output.working("asking the server", || pool.add(&registry, &label, &target))?;
    tell_refused(&label, &refused, output);
    let skills = of(&registry, &label);
    if output.json {
        output.print_json(&json!({"label": label, "skills": skills, "refused": refused.len()}))?;
        return Ok(ExitCode::SUCCESS);
    }
    output.note(format!(
        "{label} has {}; read when needed, verified each time",
        count(skills.len(), "skill")
    ));
    for id in skills {
        output.print(&format!("{ID}{id}{ID:#}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn need_account(registry: &Registry) -> Result<()> {
    registry.store(Scope::Account)?;
    Ok(())
}

/// The ids of a server's skills.
fn of(registry: &Registry, label: &Label) -> Vec<String> {
    let origin = Origin::Remote(label.as_str().into());
    let snapshot = registry.snapshot();
    let all = snapshot.all_skills().filter(|(e, _)| e.origin == origin);
    all.map(|(entry, _)| entry.id.to_string()).collect()
}

fn tell_refused(label: &Label, refused: &[Refused], output: &Output) {
    for one in refused {
        output.warn(format!(
            "{label}: {} is not taken [{}] {}",
            terminal_safe(&one.uri),
            one.code,
            terminal_safe(&one.message)
        ));
    }
}

pub(crate) fn run(
    command: RemoteCommand,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    settings.forget_instructions();
    match command {
        RemoteCommand::List => list(&registry, output),
        RemoteCommand::Refresh { labels } => refresh(&registry, labels, output),
        RemoteCommand::Remove { label } => {
            if !registry.remove_remote(&label)? {
                bail!(Error::NotFound {
                    what: "server",
                    name: label.to_string(),
                });
            }
            if output.json {
                output.print_json(&json!({"removed": label}))?;
            }
            output.note(format!("{label} is forgotten"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn list(registry: &Registry, output: &Output) -> Result<ExitCode> {
    let remotes = registry.store(Scope::Account)?.remotes()?;
    let mut shown = Vec::new();
    for remote in &remotes {
        let target = serde_json::from_value::<Target>(remote.target.clone());
        let place = target.map_or_else(|_| "?".to_owned(), |target| target.describe());
        let skills = remote.label.parse().map_or(0, |l| of(registry, &l).len());
        if output.json {
            shown.push(json!({
                "label": remote.label, "target": remote.target, "added_at": remote.added_at,
                "listed_at": remote.listed_at, "skills": skills,
            }));
            continue;
        }
        let asked = remote.listed_at.as_deref().unwrap_or("never");
        output.print(&format!(
            "{ID}{}{ID:#}  {}  {}  {DIM}asked {asked}{DIM:#}\n",
            remote.label,
            terminal_safe(&place),
            count(skills, "skill"),
        ))?;
    }
    if output.json {
        output.print_json(&json!({"remotes": shown}))?;
    } else if remotes.is_empty() {
        output.note("no servers; `repertoire add mcp LABEL URL` adds one");
    }
    Ok(ExitCode::SUCCESS)
}

fn refresh(registry: &Registry, labels: Vec<Label>, output: &Output) -> Result<ExitCode> {
    let pool = Pool::of(registry);
    let labels = if labels.is_empty() {
        let remotes = registry.store(Scope::Account)?.remotes()?;
        let labels = remotes
            .iter()
            .filter_map(|remote| remote.label.parse().ok());
        labels.collect()
    } else {
        labels
    };
    let mut failed = None;
    let mut told = Vec::new();
    let only = labels.len() == 1;
    for label in labels {
        match output.working("asking the server", || pool.refresh(registry, &label)) {
            Ok(refused) => {
                tell_refused(&label, &refused, output);
                let skills = of(registry, &label).len();
                told.push(json!({"label": label, "skills": skills, "refused": refused.len()}));
                if !output.json {
                    output.note(format!("{label}: {}", count(skills, "skill")));
                }
            }
            // One that is away must not keep the others from being asked.
            Err(error) if only => return Err(error.into()),
            Err(error) => {
                told.push(json!({"label": label, "error": error.to_string()}));
                output.warn(terminal_safe(&error.to_string()));
                failed = Some(());
            }
        }
    }
    if output.json {
        output.print_json(&json!({"remotes": told}))?;
    }
    Ok(match failed {
        Some(()) => ExitCode::from(PROBLEMS),
        None => ExitCode::SUCCESS,
    })
}

pub(crate) fn approve(
    skill: &Reference,
    revoke: bool,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    let snapshot = registry.snapshot();
    let Some(entry) = snapshot.skill(skill) else {
        bail!(Error::NotFound {
            what: "skill",
            name: skill.to_string(),
        });
    };
    settings.forget_instructions();
    if revoke {
        if !registry.disapprove(entry)? {
            bail!(Usage(format!("{} was not approved", entry.id)));
        }
        if output.json {
            output.print_json(&json!({"skill": entry.id, "approved": false}))?;
        }
        output.note(format!("{} is no longer approved", entry.id));
    } else {
        registry.approve(entry)?;
        if output.json {
            output.print_json(&json!({"skill": entry.id, "approved": true}))?;
        }
        output.note(format!(
            "{} is approved with its {} as they are now; any change takes that back",
            entry.id,
            count(entry.head.files.len(), "file")
        ));
    }
    Ok(ExitCode::SUCCESS)
}
