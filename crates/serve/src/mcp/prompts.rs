//! `prompts/list` and `prompts/get`: prompts, and skills for hosts without resources.
//!
//! A name is looked up as an alias of a skill, then as a prompt, then as the id of a skill.
//! A skill whose id is also a prompt name is offered as `skill:<id>`, so that neither is hidden.

use std::{ops::Bound, sync::Arc};

use repertoire_app::Caller;
use repertoire_core::{PromptBody, PromptName, SkillId};
use repertoire_registry::{PromptEntry, Registry, SkillEntry, Snapshot, Trusted};
use rmcp::{
    ErrorData,
    model::{GetPromptResult, JsonObject, Prompt, PromptArgument, PromptMessage, Role},
};
use serde_json::Value;

use super::{
    cursor::{Cursor, CursorPage, take_page},
    resources::authorize_function,
};
use crate::{
    error::{Error, NotFoundKind, error_for_uri, invalid_params, shorten_text},
    iii::functions::PromptContent,
    service::SkillService,
};

const SKILL_PREFIX: &str = "skill:";

/// The result of a lookup by prompt name.
pub(super) enum PromptMatch {
    Skill(Arc<SkillEntry>),
    Prompt(Arc<PromptEntry>),
}

/// Finds a prompt by its name.
pub(super) fn find_prompt(
    snapshot: &Snapshot,
    service: &SkillService,
    name: &str,
) -> Option<PromptMatch> {
    let options = &service.options;
    if let Some(id) = options.aliases.get(name) {
        let entry = snapshot.get(id).filter(|e| e.trusted == Trusted::Yes)?;
        return Some(PromptMatch::Skill(entry.clone()));
    }
    let prompt = name.parse::<PromptName>().ok();
    if let Some(entry) = prompt.and_then(|name| snapshot.find_prompt(&name).cloned())
        && is_served(service, &entry)
    {
        return Some(PromptMatch::Prompt(entry));
    }
    let id = name.strip_prefix(SKILL_PREFIX).unwrap_or(name);
    let entry = id.parse::<SkillId>().ok();
    let entry = entry.and_then(|id| snapshot.get(&id).cloned());
    entry
        .filter(|e| options.is_offered_as_prompt(e))
        .map(PromptMatch::Skill)
}

/// Whether a prompt is available: one rendered by a function needs a bus.
fn is_served(service: &SkillService, entry: &PromptEntry) -> bool {
    let can = match entry.prompt.body {
        PromptBody::Static => true,
        PromptBody::Function(_) => service.bus().is_some(),
    };
    can && entry.trusted == Trusted::Yes
}

/// Lists one page of prompts: aliases of skills, then prompts, then skills.
pub(super) fn list_prompts(
    snapshot: &Snapshot,
    service: &SkillService,
    cursor: Option<&str>,
) -> Result<CursorPage<Prompt>, ErrorData> {
    let options = &service.options;
    let cursor = cursor.map(|text| Cursor::decode(text, "aps")).transpose()?;
    let refuse = |error: repertoire_core::Error| invalid_params(format!("invalid cursor: {error}"));
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
            let entry = snapshot.get(id).filter(|e| e.trusted == Trusted::Yes)?;
            let prompt = prompt_from_skill(name.clone(), entry);
            Some((Cursor::new('a', name.as_str()), 256, prompt))
        });
    let prompts = snapshot
        .prompts_after(prompt.as_ref())
        .filter(|entry| kinds.contains('p') && is_served(service, entry))
        .filter(|entry| !options.aliases.contains_key(entry.prompt.name.as_str()))
        .map(|entry| {
            let name = entry.prompt.name.as_str();
            (Cursor::new('p', name), 256, prompt_from_entry(entry))
        });
    let skills = snapshot
        .skills_after(skill.as_ref())
        .filter(|entry| options.is_offered_as_prompt(entry))
        .map(|entry| {
            let prompt = prompt_from_skill(prompt_name(snapshot, service, &entry.id), entry);
            (Cursor::new('s', entry.id.as_str()), 256, prompt)
        });
    Ok(take_page(
        aliases.chain(prompts).chain(skills),
        options.page_size.max(1),
    ))
}

/// Returns the prompt name of a skill.
fn prompt_name(snapshot: &Snapshot, service: &SkillService, id: &SkillId) -> String {
    let prompt = |name: PromptName| snapshot.find_prompt(&name).cloned();
    let taken = service.options.aliases.contains_key(id.as_str())
        || id
            .as_str()
            .parse::<PromptName>()
            .is_ok_and(|name| prompt(name).is_some_and(|entry| is_served(service, &entry)));
    if taken {
        format!("{SKILL_PREFIX}{id}")
    } else {
        id.to_string()
    }
}

fn prompt_from_skill(name: String, entry: &SkillEntry) -> Prompt {
    // Users choose prompts by description, so there is always one.
    let description = entry.metadata.description.as_deref();
    let description = description.unwrap_or(entry.id.as_str()).to_owned();
    let mut prompt = Prompt::new(name, Some(description), None);
    prompt.title = entry.metadata.title.as_deref().map(str::to_owned);
    prompt
}

fn prompt_from_entry(entry: &PromptEntry) -> Prompt {
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

/// Returns the messages of a prompt.
pub(super) async fn get_prompt(
    service: &SkillService,
    registry: &Arc<Registry>,
    caller: &Caller,
    name: &str,
    arguments: JsonObject,
) -> Result<GetPromptResult, ErrorData> {
    let snapshot = service.visible_snapshot(registry, caller);
    let found = find_prompt(&snapshot, service, name)
        .ok_or_else(|| invalid_params(format!("prompt {:?}: not found", shorten_text(name))))?;
    let failed = |error: Error| error_for_uri(name, &error, NotFoundKind::Params);
    let (description, said) = match found {
        PromptMatch::Skill(entry) => {
            let description = entry.metadata.description.as_deref().map(str::to_owned);
            let text = service.prompt_text(registry, entry).await.map_err(failed)?;
            (description, PromptContent::Text(text))
        }
        PromptMatch::Prompt(entry) => {
            if let PromptBody::Function(function) = &entry.prompt.body {
                // Its text is made by calling a function.
                authorize_function(caller, function)?;
            }
            check_arguments(&entry, &arguments)?;
            let said = service.render_prompt(registry, &entry, arguments).await;
            (
                Some(entry.prompt.description.clone()),
                said.map_err(failed)?,
            )
        }
    };
    let messages = match said {
        PromptContent::Text(text) => vec![PromptMessage::new_text(Role::User, text)],
        PromptContent::Messages(messages) => {
            let messages = messages.into_iter().map(serde_json::from_value);
            let messages = messages.collect::<Result<Vec<PromptMessage>, _>>();
            messages.map_err(|error| {
                let message = format!("prompt {name:?}: its function gave bad messages: {error}");
                ErrorData::internal_error(message, None)
            })?
        }
    };
    let mut result = GetPromptResult::new(messages);
    result.description = description;
    Ok(result)
}

/// Checks the arguments against the declared ones before the function is called.
fn check_arguments(entry: &PromptEntry, given: &JsonObject) -> Result<(), ErrorData> {
    if matches!(entry.prompt.body, PromptBody::Static) {
        return Ok(());
    }
    let name = entry.prompt.name.as_str();
    let declared = &entry.prompt.arguments;
    for argument in declared.iter().filter(|argument| argument.required) {
        if given.get(&argument.name).is_none_or(Value::is_null) {
            let wanted = shorten_text(&argument.name);
            return Err(invalid_params(format!(
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
        let other = shorten_text(other);
        return Err(invalid_params(format!(
            "prompt {name:?}: no argument {other:?}; {known}"
        )));
    }
    Ok(())
}
