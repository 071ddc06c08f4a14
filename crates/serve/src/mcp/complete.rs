//! `completion/complete`: ids and files in templates, arguments of prompts.

use repertoire_core::SkillId;
use repertoire_registry::Snapshot;
use rmcp::{
    ErrorData,
    model::{CompleteRequestParams, CompletionInfo, Reference},
};

use super::{
    prompts::{Found, find},
    resources::{BODY_TEMPLATE, DOCUMENT_TEMPLATE, FILE_TEMPLATE},
};
use crate::{
    engine::Engine,
    error::{params, shorten},
};

pub(super) fn complete(
    snapshot: &Snapshot,
    engine: &Engine,
    request: &CompleteRequestParams,
) -> Result<CompletionInfo, ErrorData> {
    let argument = &request.argument;
    let unknown = |name: &str| params(format!("argument {:?}: not found", shorten(name)));
    let values = match &request.r#ref {
        Reference::Prompt(prompt) => {
            let found = find(snapshot, engine, &prompt.name)
                .ok_or_else(|| params(format!("prompt {:?}: not found", shorten(&prompt.name))))?;
            let known = match found {
                Found::Prompt(entry) => {
                    let mut arguments = entry.prompt.arguments.iter();
                    arguments.any(|a| a.name == argument.name)
                }
                Found::Skill(_) => false,
            };
            if !known {
                return Err(unknown(&argument.name));
            }
            // A declared argument takes any text; there is nothing to choose from.
            Vec::new()
        }
        Reference::Resource(resource) => match (resource.uri.as_str(), argument.name.as_str()) {
            (DOCUMENT_TEMPLATE | FILE_TEMPLATE, "id") => ids(
                snapshot,
                &argument.value,
                repertoire_registry::Entry::has_files,
            ),
            (BODY_TEMPLATE, "id") => ids(snapshot, &argument.value, |_| true),
            (FILE_TEMPLATE, "file") => {
                let chosen = request.context.as_ref();
                let chosen = chosen.and_then(|context| context.get_argument("id"));
                files(snapshot, chosen.map(String::as_str), &argument.value)
            }
            (DOCUMENT_TEMPLATE | FILE_TEMPLATE | BODY_TEMPLATE, name) => {
                return Err(unknown(name));
            }
            (uri, _) => return Err(params(format!("template {:?}: not found", shorten(uri)))),
        },
        _ => return Err(params("this kind of reference is not known")),
    };
    let more = values.len() > CompletionInfo::MAX_VALUES;
    let values: Vec<String> = values
        .into_iter()
        .take(CompletionInfo::MAX_VALUES)
        .collect();
    CompletionInfo::with_pagination(values, None, more).map_err(params)
}

/// Ids that start with a text, then those that have it elsewhere; one more than are shown.
fn ids(
    snapshot: &Snapshot,
    text: &str,
    wanted: impl Fn(&repertoire_registry::Entry) -> bool,
) -> Vec<String> {
    let limit = CompletionInfo::MAX_VALUES + 1;
    let entries = || snapshot.skills().filter(|entry| wanted(entry));
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

fn files(snapshot: &Snapshot, id: Option<&str>, text: &str) -> Vec<String> {
    let entry = id.and_then(|id| id.parse::<SkillId>().ok());
    let entry = entry.and_then(|id| snapshot.get(&id));
    let files = entry.filter(|entry| entry.has_files());
    let files = files.into_iter().flat_map(|entry| entry.files());
    files
        .map(|file| file.path.to_string())
        .filter(|path| path.starts_with(text))
        .collect()
}
