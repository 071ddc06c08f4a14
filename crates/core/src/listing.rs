//! Which skills hosts accept in a listing, and what is known of the others.
//!
//! Some hosts refuse a whole listing if one entry breaks the rules of Agent Skills. So a skill is
//! listed only if all of them accept it; any other skill is served as a resource, a prompt and a tool
//! result, with the reason. [`SkillDocument`] reads what a document says, however it is written.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    error::{Error, Result},
    frontmatter::{self, AmbiguousYaml, Frontmatter, UnsupportedYaml},
    id::SkillName,
    markdown::{MarkdownSummary, to_single_line},
};

const MAX_DESCRIPTION: usize = 1024;
const MAX_COMPATIBILITY: usize = 500;

/// Why hosts would refuse a skill in a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListingRule {
    /// There is no frontmatter, or it does not begin or end as it must.
    MissingFrontmatter,
    /// The frontmatter cannot be read.
    InvalidFrontmatter,
    /// A field is missing or has a value that hosts refuse.
    InvalidField,
    /// The name is not the last part of the skill's path.
    NameMismatch,
    /// The frontmatter has YAML that hosts refuse or read differently.
    AmbiguousYaml,
    /// Its server does not list all of the frontmatter.
    PartialListing,
}

impl ListingRule {
    /// The stable code of the rule.
    pub fn code(self) -> &'static str {
        match self {
            Self::MissingFrontmatter => "missing_frontmatter",
            Self::InvalidFrontmatter => "invalid_frontmatter",
            Self::InvalidField => "invalid_field",
            Self::NameMismatch => "name_mismatch",
            Self::AmbiguousYaml => "ambiguous_yaml",
            Self::PartialListing => "partial_listing",
        }
    }
}

/// A reason why a skill is not listed, with what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListingProblem {
    /// The rule that it breaks.
    pub rule: ListingRule,
    /// What is wrong, and how to fix it.
    pub message: String,
}

impl fmt::Display for ListingProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl ListingProblem {
    /// A problem with one field.
    fn field(key: &str, rule: impl fmt::Display) -> Self {
        Self {
            rule: ListingRule::InvalidField,
            message: format!("`{key}` {rule}"),
        }
    }

    /// Another server lists a skill in an older form.
    pub fn partial() -> Self {
        Self {
            rule: ListingRule::PartialListing,
            message: "its server does not list skills in the final form".to_owned(),
        }
    }

    /// The name of a skill is not the last part of its path.
    pub fn name_mismatch(name: &str, path: &str) -> Self {
        if path.rsplit('/').next() == Some(name) {
            return Self {
                rule: ListingRule::NameMismatch,
                message: format!(
                    "`{name}` is no name for a folder on every system: rename the skill"
                ),
            };
        }
        let name = crate::error::input_excerpt(name);
        Self {
            rule: ListingRule::NameMismatch,
            message: format!(
                "`name: {name}` is not the name it is served under, `{path}`: rename one of them"
            ),
        }
    }

    /// Finds the first field that hosts refuse, or YAML that they do not all read in the same way.
    pub fn find_in(front: &Frontmatter) -> Option<Self> {
        let odd = || {
            let anchors = front.unsupported_yaml().iter();
            let mut anchors = anchors.filter(|(_, kind)| *kind == UnsupportedYaml::Anchor);
            if let Some((line, _)) = anchors.next() {
                let rule = "an anchor or alias is refused by some hosts: write the value out";
                return Some((*line, rule));
            }
            let (line, kind) = front.ambiguous_yaml().first()?;
            let rule = match kind {
                AmbiguousYaml::Yaml11Scalar => {
                    "some hosts read this value as a date, a number or a truth value: put it in \
                     quotes"
                }
                AmbiguousYaml::LastLineBreak => {
                    "some hosts drop the line break at the end: begin the block with `>-` or `|-`"
                }
            };
            Some((*line, rule))
        };
        Self::find(&front.to_json()).or_else(|| {
            let (line, rule) = odd()?;
            Some(Self {
                rule: ListingRule::AmbiguousYaml,
                message: format!("line {line}: {rule}"),
            })
        })
    }

    /// Finds the first field that hosts refuse, in frontmatter as JSON.
    ///
    /// ```
    /// use repertoire_core::listing::ListingProblem;
    ///
    /// let front = serde_json::json!({"name": "pdf", "description": "Fills forms.", "metadata": {"v": 1}});
    /// let problem = ListingProblem::find(front.as_object().unwrap()).unwrap();
    /// assert_eq!(problem.message, "`metadata.v` must be text: put it in quotes");
    /// ```
    pub fn find(front: &Map<String, Value>) -> Option<Self> {
        const QUOTES: &str = "must be text: put it in quotes";
        let missing = |key: &str| Self::field(key, "is missing: add it to the frontmatter");
        match front.get("name") {
            None | Some(Value::Null) => return Some(missing("name")),
            Some(Value::String(name)) if name.parse::<SkillName>().is_ok() => {}
            Some(Value::String(_)) => {
                let rule = "must have 1 to 64 lowercase letters, digits and single hyphens";
                return Some(Self::field("name", rule));
            }
            Some(_) => return Some(Self::field("name", QUOTES)),
        }
        match front.get("description") {
            None | Some(Value::Null) => return Some(missing("description")),
            Some(Value::String(text)) if text.trim().is_empty() => {
                return Some(missing("description"));
            }
            Some(Value::String(text)) => {
                if let Some(problem) = check_length("description", text, MAX_DESCRIPTION) {
                    return Some(problem);
                }
            }
            Some(_) => return Some(Self::field("description", QUOTES)),
        }
        if front.get("license").is_some_and(|value| !value.is_string()) {
            return Some(Self::field("license", QUOTES));
        }
        match front.get("compatibility") {
            None => {}
            Some(Value::String(text)) if text.is_empty() => {
                let rule = "is empty: remove it or say what the skill needs";
                return Some(Self::field("compatibility", rule));
            }
            Some(Value::String(text)) => {
                if let Some(problem) = check_length("compatibility", text, MAX_COMPATIBILITY) {
                    return Some(problem);
                }
            }
            Some(_) => return Some(Self::field("compatibility", QUOTES)),
        }
        let is_text = |value: &Value| value.is_string();
        match front.get("allowed-tools") {
            None | Some(Value::String(_)) => {}
            Some(Value::Array(tools)) if tools.iter().all(is_text) => {}
            Some(_) => {
                let rule = "must be text: names with spaces between them";
                return Some(Self::field("allowed-tools", rule));
            }
        }
        match front.get("metadata") {
            None => {}
            Some(Value::Object(map)) => {
                if let Some((key, value)) = map.iter().find(|(_, value)| !value.is_string()) {
                    let rule = match value {
                        Value::Array(_) | Value::Object(_) => {
                            "must be text: move it to a field of its own"
                        }
                        _ => QUOTES,
                    };
                    return Some(Self::field(&format!("metadata.{key}"), rule));
                }
            }
            Some(_) => return Some(Self::field("metadata", "must map names to texts")),
        }
        let is_refused = front.contains_key("__proto__");
        is_refused.then(|| Self::field("__proto__", "is refused by hosts: rename it"))
    }
}

fn check_length(key: &str, text: &str, max: usize) -> Option<ListingProblem> {
    let length = text.chars().count();
    let rule = format!("has {length} characters, hosts accept at most {max}: shorten it");
    (length > max).then(|| ListingProblem::field(key, rule))
}

/// What a `SKILL.md` says, however it is written.
///
/// ```
/// use repertoire_core::listing::SkillDocument;
///
/// let document = SkillDocument::read("---\nname: pdf\ndescription: Forms: filled.\n---\n# PDF\n")?;
/// assert_eq!(document.name.as_deref(), Some("pdf"));
/// assert_eq!(document.description.as_deref(), Some("Forms: filled."));
/// assert!(document.frontmatter.is_none());
/// # Ok::<(), repertoire_core::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SkillDocument {
    /// The name in the frontmatter, as written.
    pub name: Option<String>,
    /// The description in the frontmatter, or the first paragraph, on one line.
    pub description: Option<String>,
    /// The first heading.
    pub title: Option<String>,
    /// The frontmatter, if it is valid YAML.
    pub frontmatter: Option<Frontmatter>,
    /// Why hosts would refuse the skill in a listing, apart from its path.
    pub problem: Option<ListingProblem>,
}

impl SkillDocument {
    /// Reads a document; the problem says what is not as it should be. Refuses only what harms other
    /// readers: YAML with NUL bytes, duplicate keys, tags, or aliases that multiply.
    pub fn read(text: &str) -> Result<Self> {
        // Hosts skip a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        match Frontmatter::from_document(text) {
            Ok(front) => {
                let summary = MarkdownSummary::from_markdown(text);
                Ok(Self::from_frontmatter(front, summary))
            }
            Err(error @ (Error::NoFrontmatter { .. } | Error::FrontmatterSyntax { .. }))
                if !text.contains('\0') =>
            {
                Ok(Self::read_lines(text, &error))
            }
            Err(error) => Err(error),
        }
    }

    fn from_frontmatter(front: Frontmatter, summary: MarkdownSummary) -> Self {
        let field = |key: &str| {
            let text = front.get_text(key).map(to_single_line);
            text.filter(|text| !text.is_empty())
        };
        Self {
            name: field("name"),
            description: field("description").or(summary.summary),
            title: summary.title,
            problem: ListingProblem::find_in(&front),
            frontmatter: Some(front),
        }
    }

    /// Reads name and description line by line, for frontmatter that is no YAML.
    fn read_lines(text: &str, error: &Error) -> Self {
        let rule = match error {
            Error::NoFrontmatter { .. } => ListingRule::MissingFrontmatter,
            _ => ListingRule::InvalidFrontmatter,
        };
        let advice = match rule {
            ListingRule::MissingFrontmatter => {
                "begin it with `---`, `name: …`, `description: …`, `---`"
            }
            _ => "put values with `: ` in quotes",
        };
        let lines = LooseLines::read(text);
        let summary = MarkdownSummary::from_markdown(lines.body);
        Self {
            name: lines.name,
            description: lines.description.or(summary.summary),
            title: summary.title,
            frontmatter: None,
            problem: Some(ListingProblem {
                rule,
                message: format!("{error}; {advice}"),
            }),
        }
    }
}

/// Name, description and body of a document whose frontmatter is no YAML.
struct LooseLines<'a> {
    name: Option<String>,
    description: Option<String>,
    body: &'a str,
}

impl<'a> LooseLines<'a> {
    fn read(text: &'a str) -> Self {
        let mut found = Self {
            name: None,
            description: None,
            body: text,
        };
        let start = text.trim_start();
        let Some((first, rest)) = start.split_once('\n') else {
            return found;
        };
        // Some begin with the fields at once.
        let is_field = ["name:", "description:"]
            .iter()
            .any(|key| first.starts_with(key));
        let rest = match (frontmatter::is_fence(first), is_field) {
            (true, _) => rest,
            (false, true) => start,
            (false, false) => return found,
        };
        let is_unclosed = !rest.lines().any(frontmatter::is_fence);
        let mut key = String::new();
        let mut at = start.len() - rest.len();
        for line in rest.split_inclusive('\n').take(1000) {
            let text = line.trim_end();
            if frontmatter::is_fence(line) {
                at += line.len();
                break;
            }
            let is_indented = line.starts_with([' ', '\t']);
            if is_unclosed && (text.is_empty() || text.starts_with('#')) {
                break;
            }
            match text.split_once(':') {
                Some((name, value)) if !is_indented && is_key(name) => {
                    name.clone_into(&mut key);
                    found.add(&key, value.trim());
                }
                _ if is_indented => found.add(&key, text.trim()),
                _ if text.is_empty() || text.starts_with('#') => {}
                // The text begins here: the frontmatter was never closed.
                _ => break,
            }
            at += line.len();
        }
        found.body = &start[at..];
        for field in [&mut found.name, &mut found.description] {
            *field = field
                .take()
                .map(|text| unquote(text.trim()).to_owned())
                .filter(|text| !text.is_empty());
        }
        found
    }

    /// Adds a line to a field.
    fn add(&mut self, key: &str, text: &str) {
        let field = match key {
            "name" => &mut self.name,
            "description" => &mut self.description,
            _ => return,
        };
        // The mark of a text that begins on the next line.
        if matches!(text, ">" | "|" | ">-" | "|-" | ">+" | "|+") && field.is_none() {
            *field = Some(String::new());
            return;
        }
        let field = field.get_or_insert_default();
        if !field.is_empty() {
            field.push(' ');
        }
        field.push_str(text);
    }
}

fn is_key(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

fn unquote(text: &str) -> &str {
    ['"', '\'']
        .into_iter()
        .find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote))
        .unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problem_of(front: &Value) -> Option<String> {
        ListingProblem::find(front.as_object().unwrap()).map(|problem| problem.message)
    }

    #[test]
    fn every_field_that_a_host_refuses_is_found() {
        let long = "x".repeat(MAX_DESCRIPTION + 1);
        for (more, word) in [
            (json!({"name": "Pdf"}), "`name` must have"),
            (json!({"name": 7}), "`name` must be text"),
            (json!({"name": null}), "`name` is missing"),
            (json!({"description": "  "}), "`description` is missing"),
            (json!({"description": 5}), "`description` must be text"),
            (json!({"description": long}), "has 1025 characters"),
            (json!({"license": null}), "`license` must be text"),
            (json!({"compatibility": ""}), "`compatibility` is empty"),
            (
                json!({"compatibility": null}),
                "`compatibility` must be text",
            ),
            (
                json!({"compatibility": "x".repeat(501)}),
                "has 501 characters",
            ),
            (
                json!({"allowed-tools": {"a": 1}}),
                "`allowed-tools` must be text",
            ),
            (json!({"metadata": {"version": 1.0}}), "`metadata.version`"),
            (json!({"metadata": null}), "`metadata` must map"),
            (json!({"__proto__": "x"}), "`__proto__`"),
        ] {
            let mut front = json!({"name": "pdf", "description": "Fills forms."});
            for (key, value) in more.as_object().unwrap() {
                front[key] = value.clone();
            }
            let message = problem_of(&front).unwrap_or_default();
            assert!(message.contains(word), "{front}: {message}");
        }
        let fine = json!({
            "name": "pdf", "description": "é".repeat(MAX_DESCRIPTION), "license": "MIT",
            "compatibility": "x", "allowed-tools": ["Read"], "metadata": {"v": "1"}, "own": {"a": 1},
        });
        assert_eq!(problem_of(&fine), None);
    }

    #[test]
    fn a_document_that_is_no_yaml_is_read_line_by_line() {
        for (text, name, description) in [
            (
                "---\nname: a\ndescription: Does: this\n---\n# T\n",
                Some("a"),
                Some("Does: this"),
            ),
            (
                "---\nname: \"a\"\ndescription: >\n  One\n  two: three\nbad: : x\n---\n# T\n",
                Some("a"),
                Some("One two: three"),
            ),
            (
                "\n\n---\nname: a\ndescription: b\n---\n# T\n",
                Some("a"),
                Some("b"),
            ),
            (
                "---\nname: a\ndescription: b\n\n# T\n",
                Some("a"),
                Some("b"),
            ),
            (
                "---\nname: a\n# T\n\nA paragraph.\n",
                Some("a"),
                Some("A paragraph."),
            ),
            ("name: a\ndescription: b\n---\n# T\n", Some("a"), Some("b")),
            ("# T\n\nA paragraph.\n", None, Some("A paragraph.")),
            ("", None, None),
            ("---", None, None),
        ] {
            let read = SkillDocument::read(text).unwrap();
            assert_eq!(read.name.as_deref(), name, "{text:?}");
            assert_eq!(read.description.as_deref(), description, "{text:?}");
            assert!(
                read.problem.is_some() && read.frontmatter.is_none(),
                "{text:?}"
            );
        }
    }

    #[test]
    fn yaml_that_hosts_read_differently_is_found() {
        let front = |more: &str| format!("---\nname: a\ndescription: b\n{more}---\n# T\n");
        for (more, found) in [
            ("metadata:\n  updated: 2025-10-20\n", true),
            ("metadata:\n  at: 2001-12-14t21:59:43.10-05:00\n", true),
            ("metadata:\n  updated: \"2025-10-20\"\n", false),
            ("metadata:\n  updated: 2025-10\n", false),
            ("metadata:\n  on: yes\n", true),
            ("license: No\n", true),
            ("license: 1_000\n", true),
            ("license: 12:30:45\n", true),
            ("license: v12:30\n", false),
            ("metadata:\n  port: a:1_0\n", false),
            ("license: |\n  MIT\n", true),
            ("license: |-\n  MIT\n", false),
            ("compatibility: >\n  Git.\nlicense: MIT\n", false),
            ("license: &x MIT\n", true),
        ] {
            let read = SkillDocument::read(&front(more)).unwrap();
            let problem = read.problem.map(|problem| problem.rule);
            let expected = found.then_some(ListingRule::AmbiguousYaml);
            assert_eq!(problem, expected, "{more:?}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_skipped() {
        let read = SkillDocument::read("\u{feff}---\nname: a\ndescription: b\n---\n# T\n").unwrap();
        assert_eq!(read.problem, None);
        assert_eq!(read.title.as_deref(), Some("T"));
    }
}
