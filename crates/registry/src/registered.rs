//! Registered content: what the rows of the two scopes say, and how one is written.
//!
//! A row can also be written by others, who may write anything. What is no skill and no prompt
//! is kept as state and shown nowhere.

use std::sync::Arc;

use repertoire_core::{Prompt, PromptArgument, PromptBody, PromptName, SkillId};
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};

use crate::{
    error::Result,
    head::{Head, Text},
};

/// The scope of registered skills.
pub const SKILLS: &str = "skills";
/// The scope of registered prompts.
pub const PROMPTS: &str = "prompts";
/// The most bytes of a registered body.
pub const MAX_BODY: usize = 256 * 1024;

/// A row to keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The row as JSON.
    pub value: String,
    /// When it was registered.
    pub at: String,
    /// What a listing shows of it, where that is more than the row says.
    pub(crate) head: Option<Arc<Head>>,
}

/// The row of a skill that is registered now.
///
/// ```
/// use repertoire_registry::registered::skill_row;
///
/// let row = skill_row(&"demo".parse()?, "# Demo\n")?;
/// let start = r##"{"id":"demo","skill":"# Demo\n","registered_at":"##;
/// assert_eq!(row.value, format!("{start}{:?}}}", row.at));
/// # Ok::<(), repertoire_registry::Error>(())
/// ```
pub fn skill_row(id: &SkillId, body: &str) -> Result<Row> {
    #[derive(Serialize)]
    struct Wire<'a> {
        id: &'a SkillId,
        skill: &'a str,
        registered_at: &'a str,
    }
    let field = |rule: String| repertoire_core::Error::Field {
        field: "skill".to_owned(),
        rule,
    };
    if body.trim().is_empty() {
        return Err(field("must be non-empty".to_owned()).into());
    }
    if body.len() > MAX_BODY {
        let rule = format!("too large: {} bytes, at most {MAX_BODY}", body.len());
        return Err(field(rule).into());
    }
    let at = crate::store::now();
    let wire = Wire {
        id,
        skill: body,
        registered_at: &at,
    };
    Ok(Row {
        // Texts under fixed names can always be written.
        value: serde_json::to_string(&wire).unwrap_or_default(),
        head: Some(Arc::new(Head::of_body(id, body, &at))),
        at,
    })
}

/// The row of a prompt that is registered now, with its text if it is static.
pub fn prompt_row(prompt: &Prompt, body: Option<&str>) -> Result<Row> {
    prompt.check()?;
    let at = crate::store::now();
    let mut row = json!({
        "name": prompt.name, "description": prompt.description, "arguments": prompt.arguments,
    });
    match &prompt.body {
        PromptBody::Function(id) => row["function_id"] = json!(id),
        PromptBody::Static => row["body"] = json!(body.unwrap_or_default()),
    }
    row["registered_at"] = json!(at);
    Ok(Row {
        value: row.to_string(),
        at,
        head: None,
    })
}

/// The body a row of skills holds.
pub fn body_of(value: &str) -> Option<String> {
    // The rest is not even copied.
    #[derive(Deserialize)]
    struct Row {
        skill: String,
    }
    repertoire_core::json::from_str::<Row>(value)
        .ok()
        .map(|row| row.skill)
}

/// The body a row of skills holds, as the JSON text it is kept as.
pub(crate) fn raw_body_of(value: &str) -> Option<&str> {
    #[derive(Deserialize)]
    struct Row<'a> {
        #[serde(borrow)]
        skill: &'a RawValue,
    }
    let row: Row<'_> = repertoire_core::json::from_str(value).ok()?;
    let raw = row.skill.get();
    raw.starts_with('"').then_some(raw)
}

/// What a listing shows of a row of skills.
pub(crate) fn skill_of(key: &str, value: &str) -> Option<(SkillId, Head)> {
    #[derive(Deserialize)]
    struct Row {
        skill: String,
        #[serde(default)]
        registered_at: Option<String>,
    }
    let id: SkillId = key.parse().ok()?;
    let row: Row = repertoire_core::json::from_str(value).ok()?;
    if row.skill.trim().is_empty() || row.skill.len() > MAX_BODY {
        return None;
    }
    let at = row.registered_at.unwrap_or_default();
    let head = Head::of_body(&id, &row.skill, &at);
    Some((id, head))
}

/// A prompt as its row says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PromptRow {
    pub(crate) prompt: Prompt,
    pub(crate) body: Option<String>,
    pub(crate) at: Text,
}

/// What a row of prompts says.
pub(crate) fn prompt_of(key: &str, value: &str) -> Option<PromptRow> {
    #[derive(Deserialize)]
    struct Row {
        description: String,
        #[serde(default)]
        arguments: Option<Vec<PromptArgument>>,
        #[serde(default)]
        function_id: Option<String>,
        #[serde(default)]
        body: Option<String>,
        #[serde(default)]
        registered_at: Option<String>,
    }
    let name: PromptName = key.parse().ok()?;
    let row: Row = repertoire_core::json::from_str(value).ok()?;
    let body = match (row.function_id, &row.body) {
        (Some(id), _) => PromptBody::Function(id),
        (None, Some(_)) => PromptBody::Static,
        (None, None) => return None,
    };
    let prompt = Prompt {
        name,
        description: row.description,
        arguments: row.arguments.unwrap_or_default(),
        body,
    };
    prompt.check().ok()?;
    Some(PromptRow {
        prompt,
        body: row.body,
        at: row.registered_at.unwrap_or_default().into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_read_back_as_they_were_written() {
        let id: SkillId = "a/b".parse().unwrap();
        let row = skill_row(&id, "# B\n").unwrap();
        let (again, head) = skill_of("a/b", &row.value).unwrap();
        assert_eq!(row.head.as_deref(), Some(&head));
        let registered = head.registered.unwrap();
        assert_eq!(
            (again, &*registered.at, registered.bytes),
            (id, &*row.at, 4)
        );
        let prompt = Prompt {
            name: "p".parse().unwrap(),
            description: "d".into(),
            arguments: vec![],
            body: PromptBody::Function("x::y".into()),
        };
        let row = prompt_row(&prompt, None).unwrap();
        assert_eq!(prompt_of("p", &row.value).unwrap().prompt, prompt);
    }

    #[test]
    fn what_is_no_skill_and_no_prompt_is_shown_nowhere() {
        for (key, value) in [
            ("a", "1"),
            ("a", "{}"),
            ("a", r#"{"skill":1}"#),
            ("a", r#"{"skill":"  "}"#),
            ("A", r#"{"skill":"x"}"#),
            ("skills", r#"{"skill":"x"}"#),
            ("a", r#"{"description":"d"}"#),
            ("a", r#"{"description":"","function_id":"x"}"#),
            ("a::b", r#"{"description":"d","function_id":"x"}"#),
        ] {
            assert_eq!(skill_of(key, value), None, "{key} {value}");
            assert_eq!(prompt_of(key, value), None, "{key} {value}");
        }
        let large = json!({"skill": "x".repeat(MAX_BODY + 1)}).to_string();
        assert_eq!(skill_of("a", &large), None);
    }
}
