//! `add mcp` and `remote`: manages skills of other servers.

use std::process::ExitCode;

use anyhow::{Result, bail};
use repertoire_app::ConnectionPool;
use repertoire_core::{SkillId, text::terminal_safe};
use repertoire_registry::{
    Error, Origin, Registry,
    remote::{RefusedSkill, RemoteLabel},
};
use repertoire_remote::{Reach, mcp::ServerTarget};
use serde_json::json;

use super::{open_registry, report_look_alikes};
use crate::{
    args::{AddFrom, RemoteCommand},
    failure::EXIT_PROBLEMS,
    output::{DIM, ID, Output, format_count},
    settings::CliSettings,
};

pub(crate) fn add_remote(
    from: AddFrom,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let AddFrom::Mcp {
        label,
        url,
        bearer_env,
        private,
        env,
        command,
    } = from;
    let target = match url {
        Some(url) => ServerTarget::from_url(&url, bearer_env, private.then_some(Reach::Private))?,
        None => ServerTarget::from_command(command, env)?,
    };
    let registry = open_registry(&[], settings, output)?;
    require_account(&registry)?;
    let pool = ConnectionPool::from_registry(&registry);
    let refused = output.with_spinner("contacting the server", || {
        pool.add_server(&registry, &label, &target)
    })?;
    warn_refused(&label, &refused, output);
    let skills = remote_skill_ids(&registry, &label);
    let similar = report_look_alikes(&registry, &skills, output);
    if output.json {
        output.print_json(&json!({
            "label": label, "skills": skills, "refused": refused.len(), "similar": similar,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let snapshot = registry.snapshot();
    let is_unverified = |id: &&SkillId| {
        let mut entries = snapshot.all_skills().map(|(entry, _)| entry);
        entries.any(|entry| entry.id == **id && entry.is_remote() && entry.metadata.dynamic)
    };
    let verified = match skills.iter().filter(is_unverified).count() {
        0 => "verified each time".to_owned(),
        all if all == skills.len() => "cannot be verified, because it lists no digests".to_owned(),
        some => format!("{some} of them cannot be verified, because it lists no digests for them"),
    };
    output.print_note(format!(
        "{label} has {}; read when needed, {verified}",
        format_count(skills.len(), "skill")
    ));
    for id in skills {
        output.print_text(&format!("{ID}{id}{ID:#}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn require_account(registry: &Registry) -> Result<()> {
    registry.local_store()?;
    Ok(())
}

/// Returns the ids of a server's skills.
fn remote_skill_ids(registry: &Registry, label: &RemoteLabel) -> Vec<SkillId> {
    let origin = Origin::Remote(label.as_str().into());
    let snapshot = registry.snapshot();
    let all = snapshot.all_skills().filter(|(e, _)| e.origin == origin);
    all.map(|(entry, _)| entry.id.clone()).collect()
}

fn warn_refused(label: &RemoteLabel, refused: &[RefusedSkill], output: &Output) {
    for one in refused {
        output.print_warning(format!(
            "{label}: {} is not taken [{}] {}",
            terminal_safe(&one.uri),
            one.code,
            terminal_safe(&one.message)
        ));
    }
}

pub(crate) fn run(
    command: RemoteCommand,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    settings.clear_instructions_cache();
    match command {
        RemoteCommand::List => list_remotes(&registry, output),
        RemoteCommand::Refresh { labels } => refresh_remotes(&registry, labels, output),
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
            output.print_note(format!("{label} is removed"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn list_remotes(registry: &Registry, output: &Output) -> Result<ExitCode> {
    let remotes = registry.local_store()?.remotes()?;
    let mut shown = Vec::new();
    for remote in &remotes {
        let target = serde_json::from_value::<ServerTarget>(remote.target.clone());
        let place = target.map_or_else(|_| "?".to_owned(), |target| target.describe());
        let skills = remote
            .label
            .parse()
            .map_or(0, |l| remote_skill_ids(registry, &l).len());
        if output.json {
            shown.push(json!({
                "label": remote.label, "target": remote.target, "added_at": remote.added_at,
                "listed_at": remote.listed_at, "skills": skills,
            }));
            continue;
        }
        let asked = remote.listed_at.as_deref().unwrap_or("never");
        output.print_text(&format!(
            "{ID}{}{ID:#}  {}  {}  {DIM}asked {asked}{DIM:#}\n",
            remote.label,
            terminal_safe(&place),
            format_count(skills, "skill"),
        ))?;
    }
    if output.json {
        output.print_json(&json!({"remotes": shown}))?;
    } else if remotes.is_empty() {
        output.print_note("no servers; `repertoire add mcp LABEL URL` adds one");
    }
    Ok(ExitCode::SUCCESS)
}

fn refresh_remotes(
    registry: &Registry,
    labels: Vec<RemoteLabel>,
    output: &Output,
) -> Result<ExitCode> {
    let pool = ConnectionPool::from_registry(registry);
    let labels = if labels.is_empty() {
        let remotes = registry.local_store()?.remotes()?;
        let labels = remotes
            .iter()
            .filter_map(|remote| remote.label.parse().ok());
        labels.collect()
    } else {
        labels
    };
    let mut failed = None;
    let mut results = Vec::new();
    let only = labels.len() == 1;
    for label in labels {
        match output.with_spinner("contacting the server", || {
            pool.refresh_server(registry, &label)
        }) {
            Ok(refused) => {
                warn_refused(&label, &refused, output);
                let skills = remote_skill_ids(registry, &label);
                let similar = report_look_alikes(registry, &skills, output);
                let skills = skills.len();
                results.push(json!({
                    "label": label, "skills": skills, "refused": refused.len(), "similar": similar,
                }));
                if !output.json {
                    output.print_note(format!("{label}: {}", format_count(skills, "skill")));
                }
            }
            // An unreachable server must not stop the refresh of the others.
            Err(error) if only => return Err(error.into()),
            Err(error) => {
                results.push(json!({"label": label, "error": error.to_string()}));
                output.print_warning(terminal_safe(&error.to_string()));
                failed = Some(());
            }
        }
    }
    if output.json {
        output.print_json(&json!({"remotes": results}))?;
    }
    Ok(match failed {
        Some(()) => ExitCode::from(EXIT_PROBLEMS),
        None => ExitCode::SUCCESS,
    })
}
