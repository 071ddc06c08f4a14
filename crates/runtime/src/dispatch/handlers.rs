//! The built-in handlers: context artifacts and prompts.

use async_trait::async_trait;
use repertoire_core::{Artifact, ArtifactKind};
use serde_json::Value;

use super::{ArtifactHandler, ArtifactOutput, ExecutionContext};
use crate::{
    assertion,
    error::{Error, Result},
    model::{ChatTurn, ModelRequest},
};

/// Returns descriptions, approaches and examples unchanged; they become part of the context.
#[derive(Debug)]
pub(super) struct ContextHandler(pub(super) ArtifactKind);

#[async_trait]
impl ArtifactHandler for ContextHandler {
    fn kind(&self) -> ArtifactKind {
        self.0
    }

    async fn execute_artifact(
        &self,
        artifact: &Artifact,
        context: &ExecutionContext,
    ) -> Result<ArtifactOutput> {
        context.notes.set_input(&artifact.content);
        if self.0 == ArtifactKind::Example {
            parse_examples(artifact)?;
        }
        Ok(ArtifactOutput {
            text: artifact.content.clone(),
            ..ArtifactOutput::default()
        })
    }
}

/// Renders a template and sends it to the model.
#[derive(Debug)]
pub(super) struct PromptHandler;

#[async_trait]
impl ArtifactHandler for PromptHandler {
    fn kind(&self) -> ArtifactKind {
        ArtifactKind::PromptTemplate
    }

    async fn execute_artifact(
        &self,
        artifact: &Artifact,
        context: &ExecutionContext,
    ) -> Result<ArtifactOutput> {
        let model = context.require_model()?;
        let (engine, values) = (context.engine.clone(), context.template_values());
        let template = artifact.content.clone();
        // A template may query the workspace, which waits for a disk.
        let rendered = tokio::task::spawn_blocking(move || engine.render_str(&template, &values));
        let rendered = rendered.await.map_err(|_| Error::Interrupted)??;
        context.notes.set_input(&rendered);
        let system = context.system.join("\n\n");
        let mut ask = ModelRequest::new(rendered);
        ask.system = Some(system).filter(|system| !system.is_empty());
        ask.turns.splice(0..0, context.examples.iter().cloned());
        ask.max_tokens = context.max_tokens;
        let metadata = artifact.metadata.as_ref();
        ask.temperature = metadata.and_then(|m| m.get("temperature")?.as_f64());
        let assertions = assertion::read_assertions(artifact)?;
        ask.schema = assertions.iter().find_map(|a| a.schema()).cloned();
        ask.parent_span = context.notes.current_execution();
        let reply = model.send_request(&ask, context.listener.as_ref()).await?;
        context.notes.add_usage(reply.usage);
        Ok(ArtifactOutput {
            model_id: Some(model.id().to_owned()),
            cut: reply.cut,
            ..ArtifactOutput::from_text(reply.text)
        })
    }
}

/// Parses the pairs of an example: a JSON list of `{input, output}`, or a text with one pair under
/// the headings Input and Output.
pub fn parse_examples(artifact: &Artifact) -> Result<Vec<ChatTurn>> {
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
            turns.extend([
                ChatTurn::user(text(input)),
                ChatTurn::assistant(text(output)),
            ]);
        }
        return Ok(turns);
    }
    let mut turns: Vec<ChatTurn> = Vec::new();
    let mut input: Option<String> = None;
    let mut current: Option<(bool, String)> = None;
    let mut close = |current: &mut Option<(bool, String)>, turns: &mut Vec<ChatTurn>| {
        if let Some((is_input, text)) = current.take() {
            let text = text.trim().to_owned();
            match (is_input, input.take()) {
                (true, _) => input = Some(text),
                (false, Some(asked)) => {
                    turns.extend([ChatTurn::user(asked), ChatTurn::assistant(text)]);
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
