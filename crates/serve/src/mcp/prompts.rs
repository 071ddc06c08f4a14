//! `prompts/list` and `prompts/get`: prompts, and skills for hosts without resources.
//!
//! A name is looked up as a further name of a skill, then as a prompt, then as the id of a skill.
//! A skill whose id is taken by a prompt is offered as `skill:<id>`, so that neither is hidden.

use std::{ops::Bound, sync::Arc};

use repertoire_core::{PromptBody, PromptName, SkillId};
use repertoire_registry::{Entry, PromptEntry, Registry, Snapshot, Trusted};
use rmcp::{
    ErrorData,
    model::{GetPromptResult, JsonObject, Prompt, PromptArgument, PromptMessage, Role},
};
use serde_json::Value;

use super::cursor::{Cursor, Page, page};
use crate::{
    engine::Engine,
    error::{Error, Unknown, about, params, shorten},
    iii::functions::Said,
};

const PREFIX: &str = "skill:";

/// Something with the name of a prompt.
pub(super) enum Found {
    Skill(Arc<Entry>),
    Prompt(Arc<PromptEntry>),
}

/// Looks a prompt up by its name.
pub(super) fn find(snapshot: &Snapshot, engine: &Engine, name: &str) -> Option<Found> {
    let options = &engine.options;
    let skill = |id: &SkillId| snapshot.get(id).cloned().map(Found::Skill);
    if let Some(id) = options.aliases.get(name) {
        return skill(id);
    }
    let prompt = name.parse::<PromptName>().ok();
    if let Some(entry) = prompt.and_then(|name| snapshot.prompt(&name).cloned())
        && is_served(engine, &entry)
    {
        return Some(Found::Prompt(entry));
    }
    let id = name.strip_prefix(PREFIX).unwrap_or(name);
    let entry = id.parse::<SkillId>().ok();
    let entry = entry.and_then(|id| snapshot.get(&id).cloned());
    entry.filter(|e| options.is_prompt(e)).map(Found::Skill)
}

/// Whether a prompt can be had: a function that renders one is on a bus.
fn is_served(engine: &Engine, entry: &PromptEntry) -> bool {
    let can = match entry.prompt.body {
        PromptBody::Static => true,
        PromptBody::Function(_) => engine.bus().is_some(),
    };
    can && entry.trusted == Trusted::Yes
}

/// A page of all prompts: further names of skills, then prompts, then skills.
pub(super) fn list(
    snapshot: &Snapshot,
    engine: &Engine,
    cursor: Option<&str>,
) -> Result<Page<Prompt>, ErrorData> {
    let options = &engine.options;
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
        .filter(|entry| kinds.contains('p') && is_served(engine, entry))
        .filter(|entry| !options.aliases.contains_key(entry.prompt.name.as_str()))
        .map(|entry| {
            let name = entry.prompt.name.as_str();
            (Cursor::new('p', name), 256, of_prompt(entry))
        });
    let skills = snapshot
        .skills_after(skill.as_ref())
        .filter(|entry| options.is_prompt(entry))
        .map(|entry| {
            let prompt = of_skill(name_of(snapshot, engine, &entry.id), entry);
            (Cursor::new('s', entry.id.as_str()), 256, prompt)
        });
    Ok(page(
        aliases.chain(prompts).chain(skills),
        options.page_size.max(1),
    ))
}

/// The name under which a skill is offered.
fn name_of(snapshot: &Snapshot, engine: &Engine, id: &SkillId) -> String {
    let prompt = |name: PromptName| snapshot.prompt(&name).cloned();
    let taken = engine.options.aliases.contains_key(id.as_str())
        || id
            .as_str()
            .parse::<PromptName>()
            .is_ok_and(|name| prompt(name).is_some_and(|entry| is_served(engine, &entry)));
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

/// The messages of a prompt.
pub(super) async fn get(
    engine: &Engine,
    registry: &Arc<Registry>,
    name: &str,
    arguments: JsonObject,
) -> Result<GetPromptResult, ErrorData> {
    let found = find(&registry.snapshot(), engine, name)
        .ok_or_else(|| params(format!("prompt {:?}: not found", shorten(name))))?;
    let failed = |error: Error| about(name, &error, Unknown::Params);
    let (description, said) = match found {
        Found::Skill(entry) => {
            let description = entry.head.description.as_deref().map(str::to_owned);
            let text = engine.prompt_text(registry, entry).await.map_err(failed)?;
            (description, Said::Text(text))
        }
        Found::Prompt(entry) => {
            check_arguments(&entry, &arguments)?;
            let said = engine.render(registry, &entry, arguments).await;
            (
                Some(entry.prompt.description.clone()),
                said.map_err(failed)?,
            )
        }
    };
    let messages = match said {
        Said::Text(text) => vec![PromptMessage::new_text(Role::User, text)],
        Said::Messages(messages) => {
            let messages = messages.into_iter().map(serde_json::from_value);
            let messages = messages.collect::<Result<Vec<PromptMessage>, _>>();
            messages.map_err(|error| {
                let message = format!("prompt {name:?}: its function gave no messages: {error}");
                ErrorData::internal_error(message, None)
            })?
        }
    };
    let mut result = GetPromptResult::new(messages);
    result.description = description;
    Ok(result)
}

/// Holds the arguments against what a prompt declares, before its function is asked.
fn check_arguments(entry: &PromptEntry, given: &JsonObject) -> Result<(), ErrorData> {
    if matches!(entry.prompt.body, PromptBody::Static) {
        return Ok(());
    }
    let name = entry.prompt.name.as_str();
    let declared = &entry.prompt.arguments;
    for argument in declared.iter().filter(|argument| argument.required) {
        if given.get(&argument.name).is_none_or(Value::is_null) {
            let wanted = shorten(&argument.name);
            return Err(params(format!(
                "prompt {name:?}: argument {wanted:?} is required"
            )));
        }
    }
    if let Some(other) = given
        .keys()
        .find(|key| declared.iter().all(|a| a.name != **key))
    {
        let names: Vec<&str> = declared.iter().map(|a| a.name.as_str()).collect();
        let known = if names.is_empty() {
            "it takes none".to_owned()
        } else {
            format!("it takes {}", names.join(", "))
        };
        let other = shorten(other);
        return Err(params(format!(
            "prompt {name:?}: no argument {other:?}; {known}"
        )));
    }
    Ok(())
}
