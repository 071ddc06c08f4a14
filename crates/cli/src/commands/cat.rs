//! `cat`: the exact bytes every other surface serves.

use std::process::ExitCode;

use anyhow::Result;
use repertoire_core::Uri;
use repertoire_registry::{Error, Reference};

use super::open;
use crate::{output::Output, settings::Settings};

pub(crate) fn run(
    uri: Option<&str>,
    prompt: Option<&Reference>,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let uri = uri.map(str::parse::<Uri>).transpose()?;
    let registry = open(&[], settings, output)?;
    if let Some(reference) = prompt {
        let snapshot = registry.snapshot();
        let entry = snapshot.skill(reference).ok_or(Error::NotFound {
            what: "skill",
            name: reference.to_string(),
        })?;
        output.print_bytes(registry.prompt_text(entry)?.as_bytes())?;
    } else if let Some(uri) = uri {
        output.print_bytes(&registry.read(&uri)?.bytes)?;
    }
    Ok(ExitCode::SUCCESS)
}
