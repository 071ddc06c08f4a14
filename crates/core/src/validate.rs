//! Validates a skill folder.
//!
//! [`ValidationLevel::Reference`] gives the verdict of the reference validator (`skills-ref`), with
//! lines. [`ValidationLevel::Strict`] adds the rules of the Agent Skills specification that the
//! tool does not check. Fences must be whole lines; the reference splits at any `---`, even inside
//! a description, and that behaviour is not copied.

use serde_json::Value;
use unicode_normalization::{UnicodeNormalization, char::is_combining_mark};

use crate::{
    error::Error,
    frontmatter::{Frontmatter, FrontmatterField, UnsupportedYaml, split_document},
    path::DOCUMENT,
};

/// How strictly a skill is validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValidationLevel {
    /// The rules of the reference validator.
    Reference,
    /// The rules of the specification.
    Strict,
}

/// One reason why a skill is not valid.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ValidationProblem {
    /// A stable code.
    pub code: &'static str,
    /// Line in the document, from 1; none for the folder as a whole.
    pub line: Option<usize>,
    /// What is wrong.
    pub message: String,
}

const ALLOWED_FIELDS: [&str; 6] = [
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
/// use repertoire_core::validate::{ValidationLevel, validate_skill};
///
/// let document = b"---\nname: pdf\ndescription: Fills PDF forms.\n---\n";
/// assert!(validate_skill("pdf", Some(("SKILL.md", document)), ValidationLevel::Strict).is_empty());
/// assert_eq!(validate_skill("doc", Some(("SKILL.md", document)), ValidationLevel::Reference)[0].code, "name-folder");
/// ```
pub fn validate_skill(
    folder: &str,
    document: Option<(&str, &[u8])>,
    level: ValidationLevel,
) -> Vec<ValidationProblem> {
    let mut report = ValidationReport {
        level,
        problems: Vec::new(),
    };
    let Some((file_name, bytes)) = document else {
        report.add_problem("missing-document", None, "no SKILL.md in the folder");
        return report.problems;
    };
    if level == ValidationLevel::Strict && file_name != DOCUMENT {
        let message = format!("the document must be named SKILL.md, not {file_name}");
        report.add_problem("document-name", None, message);
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("not valid UTF-8 at byte {}", error.valid_up_to());
            report.add_problem("not-utf8", None, message);
            return report.problems;
        }
    };
    match split_document(text).and_then(|cut| Frontmatter::parse(cut.yaml, 2)) {
        Ok(front) => report.check_frontmatter(folder, &front),
        Err(error) => report.add_parse_error(&error),
    }
    report.problems
}

struct ValidationReport {
    level: ValidationLevel,
    problems: Vec<ValidationProblem>,
}

impl ValidationReport {
    fn add_problem(&mut self, code: &'static str, line: Option<usize>, message: impl Into<String>) {
        self.problems.push(ValidationProblem {
            code,
            line,
            message: message.into(),
        });
    }

    fn add_parse_error(&mut self, error: &Error) {
        let (line, rule) = match error {
            Error::NoFrontmatter { line, rule } => (*line, (*rule).to_owned()),
            Error::Frontmatter { line, rule } | Error::FrontmatterSyntax { line, rule } => {
                (*line, rule.clone())
            }
            Error::FrontmatterBudget { line, rule } => {
                (*line, format!("frontmatter is too large: {rule}"))
            }
            other => (1, other.to_string()),
        };
        self.add_problem("frontmatter", Some(line), rule);
    }

    fn check_frontmatter(&mut self, folder: &str, front: &Frontmatter) {
        for (line, oddity) in front.unsupported_yaml() {
            let message = match oddity {
                UnsupportedYaml::Flow => {
                    "flow collections `{…}` and `[…]` are not accepted: write one item per line"
                }
                UnsupportedYaml::Anchor => {
                    "anchors and aliases are not accepted: write the value out"
                }
                UnsupportedYaml::Indentation => "sibling mappings must have the same indentation",
            };
            self.add_problem("yaml-subset", Some(*line), message);
        }
        for field in front.fields() {
            if !ALLOWED_FIELDS.contains(&field.key.as_str()) {
                let message = format!(
                    "unexpected field `{}`: allowed are {}; put your own under `metadata`",
                    field.key,
                    ALLOWED_FIELDS.join(", ")
                );
                self.add_problem("unexpected-field", Some(field.line), message);
            }
        }
        match front.get("name") {
            Some(field) => self.check_name(folder, field),
            None => self.add_problem("missing-field", Some(1), "missing required field `name`"),
        }
        match front.get("description") {
            Some(field) => self.check_description(field),
            None => self.add_problem(
                "missing-field",
                Some(1),
                "missing required field `description`",
            ),
        }
        if let Some(field) = front.get("compatibility") {
            self.check_compatibility(field);
        }
        if self.level == ValidationLevel::Strict {
            self.check_strict_types(front);
        }
    }

    fn check_name(&mut self, folder: &str, field: &FrontmatterField) {
        let line = Some(field.line);
        let text = field.text.as_deref().unwrap_or_default().trim();
        if text.is_empty() {
            self.add_problem("name-empty", line, "`name` must be a non-empty string");
            return;
        }
        let name: String = text.nfkc().collect();
        let length = name.chars().count();
        if length > 64 {
            self.add_problem(
                "name-length",
                line,
                format!("`name` has {length} characters, at most 64"),
            );
        }
        if name != name.to_lowercase() {
            self.add_problem(
                "name-case",
                line,
                format!("`name` {name:?} must be lowercase"),
            );
        }
        if name.starts_with('-') || name.ends_with('-') {
            self.add_problem(
                "name-hyphen",
                line,
                "`name` must not start or end with a hyphen",
            );
        }
        if name.contains("--") {
            self.add_problem(
                "name-hyphen",
                line,
                "`name` must not contain two hyphens in a row",
            );
        }
        let allowed = |c: char| c == '-' || (c.is_alphanumeric() && !is_combining_mark(c));
        if !name.chars().all(allowed) {
            let message =
                format!("`name` {name:?} has characters other than letters, digits and hyphens");
            self.add_problem("name-characters", line, message);
        } else if self.level == ValidationLevel::Strict && !text.is_ascii() {
            let message = format!("`name` {name:?} has letters outside a-z");
            self.add_problem("name-characters", line, message);
        }
        if folder.nfkc().collect::<String>() != name {
            let message = format!("folder {folder:?} must have the name of the skill, {name:?}");
            self.add_problem("name-folder", line, message);
        }
    }

    fn check_description(&mut self, field: &FrontmatterField) {
        let line = Some(field.line);
        let text = field.text.as_deref().unwrap_or_default();
        let length = text.chars().count();
        if text.trim().is_empty() {
            self.add_problem(
                "description-empty",
                line,
                "`description` must be a non-empty string",
            );
        } else if length > 1024 {
            let message = format!("`description` has {length} characters, at most 1024");
            self.add_problem("description-length", line, message);
        }
    }

    fn check_compatibility(&mut self, field: &FrontmatterField) {
        let line = Some(field.line);
        let Some(text) = field.text.as_deref() else {
            self.add_problem("field-type", line, "`compatibility` must be a string");
            return;
        };
        let length = text.chars().count();
        if length > 500 {
            let message = format!("`compatibility` has {length} characters, at most 500");
            self.add_problem("compatibility-length", line, message);
        } else if self.level == ValidationLevel::Strict && text.trim().is_empty() {
            self.add_problem(
                "compatibility-empty",
                line,
                "`compatibility` must be non-empty if present",
            );
        }
    }

    fn check_strict_types(&mut self, front: &Frontmatter) {
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
                self.add_problem("field-type", Some(field.line), message);
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
                            self.add_problem("field-type", line.or(Some(field.line)), message);
                        }
                    }
                }
                _ => self.add_problem(
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

    fn problem_codes(folder: &str, document: &str, level: ValidationLevel) -> Vec<&'static str> {
        validate_skill(folder, Some(("SKILL.md", document.as_bytes())), level)
            .into_iter()
            .map(|p| p.code)
            .collect()
    }

    #[test]
    fn every_problem_is_reported_with_its_line() {
        let document = "---\nname: Bad--Name-\nextra: 1\ndescription: ''\n---\n";
        let problems = validate_skill(
            "x",
            Some(("SKILL.md", document.as_bytes())),
            ValidationLevel::Reference,
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
    fn the_strict_level_enforces_the_specification() {
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
                problem_codes(folder, document, ValidationLevel::Reference).is_empty(),
                "{document}"
            );
            assert_eq!(
                problem_codes(folder, document, ValidationLevel::Strict),
                [code],
                "{document}"
            );
        }
        let lower = validate_skill(
            "a",
            Some(("skill.md", b"---\nname: a\ndescription: d\n---\n")),
            ValidationLevel::Strict,
        );
        assert_eq!(lower[0].code, "document-name");
    }
}
