//! Advice on a skill: what is risky, broken or hard to find, with file, line, reason and remedy.
//!
//! Lint never refuses. Validation says whether a skill is one; lint says whether it is a good and
//! an honest one. Metadata is read with the same eyes as the body.

mod rules;

use crate::{
    frontmatter::Frontmatter,
    mime,
    path::{DOCUMENT, RelPath},
};

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Worth changing.
    Warning,
    /// Do not use the skill before someone has looked.
    Error,
}

impl Severity {
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
pub struct Rule {
    /// The stable id.
    pub id: &'static str,
    /// How much a break of it matters.
    pub severity: Severity,
    /// What it looks for.
    pub about: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
}

/// One place that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// The rule.
    #[serde(serialize_with = "rule_id")]
    pub rule: &'static Rule,
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
fn rule_id<S: serde::Serializer>(rule: &&'static Rule, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(rule.id)
}

/// Every rule there is.
pub fn rules() -> &'static [&'static Rule] {
    rules::ALL
}

/// A skill as the linter sees it: the names of all files, the text of those that are text.
#[derive(Debug, Default)]
pub struct Subject<'a> {
    files: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> Subject<'a> {
    /// Adds a file; bytes that are not text are known by name only.
    pub fn add(&mut self, path: &'a RelPath, bytes: &'a [u8]) {
        let text = mime::is_text(mime::of_path(path.as_str()))
            .then(|| std::str::from_utf8(bytes).ok())
            .flatten();
        self.files.push((path.as_str(), text));
    }

    fn has(&self, path: &str) -> bool {
        let beneath = format!("{}/", path.trim_end_matches('/'));
        self.files
            .iter()
            .any(|(p, _)| *p == path || p.starts_with(&beneath))
    }
}

/// Looks at a skill with every rule.
///
/// ```
/// use repertoire_core::{RelPath, lint::{Subject, lint}};
///
/// let document = RelPath::document();
/// let mut subject = Subject::default();
/// subject.add(&document, b"---\nname: a\ndescription: Does things.\n---\nSee [x](missing.md).\n");
/// let found: Vec<_> = lint(&subject).iter().map(|f| (f.rule.id, f.line)).collect();
/// assert_eq!(found, [("vague-description", 3), ("broken-link", 5)]);
/// # Ok::<(), repertoire_core::Error>(())
/// ```
pub fn lint(subject: &Subject<'_>) -> Vec<Finding> {
    let mut out = Vec::new();
    for &(path, text) in &subject.files {
        let Some(text) = text else {
            if path == DOCUMENT {
                rules::not_a_document(path, 1, "not valid UTF-8".to_owned(), &mut out);
            }
            continue;
        };
        rules::hidden_characters(path, text, &mut out);
        rules::lines(path, text, &mut out);
        if crate::mime::of_path(path) == "text/markdown" {
            rules::links(subject, path, text, &mut out);
        }
        if path == DOCUMENT {
            rules::document(path, text, &mut out);
            match Frontmatter::of(text) {
                Ok(front) => rules::metadata(path, &front, text, &mut out),
                Err(error) => rules::not_a_document(path, 1, error.to_string(), &mut out),
            }
        }
        if path == crate::package::PACKAGE_FILE {
            rules::package(path, text, &mut out);
        }
    }
    out.sort_by(|a, b| (&a.path, a.line, a.rule.id).cmp(&(&b.path, b.line, b.rule.id)));
    out
}

/// A text with everything put right that can be put right without asking; `None` if there is
/// nothing.
///
/// ```
/// use repertoire_core::lint::fix;
///
/// let fixed = fix("See [more](iii://demo/demo::guide).");
/// assert_eq!(fixed.as_deref(), Some("See [more](iii://fn/demo/guide)."));
/// assert_eq!(fix("See [more](iii://fn/demo/guide)."), None);
/// ```
pub fn fix(text: &str) -> Option<String> {
    rules::fix_old_links(text)
}

#[cfg(test)]
mod tests;
