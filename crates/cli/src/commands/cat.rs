//! `cat`: the exact bytes every other surface serves.

use std::process::ExitCode;

use anyhow::Result;
use base64::{Engine, prelude::BASE64_STANDARD};
use repertoire_core::{PromptName, Uri};
use repertoire_registry::{Content, Error, Reference, Registry};
use serde_json::json;

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
    let (name, content) = match (prompt, uri) {
        (Some(reference), _) => (reference.to_string(), prompt_text(&registry, reference)?),
        (None, Some(uri)) => (uri.to_string(), registry.read(&uri)?),
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

/// A prompt's text, or a skill as one.
fn prompt_text(registry: &Registry, reference: &Reference) -> Result<Content> {
    let snapshot = registry.snapshot();
    let name = reference.id.as_str().parse::<PromptName>().ok();
    let prompt = name.filter(|_| reference.origin.is_none());
    let missing = || Error::NotFound {
        what: "prompt",
        name: reference.to_string(),
    };
    let text = match prompt.and_then(|name| snapshot.prompt(&name)) {
        Some(entry) => registry.prompt_body(entry)?.ok_or_else(missing)?,
        None => registry.prompt_text(snapshot.skill(reference).ok_or_else(missing)?)?,
    };
    Ok(Content {
        mime: "text/markdown".into(),
        bytes: text.into(),
    })
}
