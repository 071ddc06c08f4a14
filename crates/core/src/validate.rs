//! The verdict on a skill folder.
//!
//! [`Level::Reference`] gives the verdict of the reference validator (`skills-ref`), with lines.
//! [`Level::Strict`] adds what the Agent Skills specification demands and that tool lets pass.
//! Fences are whole lines here; the reference cuts at any `---`, even inside a description, and
//! that is not imitated.

use serde_json::Value;
use unicode_normalization::{UnicodeNormalization, char::is_combining_mark};

use crate::{
    error::Error,
    frontmatter::{Field, Frontmatter, Oddity, split},
    path::DOCUMENT,
};

/// How much is demanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// What the reference validator demands.
    Reference,
    /// What the specification demands.
    Strict,
}

/// One reason why a skill is not valid.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// A stable code.
    pub code: &'static str,
    /// Line in the document, from 1; none for the folder as a whole.
    pub line: Option<usize>,
    /// What is wrong.
    pub message: String,
}

const FIELDS: [&str; 6] = [
    "name",
    "description",
    "license",
    "allowed-tools",
    "metadata",
    "compatibility",
];

/// Validates a skill: the name of its folder, the name and the bytes of its document.
///
/// ```
/// use repertoire_core::validate::{Level, validate};
///
/// let document = b"---\nname: pdf\ndescription: Fills PDF forms.\n---\n";
/// assert!(validate("pdf", Some(("SKILL.md", document)), Level::Strict).is_empty());
/// assert_eq!(validate("doc", Some(("SKILL.md", document)), Level::Reference)[0].code, "name-folder");
/// ```
pub fn validate(folder: &str, document: Option<(&str, &[u8])>, level: Level) -> Vec<Problem> {
    let mut report = Report {
        level,
        problems: Vec::new(),
    };
    let Some((file_name, bytes)) = document else {
        report.add("missing-document", None, "no SKILL.md in the folder");
        return report.problems;
    };
    if level == Level::Strict && file_name != DOCUMENT {
        let message = format!("the document must be named SKILL.md, not {file_name}");
        report.add("document-name", None, message);
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("not valid UTF-8 at byte {}", error.valid_up_to());
            report.add("not-utf8", None, message);
            return report.problems;
        }
    };
    match split(text).and_then(|cut| Frontmatter::parse(cut.yaml, 2)) {
        Ok(front) => report.frontmatter(folder, &front),
        Err(error) => report.parse_error(&error),
    }
    report.problems
}

struct Report {
    level: Level,
    problems: Vec<Problem>,
}

impl Report {
    fn add(&mut self, code: &'static str, line: Option<usize>, message: impl Into<String>) {
        self.problems.push(Problem {
            code,
            line,
            message: message.into(),
        });
    }

    fn parse_error(&mut self, error: &Error) {
        let (line, rule) = match error {
            Error::NoFrontmatter { line, rule } => (*line, (*rule).to_owned()),
            Error::Frontmatter { line, rule } => (*line, rule.clone()),
            Error::FrontmatterBudget { line, rule } => {
                (*line, format!("frontmatter is too large: {rule}"))
            }
            other => (1, other.to_string()),
        };
        self.add("frontmatter", Some(line), rule);
    }

    fn frontmatter(&mut self, folder: &str, front: &Frontmatter) {
        for (line, oddity) in front.oddities() {
            let message = match oddity {
                Oddity::Flow => {
                    "flow collections `{…}` and `[…]` are not accepted: write one item per line"
                }
                Oddity::Anchor => "anchors and aliases are not accepted: write the value out",
                Oddity::Indentation => "sibling mappings must have the same indentation",
            };
            self.add("yaml-subset", Some(*line), message);
        }
        for field in front.fields() {
            if !FIELDS.contains(&field.key.as_str()) {
                let message = format!(
                    "unexpected field `{}`: allowed are {}; put your own under `metadata`",
                    field.key,
                    FIELDS.join(", ")
                );
                self.add("unexpected-field", Some(field.line), message);
            }
        }
        match front.get("name") {
            Some(field) => self.name(folder, field),
            None => self.add("missing-field", Some(1), "missing required field `name`"),
        }
        match front.get("description") {
            Some(field) => self.description(field),
            None => self.add(
                "missing-field",
                Some(1),
                "missing required field `description`",
            ),
        }
        if let Some(field) = front.get("compatibility") {
            self.compatibility(field);
        }
        if self.level == Level::Strict {
            self.strict_types(front);
        }
    }

    fn name(&mut self, folder: &str, field: &Field) {
        let line = Some(field.line);
        let text = field.text.as_deref().unwrap_or_default().trim();
        if text.is_empty() {
            self.add("name-empty", line, "`name` must be a non-empty string");
            return;
        }
        let name: String = text.nfkc().collect();
        let length = name.chars().count();
        if length > 64 {
            self.add(
                "name-length",
                line,
                format!("`name` has {length} characters, at most 64"),
            );
        }
        if name != name.to_lowercase() {
            self.add(
                "name-case",
                line,
                format!("`name` {name:?} must be lowercase"),
            );
        }
        if name.starts_with('-') || name.ends_with('-') {
            self.add(
                "name-hyphen",
                line,
                "`name` must not start or end with a hyphen",
            );
        }
        if name.contains("--") {
            self.add(
                "name-hyphen",
                line,
                "`name` must not contain two hyphens in a row",
            );
        }
        let allowed = |c: char| c == '-' || (c.is_alphanumeric() && !is_combining_mark(c));
        if !name.chars().all(allowed) {
            let message =
                format!("`name` {name:?} has characters other than letters, digits and hyphens");
            self.add("name-characters", line, message);
        } else if self.level == Level::Strict && !text.is_ascii() {
            let message = format!("`name` {name:?} has letters outside a-z");
            self.add("name-characters", line, message);
        }
        if folder.nfkc().collect::<String>() != name {
            let message = format!("folder {folder:?} must have the name of the skill, {name:?}");
            self.add("name-folder", line, message);
        }
    }

    fn description(&mut self, field: &Field) {
        let line = Some(field.line);
        let text = field.text.as_deref().unwrap_or_default();
        let length = text.chars().count();
        if text.trim().is_empty() {
            self.add(
                "description-empty",
                line,
                "`description` must be a non-empty string",
            );
        } else if length > 1024 {
            let message = format!("`description` has {length} characters, at most 1024");
            self.add("description-length", line, message);
        }
    }

    fn compatibility(&mut self, field: &Field) {
        let line = Some(field.line);
        let Some(text) = field.text.as_deref() else {
            self.add("field-type", line, "`compatibility` must be a string");
            return;
        };
        let length = text.chars().count();
        if length > 500 {
            let message = format!("`compatibility` has {length} characters, at most 500");
            self.add("compatibility-length", line, message);
        } else if self.level == Level::Strict && text.trim().is_empty() {
            self.add(
                "compatibility-empty",
                line,
                "`compatibility` must be non-empty if present",
            );
        }
    }

    fn strict_types(&mut self, front: &Frontmatter) {
        for key in [
            "name",
            "description",
            "license",
            "compatibility",
            "allowed-tools",
        ] {
            if let Some(field) = front.get(key)
                && !field.value.is_string()
                && !(field.value.is_null() && key != "license" && key != "allowed-tools")
            {
                let message = format!("`{key}` must be a string: put it in quotes");
                self.add("field-type", Some(field.line), message);
            }
        }
        if let Some(field) = front.get("metadata") {
            match &field.value {
                Value::Object(map) => {
                    for (at, (key, value)) in map.iter().enumerate() {
                        if !value.is_string() {
                            let line = field.child_lines.get(at).copied();
                            let message =
                                format!("`metadata.{key}` must be a string: put it in quotes");
                            self.add("field-type", line.or(Some(field.line)), message);
                        }
                    }
                }
                _ => self.add(
                    "field-type",
                    Some(field.line),
                    "`metadata` must be a mapping of strings",
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(folder: &str, document: &str, level: Level) -> Vec<&'static str> {
        validate(folder, Some(("SKILL.md", document.as_bytes())), level)
            .into_iter()
            .map(|p| p.code)
            .collect()
    }

    #[test]
    fn every_problem_is_reported_with_its_line() {
        let document = "---\nname: Bad--Name-\nextra: 1\ndescription: ''\n---\n";
        let problems = validate(
            "x",
            Some(("SKILL.md", document.as_bytes())),
            Level::Reference,
        );
        let found: Vec<_> = problems.iter().map(|p| (p.code, p.line)).collect();
        assert_eq!(
            found,
            [
                ("unexpected-field", Some(3)),
                ("name-case", Some(2)),
                ("name-hyphen", Some(2)),
                ("name-hyphen", Some(2)),
                ("name-folder", Some(2)),
                ("description-empty", Some(4)),
            ]
        );
    }

    #[test]
    fn strict_demands_what_the_specification_says() {
        let cases = [
            (
                "é",
                "---\nname: é\ndescription: d\n---\n",
                "name-characters",
            ),
            (
                "a",
                "---\nname: a\ndescription: d\ncompatibility: ''\n---\n",
                "compatibility-empty",
            ),
            (
                "a",
                "---\nname: a\ndescription: d\nmetadata:\n  v: 1.0\n---\n",
                "field-type",
            ),
            (
                "a",
                "---\nname: a\ndescription: d\nallowed-tools:\n  - Read\n---\n",
                "field-type",
            ),
            ("7", "---\nname: 7\ndescription: d\n---\n", "field-type"),
        ];
        for (folder, document, code) in cases {
            assert!(
                codes(folder, document, Level::Reference).is_empty(),
                "{document}"
            );
            assert_eq!(codes(folder, document, Level::Strict), [code], "{document}");
        }
        let lower = validate(
            "a",
            Some(("skill.md", b"---\nname: a\ndescription: d\n---\n")),
            Level::Strict,
        );
        assert_eq!(lower[0].code, "document-name");
    }
}
