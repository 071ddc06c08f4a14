//! `add`: copies skill folders into a store.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use repertoire_app::{
    FoundSkills, install::PROJECT_FILE, lint_files, read_skill_folders, require_folder,
};
use repertoire_core::{
    SkillId,
    lint::{LintFinding, LintSeverity},
    text::terminal_safe,
};
use repertoire_registry::{
    Error as RegistryError, Origin, QualifiedSkillId, Registry, StoreScope, store::NewSkill,
};
use repertoire_remote::{Error as RemoteError, SkillSource, SourcePlace};
use serde_json::json;

use super::{add_remote, open_registry, report_look_alikes};
use crate::{
    args::{AddArgs, WriteArgs},
    failure::UsageError,
    output::{DIM, ID, Output, format_count},
    settings::CliSettings,
};

/// Adds skills of any source: copies of what is on this machine, and pinned ones from elsewhere.
pub(crate) fn run(args: &AddArgs, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let (mut paths, mut remote) = (Vec::new(), Vec::new());
    for text in &args.sources {
        match parse_source(text)? {
            Some(source) => remote.push(source),
            None => paths.push(PathBuf::from(text)),
        }
    }
    let names_one = args.id.is_some() || !args.skills.is_empty();
    if names_one && paths.len() + remote.len() > 1 {
        bail!(UsageError(
            "--id and --skill are about one source: add the others separately".to_owned()
        ));
    }
    if args.id.is_some() && (args.all || args.skills.len() > 1) {
        bail!(UsageError(
            "--id names one skill: choose it with --skill".to_owned()
        ));
    }
    if remote.is_empty() && !args.list {
        if args.no_approve {
            bail!(UsageError(
                "a copy from this machine is your own, and needs no approval: leave --no-approve out"
                    .to_owned()
            ));
        }
        return add_local(&paths, args, settings, output);
    }
    if !remote.is_empty() && !paths.is_empty() {
        bail!(UsageError(
            "add folders of this machine and other sources one after the other".to_owned()
        ));
    }
    if args.list {
        for path in paths {
            remote.push(path.to_string_lossy().parse()?);
        }
        return add_remote::list(&remote, args, settings, output);
    }
    add_remote::run(&remote, args, settings, output)
}

/// Parses a source; `None` for what is on this machine and is copied.
fn parse_source(text: &str) -> Result<Option<SkillSource>> {
    let source: SkillSource = match text.parse() {
        Ok(source) => source,
        // A name that is nothing else was meant as a path.
        Err(RemoteError::Source { .. })
            if !text.contains([':', '@', '#']) && !text.starts_with('-') =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    Ok(match source.place() {
        SourcePlace::Folder(_) => None,
        _ => Some(source),
    })
}

/// Keeps the skills of a folder that were named, by their names or folders.
fn keep_named(found: &mut FoundSkills, args: &AddArgs) -> Result<()> {
    if args.skills.is_empty() {
        return Ok(());
    }
    let is_meant = |id: &SkillId, name: &str| id.name() == name || id.as_str() == name;
    for name in &args.skills {
        if !found.skills.iter().any(|(id, _)| is_meant(id, name)) {
            let names: Vec<&str> = found.skills.iter().map(|(id, _)| id.as_str()).collect();
            bail!(repertoire_app::Error::NoSuchOffer {
                wanted: name.clone(),
                location: args.sources.join(", "),
                names: names.join(", "),
            });
        }
    }
    let is_named = |id: &SkillId| args.skills.iter().any(|name| is_meant(id, name));
    found.skills.retain(|(id, _)| is_named(id));
    Ok(())
}

fn add_local(
    paths: &[PathBuf],
    args: &AddArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let AddArgs {
        id, strict, write, ..
    } = args;
    let (id, strict) = (id.clone(), *strict);
    let mut found = FoundSkills::default();
    output.with_spinner("reading skills", || -> Result<()> {
        for path in paths {
            let more = read_skills(path)?;
            found.skills.extend(more.skills);
            found.skipped.extend(more.skipped);
        }
        Ok(())
    })?;
    keep_named(&mut found, args)?;
    if let Some(id) = id {
        let [skill] = found.skills.as_mut_slice() else {
            bail!(UsageError(format!(
                "--id names one skill, and {} were found",
                found.skills.len()
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
    let mut skipped: Vec<anyhow::Error> = found.skipped.into_iter().map(Into::into).collect();
    let mut skills = Vec::new();
    for (id, files) in found.skills {
        let findings = lint_files(&files);
        let is_error = |finding: &&LintFinding| finding.rule.severity == LintSeverity::Error;
        let risky = findings.iter().filter(is_error).count();
        match NewSkill::from_files(id.clone(), files).with_context(|| format!("skill {id}")) {
            Ok(skill) => {
                if let (true, Some(problem)) = (strict, &skill.metadata().unlisted) {
                    skipped.push(anyhow::Error::from(RegistryError::Skipped {
                        code: problem.rule.code(),
                        message: format!("{id}: {problem}"),
                    }));
                }
                skills.push(skill);
            }
            Err(error) => {
                skipped.push(error);
                continue;
            }
        }
        if risky > 0 {
            output.print_warning(format!(
                "{id}: {} to review before use: `repertoire lint`",
                format_count(risky, "finding")
            ));
        }
    }
    if (strict || skills.is_empty()) && !skipped.is_empty() {
        let more = skipped.len() - 1;
        let first = skipped.swap_remove(0);
        return Err(match more {
            0 => first,
            _ => first.context(format!("{more} more cannot be stored")),
        });
    }
    if skills.is_empty() {
        let names: Vec<_> = paths
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        bail!(RegistryError::NotFound {
            what: "skill in the folder",
            name: names.join(", "),
        });
    }
    for error in &skipped {
        output.print_warning(format!("skipped: {}", terminal_safe(&format!("{error:#}"))));
    }
    let skipped: Vec<String> = skipped.iter().map(|error| format!("{error:#}")).collect();
    let code = store_skills(skills, &skipped, write, settings, output)?;
    note_sharing(paths, settings, output);
    Ok(code)
}

/// Says how others get a skill whose folder is part of the project.
fn note_sharing(paths: &[PathBuf], settings: &CliSettings, output: &Output) {
    let Some(workspace) = &settings.workspace else {
        return;
    };
    let [path] = paths else { return };
    let (Ok(root), Ok(full)) = (workspace.canonicalize(), path.canonicalize()) else {
        return;
    };
    let Ok(inner) = full.strip_prefix(&root) else {
        return;
    };
    let is_skill = full.join("SKILL.md").is_file();
    if let (true, Some(name)) = (is_skill, full.file_name()) {
        output.print_note(format!(
            "to share it with the project, name it in {PROJECT_FILE}: {} = \"./{}\"",
            name.to_string_lossy(),
            inner.display()
        ));
    }
}

/// Reads the skills of a folder; a package in JSON has a command of its own.
fn read_skills(path: &Path) -> Result<FoundSkills> {
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
    skipped: &[String],
    write: &WriteArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    let scope = settings
        .scope_preference()
        .resolve(&registry, write.scope.map(Into::into))?;
    let ids: Vec<SkillId> = skills.iter().map(|skill| skill.id().clone()).collect();
    let unlisted: Vec<(SkillId, String)> = skills
        .iter()
        .filter_map(|skill| {
            let problem = skill.metadata().unlisted.as_ref()?;
            Some((skill.id().clone(), problem.to_string()))
        })
        .collect();
    let replaced = find_replaced(&registry, scope, &skills);
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
        if !replaced.is_empty() {
            answer["replaced"] = json!(replaced);
        }
        if !skipped.is_empty() {
            answer["skipped"] = json!(skipped);
        }
        if !unlisted.is_empty() {
            let rows = unlisted.iter();
            let rows = rows.map(|(id, message)| json!({"id": id, "message": message}));
            answer["unlisted"] = rows.collect();
        }
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
    for id in &replaced {
        output.print_warning(format!(
            "{id} replaces a skill with another description or author: `repertoire diff {id}`"
        ));
    }
    for (id, message) in &unlisted {
        let message = terminal_safe(message);
        output.print_warning(format!("{id} will not be in skills/list: {message}"));
    }
    let word = if write.dry_run { "checked for" } else { "in" };
    let location = registry.store(scope)?.location();
    let git = match scope {
        StoreScope::Workspace => "; it stays out of git",
        StoreScope::Account => "",
    };
    let name = scope.as_str();
    output.print_note(format!("{word} the {name} store, {location}{git}"));
    let snapshot = registry.snapshot();
    for id in &ids {
        if let Some(winner) = snapshot.get(id)
            && winner.origin != Origin::from_scope(scope)
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

/// Returns the skills that are stored already, and seem to be other ones.
fn find_replaced(registry: &Registry, scope: StoreScope, skills: &[NewSkill]) -> Vec<SkillId> {
    let snapshot = registry.snapshot();
    let origin = Origin::from_scope(scope);
    let author = |front: Option<&str>| {
        let front: serde_json::Value = repertoire_core::json::from_str(front?).ok()?;
        let own = front
            .get("author")
            .or_else(|| front.get("metadata")?.get("author"));
        own.cloned()
    };
    let is_other = |skill: &&NewSkill| {
        let reference = QualifiedSkillId {
            origin: Some(origin.clone()),
            id: skill.id().clone(),
        };
        let Some(old) = snapshot.find_skill(&reference) else {
            return false;
        };
        let (old, new) = (&old.metadata, skill.metadata());
        old.description != new.description
            || author(old.frontmatter.as_deref()) != author(new.frontmatter.as_deref())
    };
    let others = skills.iter().filter(is_other);
    others.map(|skill| skill.id().clone()).collect()
}
