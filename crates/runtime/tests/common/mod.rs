//! A model with scripted answers, and a skill that records what was loaded.

#![allow(dead_code, reason = "not every test needs everything")]

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use repertoire_core::Package;
use repertoire_runtime::{
    ArtifactInfo, LoadableSkill, Model, ModelReply, ModelRequest, ModelUsage, Price, Result,
    SkillOutline, model::ReplyListener,
};
use serde_json::Value;

/// A model that returns its answers in order and records the requests.
#[derive(Debug)]
pub(crate) struct ScriptedModel {
    pub(crate) id: String,
    pub(crate) answers: Mutex<Vec<Result<String>>>,
    pub(crate) requests: Mutex<Vec<ModelRequest>>,
    pub(crate) price: Option<Price>,
}

impl ScriptedModel {
    pub(crate) fn new(answers: &[&str]) -> Arc<Self> {
        Self::with_id("test/model", answers)
    }

    pub(crate) fn with_id(id: &str, answers: &[&str]) -> Arc<Self> {
        let answers = answers.iter().rev().map(|text| Ok((*text).to_owned()));
        Arc::new(Self {
            id: id.to_owned(),
            answers: Mutex::new(answers.collect()),
            requests: Mutex::default(),
            price: Some(Price {
                input: 1.0,
                output: 1.0,
            }),
        })
    }
}

#[async_trait]
impl Model for ScriptedModel {
    fn id(&self) -> &str {
        &self.id
    }

    fn price(&self) -> Option<Price> {
        self.price
    }

    async fn send_request(
        &self,
        ask: &ModelRequest,
        listener: Option<&ReplyListener>,
    ) -> Result<ModelReply> {
        self.requests.lock().unwrap().push(ask.clone());
        let text = self
            .answers
            .lock()
            .unwrap()
            .pop()
            .expect("no scripted answer is left")?;
        if let Some(listener) = listener {
            listener(&text);
        }
        Ok(ModelReply {
            text,
            usage: ModelUsage {
                input_tokens: Some(10),
                output_tokens: Some(5),
                cost: Some(0.25),
            },
            cut: false,
        })
    }
}

/// A package as a skill source that records the loaded artifacts.
pub(crate) struct RecordingSkill {
    outline: SkillOutline,
    package: Package,
    pub(crate) loaded: Mutex<Vec<String>>,
}

impl RecordingSkill {
    pub(crate) fn new(package: &Value) -> Self {
        let package = Package::from_json(package.to_string().as_bytes()).unwrap();
        let artifacts = package.artifacts.iter().map(|artifact| {
            let mut without = artifact.clone();
            without.content = String::new();
            ArtifactInfo {
                id: package.artifact_uuid(artifact).to_string(),
                artifact: without,
            }
        });
        let outline = SkillOutline {
            skill_id: package.uuid().to_string(),
            skill: package.skill_id().unwrap().to_string(),
            version: repertoire_core::SkillVersion::default(),
            artifacts: artifacts.collect(),
        };
        Self {
            outline,
            package,
            loaded: Mutex::default(),
        }
    }

    pub(crate) fn loaded(&self) -> Vec<String> {
        self.loaded.lock().unwrap().clone()
    }
}

impl LoadableSkill for RecordingSkill {
    fn outline(&self) -> &SkillOutline {
        &self.outline
    }

    fn load_content(&self, info: &ArtifactInfo) -> Result<String> {
        let wanted = (&info.artifact.name, &info.artifact.model_variant);
        let found = self
            .package
            .artifacts
            .iter()
            .find(|a| (&a.name, &a.model_variant) == wanted);
        let variant = info.artifact.model_variant.clone().unwrap_or_default();
        self.loaded
            .lock()
            .unwrap()
            .push(format!("{}{variant}", info.artifact.name));
        Ok(found.unwrap().content.clone())
    }
}
