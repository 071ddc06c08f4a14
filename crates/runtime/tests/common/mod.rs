//! A model that says what it is told to, and a skill that remembers what was loaded.

#![allow(dead_code, reason = "not every test needs everything")]

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use repertoire_core::Package;
use repertoire_runtime::{
    ArtifactInfo, Ask, Model, Outline, Price, Reply, Result, SkillSource, Usage, model::Listener,
};
use serde_json::Value;

/// Answers one thing after the other, and remembers what it was asked.
#[derive(Debug)]
pub(crate) struct Scripted {
    pub(crate) id: String,
    pub(crate) answers: Mutex<Vec<Result<String>>>,
    pub(crate) asked: Mutex<Vec<Ask>>,
    pub(crate) price: Option<Price>,
}

impl Scripted {
    pub(crate) fn new(answers: &[&str]) -> Arc<Self> {
        Self::named("test/model", answers)
    }

    pub(crate) fn named(id: &str, answers: &[&str]) -> Arc<Self> {
        let answers = answers.iter().rev().map(|text| Ok((*text).to_owned()));
        Arc::new(Self {
            id: id.to_owned(),
            answers: Mutex::new(answers.collect()),
            asked: Mutex::default(),
            price: Some(Price {
                input: 1.0,
                output: 1.0,
            }),
        })
    }
}

#[async_trait]
impl Model for Scripted {
    fn id(&self) -> &str {
        &self.id
    }

    fn price(&self) -> Option<Price> {
        self.price
    }

    async fn ask(&self, ask: &Ask, listener: Option<&Listener>) -> Result<Reply> {
        self.asked.lock().unwrap().push(ask.clone());
        let text = self
            .answers
            .lock()
            .unwrap()
            .pop()
            .expect("nothing more to say")?;
        if let Some(listener) = listener {
            listener(&text);
        }
        Ok(Reply {
            text,
            usage: Usage {
                input_tokens: Some(10),
                output_tokens: Some(5),
                cost: Some(0.25),
            },
            cut: false,
        })
    }
}

/// A package as a source, and the names of what was loaded of it.
pub(crate) struct Spy {
    outline: Outline,
    package: Package,
    pub(crate) loaded: Mutex<Vec<String>>,
}

impl Spy {
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
        let outline = Outline {
            skill_id: package.uuid().to_string(),
            skill: package.skill_id().unwrap().to_string(),
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

impl SkillSource for Spy {
    fn outline(&self) -> &Outline {
        &self.outline
    }

    fn content(&self, info: &ArtifactInfo) -> Result<String> {
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
