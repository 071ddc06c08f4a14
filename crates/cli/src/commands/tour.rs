//! `tour`: a first look. The tree, one skill shown, and where to go from here.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;

use super::{list, open, show};
use crate::{
    output::{BOLD, DIM, Output, count},
    settings::Settings,
};

pub(crate) fn run(paths: &[PathBuf], settings: &Settings, output: &Output) -> Result<ExitCode> {
    let registry = open(paths, settings, output)?;
    if output.json {
        return list::flat(&registry, None, output);
    }
    let snapshot = registry.snapshot();
    let entries: Vec<_> = snapshot.skills().map(|entry| &**entry).collect();
    let Some(example) = entries
        .iter()
        .find(|entry| entry.id.as_str() == "hello-world")
        .or_else(|| entries.first())
    else {
        output.note("No skills yet. `repertoire add FOLDER` brings some in.");
        return Ok(ExitCode::SUCCESS);
    };
    output.print(&format!(
        "{BOLD}{} ready{BOLD:#}\n\n{}\n{DIM}One of them:{DIM:#}\n\n{}\n",
        count(entries.len(), "skill"),
        list::draw(&entries),
        show::render(&registry, example)?.trim_end(),
    ))?;
    let mut from = String::new();
    for path in paths {
        from.push_str(" --from ");
        from.push_str(&path.display().to_string());
    }
    output.note(format!(
        "\nNext:\n  repertoire{from} show {id}\n  repertoire{from} cat skill://{id}/SKILL.md\n  \
         repertoire{from} lint\n  repertoire add FOLDER      keep skills in your own store",
        id = entries
            .last()
            .map_or(example.id.as_str(), |entry| entry.id.as_str()),
    ));
    Ok(ExitCode::SUCCESS)
}
