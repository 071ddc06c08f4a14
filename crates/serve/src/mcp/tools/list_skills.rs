//! `skills_list`: one line for each skill, page by page.

use std::fmt::Write as _;

use repertoire_core::markdown::{to_single_line, truncate_text};
use repertoire_registry::Trusted;
use serde_json::{Value, json};

use super::{ToolCall, bool_argument};
use crate::mcp::cursor::{Cursor, take_page};

pub(super) fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "cursor": {"type": "string", "description": "From the end of the last page"},
            "include_untrusted": {
                "type": "boolean", "default": false,
                "description": "Also list skills of origins that the user has not trusted",
            },
        },
    })
}

pub(super) fn list_text(call: &ToolCall<'_>) -> Result<String, String> {
    let cursor = match call.arguments.get("cursor") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.as_str()),
        Some(_) => return Err("`cursor` must be a string".to_owned()),
    };
    let after = cursor
        .filter(|text| !text.is_empty())
        .map(|text| Cursor::decode(text, "s"))
        .transpose()
        .map_err(|error| error.message.into_owned())?;
    let after = after.map(|cursor| cursor.key.parse()).transpose();
    let after = after.map_err(|error| format!("invalid `cursor`: {error}"))?;
    let snapshot = call.service.visible_snapshot(call.registry, call.caller);
    let include_untrusted = bool_argument(call.arguments, "include_untrusted")?;
    let skills = snapshot.skills_after(after.as_ref());
    let skills = skills.filter(|entry| include_untrusted || entry.trusted == Trusted::Yes);
    let lines = skills.map(|entry| {
        let mut line = if entry.has_files() {
            format!("- {} (skill://{}/SKILL.md)", entry.id, entry.id)
        } else {
            format!("- {} (iii://{})", entry.id, entry.id)
        };
        if let Some(origin) = entry.untrusted_origin() {
            let _ = write!(line, " [untrusted, from {origin}]");
        }
        if let Some(description) = &entry.metadata.description {
            // Writing to a string cannot fail.
            let _ = write!(
                line,
                ": {}",
                truncate_text(&to_single_line(description), 200)
            );
        }
        (Cursor::new('s', entry.id.as_str()), line.len(), line)
    });
    let page = take_page(lines, call.service.options.page_size.max(1));
    let mut text = page.items.join("\n");
    if text.is_empty() {
        text.push_str("There are no skills.");
    }
    if let Some(next) = page.next {
        let _ = write!(text, "\n\nThere are more: call again with cursor {next}");
    }
    Ok(text)
}
