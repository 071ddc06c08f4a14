//! What is chosen after a search, kept so that later rankings learn from it.
//!
//! Uses are kept for each client alone: what one chooses never shows in the results of another. The
//! text of a message is kept only if the settings allow it.

use std::sync::Arc;

use repertoire_core::SkillId;
use repertoire_registry::{
    Registry,
    search::{ModelKind, SentenceEncoder, SkillUse, Vector},
    store::NewSkillUse,
};

/// The owner of what the user of this machine chooses.
pub(crate) const LOCAL_OWNER: &str = "user";

/// What is kept of searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsagePolicy {
    /// Whether choices are kept at all.
    pub learn: bool,
    /// Whether the text of messages is kept too; otherwise only their embeddings are.
    pub keep_text: bool,
}

impl Default for UsagePolicy {
    fn default() -> Self {
        Self {
            learn: true,
            keep_text: false,
        }
    }
}

/// Stores choices.
#[derive(Debug, Clone)]
pub struct UseRecorder {
    registry: Arc<Registry>,
    policy: UsagePolicy,
}

impl UseRecorder {
    /// Stores choices in the local store of a registry, if it has one.
    pub fn new(registry: &Arc<Registry>, policy: UsagePolicy) -> Self {
        Self {
            registry: registry.clone(),
            policy,
        }
    }

    /// Whether choices are kept.
    pub fn is_on(&self) -> bool {
        self.policy.learn
    }

    /// Records that a client chose a skill for a message. Without it, search works as well, so an
    /// error is only logged.
    pub fn record(
        &self,
        owner: &str,
        skill: &SkillId,
        message: &str,
        model: ModelKind,
        vector: &Vector,
    ) {
        let store = self.registry.local_store().ok();
        let Some(store) = store.filter(|store| self.policy.learn && store.is_writable()) else {
            return;
        };
        let stored = store.put_skill_use(NewSkillUse {
            owner: owner.to_owned(),
            skill: skill.as_str().to_owned(),
            model: model.published_name().to_owned(),
            vector: vector.to_bytes(),
            message: self.policy.keep_text.then(|| message.to_owned()),
        });
        if let Err(error) = stored {
            tracing::debug!(%error, "what was chosen in a search could not be stored");
        }
    }
}

/// What a client chose before. Without embeddings nothing is known of it, and nothing counts if the
/// settings do not allow it.
pub fn uses_of(
    registry: &Registry,
    encoder: Option<&SentenceEncoder>,
    owner: &str,
    policy: UsagePolicy,
) -> Vec<SkillUse> {
    let encoder = encoder.filter(|_| policy.learn);
    let Some((encoder, store)) = encoder.zip(registry.local_store().ok()) else {
        return Vec::new();
    };
    let kind = encoder.kind();
    let stored = store.skill_uses(owner, kind.published_name());
    let stored = stored.unwrap_or_default().into_iter();
    stored
        .filter_map(|one| {
            Some(SkillUse {
                skill: one.skill.parse().ok()?,
                message: Vector::from_bytes(&one.vector, kind.dimensions())?,
            })
        })
        .collect()
}
