//! Registered content: what the rows of the two scopes say, and how one is written.
//!
//! A row can also be written by others, who may write anything. What is no skill and no prompt
//! is kept as state and shown nowhere.

use repertoire_core::{Prompt, PromptArgument, PromptBody, PromptName, SkillId};
use serde::Deserialize;
use serde_json::{Value, json};

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

/// The row of a skill, and when it was registered.
///
/// ```
/// use repertoire_registry::registered::skill_row;
///
/// let (row, at) = skill_row(&"demo".parse()?, "# Demo\n")?;
/// assert_eq!(row["skill"], "# Demo\n");
/// assert_eq!(row["registered_at"], at.as_str());
/// # Ok::<(), repertoire_registry::Error>(())
/// ```
pub fn skill_row(id: &SkillId, body: &str) -> Result<(Value, String)> {
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
    let row = json!({"id": id, "skill": body, "registered_at": at});
    Ok((row, at))
}

/// The row of a prompt with its text, if it is static, and when it was registered.
pub fn prompt_row(prompt: &Prompt, body: Option<&str>) -> Result<(Value, String)> {
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
    Ok((row, at))
}

/// The body a row of skills holds.
pub fn body_of(value: &str) -> Option<String> {
    // The rest is not even copied.
    #[derive(Deserialize)]
    struct Row {
        skill: String,
    }
    serde_json::from_str::<Row>(value).ok().map(|row| row.skill)
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
    let row: Row = serde_json::from_str(value).ok()?;
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
    let row: Row = serde_json::from_str(value).ok()?;
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
        let (row, at) = skill_row(&id, "# B\n").unwrap();
        let (again, head) = skill_of("a/b", &row.to_string()).unwrap();
        let registered = head.registered.unwrap();
        assert_eq!((again, &*registered.at, registered.bytes), (id, &*at, 4));
        let prompt = Prompt {
            name: "p".parse().unwrap(),
            description: "d".into(),
            arguments: vec![],
            body: PromptBody::Function("x::y".into()),
        };
        let (row, _) = prompt_row(&prompt, None).unwrap();
        assert_eq!(prompt_of("p", &row.to_string()).unwrap().prompt, prompt);
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
