//! `skills_search`: finds the skills that fit a message.

use repertoire_core::markdown::{to_single_line, truncate_text};
use repertoire_registry::{
    Trusted,
    search::{COSINE_THRESHOLD, LEXICAL_THRESHOLD, Recommendation},
};
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock};
use serde_json::{Value, json};

use super::{ToolCall, bool_argument, text_argument};
use crate::error::public_message;

pub(super) fn schema() -> Value {
    json!({
        "type": "object", "required": ["message"],
        "properties": {
            "message": {"type": "string", "description": "What the user says"},
            "include_untrusted": {
                "type": "boolean", "default": false,
                "description": "Also find skills of origins that the user has not trusted",
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
    let (tools, message) = (tools.clone(), message.to_owned());
    let catalogue = registry.clone();
    // Building the index and embedding the message block.
    let include_untrusted = bool_argument(arguments, "include_untrusted")?;
    let snapshot = call.service.visible_snapshot(registry, call.caller);
    let visible = snapshot.clone();
    let looked = tokio::task::spawn_blocking(move || {
        let finding = tools.skill_index(&catalogue)?;
        // Skills that are not shown take no place from those that are.
        finding.find_skills_among(&message, limit, |id| {
            let entry = visible.get(id);
            entry.is_some_and(|entry| include_untrusted || entry.trusted == Trusted::Yes)
        })
    });
    let found = looked.await.map_err(|_| "interrupted".to_owned())?;
    let mut found = found.map_err(|error| public_message(&error))?;
    found.retain(|one| one.fits);
    let is_trusted = |one: &Recommendation| {
        let entry = snapshot.get(&one.id);
        entry.is_some_and(|entry| entry.trusted == Trusted::Yes)
    };
    let about = |one: &Recommendation| {
        let entry = snapshot.get(&one.id);
        let about = entry.and_then(|entry| entry.metadata.description.as_deref());
        truncate_text(&to_single_line(about.unwrap_or_default()), 200)
    };
    let lines: Vec<String> = found
        .iter()
        .map(|one| {
            let label = if is_trusted(one) { "" } else { ", untrusted" };
            format!(
                "- {} ({:.0}%{label}): {}",
                one.id,
                one.score * 100.0,
                about(one)
            )
        })
        .collect();
    let shown = if lines.is_empty() {
        "No skill fits.".to_owned()
    } else {
        lines.join("\n")
    };
    let mut result = CallToolResult::success(vec![ContentBlock::text(shown)]);
    let untrusted: Vec<_> = found.iter().filter(|one| !is_trusted(one)).collect();
    let untrusted: Vec<_> = untrusted.into_iter().map(|one| &one.id).collect();
    result.structured_content = Some(json!({
        "skills": found, "untrusted": untrusted, "threshold": {"words": LEXICAL_THRESHOLD, "meaning": COSINE_THRESHOLD},
    }));
    Ok(result.into())
}
