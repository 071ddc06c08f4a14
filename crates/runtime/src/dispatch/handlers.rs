//! The handlers that need nothing else: what is put into context, and prompts.

use async_trait::async_trait;
use repertoire_core::{Artifact, ArtifactKind};
use serde_json::Value;

use super::{ArtifactHandler, ArtifactOutput, ExecutionContext};
use crate::{
    assertion,
    error::{Error, Result},
    model::{Ask, Turn},
};

/// Gives what it is: descriptions, approaches and examples are put into context as they are.
#[derive(Debug)]
pub(super) struct Injected(pub(super) ArtifactKind);

#[async_trait]
impl ArtifactHandler for Injected {
    fn kind(&self) -> ArtifactKind {
        self.0
    }

    async fn execute(
        &self,
        artifact: &Artifact,
        context: &ExecutionContext,
    ) -> Result<ArtifactOutput> {
        context.notes.input(&artifact.content);
        if self.0 == ArtifactKind::Example {
            examples_of(artifact)?;
        }
        Ok(ArtifactOutput {
            text: artifact.content.clone(),
            ..ArtifactOutput::default()
        })
    }
}

/// Renders a template and asks the model.
#[derive(Debug)]
pub(super) struct Prompted;

#[async_trait]
impl ArtifactHandler for Prompted {
    fn kind(&self) -> ArtifactKind {
        ArtifactKind::PromptTemplate
    }

    async fn execute(
        &self,
        artifact: &Artifact,
        context: &ExecutionContext,
    ) -> Result<ArtifactOutput> {
        let model = context.needs_model()?;
        let (engine, values) = (context.engine.clone(), context.template_values());
        let template = artifact.content.clone();
        // A template may ask the workspace, which waits for a disk.
        let rendered = tokio::task::spawn_blocking(move || engine.render_str(&template, &values));
        let rendered = rendered.await.map_err(|_| Error::Interrupted)??;
        context.notes.input(&rendered);
        let system = context.system.join("\n\n");
        let mut ask = Ask::new(rendered);
        ask.system = Some(system).filter(|system| !system.is_empty());
        ask.turns.splice(0..0, context.examples.iter().cloned());
        ask.max_tokens = context.max_tokens;
        let metadata = artifact.metadata.as_ref();
        ask.temperature = metadata.and_then(|m| m.get("temperature")?.as_f64());
        let assertions = assertion::of(artifact)?;
        ask.schema = assertions.iter().find_map(|a| a.schema()).cloned();
        let reply = model.ask(&ask, context.listener.as_ref()).await?;
        context.notes.usage(reply.usage);
        Ok(ArtifactOutput {
            model_id: Some(model.id().to_owned()),
            cut: reply.cut,
            ..ArtifactOutput::text(reply.text)
        })
    }
}

/// The pairs of an example: a JSON list of `{input, output}`, or a text with one pair under the
/// headings Input and Output.
pub fn examples_of(artifact: &Artifact) -> Result<Vec<Turn>> {
    let refuse = |reason: &str| Error::Artifact {
        artifact: artifact.name.clone(),
        reason: reason.to_owned(),
    };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let content = artifact.content.trim();
    if content.starts_with(['[', '{']) {
        let value: Value = repertoire_core::json::from_str(content)
            .map_err(|error| refuse(&format!("an example that is no JSON: {error}")))?;
        let pairs = match value {
            Value::Array(pairs) => pairs,
            one => vec![one],
        };
        let mut turns = Vec::new();
        for pair in &pairs {
            let (Some(input), Some(output)) = (pair.get("input"), pair.get("output")) else {
                return Err(refuse("each example needs `input` and `output`"));
            };
            turns.extend([Turn::user(text(input)), Turn::assistant(text(output))]);
        }
        return Ok(turns);
    }
    let mut turns: Vec<Turn> = Vec::new();
    let mut input: Option<String> = None;
    let mut current: Option<(bool, String)> = None;
    let mut close = |current: &mut Option<(bool, String)>, turns: &mut Vec<Turn>| {
        if let Some((is_input, text)) = current.take() {
            let text = text.trim().to_owned();
            match (is_input, input.take()) {
                (true, _) => input = Some(text),
                (false, Some(asked)) => {
                    turns.extend([Turn::user(asked), Turn::assistant(text)]);
                }
                (false, None) => {}
            }
        }
    };
    for line in content.lines() {
        let heading = line
            .trim_start_matches('#')
            .trim()
            .trim_end_matches(':')
            .to_lowercase();
        let is_heading = line.starts_with('#') || line.trim_end().ends_with(':');
        match heading.as_str() {
            "input" if is_heading => {
                close(&mut current, &mut turns);
                current = Some((true, String::new()));
            }
            "output" if is_heading => {
                close(&mut current, &mut turns);
                current = Some((false, String::new()));
            }
            _ => {
                if let Some((_, text)) = &mut current {
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
    }
    close(&mut current, &mut turns);
    if turns.is_empty() {
        return Err(refuse(
            "an example needs a part `# Input` and a part `# Output`",
        ));
    }
    Ok(turns)
}
