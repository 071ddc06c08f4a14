//! A skill defined in code: a name, a document, supporting files.
//!
//! A program uses this type to provide its own skills; folders and stores provide theirs as files.
//! Every surface is rendered from the same value, so resources and prompt text always agree.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    error::{Error, Result, input_excerpt},
    frontmatter::{self, Frontmatter},
    id::SkillId,
    markdown::{MarkdownSummary, to_single_line},
    mime,
    path::RelPath,
    surface,
    uri::Uri,
};

/// A supporting file of a [`Skill`].
///
/// ```
/// use repertoire_core::SkillReference;
///
/// let schema = SkillReference::new("references/schema.graphql", "application/graphql", "type Query");
/// assert_eq!(schema.path(), "references/schema.graphql");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillReference {
    path: String,
    mime: String,
    body: Bytes,
}

impl SkillReference {
    /// A text file; its path is checked when it is added to a skill.
    pub fn new(
        path: impl Into<String>,
        mime_type: impl Into<String>,
        body: impl Into<String>,
    ) -> Self {
        Self::binary(path, mime_type, body.into())
    }

    /// A file of any bytes.
    pub fn binary(
        path: impl Into<String>,
        mime_type: impl Into<String>,
        body: impl Into<Bytes>,
    ) -> Self {
        Self {
            path: path.into(),
            mime: mime_type.into(),
            body: body.into(),
        }
    }

    /// Its path below the skill's root, as given.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its MIME type.
    pub fn mime_type(&self) -> &str {
        &self.mime
    }

    /// Its bytes.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Its text, if it is a text file that prompts inline.
    pub fn text(&self) -> Option<&str> {
        mime::is_text(&self.mime)
            .then(|| std::str::from_utf8(&self.body).ok())
            .flatten()
    }
}

/// A skill with its document and supporting files, in the order they were added.
///
/// ```
/// use repertoire_core::{Skill, SkillReference};
///
/// let skill = Skill::new("greeting", "---\nname: greeting\ndescription: Greets.\n---\n# Greeting\n")
///     .with_path("acme/greeting")
///     .with_reference(SkillReference::new("references/tone.md", "text/markdown", "Be warm."));
/// assert_eq!(skill.uri()?, "skill://acme/greeting/SKILL.md");
/// assert!(skill.as_prompt_text().ends_with("\n--- references/tone.md ---\nBe warm.\n"));
/// # Ok::<(), repertoire_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    name: String,
    body: String,
    path: Option<String>,
    description: Option<String>,
    references: Vec<SkillReference>,
}

impl Skill {
    /// A skill whose `SKILL.md` is `body`, byte for byte.
    ///
    /// A body that opens with frontmatter naming this skill is served in every form. One without
    /// is readable and listed as a resource, and stays out of `skills/list`, whose entries are
    /// verified against the frontmatter.
    pub fn new(name: impl Into<String>, body: impl Into<String>) -> Self {
        let body = body.into();
        let description = derive_description(&body);
        Self {
            name: name.into(),
            body,
            path: None,
            description,
            references: Vec::new(),
        }
    }

    /// Serves it under this path instead of its name: `acme/billing/refunds`.
    pub fn with_path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Sets the description shown in listings, instead of the one from the document.
    pub fn with_description(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// Adds a supporting file that is known to be valid, such as one written in the source.
    ///
    /// # Panics
    ///
    /// When [`try_with_reference`](Self::try_with_reference) would refuse it.
    #[allow(
        clippy::panic,
        reason = "the form for files that are written in the source"
    )]
    pub fn with_reference(self, reference: SkillReference) -> Self {
        match self.try_with_reference(reference) {
            Ok(skill) => skill,
            Err(error) => panic!("{error}"),
        }
    }

    /// Adds a supporting file; refuses a path that could leave the skill or is there already.
    ///
    /// ```
    /// use repertoire_core::{Skill, SkillReference};
    ///
    /// let bad = SkillReference::new("../secrets", "text/plain", "");
    /// assert!(Skill::new("demo", "# Demo").try_with_reference(bad).is_err());
    /// ```
    pub fn try_with_reference(mut self, reference: SkillReference) -> Result<Self> {
        let path = &reference.path;
        if path.contains("://") {
            return Err(Error::Path {
                path: input_excerpt(path),
                rule: "is a URI; write a path relative to the skill",
            });
        }
        RelPath::parse_reference(path)?;
        if self.references.iter().any(|r| r.path == *path) {
            return Err(Error::DuplicatePath(input_excerpt(path)));
        }
        self.references.push(reference);
        Ok(self)
    }

    /// The name it was made with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The document.
    pub fn body(&self) -> &str {
        &self.body
    }

    /// The description shown in listings: the one set, or the document's.
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// The supporting files, in the order they were added.
    pub fn references(&self) -> &[SkillReference] {
        &self.references
    }

    /// Its id: the path, or the name.
    pub fn id(&self) -> Result<SkillId> {
        self.path.as_deref().unwrap_or(&self.name).parse()
    }

    /// The URI of its document.
    pub fn uri(&self) -> Result<String> {
        Ok(Uri::for_document(&self.id()?).to_string())
    }

    /// Renders the whole skill as one text, for hosts without resources.
    pub fn as_prompt_text(&self) -> String {
        let references = self.references.iter().filter_map(|reference| {
            // Every path was parsed when it was added.
            Some((reference.path.parse::<RelPath>().ok()?, reference.text()?))
        });
        let references: Vec<_> = references.collect();
        surface::prompt_text(&self.body, references.iter().map(|(p, t)| (p, *t)))
    }

    /// The frontmatter, if it is valid for a skill with this id.
    pub fn frontmatter(&self) -> Result<Frontmatter> {
        let id = self.id()?;
        let front = Frontmatter::parse(frontmatter::split_document(&self.body)?.yaml, 2)?;
        let field = |field: &str, rule: String| Error::Field {
            field: field.to_owned(),
            rule,
        };
        if front.get_text("name") != Some(id.name()) || id.skill_name().is_none() {
            let rule = format!("must be `{}`, the last part of its path", id.name());
            return Err(field("name", rule));
        }
        if front
            .get_text("description")
            .is_none_or(|d| d.trim().is_empty())
        {
            let rule = "must be there, as non-empty text".to_owned();
            return Err(field("description", rule));
        }
        Ok(front)
    }
}

fn derive_description(body: &str) -> Option<String> {
    let yaml = frontmatter::split_document(body).ok().map(|cut| cut.yaml);
    yaml.and_then(|yaml| Frontmatter::parse(yaml, 2).ok())
        .and_then(|front| front.get_text("description").map(to_single_line))
        .filter(|description| !description.is_empty())
        .or_else(|| MarkdownSummary::from_markdown(body).summary)
}

/// A collection of skills.
///
/// ```
/// use repertoire_core::{Skill, Skills};
///
/// let ours = Skills::new().add(Skill::new("a", "# A"));
/// let all = ours.merge(Skills::new().add(Skill::new("b", "# B")));
/// assert_eq!(all.len(), 2);
/// all.check_uris()?;
/// # Ok::<(), repertoire_core::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skills(Vec<Skill>);

impl Skills {
    /// Creates an empty collection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a skill.
    #[allow(
        clippy::should_implement_trait,
        reason = "adding a skill is not arithmetic"
    )]
    pub fn add(mut self, skill: Skill) -> Self {
        self.0.push(skill);
        self
    }

    /// Adds all of another collection.
    pub fn merge(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, in the order they were added.
    pub fn iter(&self) -> std::slice::Iter<'_, Skill> {
        self.0.iter()
    }

    /// Refuses invalid ids and reports every URI that two skills claim.
    pub fn check_uris(&self) -> Result<()> {
        let mut claims: BTreeMap<String, usize> = BTreeMap::new();
        for skill in &self.0 {
            let id = skill.id()?;
            *claims
                .entry(Uri::for_document(&id).to_string())
                .or_default() += 1;
            for reference in &skill.references {
                let uri = Uri::for_file(&id, &reference.path.parse()?);
                *claims.entry(uri.to_string()).or_default() += 1;
            }
        }
        let twice = claims.into_iter().filter(|(_, count)| *count > 1);
        let twice: Vec<String> = twice.map(|(uri, _)| uri).collect();
        if twice.is_empty() {
            return Ok(());
        }
        Err(Error::DuplicateUris(twice))
    }
}

impl IntoIterator for Skills {
    type Item = Skill;
    type IntoIter = std::vec::IntoIter<Skill>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Skills {
    type Item = &'a Skill;
    type IntoIter = std::slice::Iter<'a, Skill>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<Skill> for Skills {
    fn from_iter<T: IntoIterator<Item = Skill>>(skills: T) -> Self {
        Self(skills.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_reference(path: &str) -> SkillReference {
        SkillReference::new(path, "text/markdown", "x")
    }

    #[test]
    fn reference_paths_are_checked() {
        for (path, code) in [
            ("", "invalid_path"),
            ("a\0b", "invalid_path"),
            ("SKILL.md", "invalid_path"),
            ("a/../b", "invalid_path"),
            ("..", "invalid_path"),
            ("/etc/passwd", "invalid_path"),
            ("https://x.test/a", "invalid_path"),
        ] {
            let refused = Skill::new("a", "# A").try_with_reference(text_reference(path));
            assert_eq!(refused.unwrap_err().code(), code, "{path:?}");
        }
        let skill = Skill::new("a", "# A").with_reference(text_reference("b.md"));
        let again = skill.try_with_reference(text_reference("b.md"));
        assert_eq!(again.unwrap_err().code(), "duplicate_path");
    }

    #[test]
    #[should_panic(expected = "../x")]
    fn an_invalid_reference_path_panics() {
        let _ = Skill::new("a", "# A").with_reference(text_reference("../x"));
    }

    #[test]
    fn references_keep_their_order_and_binary_ones_stay_out_of_the_text() {
        let skill = Skill::new("a", "body")
            .with_reference(text_reference("z.md"))
            .with_reference(SkillReference::binary("y.png", "image/png", vec![0xff]))
            .with_reference(text_reference("b.md"));
        assert_eq!(
            skill.as_prompt_text(),
            "body\n\n--- z.md ---\nx\n\n--- b.md ---\nx\n"
        );
    }

    #[test]
    fn every_duplicate_uri_is_reported_at_once() {
        let all = Skills::new()
            .add(Skill::new("a", "# A").with_reference(text_reference("b/SKILL.md")))
            .add(Skill::new("b", "# B").with_path("a/b"))
            .add(Skill::new("c", "# C"))
            .merge(Skills::new().add(Skill::new("c", "# C")));
        let error = all.check_uris().unwrap_err();
        assert_eq!(error.code(), "duplicate_uri");
        assert!(error.to_string().contains("skill://a/b/SKILL.md"));
        assert!(error.to_string().contains("skill://c/SKILL.md"));
    }

    #[test]
    fn a_description_comes_from_the_document_unless_set() {
        let front = "---\nname: a\ndescription: From the front.\n---\n# A\n\nFrom the body.\n";
        assert_eq!(
            Skill::new("a", front).description(),
            Some("From the front.")
        );
        let bare = Skill::new("a", "# A\n\nFrom the body.\n");
        assert_eq!(bare.description(), Some("From the body."));
        assert_eq!(bare.with_description("Set.").description(), Some("Set."));
    }
}
