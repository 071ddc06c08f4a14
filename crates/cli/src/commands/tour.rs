//! `tour`: shows the tree, one example skill, and the next commands.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;

use super::{list, open_registry, quote_path, show};
use crate::{
    output::{BOLD, DIM, Output, format_count},
    settings::CliSettings,
};

pub(crate) fn run(paths: &[PathBuf], settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let registry = open_registry(paths, settings, output)?;
    if output.json {
        return list::print_flat(&registry, None, output);
    }
    let snapshot = registry.snapshot();
    let entries: Vec<_> = snapshot.skills().map(|entry| &**entry).collect();
    let Some(example) = entries
        .iter()
        .find(|entry| entry.id.as_str() == "hello-world")
        .or_else(|| entries.first())
    else {
        output.print_note("No skills yet. `repertoire add FOLDER` adds some.");
        return Ok(ExitCode::SUCCESS);
    };
    output.print_text(&format!(
        "{BOLD}{} ready{BOLD:#}\n\n{}\n{DIM}One of them:{DIM:#}\n\n{}\n",
        format_count(entries.len(), "skill"),
        list::draw_tree(&entries),
        show::render_skill(&registry, example)?.trim_end(),
    ))?;
    let mut from = String::new();
    for path in paths {
        from.push_str(" --from ");
        from.push_str(&quote_path(path));
    }
    output.print_note(format!(
        "\nNext:\n  repertoire{from} show {id}\n  repertoire{from} cat skill://{id}/SKILL.md\n  \
         repertoire{from} lint\n  repertoire add FOLDER      keep skills in your own store",
        id = entries
            .last()
            .map_or(example.id.as_str(), |entry| entry.id.as_str()),
    ));
    Ok(ExitCode::SUCCESS)
}
