//! The texts of a skill that search uses.

use repertoire_core::{Digest, Hasher, SkillId, frontmatter};

use super::{
    duplicates::TextSignature,
    text::{lowercase_words, terms},
};
use crate::{catalogue::SkillEntry, origin::Trusted, registry::Registry};

/// How many characters of a document are indexed.
const BODY_CHARS: usize = 4_000;
/// The most example messages of one skill that count, trigger phrases included.
pub(super) const MAX_EXAMPLES: usize = 12;
/// A description with fewer terms beside those of the name says nothing.
const MIN_DESCRIPTION_TERMS: usize = 3;
/// Words of descriptions that say nothing about the task.
const EMPTY_WORDS: &[&str] = &[
    "advanced",
    "agent",
    "ai",
    "anything",
    "assist",
    "assistant",
    "assists",
    "automation",
    "capabilities",
    "capability",
    "command",
    "commands",
    "comprehensive",
    "easy",
    "everything",
    "expert",
    "feature",
    "features",
    "general",
    "good",
    "great",
    "guide",
    "handle",
    "handles",
    "handling",
    "help",
    "helper",
    "helpers",
    "helpful",
    "helps",
    "instruction",
    "instructions",
    "kind",
    "kinds",
    "manage",
    "management",
    "needed",
    "needs",
    "operation",
    "operations",
    "perform",
    "powerful",
    "pro",
    "provides",
    "purpose",
    "related",
    "request",
    "requests",
    "simple",
    "skill",
    "skills",
    "smart",
    "stuff",
    "support",
    "supports",
    "task",
    "tasks",
    "tool",
    "toolkit",
    "tools",
    "topic",
    "topics",
    "ultimate",
    "used",
    "useful",
    "user",
    "users",
    "utilities",
    "utility",
    "various",
    "whenever",
    "work",
    "workflow",
    "workflows",
    "working",
    "works",
];

/// The indexed texts of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SkillDocument {
    id: SkillId,
    name: String,
    description: String,
    /// What people say when they need the skill, of a trusted one: its trigger phrases, then
    /// example messages.
    examples: Vec<String>,
    examples_text: String,
    body: String,
    phrases: Vec<String>,
    is_trusted: bool,
}

impl SkillDocument {
    /// Reads the texts of a skill, without example messages that were written for it.
    pub(super) fn from_entry(registry: &Registry, entry: &SkillEntry) -> Self {
        let head = &entry.metadata;
        let is_trusted = entry.trusted == Trusted::Yes;
        let (mut hints, mut phrases) = (Vec::new(), Vec::new());
        if let Some(package) = &head.package {
            hints.extend(package.tags.iter().cloned());
            hints.extend(package.intent_patterns.iter().cloned());
            phrases.clone_from(&package.trigger_phrases);
        }
        // If the document cannot be read now, the skill is found by its other fields.
        let body = if entry.is_remote() || entry.is_on_bus() {
            String::new()
        } else {
            let bytes = registry.read_body(entry).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            let body = frontmatter::strip_frontmatter(&text).chars();
            body.take(BODY_CHARS).collect()
        };
        let mut examples = Vec::new();
        if is_trusted {
            examples.extend(phrases.iter().take(MAX_EXAMPLES).cloned());
        }
        hints.extend(examples.iter().cloned());
        let name = entry.id.as_str().replace(['/', '-', '_'], " ");
        Self {
            id: entry.id.clone(),
            // The title is in the body, unless that cannot be read.
            name: match head.title.as_deref().filter(|_| body.is_empty()) {
                Some(title) => format!("{name} {title}"),
                None => name,
            },
            description: head.description.as_deref().unwrap_or_default().to_owned(),
            examples_text: hints.join(" . "),
            examples,
            body,
            phrases,
            is_trusted,
        }
    }

    /// Adds example messages that were written for the skill. An untrusted skill gets none: its body
    /// could have dictated them.
    pub(super) fn add_examples(&mut self, written: Vec<String>) {
        if !self.is_trusted {
            return;
        }
        for message in written {
            if self.examples.len() < MAX_EXAMPLES {
                self.examples_text.push_str(" . ");
                self.examples_text.push_str(&message);
                self.examples.push(message);
            }
        }
    }

    /// Identifies the texts from which example messages are written.
    pub(super) fn text_digest(&self) -> Digest {
        let mut hasher = Hasher::default();
        for text in [&self.name, &self.description, &self.body] {
            hasher.update(text.as_bytes());
            hasher.update(&[0]);
        }
        hasher.finish()
    }

    pub(super) fn id(&self) -> &SkillId {
        &self.id
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn description(&self) -> &str {
        &self.description
    }

    pub(super) fn body(&self) -> &str {
        &self.body
    }

    /// Tags, intent patterns, trigger phrases and example messages, as one text.
    pub(super) fn examples_text(&self) -> &str {
        &self.examples_text
    }

    /// What people say when they need the skill.
    pub(super) fn examples(&self) -> &[String] {
        &self.examples
    }

    pub(super) fn phrases(&self) -> &[String] {
        &self.phrases
    }

    pub(super) fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// Returns the names by which a message can refer to it: the whole id, and its last part.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names = [self.id.as_str(), self.id.name()].map(|name| {
            let words = lowercase_words(name);
            words.join(" ")
        });
        names.sort_unstable();
        let mut names: Vec<String> = names.into();
        names.dedup();
        names.retain(|name| !name.is_empty());
        names
    }

    /// Whether the description says nothing that the name does not say.
    pub(super) fn is_vague(&self) -> bool {
        let name: Vec<String> = terms(&self.name).collect();
        let words = lowercase_words(&self.description);
        let telling = words
            .iter()
            .filter(|word| EMPTY_WORDS.binary_search(&word.as_str()).is_err())
            .flat_map(|word| terms(word).collect::<Vec<_>>())
            .filter(|term| !name.contains(term));
        let mut telling: Vec<String> = telling.collect();
        telling.sort_unstable();
        telling.dedup();
        telling.len() < MIN_DESCRIPTION_TERMS
    }

    /// A signature by which near-duplicates are recognised.
    pub(super) fn signature(&self) -> TextSignature {
        TextSignature::of_terms(terms(&self.description).chain(terms(&self.body)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(id: &str, description: &str) -> SkillDocument {
        SkillDocument {
            id: id.parse().unwrap(),
            name: id.replace('-', " "),
            description: description.to_owned(),
            examples: Vec::new(),
            examples_text: String::new(),
            body: String::new(),
            phrases: Vec::new(),
            is_trusted: true,
        }
    }

    #[test]
    fn descriptions_that_repeat_the_name_are_vague() {
        assert!(EMPTY_WORDS.is_sorted());
        for (id, description, is_vague) in [
            (
                "redis-cli-commands",
                "Use when working with Redis CLI commands.",
                true,
            ),
            (
                "helper",
                "A powerful toolkit that helps users with various tasks.",
                true,
            ),
            ("empty", "", true),
            (
                "tide-tables",
                "Tells when the sea is high in a harbour.",
                false,
            ),
            ("kite-making", "Builds kites of paper and bamboo.", false),
        ] {
            assert_eq!(document(id, description).is_vague(), is_vague, "{id}");
        }
    }

    #[test]
    fn a_nested_skill_has_two_names() {
        assert_eq!(
            document("ops/roll-back", "").names(),
            ["ops roll back", "roll back"]
        );
        assert_eq!(document("keep", "").names(), ["keep"]);
    }
}
