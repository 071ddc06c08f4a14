//! `add`: skill folders into a store, all of them or none.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use repertoire_core::{RelPath, SkillId, lint::Severity, text::terminal_safe};
use repertoire_registry::{Registry, Settings as Sources, folder, store::NewSkill};
use serde_json::json;

use super::{lint, open, scope};
use crate::{
    args::WriteArgs,
    failure::Usage,
    output::{DIM, ID, Output, count},
    settings::Settings,
};

pub(crate) fn run(
    paths: &[PathBuf],
    id: Option<SkillId>,
    write: &WriteArgs,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let mut skills = Vec::new();
    output.working("reading skills", || -> Result<()> {
        for path in paths {
            read(path, &mut skills)?;
        }
        Ok(())
    })?;
    if let Some(id) = id {
        let [skill] = skills.as_mut_slice() else {
            bail!(Usage(format!(
                "--id names one skill, and {} were found",
                skills.len()
            )));
        };
        let name = skill.0.name();
        if id.name() != name {
            bail!(Usage(format!(
                "--id {id} must end in the skill's name: {id}/{name}, or rename the skill"
            )));
        }
        skill.0 = id;
    }
    let skills: Vec<NewSkill> = skills
        .into_iter()
        .map(|(id, files)| {
            let findings = lint::findings(&files);
            let skill =
                NewSkill::from_files(id.clone(), files).with_context(|| format!("skill {id}"))?;
            let risky = findings
                .iter()
                .filter(|f| f.rule.severity == Severity::Error)
                .count();
            if risky > 0 {
                output.warn(format!(
                    "{id}: {} worth a look before use: `repertoire lint`",
                    count(risky, "finding")
                ));
            }
            Ok(skill)
        })
        .collect::<Result<_>>()?;
    store(skills, write, settings, output)
}

type Files = BTreeMap<RelPath, Bytes>;

/// Reads the skill at a path, or every skill beneath it under its path as id.
fn read(path: &Path, skills: &mut Vec<(SkillId, Files)>) -> Result<()> {
    if path.is_file() && path.extension().is_some_and(|e| e == "json") {
        bail!(Usage(format!(
            "{} is a file: use `repertoire import` for packages in JSON",
            path.display()
        )));
    }
    crate::settings::need_folder(path)?;
    if path.join("SKILL.md").symlink_metadata().is_ok() {
        let real = path.canonicalize()?;
        let name = real.file_name().unwrap_or_default().to_string_lossy();
        let id = name.parse().with_context(|| path.display().to_string())?;
        skills.push((id, folder::read(path)?));
        return Ok(());
    }
    let registry = Registry::open(Sources::of_folders([path.to_owned()]))?;
    if let Some(notice) = registry.notices().into_iter().next() {
        bail!(repertoire_registry::Error::Skipped {
            code: notice.code,
            message: notice.message,
        });
    }
    let snapshot = registry.snapshot();
    if snapshot.is_empty() {
        bail!(repertoire_registry::Error::NotFound {
            what: "skill in",
            name: path.display().to_string(),
        });
    }
    for entry in snapshot.skills() {
        let files = folder::read(&path.join(entry.id.as_str()))?;
        skills.push((entry.id.clone(), files));
    }
    Ok(())
}

/// Stores checked skills and says what came of it.
pub(crate) fn store(
    skills: Vec<NewSkill>,
    write: &WriteArgs,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    let scope = scope(&registry, write.scope, settings)?;
    let ids: Vec<SkillId> = skills.iter().map(|skill| skill.id().clone()).collect();
    let revisions = if write.dry_run {
        output.working("checking skills", || registry.try_add(scope, skills))?
    } else {
        output.working("storing skills", || registry.add(scope, skills))?
    };
    if output.json {
        let added: Vec<_> = ids
            .iter()
            .zip(&revisions)
            .map(|(id, revision)| json!({"id": id, "revision": revision}))
            .collect();
        output.print_json(&json!({
            "scope": scope.as_str(), "dry_run": write.dry_run, "skills": added,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for (id, revision) in ids.iter().zip(&revisions) {
        let outcome = match revision {
            Some(revision) if write.dry_run => format!("would be revision {revision}"),
            Some(revision) => format!("revision {revision}"),
            None => "unchanged".to_owned(),
        };
        output.print(&format!("{ID}{id}{ID:#}  {DIM}{outcome}{DIM:#}\n"))?;
    }
    let snapshot = registry.snapshot();
    for id in &ids {
        if let Some(winner) = snapshot.get(id)
            && winner.origin != repertoire_registry::Origin::of_scope(scope)
            && !write.dry_run
        {
            output.warn(format!(
                "{id} is shadowed by {}:{id}; read it as {}:{id}",
                winner.origin,
                terminal_safe(scope.as_str())
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}
