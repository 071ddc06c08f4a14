//! `cat`: prints the exact bytes that every interface serves.

use std::process::ExitCode;

use anyhow::Result;
use base64::{Engine, prelude::BASE64_STANDARD};
use repertoire_app::{SkillQuery, resolve_skill};
use repertoire_core::{PromptName, Uri};
use repertoire_registry::{Error, QualifiedSkillId, Registry, ServedContent};
use serde_json::json;

use super::{open_registry, open_skill_to_read};
use crate::{output::Output, settings::CliSettings};

pub(crate) fn run(
    uri: Option<&str>,
    prompt: Option<&SkillQuery>,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let uri = uri.map(str::parse::<Uri>).transpose()?;
    let (name, content) = match (prompt, uri) {
        (Some(skill), _) => {
            let (registry, reference) = if let SkillQuery::Id(id) = skill {
                // A prompt may have the name.
                (open_registry(&[], settings, output)?, id.clone())
            } else {
                open_skill_to_read(skill, settings, output)?
            };
            (skill.to_string(), prompt_text(&registry, &reference)?)
        }
        (None, Some(uri)) => {
            let registry = open_registry(&[], settings, output)?;
            (uri.to_string(), registry.read_uri(&uri)?)
        }
        (None, None) => return Ok(ExitCode::SUCCESS),
    };
    if output.json {
        let mut value = json!({"uri": name, "mimeType": content.mime});
        match std::str::from_utf8(&content.bytes) {
            Ok(text) => value["text"] = json!(text),
            Err(_) => value["blob"] = json!(BASE64_STANDARD.encode(&content.bytes)),
        }
        output.print_json(&value)?;
    } else {
        output.print_bytes(&content.bytes)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the text of a prompt, or of a skill as a prompt.
fn prompt_text(registry: &Registry, reference: &QualifiedSkillId) -> Result<ServedContent> {
    let snapshot = registry.snapshot();
    let name = reference.id.as_str().parse::<PromptName>().ok();
    let prompt = name.filter(|_| reference.origin.is_none());
    let missing = || Error::NotFound {
        what: "prompt",
        name: reference.to_string(),
    };
    let text = if let Some(entry) = prompt.and_then(|name| snapshot.find_prompt(&name)) {
        registry.prompt_body(entry)?.ok_or_else(missing)?
    } else {
        let skill = resolve_skill(registry, &SkillQuery::Id(reference.clone()))?;
        registry.prompt_text(snapshot.find_skill(&skill).ok_or_else(missing)?)?
    };
    Ok(ServedContent {
        mime: "text/markdown".into(),
        bytes: text.into(),
    })
}
