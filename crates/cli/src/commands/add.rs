//! `add`: copies skill folders into a store, all of them or none.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use repertoire_app::{SkillFiles, lint_files, read_skill_folders, require_folder};
use repertoire_core::{SkillId, lint::LintSeverity, text::terminal_safe};
use repertoire_registry::store::NewSkill;
use serde_json::json;

use super::{open_registry, report_look_alikes};
use crate::{
    args::WriteArgs,
    failure::UsageError,
    output::{DIM, ID, Output, format_count},
    settings::CliSettings,
};

pub(crate) fn run(
    paths: &[PathBuf],
    id: Option<SkillId>,
    write: &WriteArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let mut skills = Vec::new();
    output.with_spinner("reading skills", || -> Result<()> {
        for path in paths {
            skills.extend(read_skills(path)?);
        }
        Ok(())
    })?;
    if let Some(id) = id {
        let [skill] = skills.as_mut_slice() else {
            bail!(UsageError(format!(
                "--id names one skill, and {} were found",
                skills.len()
            )));
        };
        let name = skill.0.name();
        if id.name() != name {
            bail!(UsageError(format!(
                "--id {id} must end in the skill's name: {id}/{name}, or rename the skill"
            )));
        }
        skill.0 = id;
    }
    let skills: Vec<NewSkill> = skills
        .into_iter()
        .map(|(id, files)| {
            let findings = lint_files(&files);
            let skill =
                NewSkill::from_files(id.clone(), files).with_context(|| format!("skill {id}"))?;
            let risky = findings
                .iter()
                .filter(|f| f.rule.severity == LintSeverity::Error)
                .count();
            if risky > 0 {
                output.print_warning(format!(
                    "{id}: {} to review before use: `repertoire lint`",
                    format_count(risky, "finding")
                ));
            }
            Ok(skill)
        })
        .collect::<Result<_>>()?;
    store_skills(skills, write, settings, output)
}

/// Reads the skills of a folder; a package in JSON has a command of its own.
fn read_skills(path: &Path) -> Result<Vec<(SkillId, SkillFiles)>> {
    if path.is_file() && path.extension().is_some_and(|e| e == "json") {
        bail!(UsageError(format!(
            "{} is a file: use `repertoire package import` for packages in JSON",
            path.display()
        )));
    }
    require_folder(path)?;
    Ok(read_skill_folders(path)?)
}

/// Stores checked skills and prints the outcome.
pub(crate) fn store_skills(
    skills: Vec<NewSkill>,
    write: &WriteArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    let scope = settings
        .scope_preference()
        .resolve(&registry, write.scope.map(Into::into))?;
    let ids: Vec<SkillId> = skills.iter().map(|skill| skill.id().clone()).collect();
    let similar = report_look_alikes(&registry, &ids, output);
    let revisions = if write.dry_run {
        output.with_spinner("checking skills", || registry.dry_run_add(scope, skills))?
    } else {
        output.with_spinner("storing skills", || registry.add_skills(scope, skills))?
    };
    if output.json {
        let added: Vec<_> = ids
            .iter()
            .zip(&revisions)
            .map(|(id, revision)| json!({"id": id, "revision": revision}))
            .collect();
        let mut answer = json!({
            "scope": scope.as_str(), "dry_run": write.dry_run, "skills": added,
        });
        if !similar.is_empty() {
            answer["similar"] = json!(similar);
        }
        output.print_json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (id, revision) in ids.iter().zip(&revisions) {
        let outcome = match revision {
            Some(revision) if write.dry_run => format!("would be revision {revision}"),
            Some(revision) => format!("revision {revision}"),
            None => "unchanged".to_owned(),
        };
        output.print_text(&format!("{ID}{id}{ID:#}  {DIM}{outcome}{DIM:#}\n"))?;
    }
    let word = if write.dry_run { "checked for" } else { "in" };
    output.print_note(format!("{word} the {} store", scope.as_str()));
    let snapshot = registry.snapshot();
    for id in &ids {
        if let Some(winner) = snapshot.get(id)
            && winner.origin != repertoire_registry::Origin::from_scope(scope)
            && !write.dry_run
        {
            output.print_warning(format!(
                "{id} is shadowed by {}:{id}; read it as {}:{id}",
                winner.origin,
                terminal_safe(scope.as_str())
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}
