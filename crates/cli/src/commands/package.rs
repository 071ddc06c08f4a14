//! `import`, `export`, `pack`, `unpack`: the two forms of a package.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use repertoire_app::SkillQuery;
use repertoire_core::{Package, package::MAX_JSON, text::terminal_safe};
use repertoire_registry::{Error, folder, store::NewSkill};
use serde_json::json;

use super::{add, find_entry, open_skill_to_read, read_input, write_output};
use crate::{
    args::{PackageCommand, WriteArgs},
    interrupt,
    output::{Output, format_count},
    settings::CliSettings,
};

/// Runs a subcommand. Packing and unpacking work with broken settings, too.
pub(crate) fn run(
    command: PackageCommand,
    settings: Result<CliSettings>,
    output: &Output,
) -> Result<ExitCode> {
    match command {
        PackageCommand::Import { files, write } => {
            import_packages(&files, &write, &settings?, output)
        }
        PackageCommand::Export { skill, output: to } => {
            export_skill(&skill, to.as_deref(), &settings?, output)
        }
        PackageCommand::Pack { folder, output: to } => pack_folder(&folder, to.as_deref(), output),
        PackageCommand::Unpack { file, output: to } => unpack_package(&file, to, output),
    }
}

fn import_packages(
    files: &[PathBuf],
    write: &WriteArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let mut skills = Vec::new();
    for file in files {
        let context = || file.display().to_string();
        let package = Package::from_json(&read_input(file, MAX_JSON)?).with_context(context)?;
        for found in &package.artifacts {
            // It is kept all the same: it came like this, and may be put right here.
            if let Err(error) = repertoire_app::check_artifact(found) {
                let (file, name) = (file.display(), terminal_safe(&found.name));
                output.print_warning(format!(
                    "{file}: artifact {name:?} will fail when it is run: {error:#}"
                ));
            }
        }
        skills.push(NewSkill::from_package(&package).with_context(context)?);
    }
    add::store_skills(skills, &[], write, settings, output)
}

fn export_skill(
    skill: &SkillQuery,
    to: Option<&Path>,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let (registry, skill) = open_skill_to_read(skill, settings, output)?;
    let entry = find_entry(&registry, &skill)?;
    let package = repertoire_app::export_package(&registry, &entry)?;
    write_package(&package, to, output)
}

fn pack_folder(folder: &Path, to: Option<&Path>, output: &Output) -> Result<ExitCode> {
    let found = folder.symlink_metadata();
    if found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        anyhow::bail!(Error::NotFound {
            what: "folder to pack",
            name: folder.display().to_string(),
        });
    }
    repertoire_app::require_folder(folder)?;
    let package = Package::from_folder(folder::read_folder(folder)?)
        .with_context(|| folder.display().to_string())?;
    write_package(&package, to, output)
}

fn write_package(package: &Package, to: Option<&Path>, output: &Output) -> Result<ExitCode> {
    let json = package.to_json();
    match to {
        Some(path) => {
            write_output(path, &json)?;
            if output.json {
                output.print_json(&json!({"file": path, "bytes": json.len()}))?;
            }
            output.print_note(format!("wrote {}", path.display()));
        }
        None => output.print_bytes(&json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn unpack_package(file: &Path, to: Option<PathBuf>, output: &Output) -> Result<ExitCode> {
    let package = Package::from_json(&read_input(file, MAX_JSON)?)
        .with_context(|| file.display().to_string())?;
    let (name, files) = package.to_stored_folder()?;
    let target = to.unwrap_or_else(|| PathBuf::from(name.name()));
    interrupt::run_protected(|stopped| folder::write_folder(&target, &files, stopped))?;
    if output.json {
        output.print_json(&json!({"skill": name, "folder": target, "files": files.len()}))?;
    }
    let wrote = format_count(files.len(), "file");
    output.print_note(format!("wrote {wrote} to {}", target.display()));
    if target
        .file_name()
        .is_some_and(|folder| folder != name.name())
    {
        output.print_warning(format!(
            "a skill's folder has the skill's name: rename it to {} before use",
            name.name()
        ));
    }
    Ok(ExitCode::SUCCESS)
}
