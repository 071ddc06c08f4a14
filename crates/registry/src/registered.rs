//! Rows of registered skills and prompts in the two state scopes: parsing and writing.
//!
//! Other workers can write any JSON to these scopes. Rows that are neither a skill nor a prompt
//! stay in the state and do not appear in the catalogue.

use std::sync::Arc;

use repertoire_core::{Prompt, PromptArgument, PromptBody, PromptName, SkillId};
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};

use crate::{
    error::Result,
    skill_metadata::{SharedText, SkillMetadata},
};

/// The scope of registered skills.
pub const SKILLS_SCOPE: &str = "skills";
/// The scope of registered prompts.
pub const PROMPTS_SCOPE: &str = "prompts";
/// The most bytes of a registered body.
pub const MAX_BODY_BYTES: usize = 256 * 1024;

/// A row to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredRow {
    /// The row as JSON.
    pub value: String,
    /// When it was registered.
    pub at: String,
    /// The metadata for listings, if it was computed together with the row.
    pub(crate) metadata: Option<Arc<SkillMetadata>>,
}

/// Builds the row of a skill that is registered now.
///
/// ```
/// use repertoire_registry::registered::skill_row;
///
/// let row = skill_row(&"demo".parse()?, "# Demo\n")?;
/// let start = r##"{"id":"demo","skill":"# Demo\n","registered_at":"##;
/// assert_eq!(row.value, format!("{start}{:?}}}", row.at));
/// # Ok::<(), repertoire_registry::Error>(())
/// ```
pub fn skill_row(id: &SkillId, body: &str) -> Result<RegisteredRow> {
    #[derive(Serialize)]
    struct SkillRowJson<'a> {
        id: &'a SkillId,
        skill: &'a str,
        registered_at: &'a str,
    }
    let field = |rule: String| repertoire_core::Error::Field {
        field: "skill".to_owned(),
        rule,
    };
    if body.trim().is_empty() {
        return Err(repertoire_core::Error::EmptyField("skill").into());
    }
    if body.len() > MAX_BODY_BYTES {
        let rule = format!("too large: {} bytes, at most {MAX_BODY_BYTES}", body.len());
        return Err(field(rule).into());
    }
    let at = crate::store::now_rfc3339();
    let wire = SkillRowJson {
        id,
        skill: body,
        registered_at: &at,
    };
    Ok(RegisteredRow {
        // Serialising strings under fixed keys cannot fail.
        value: serde_json::to_string(&wire).unwrap_or_default(),
        metadata: Some(Arc::new(SkillMetadata::from_registered_body(id, body, &at))),
        at,
    })
}

/// Builds the row of a prompt that is registered now, with its text if it is static.
pub fn prompt_row(prompt: &Prompt, body: Option<&str>) -> Result<RegisteredRow> {
    prompt.check_prompt()?;
    let at = crate::store::now_rfc3339();
    let mut row = json!({
        "name": prompt.name, "description": prompt.description, "arguments": prompt.arguments,
    });
    match &prompt.body {
        PromptBody::Function(id) => row["function_id"] = json!(id),
        PromptBody::Static => row["body"] = json!(body.unwrap_or_default()),
    }
    row["registered_at"] = json!(at);
    Ok(RegisteredRow {
        value: row.to_string(),
        at,
        metadata: None,
    })
}

/// Returns the body in a skill row.
pub fn row_body(value: &str) -> Option<String> {
    // The other fields are skipped without copying them.
    #[derive(Deserialize)]
    struct BodyField {
        skill: String,
    }
    repertoire_core::json::from_str::<BodyField>(value)
        .ok()
        .map(|row| row.skill)
}

/// Returns the body in a skill row as the JSON string it is stored as.
pub(crate) fn row_body_json(value: &str) -> Option<&str> {
    #[derive(Deserialize)]
    struct RawBodyField<'a> {
        #[serde(borrow)]
        skill: &'a RawValue,
    }
    let row: RawBodyField<'_> = repertoire_core::json::from_str(value).ok()?;
    let raw = row.skill.get();
    raw.starts_with('"').then_some(raw)
}

/// Whether the values of a scope are registered skills or prompts.
pub(crate) fn is_registered_scope(scope: &str) -> bool {
    [SKILLS_SCOPE, PROMPTS_SCOPE].contains(&scope)
}

/// Returns a row without the time at its end, if it ends in one.
fn without_time(row: &str) -> Option<&str> {
    let (start, time) = row.rsplit_once(",\"registered_at\":\"")?;
    let time = time.strip_suffix("\"}")?;
    let is_time = time
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-:.+".contains(&byte));
    is_time.then_some(start)
}

/// Whether two rows differ at most in when they were registered.
pub(crate) fn is_same_content(scope: &str, a: &str, b: &str) -> bool {
    if a == b {
        return true;
    }
    // Nearly always both are rows as this module writes them, with the time at the end.
    if let (Some(a), Some(b)) = (without_time(a), without_time(b))
        && a == b
    {
        return true;
    }
    if scope == SKILLS_SCOPE
        && let (Some(a), Some(b)) = (row_body_json(a), row_body_json(b))
    {
        return a == b;
    }
    let content = |text: &str| {
        let mut value: serde_json::Value = repertoire_core::json::from_str(text).ok()?;
        value.as_object_mut()?.remove("registered_at");
        Some(value)
    };
    content(a).is_some_and(|a| Some(a) == content(b))
}

/// Parses a skill row into its id and the metadata for listings.
pub(crate) fn parse_skill_row(key: &str, value: &str) -> Option<(SkillId, SkillMetadata)> {
    #[derive(Deserialize)]
    struct SkillRowFields {
        skill: String,
        #[serde(default)]
        registered_at: Option<String>,
    }
    let id: SkillId = key.parse().ok()?;
    let row: SkillRowFields = repertoire_core::json::from_str(value).ok()?;
    if row.skill.trim().is_empty() || row.skill.len() > MAX_BODY_BYTES {
        return None;
    }
    let at = row.registered_at.unwrap_or_default();
    let head = SkillMetadata::from_registered_body(&id, &row.skill, &at);
    Some((id, head))
}

/// A parsed prompt row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PromptRow {
    pub(crate) prompt: Prompt,
    pub(crate) body: Option<String>,
    pub(crate) at: SharedText,
}

/// Parses a prompt row.
pub(crate) fn parse_prompt_row(key: &str, value: &str) -> Option<PromptRow> {
    #[derive(Deserialize)]
    struct PromptRowFields {
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
    let row: PromptRowFields = repertoire_core::json::from_str(value).ok()?;
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
    prompt.check_prompt().ok()?;
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
    fn written_rows_parse_back_unchanged() {
        let id: SkillId = "a/b".parse().unwrap();
        let row = skill_row(&id, "# B\n").unwrap();
        let (again, head) = parse_skill_row("a/b", &row.value).unwrap();
        assert_eq!(row.metadata.as_deref(), Some(&head));
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
        assert_eq!(parse_prompt_row("p", &row.value).unwrap().prompt, prompt);
    }

    #[test]
    fn rows_that_differ_in_their_time_only_have_the_same_content() {
        let row = |body: &str, at: &str| {
            format!(
                "{{\"id\":\"a\",\"skill\":{},\"registered_at\":\"{at}\"}}",
                json!(body)
            )
        };
        let (one, two) = ("2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z");
        let same = |a: &str, b: &str| is_same_content(SKILLS_SCOPE, a, b);
        assert!(same(&row("x", one), &row("x", two)));
        assert!(!same(&row("x", one), &row("y", two)));
        // A body that looks like the end of a row changes nothing.
        let odd = "x\",\"registered_at\":\"";
        assert!(!same(&row(odd, one), &row("x", one)));
        assert!(same(&row(odd, one), &row(odd, two)));
        assert!(same(
            "{\"skill\":\"x\"}",
            "{\"registered_at\":1,\"skill\":\"x\"}"
        ));
        let prompt = |n: u8| format!("{{\"description\":\"d\",\"registered_at\":{n}}}");
        assert!(is_same_content(PROMPTS_SCOPE, &prompt(1), &prompt(2)));
        assert!(!is_same_content(PROMPTS_SCOPE, "1", "2"));
    }

    #[test]
    fn invalid_rows_parse_to_nothing() {
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
            assert_eq!(parse_skill_row(key, value), None, "{key} {value}");
            assert_eq!(parse_prompt_row(key, value), None, "{key} {value}");
        }
        let large = json!({"skill": "x".repeat(MAX_BODY_BYTES + 1)}).to_string();
        assert_eq!(parse_skill_row("a", &large), None);
    }
}
