//! `disable` and `enable`: which skills are served.

use std::process::ExitCode;

use anyhow::{Result, bail};
use repertoire_core::SkillId;
use repertoire_registry::{Error as RegistryError, store::Account};
use serde_json::json;

use super::open_registry;
use crate::{output::Output, settings::CliSettings};

pub(crate) fn disable(
    skills: &[SkillId],
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    let snapshot = registry.snapshot();
    for id in skills {
        if !snapshot.all_skills().any(|(entry, _)| entry.id == *id) {
            bail!(RegistryError::NotFound {
                what: "skill",
                name: id.to_string(),
            });
        }
    }
    let local = Account::open(&settings.account)?.local;
    for id in skills {
        local.disable_skill(id)?;
    }
    report(skills, false, settings, output)
}

pub(crate) fn enable(
    skills: &[SkillId],
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let local = Account::open(&settings.account)?.local;
    for id in skills {
        if !local.enable_skill(id)? {
            bail!(RegistryError::NotFound {
                what: "disabled skill",
                name: id.to_string(),
            });
        }
    }
    report(skills, true, settings, output)
}

fn report(
    skills: &[SkillId],
    enabled: bool,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    settings.clear_instructions_cache();
    if output.json {
        output.print_json(&json!({"skills": skills, "enabled": enabled}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let word = if enabled { "enabled" } else { "disabled" };
    for id in skills {
        output.print_text(&format!("{id} is {word}\n"))?;
    }
    if !enabled {
        output.print_note("in all your projects; `repertoire enable` undoes it");
    }
    Ok(ExitCode::SUCCESS)
}
