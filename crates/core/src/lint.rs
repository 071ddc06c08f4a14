//! Advice on a skill: risky, broken or hard-to-find content, with file, line, reason and remedy.
//!
//! Lint never refuses. Validation decides whether a skill is valid; lint reports whether it is
//! useful and safe. Metadata is checked with the same rules as the body.

mod fix;
mod rules;
mod shell;

pub use fix::fix_document;

use crate::{
    frontmatter::Frontmatter,
    mime,
    path::{DOCUMENT, RelPath},
};

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LintSeverity {
    /// Worth knowing.
    Info,
    /// Worth changing.
    Warning,
    /// Review the skill before using it.
    Error,
}

impl LintSeverity {
    /// The word shown to people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A rule of the linter.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub struct LintRule {
    /// The stable id.
    pub id: &'static str,
    /// How serious a violation is.
    pub severity: LintSeverity,
    /// What it looks for.
    pub about: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
}

/// One violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct LintFinding {
    /// The rule.
    #[serde(serialize_with = "rule_id")]
    pub rule: &'static LintRule,
    /// The file.
    pub path: String,
    /// The line, from 1.
    pub line: usize,
    /// What was found there.
    pub reason: String,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature serde calls"
)]
fn rule_id<S: serde::Serializer>(rule: &&'static LintRule, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(rule.id)
}

/// Every rule there is.
pub fn all_rules() -> &'static [&'static LintRule] {
    rules::ALL
}

/// The input of the linter: the names of all files and the content of text files.
#[derive(Debug, Default)]
pub struct LintSubject<'a> {
    files: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> LintSubject<'a> {
    /// Adds a file; only the name of a binary file is used.
    pub fn add_file(&mut self, path: &'a RelPath, bytes: &'a [u8]) {
        let text = mime::is_text(mime::of_path(path.as_str()))
            .then(|| std::str::from_utf8(bytes).ok())
            .flatten();
        self.files.push((path.as_str(), text));
    }

    fn has_file(&self, path: &str) -> bool {
        let beneath = format!("{}/", path.trim_end_matches('/'));
        self.files
            .iter()
            .any(|(p, _)| *p == path || p.starts_with(&beneath))
    }
}

/// Checks a skill against every rule.
///
/// ```
/// use repertoire_core::{RelPath, lint::{LintSubject, lint_skill}};
///
/// let document = RelPath::document();
/// let mut subject = LintSubject::default();
/// subject.add_file(&document, b"---\nname: a\ndescription: Does things.\n---\nSee [x](missing.md).\n");
/// let found: Vec<_> = lint_skill(&subject).iter().map(|f| (f.rule.id, f.line)).collect();
/// assert_eq!(found, [("vague-description", 3), ("broken-link", 5)]);
/// # Ok::<(), repertoire_core::Error>(())
/// ```
pub fn lint_skill(subject: &LintSubject<'_>) -> Vec<LintFinding> {
    let mut out = Vec::new();
    let is_document = |(path, _): &&(&str, _)| path.eq_ignore_ascii_case(DOCUMENT);
    let mut documents = subject.files.iter().filter(is_document);
    if let (Some((path, _)), false) = (documents.next(), subject.has_file(DOCUMENT)) {
        let reason = "hosts look for SKILL.md: rename it".to_owned();
        rules::report_invalid_document(path, 1, reason, &mut out);
    }
    for &(path, text) in &subject.files {
        let Some(text) = text else {
            if path == DOCUMENT {
                rules::report_invalid_document(path, 1, "not valid UTF-8".to_owned(), &mut out);
            }
            continue;
        };
        rules::check_hidden_characters(path, text, &mut out);
        rules::check_lines(path, text, &mut out);
        if crate::mime::of_path(path) == "text/markdown" {
            rules::check_links(subject, path, text, &mut out);
        }
        if path == DOCUMENT {
            rules::check_document(path, text, &mut out);
            rules::check_listing(path, text, &mut out);
            let plain = text.strip_prefix('\u{feff}').unwrap_or(text);
            if let Ok(front) = Frontmatter::from_document(plain) {
                rules::check_metadata(path, &front, text, &mut out);
            }
        }
        if path == crate::package::PACKAGE_FILE {
            rules::check_package(path, text, &mut out);
        }
    }
    out.sort_by(|a, b| (&a.path, a.line, a.rule.id).cmp(&(&b.path, b.line, b.rule.id)));
    out
}

/// A finding that a skill is not in listings, for what only its place among others shows.
pub fn listing_finding(problem: &crate::listing::ListingProblem) -> LintFinding {
    let mut found = Vec::new();
    rules::report_unlisted(DOCUMENT, problem, &mut found);
    found.remove(0)
}

/// Applies every fix that needs no decision by the author; returns `None` if nothing changes.
///
/// ```
/// use repertoire_core::lint::apply_fixes;
///
/// let fixed = apply_fixes("See [more](iii://demo/demo::guide).");
/// assert_eq!(fixed.as_deref(), Some("See [more](iii://fn/demo/guide)."));
/// assert_eq!(apply_fixes("See [more](iii://fn/demo/guide)."), None);
/// ```
pub fn apply_fixes(text: &str) -> Option<String> {
    rules::fix_old_links(text)
}

#[cfg(test)]
mod tests;
