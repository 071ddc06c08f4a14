//! Slash-command prompts: a name, a description, arguments, and where the text comes from.

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    frontmatter::{self, Frontmatter},
    id::PromptName,
};

/// The most arguments of a prompt.
const MAX_ARGUMENTS: usize = 64;
/// The most bytes of a description.
const MAX_TEXT: usize = 16 * 1024;

/// Reads `null` as `false`: some languages write it for absent values.
fn null_is_false<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<bool>::deserialize(deserializer)?.unwrap_or(false))
}

/// An argument a prompt declares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptArgument {
    /// The argument's name, unique within the prompt.
    pub name: String,
    /// Its description for users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether the prompt cannot be rendered without it.
    #[serde(default, deserialize_with = "null_is_false")]
    pub required: bool,
}

/// Where a prompt's text comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptBody {
    /// The body of a file or a stored text, returned verbatim.
    Static,
    /// The result of a function on the bus.
    Function(String),
}

/// The definition of a prompt. Its text, if static, is read on demand.
///
/// ```
/// use repertoire_core::Prompt;
///
/// let (prompt, body) = Prompt::from_markdown("open-pr", "---\ndescription: Open a pull request.\n---\nDo it.\n")?;
/// assert_eq!((prompt.name.as_str(), body), ("open-pr", "Do it.\n"));
/// # Ok::<(), repertoire_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prompt {
    /// The slash-command's name.
    pub name: PromptName,
    /// What it does, non-empty.
    pub description: String,
    /// The arguments it accepts.
    #[serde(default)]
    pub arguments: Vec<PromptArgument>,
    /// Where its text comes from.
    pub body: PromptBody,
}

impl Prompt {
    /// A prompt from a markdown file: frontmatter with a description, the rest is the text.
    pub fn from_markdown<'a>(default_name: &str, text: &'a str) -> Result<(Self, &'a str)> {
        let cut = frontmatter::split_document(text)?;
        let front = Frontmatter::parse(cut.yaml, 2)?;
        let name = match front.get("name") {
            Some(field) => field.text.as_deref().unwrap_or_default(),
            None => default_name,
        };
        let prompt = Self {
            name: name.parse()?,
            description: front.get_text("description").unwrap_or_default().to_owned(),
            arguments: Vec::new(),
            body: PromptBody::Static,
        };
        prompt.check_prompt()?;
        Ok((prompt, cut.body))
    }

    /// Checks the rules that the types do not enforce.
    pub fn check_prompt(&self) -> Result<()> {
        let field = |field: &str, rule: String| Error::Field {
            field: field.to_owned(),
            rule,
        };
        if self.description.trim().is_empty() {
            return Err(Error::EmptyField("description"));
        }
        let too_long = |what: &str, text: &str, most: usize| {
            let rule = format!("too long: {} bytes, at most {most}", text.len());
            (text.len() > most).then(|| field(what, rule))
        };
        if let Some(error) = too_long("description", &self.description, MAX_TEXT) {
            return Err(error);
        }
        if self.arguments.len() > MAX_ARGUMENTS {
            let rule = format!(
                "too many: {}, at most {MAX_ARGUMENTS}",
                self.arguments.len()
            );
            return Err(field("arguments", rule));
        }
        if let PromptBody::Function(id) = &self.body
            && id.trim().is_empty()
        {
            return Err(Error::EmptyField("function_id"));
        }
        if let PromptBody::Function(id) = &self.body
            && let Some(error) = too_long("function_id", id, 1024)
        {
            return Err(error);
        }
        for (index, argument) in self.arguments.iter().enumerate() {
            if argument.name.trim().is_empty() {
                return Err(Error::EmptyField("argument name"));
            }
            let about = argument.description.as_deref().unwrap_or_default();
            let long = too_long("arguments[].name", &argument.name, 256);
            if let Some(error) = long.or(too_long("arguments[].description", about, MAX_TEXT)) {
                return Err(error);
            }
            if self.arguments[..index]
                .iter()
                .any(|a| a.name == argument.name)
            {
                return Err(field(
                    "arguments",
                    format!("duplicate argument name {:?}", argument.name),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_need_frontmatter_and_a_description() {
        let code = |text: &str| Prompt::from_markdown("p", text).unwrap_err().code();
        assert_eq!(code("no frontmatter"), "missing_frontmatter");
        assert_eq!(code("---\nname: p\n---\nx"), "invalid_field");
        assert_eq!(code("---\ndescription: '  '\n---\nx"), "invalid_field");
        assert_eq!(code("---\ndescription: [\n---\nx"), "invalid_frontmatter");
        assert_eq!(code("---\nname: Bad\ndescription: d\n---\nx"), "invalid_id");
        let (prompt, body) =
            Prompt::from_markdown("p", "---\nname: q\ndescription: d\n---\n\nx {y}\n").unwrap();
        assert_eq!((prompt.name.as_str(), body), ("q", "\nx {y}\n"));
    }

    #[test]
    fn duplicate_argument_names_are_refused() {
        let argument = |name: &str| PromptArgument {
            name: name.into(),
            description: None,
            required: false,
        };
        let mut prompt = Prompt {
            name: "p".parse().unwrap(),
            description: "d".into(),
            arguments: vec![argument("a"), argument("a")],
            body: PromptBody::Function("x::y".into()),
        };
        assert!(
            prompt
                .check_prompt()
                .unwrap_err()
                .to_string()
                .contains("duplicate argument name")
        );
        prompt.arguments.pop();
        assert!(prompt.check_prompt().is_ok());
        prompt.body = PromptBody::Function(" ".into());
        assert!(prompt.check_prompt().is_err());
    }
}
