//! Evaluation files: which messages should find which skill, and what skills should answer.

use repertoire_core::Frontmatter;
use repertoire_registry::Snapshot;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    activation::{ActivationCase, ActivationGoals},
    error::{Error, Result},
    evaluate::OutputCase,
};

/// The content of an evaluation file, which is YAML.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluationFile {
    /// A folder of skills, relative to the file; else the catalogue is evaluated.
    #[serde(default)]
    pub skills: Option<String>,
    /// The goals for search by words.
    #[serde(default)]
    pub goals: ActivationGoals,
    /// The goals for search with embeddings.
    #[serde(default)]
    pub goals_with_meaning: ActivationGoals,
    /// Messages with the skill that fits.
    #[serde(default)]
    pub activations: Vec<ActivationCase>,
    /// Skills with an input and the expected output.
    #[serde(default)]
    pub outputs: Vec<OutputCase>,
}

impl EvaluationFile {
    /// Parses a file.
    pub fn parse(text: &str) -> Result<Self> {
        let yaml = Frontmatter::parse_file(text).map_err(|error| invalid(&error))?;
        let value = Value::Object(yaml.to_json());
        serde_json::from_value(value).map_err(|error| invalid(&error))
    }

    /// Checks that every named skill exists and that all assertions can be read, before a model is
    /// called.
    pub fn check(&self, snapshot: &Snapshot) -> Result<()> {
        let expected = self.activations.iter().map(|one| &one.expect);
        let near = self.activations.iter().filter_map(|one| one.near.as_ref());
        let also = self.activations.iter().flat_map(|one| &one.also);
        let run = self.outputs.iter().map(|case| &case.skill);
        for id in expected
            .filter(|id| *id != "none")
            .chain(near)
            .chain(also)
            .chain(run)
        {
            let known = id.parse().ok().and_then(|id| snapshot.get(&id));
            if known.is_none() {
                return Err(invalid(&format!(
                    "names the skill {id:?}, which is not there"
                )));
            }
        }
        let goals = [&self.goals, &self.goals_with_meaning].into_iter();
        if let Some(goal) = goals.flat_map(ActivationGoals::out_of_range).next() {
            return Err(invalid(&format!(
                "the goal {goal} is not a share from 0 to 1"
            )));
        }
        for case in &self.outputs {
            case.parse_assertions()?;
        }
        Ok(())
    }
}

fn invalid(reason: &dyn std::fmt::Display) -> Error {
    Error::InvalidEvaluation(reason.to_string())
}
