//! `import`, `export`, `pack`, `unpack`: the two forms of a package.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use repertoire_core::{Package, package::MAX_JSON, text::terminal_safe};
use repertoire_registry::{Error, Reference, folder, store::NewSkill};

use super::{add, artifact, open, read_input, write_output};
use crate::{
    args::WriteArgs,
    interrupt,
    output::{Output, count},
    settings::Settings,
};

pub(crate) fn import(
    files: &[PathBuf],
    write: &WriteArgs,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let mut skills = Vec::new();
    for file in files {
        let context = || file.display().to_string();
        let package = Package::from_json(&read_input(file, MAX_JSON)?).with_context(context)?;
        for found in &package.artifacts {
            // It is kept all the same: it came like this, and may be put right here.
            if let Err(error) = artifact::check(found) {
                let (file, name) = (file.display(), terminal_safe(&found.name));
                output.warn(format!(
                    "{file}: artifact {name:?} will fail when it is run: {error:#}"
                ));
            }
        }
        skills.push(NewSkill::from_package(&package).with_context(context)?);
    }
    add::store(skills, write, settings, output)
}

pub(crate) fn export(
    skill: &Reference,
    to: Option<&Path>,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    let snapshot = registry.snapshot();
    let entry = snapshot.skill(skill).ok_or(Error::NotFound {
        what: "skill",
        name: skill.to_string(),
    })?;
    let mut files = std::collections::BTreeMap::new();
    for file in &entry.head.files {
        files.insert(file.path.clone(), registry.file(entry, &file.path)?);
    }
    let mut package = Package::from_folder(files)?;
    if package.is_plain() {
        // An ordinary skill is known by its id, which its own name is only the end of.
        package.name = entry.id.to_string();
    }
    emit(&package, to, output)
}

pub(crate) fn pack(folder: &Path, to: Option<&Path>, output: &Output) -> Result<ExitCode> {
    if folder.symlink_metadata().is_err() {
        anyhow::bail!(Error::NotFound {
            what: "folder to pack",
            name: folder.display().to_string(),
        });
    }
    crate::settings::need_folder(folder)?;
    let package = Package::from_folder(folder::read(folder)?)
        .with_context(|| folder.display().to_string())?;
    emit(&package, to, output)
}

fn emit(package: &Package, to: Option<&Path>, output: &Output) -> Result<ExitCode> {
    let json = package.to_json();
    match to {
        Some(path) => {
            write_output(path, &json)?;
            output.note(format!("wrote {}", path.display()));
        }
        None => output.print_bytes(&json)?,
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn unpack(file: &Path, to: Option<PathBuf>, output: &Output) -> Result<ExitCode> {
    let package = Package::from_json(&read_input(file, MAX_JSON)?)
        .with_context(|| file.display().to_string())?;
    let (name, files) = package.placed()?;
    let target = to.unwrap_or_else(|| PathBuf::from(name.name()));
    interrupt::protect(|stopped| folder::write(&target, &files, stopped))?;
    let wrote = count(files.len(), "file");
    output.note(format!("wrote {wrote} to {}", target.display()));
    if target
        .file_name()
        .is_some_and(|folder| folder != name.name())
    {
        output.warn(format!(
            "a skill's folder has the skill's name: rename it to {} before use",
            name.name()
        ));
    }
    Ok(ExitCode::SUCCESS)
}
