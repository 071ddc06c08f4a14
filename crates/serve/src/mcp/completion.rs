//! `completion/complete`: skill ids and files in templates, and prompt arguments.

use std::sync::Arc;

use repertoire_core::SkillId;
use repertoire_registry::{SkillEntry, Snapshot, Trusted};
use rmcp::{
    ErrorData,
    model::{CompleteRequestParams, CompletionInfo, Reference},
};

use super::{
    prompts::{PromptMatch, find_prompt},
    resources::{BODY_TEMPLATE, DOCUMENT_TEMPLATE, FILE_TEMPLATE},
};
use crate::{
    error::{invalid_params, shorten_text},
    service::SkillService,
};

pub(super) fn complete_argument(
    snapshot: &Snapshot,
    service: &SkillService,
    request: &CompleteRequestParams,
) -> Result<CompletionInfo, ErrorData> {
    let argument = &request.argument;
    let unknown =
        |name: &str| invalid_params(format!("argument {:?}: not found", shorten_text(name)));
    let values = match &request.r#ref {
        Reference::Prompt(prompt) => {
            let found = find_prompt(snapshot, service, &prompt.name).ok_or_else(|| {
                invalid_params(format!(
                    "prompt {:?}: not found",
                    shorten_text(&prompt.name)
                ))
            })?;
            let known = match found {
                PromptMatch::Prompt(entry) => {
                    let mut arguments = entry.prompt.arguments.iter();
                    arguments.any(|a| a.name == argument.name)
                }
                PromptMatch::Skill(_) => false,
            };
            if !known {
                return Err(unknown(&argument.name));
            }
            // A declared argument accepts any text, so there are no candidates.
            Vec::new()
        }
        Reference::Resource(resource) => match (resource.uri.as_str(), argument.name.as_str()) {
            (DOCUMENT_TEMPLATE | FILE_TEMPLATE, "id") => complete_ids(
                snapshot,
                &argument.value,
                repertoire_registry::SkillEntry::has_files,
            ),
            (BODY_TEMPLATE, "id") => complete_ids(snapshot, &argument.value, |_| true),
            (FILE_TEMPLATE, "file") => {
                let chosen = request.context.as_ref();
                let chosen = chosen.and_then(|context| context.get_argument("id"));
                complete_files(snapshot, chosen.map(String::as_str), &argument.value)
            }
            (DOCUMENT_TEMPLATE | FILE_TEMPLATE | BODY_TEMPLATE, name) => {
                return Err(unknown(name));
            }
            (uri, _) => {
                return Err(invalid_params(format!(
                    "template {:?}: not found",
                    shorten_text(uri)
                )));
            }
        },
        _ => return Err(invalid_params("this kind of reference is not known")),
    };
    let more = values.len() > CompletionInfo::MAX_VALUES;
    let values: Vec<String> = values
        .into_iter()
        .take(CompletionInfo::MAX_VALUES)
        .collect();
    CompletionInfo::with_pagination(values, None, more).map_err(invalid_params)
}

/// Ids that start with a text, then ids that contain it; one more than the display limit.
fn complete_ids(
    snapshot: &Snapshot,
    text: &str,
    wanted: impl Fn(&SkillEntry) -> bool,
) -> Vec<String> {
    let limit = CompletionInfo::MAX_VALUES + 1;
    // A completion has no place for a label, so untrusted skills are left out (T44).
    let is_offered = |entry: &&Arc<SkillEntry>| entry.trusted == Trusted::Yes && wanted(entry);
    let entries = || snapshot.skills().filter(is_offered);
    let first = entries().filter(|entry| entry.id.as_str().starts_with(text));
    let mut values: Vec<String> = first.map(|e| e.id.to_string()).take(limit).collect();
    let inside = entries().filter(|entry| {
        let id = entry.id.as_str();
        !id.starts_with(text) && id.contains(text)
    });
    let left = limit.saturating_sub(values.len());
    values.extend(inside.map(|e| e.id.to_string()).take(left));
    values
}

fn complete_files(snapshot: &Snapshot, id: Option<&str>, text: &str) -> Vec<String> {
    let entry = id.and_then(|id| id.parse::<SkillId>().ok());
    let entry = entry.and_then(|id| snapshot.get(&id));
    let files = entry.filter(|entry| entry.trusted == Trusted::Yes && entry.has_files());
    let files = files.into_iter().flat_map(|entry| entry.files());
    files
        .map(|file| file.path.to_string())
        .filter(|path| path.starts_with(text))
        .collect()
}
