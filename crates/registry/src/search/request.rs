//! What is searched for, and what was found.

use repertoire_core::SkillId;
use repertoire_embed::Vector;
use serde::Serialize;

use super::{
    gate::{GateDecision, GateFeatures},
    lexical::CorpusStatistics,
    score::Recommendation,
    usage::SkillUse,
};

/// How skills were compared with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchMethod {
    /// By the terms they share.
    Words,
    /// By terms and by embeddings.
    Meaning,
}

impl SearchMethod {
    /// The name, as users know it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Words => "words",
            Self::Meaning => "words and meaning",
        }
    }
}

/// What is searched for.
#[derive(Clone, Copy)]
pub struct SearchRequest<'a> {
    /// The message.
    pub message: &'a str,
    /// The most results.
    pub limit: usize,
    /// The method; without one, embeddings are used if there are enough.
    pub method: Option<SearchMethod>,
    /// The embedding of the message, if it was computed already.
    pub vector: Option<&'a Vector>,
    /// What the same client chose before.
    pub uses: &'a [SkillUse],
    /// The rarity of words, instead of that in the index.
    pub statistics: Option<&'a CorpusStatistics>,
    /// The skills that the caller may know of; all by default. Others have no influence at all, not
    /// even on the rarity of words.
    pub is_visible: Option<&'a (dyn Fn(&SkillId) -> bool + Sync)>,
    /// The skills that the search is about. The others take no place from them, however many there
    /// are.
    pub is_wanted: &'a (dyn Fn(&SkillId) -> bool + Sync),
}

impl<'a> SearchRequest<'a> {
    /// Searches all skills.
    pub fn new(message: &'a str, limit: usize) -> Self {
        Self {
            message,
            limit,
            method: None,
            vector: None,
            uses: &[],
            statistics: None,
            is_visible: None,
            is_wanted: &|_| true,
        }
    }

    /// Searches some skills.
    #[must_use]
    pub fn among(mut self, is_wanted: &'a (dyn Fn(&SkillId) -> bool + Sync)) -> Self {
        self.is_wanted = is_wanted;
        self
    }

    /// Uses one method instead of the best one that is available.
    #[must_use]
    pub fn by(mut self, method: SearchMethod) -> Self {
        self.method = Some(method);
        self
    }
}

impl std::fmt::Debug for SearchRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SearchRequest")
            .field("message", &self.message)
            .field("limit", &self.limit)
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SearchOutcome {
    /// The best skills, best first, whether anything fits or not.
    pub skills: Vec<Recommendation>,
    /// Whether anything fits.
    pub decision: GateDecision,
    /// What the decision depends on.
    pub features: GateFeatures,
    /// How skills were compared.
    pub method: SearchMethod,
    /// How many skills have no embedding yet.
    pub pending: usize,
}

impl SearchOutcome {
    /// The skills to show: the best ones if something fits, otherwise none.
    pub fn fitting(&self) -> &[Recommendation] {
        if self.decision.is_open {
            &self.skills
        } else {
            &[]
        }
    }
}
