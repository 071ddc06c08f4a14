//! `skills_search`: finds the skills that fit a message.

use std::{sync::Arc, time::Instant};

use repertoire_app::{Caller, uses_of};
use repertoire_core::{
    SkillId,
    markdown::{to_single_line, truncate_text},
    text::terminal_safe,
};
use repertoire_registry::{
    Registry, Snapshot, Trusted,
    search::{Recommendation, SearchMethod, SearchOutcome, SearchRequest},
};
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock};
use serde_json::{Value, json};

use super::{ToolCall, bool_argument, text_argument};
use crate::{
    error::public_message, optional_tools::OptionalToolState, search_feedback::RecentSearch,
};

pub(super) fn schema() -> Value {
    json!({
        "type": "object", "required": ["message"],
        "properties": {
            "message": {"type": "string", "description": "What the user says"},
            "include_untrusted": {
                "type": "boolean", "default": false,
                "description": "Also find skills of origins that the user has not trusted",
            },
            "explain": {
                "type": "boolean", "default": false,
                "description": "Also return what each score is made of",
            },
            "limit": {"type": "integer", "minimum": 1, "maximum": 20, "default": 5},
        },
    })
}

pub(super) async fn search_skills(call: ToolCall<'_>) -> Result<CallToolResponse, String> {
    let (arguments, registry) = (call.arguments, call.registry);
    let tools = call.service.optional_tools().ok_or("not offered")?;
    let message = text_argument(arguments, "message")?.ok_or("`message` must be given")?;
    let limit = match arguments.get("limit") {
        None | Some(Value::Null) => 5,
        Some(limit) => match limit.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(limit @ 1..=20) => limit,
            _ => return Err("`limit` must be a number from 1 to 20".to_owned()),
        },
    };
    let include_untrusted = bool_argument(arguments, "include_untrusted")?;
    let explain = bool_argument(arguments, "explain")?;
    let snapshot = call.service.visible_snapshot(registry, call.caller);
    let outcome = {
        let (tools, message) = (tools.clone(), message.to_owned());
        let (catalogue, visible) = (registry.clone(), snapshot.clone());
        let caller = call.caller.clone();
        // Building the index and embedding the message block.
        tokio::task::spawn_blocking(move || {
            let request = VisibleSearch {
                message: &message,
                limit,
                visible: &visible,
                include_untrusted,
            };
            request.run(&tools, &catalogue, &caller)
        })
    };
    let found = outcome.await.map_err(|_| "interrupted".to_owned())?;
    let found = found.map_err(|error| public_message(&error))?;
    let is_trusted = |one: &Recommendation| {
        let entry = snapshot.get(&one.id);
        entry.is_some_and(|entry| entry.trusted == Trusted::Yes)
    };
    let shown = found.fitting();
    let mut lines: Vec<String> = shown
        .iter()
        .map(|one| describe_result(one, &snapshot, is_trusted(one)))
        .collect();
    if lines.is_empty() {
        lines.push("No skill fits.".to_owned());
    } else {
        let confidence = found.decision.confidence * 100.0;
        lines.push(format!("({confidence:.0}% sure that one of these fits)"));
    }
    if let Some(note) = pending_note(&found, snapshot.len()) {
        lines.push(note);
    }
    let mut result = CallToolResult::success(vec![ContentBlock::text(lines.join("\n"))]);
    let untrusted: Vec<_> = shown.iter().filter(|one| !is_trusted(one)).collect();
    let untrusted: Vec<_> = untrusted.into_iter().map(|one| &one.id).collect();
    let mut structured = json!({
        "skills": shown, "untrusted": untrusted, "decision": found.decision,
        "by": found.method.as_str(), "pending": found.pending,
    });
    if explain {
        structured["features"] = json!(found.features);
    } else if let Some(skills) = structured["skills"].as_array_mut() {
        for skill in skills.iter_mut().filter_map(Value::as_object_mut) {
            skill.remove("parts");
        }
    }
    result.structured_content = Some(structured);
    Ok(result.into())
}

/// A search among the skills that a caller may see.
struct VisibleSearch<'a> {
    message: &'a str,
    limit: usize,
    visible: &'a Snapshot,
    include_untrusted: bool,
}

impl VisibleSearch<'_> {
    /// Searches, and remembers what was found for the client's next step.
    fn run(
        &self,
        tools: &OptionalToolState,
        registry: &Arc<Registry>,
        caller: &Caller,
    ) -> repertoire_registry::Result<SearchOutcome> {
        let index = tools.skill_index(registry)?;
        // Skills that are not shown take no place from those that are.
        let is_wanted = |id: &SkillId| {
            let entry = self.visible.get(id);
            entry.is_some_and(|entry| self.include_untrusted || entry.trusted == Trusted::Yes)
        };
        let encoder = index.encoder();
        let vector = encoder.map(|encoder| encoder.encode_message(self.message));
        let policy = tools.options.usage;
        let encoder_of = encoder.map(|encoder| &**encoder);
        let owner = caller.usage_owner();
        let uses = owner.map_or_else(Vec::new, |owner| {
            uses_of(registry, encoder_of, owner, policy)
        });
        // What a caller may not see does not even count as rare or common.
        let is_visible = |id: &SkillId| self.visible.get(id).is_some();
        let is_visible: Option<&(dyn Fn(&SkillId) -> bool + Sync)> =
            caller.is_restricted().then_some(&is_visible);
        let found = index.search(&SearchRequest {
            vector: vector.as_ref(),
            uses: &uses,
            is_visible,
            ..SearchRequest::new(self.message, self.limit).among(&is_wanted)
        })?;
        if let (true, Some(encoder), Some(vector)) = (policy.learn, encoder, vector)
            && !found.fitting().is_empty()
        {
            let trusted = found.fitting().iter().filter(|one| {
                let entry = self.visible.get(&one.id);
                entry.is_some_and(|entry| entry.trusted == Trusted::Yes)
            });
            tools.feedback.remember(
                caller,
                RecentSearch {
                    message: self.message.to_owned(),
                    model: encoder.kind(),
                    vector,
                    found: trusted
                        .flat_map(|one| one.also.iter().chain([&one.id]).cloned())
                        .collect(),
                    at: Instant::now(),
                },
            );
        }
        Ok(found)
    }
}

fn describe_result(one: &Recommendation, snapshot: &Snapshot, is_trusted: bool) -> String {
    let entry = snapshot.get(&one.id);
    let about = entry.and_then(|entry| entry.metadata.description.as_deref());
    let about = truncate_text(&to_single_line(about.unwrap_or_default()), 200);
    let about = terminal_safe(&about);
    let label = if is_trusted { "" } else { ", untrusted" };
    let also = match one.also.as_slice() {
        [] => String::new(),
        [other] => format!(" (nearly the same: {other})"),
        [other, rest @ ..] => format!(" (nearly the same: {other} and {} more)", rest.len()),
    };
    format!(
        "- {} ({:.0}%{label}): {about}{also}",
        one.id,
        one.score * 100.0
    )
}

/// Says that skills are still found by their words, while they are embedded.
fn pending_note(found: &SearchOutcome, all: usize) -> Option<String> {
    (found.pending > 0 && found.method == SearchMethod::Words).then(|| {
        format!(
            "({} of {all} skills are not embedded yet: this search compared words only)",
            found.pending
        )
    })
}
