//! `lint --fix`: fixes findings that have a safe fix, in place.

use std::{path::PathBuf, sync::Arc};

use anyhow::Result;
use repertoire_app::{LintFix, SkillQuery};
use repertoire_core::text::terminal_safe;
use repertoire_registry::{Registry, SkillEntry};

use super::{lint::skill_folders, open_registry, resolve_target, write_output};
use crate::{
    output::{Output, format_count},
    settings::CliSettings,
};

pub(crate) fn run(targets: &[SkillQuery], settings: &CliSettings, output: &Output) -> Result<()> {
    let mut skills = Vec::new();
    let mut fixed = 0;
    for target in targets {
        match resolve_target(target, settings, output)? {
            SkillQuery::Folder(path) => {
                for skill in skill_folders(&path, output)? {
                    // One that cannot be read does not keep the others from being fixed.
                    match repertoire_app::fix_folder(&skill) {
                        Ok(changed) => fixed += write_files(&changed, output)?,
                        Err(error) => output.print_warning(format!("skipped: {error}")),
                    }
                }
            }
            skill => skills.push(skill),
        }
    }
    if targets.is_empty() || !skills.is_empty() {
        let registry = open_registry(&[], settings, output)?;
        let mut entries: Vec<Arc<SkillEntry>> = Vec::new();
        for skill in &skills {
            entries.push(repertoire_app::find_skill(&registry, skill)?);
        }
        if skills.is_empty() {
            entries.extend(registry.snapshot().skills().cloned());
        }
        for entry in entries {
            fixed += fix_entry(&registry, &entry, output)?;
        }
    }
    output.print_note(format!("fixed: {}", format_count(fixed, "file")));
    Ok(())
}

/// Writes the fixed files; returns how many.
fn write_files(changed: &[(PathBuf, String)], output: &Output) -> Result<usize> {
    for (path, text) in changed {
        // A link stays one, and the file keeps its mode.
        let real = path.canonicalize()?;
        let permissions = real.metadata()?.permissions();
        write_output(&real, text.as_bytes())?;
        std::fs::set_permissions(&real, permissions)?;
        report_rewrite(&path.display().to_string(), output);
    }
    Ok(changed.len())
}

fn report_rewrite(what: &str, output: &Output) {
    output.print_note(format!("rewrote {}", terminal_safe(what)));
}

fn fix_entry(registry: &Registry, entry: &SkillEntry, output: &Output) -> Result<usize> {
    match repertoire_app::fix_skill(registry, entry)? {
        LintFix::Nothing => Ok(0),
        LintFix::Files(changed) => write_files(&changed, output),
        LintFix::Stored(number) => {
            report_rewrite(&format!("{}:{}", entry.origin, entry.id), output);
            Ok(number)
        }
        LintFix::ReadOnly => {
            output.print_warning(format!("{} is read-only and was not fixed", entry.id));
            Ok(0)
        }
    }
}
