//! `prompts/list` and `prompts/get`: skills and static prompts for hosts without resources.
//!
//! A name is looked up as a further name of a skill, then as a prompt, then as the id of a skill.
//! A skill whose id is taken by a prompt is offered as `skill:<id>`, so that neither is hidden.

use std::{ops::Bound, sync::Arc};

use repertoire_core::{PromptBody, PromptName, SkillId};
use repertoire_registry::{Entry, PromptEntry, Registry, Snapshot, Trusted};
use rmcp::{
    ErrorData,
    model::{GetPromptResult, Prompt, PromptArgument, PromptMessage, Role},
};

use super::cursor::{Cursor, Page, page};
use crate::{
    engine::Options,
    error::{Unknown, about, params, shorten},
};

const PREFIX: &str = "skill:";

/// Something with the name of a prompt.
pub(super) enum Found {
    Skill(Arc<Entry>),
    Prompt(Arc<PromptEntry>),
}

/// Looks a prompt up by its name.
pub(super) fn find(snapshot: &Snapshot, options: &Options, name: &str) -> Option<Found> {
    let skill = |id: &SkillId| snapshot.get(id).cloned().map(Found::Skill);
    if let Some(id) = options.aliases.get(name) {
        return skill(id);
    }
    let prompt = name.parse::<PromptName>().ok();
    if let Some(entry) = prompt.and_then(|name| snapshot.prompt(&name).cloned())
        && is_served(&entry)
    {
        return Some(Found::Prompt(entry));
    }
    let id = name.strip_prefix(PREFIX).unwrap_or(name);
    let entry = id.parse::<SkillId>().ok();
    let entry = entry.and_then(|id| snapshot.get(&id).cloned());
    entry.filter(|e| options.is_prompt(e)).map(Found::Skill)
}

fn is_served(entry: &PromptEntry) -> bool {
    entry.trusted == Trusted::Yes && matches!(entry.prompt.body, PromptBody::Static)
}

/// A page of all prompts: further names of skills, then prompts, then skills.
pub(super) fn list(
    snapshot: &Snapshot,
    options: &Options,
    cursor: Option<&str>,
) -> Result<Page<Prompt>, ErrorData> {
    let cursor = cursor.map(|text| Cursor::decode(text, "aps")).transpose()?;
    let refuse = |error: repertoire_core::Error| params(format!("cursor is none of ours: {error}"));
    let (mut alias, mut prompt, mut skill) = (None, None, None);
    let mut kinds = "aps";
    match cursor {
        None => {}
        Some(Cursor { kind: 'a', key }) => alias = Some(key),
        Some(Cursor { kind: 'p', key }) => {
            kinds = "ps";
            prompt = Some(key.parse::<PromptName>().map_err(refuse)?);
        }
        Some(Cursor { key, .. }) => {
            kinds = "s";
            skill = Some(key.parse::<SkillId>().map_err(refuse)?);
        }
    }
    let start = alias.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
    let aliases = options
        .aliases
        .range::<String, _>((start, Bound::Unbounded))
        .filter(|_| kinds.contains('a'))
        .filter_map(|(name, id)| {
            let entry = snapshot.get(id)?;
            let prompt = of_skill(name.clone(), entry);
            Some((Cursor::new('a', name.as_str()), 256, prompt))
        });
    let prompts = snapshot
        .prompts_after(prompt.as_ref())
        .filter(|entry| kinds.contains('p') && is_served(entry))
        .filter(|entry| !options.aliases.contains_key(entry.prompt.name.as_str()))
        .map(|entry| {
            let name = entry.prompt.name.as_str();
            (Cursor::new('p', name), 256, of_prompt(entry))
        });
    let skills = snapshot
        .skills_after(skill.as_ref())
        .filter(|entry| options.is_prompt(entry))
        .map(|entry| {
            let prompt = of_skill(name_of(snapshot, options, &entry.id), entry);
            (Cursor::new('s', entry.id.as_str()), 256, prompt)
        });
    Ok(page(
        aliases.chain(prompts).chain(skills),
        options.page_size.max(1),
    ))
}

/// The name under which a skill is offered.
fn name_of(snapshot: &Snapshot, options: &Options, id: &SkillId) -> String {
    let taken = options.aliases.contains_key(id.as_str())
        || id
            .as_str()
            .parse::<PromptName>()
            .is_ok_and(|name| snapshot.prompt(&name).is_some_and(|entry| is_served(entry)));
    if taken {
        format!("{PREFIX}{id}")
    } else {
        id.to_string()
    }
}

fn of_skill(name: String, entry: &Entry) -> Prompt {
    // A prompt without a description is one nobody picks.
    let description = entry.head.description.as_deref();
    let description = description.unwrap_or(entry.id.as_str()).to_owned();
    let mut prompt = Prompt::new(name, Some(description), None);
    prompt.title = entry.head.title.as_deref().map(str::to_owned);
    prompt
}

fn of_prompt(entry: &PromptEntry) -> Prompt {
    let arguments = entry.prompt.arguments.iter().map(|argument| {
        let mut out = PromptArgument::new(argument.name.clone()).with_required(argument.required);
        out.description.clone_from(&argument.description);
        out
    });
    let arguments: Vec<_> = arguments.collect();
    Prompt::new(
        entry.prompt.name.as_str(),
        Some(entry.prompt.description.clone()),
        (!arguments.is_empty()).then_some(arguments),
    )
}

/// The text of a prompt as one message of the user.
pub(super) async fn get(
    registry: &Arc<Registry>,
    options: &Options,
    name: &str,
) -> Result<GetPromptResult, ErrorData> {
    let unknown = || params(format!("prompt {:?}: not found", shorten(name)));
    let found = find(&registry.snapshot(), options, name).ok_or_else(unknown)?;
    let description = match &found {
        Found::Skill(entry) => entry.head.description.as_deref().map(str::to_owned),
        Found::Prompt(entry) => Some(entry.prompt.description.clone()),
    };
    let reader = registry.clone();
    let read = move || match found {
        Found::Skill(entry) => reader.prompt_text(&entry).map(Some),
        Found::Prompt(entry) => reader.prompt_body(&entry),
    };
    // A skill may be sixteen mebibytes in five hundred files.
    let text = tokio::task::spawn_blocking(read).await;
    let text = text.map_err(|_| ErrorData::internal_error("the reader failed", None))?;
    let text = text.map_err(|error| about(name, &error, Unknown::Params))?;
    let message = PromptMessage::new_text(Role::User, text.ok_or_else(unknown)?);
    let mut result = GetPromptResult::new(vec![message]);
    result.description = description;
    Ok(result)
}
