//! The host's own model, asked over MCP sampling.
//!
//! A run asks through a channel and knows neither the peer nor the protocol. Up to revision
//! 2025-11-25 the question is put by the task that handles the request, because that is where its
//! answer comes back to. From 2026-07-28 on the request is answered with the question, the run waits,
//! and the host asks again with the answer.
#![expect(
    deprecated,
    reason = "sampling is deprecated, and what hosts have today"
)]

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use repertoire_runtime::{Ask, Error, Model, Reply, Result, Role, Usage, model::Listener};
use rmcp::{
    RoleServer,
    model::{
        ClientResult, CreateMessageRequest, CreateMessageRequestParams, CreateMessageResult,
        InputRequest, SamplingMessage, ServerRequest,
    },
    service::{PeerRequestOptions, RequestContext, ServiceError},
};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::error::shorten;

/// How long a host may take: a person may have to allow it first.
const PATIENCE: Duration = Duration::from_mins(2);

/// A question on its way to the host.
#[derive(Debug)]
pub(super) struct Question {
    params: CreateMessageRequestParams,
    answer: oneshot::Sender<Result<CreateMessageResult>>,
}

/// The model of the host that asks for a run.
#[derive(Debug)]
pub(super) struct HostModel {
    questions: mpsc::Sender<Question>,
    /// What it calls itself, once it has answered.
    id: OnceLock<String>,
}

impl HostModel {
    /// The model, and where its questions come out.
    pub(super) fn new() -> (Arc<Self>, mpsc::Receiver<Question>) {
        let (questions, asked) = mpsc::channel(1);
        let id = OnceLock::new();
        (Arc::new(Self { questions, id }), asked)
    }
}

/// Whether a host lets servers ask its model.
pub(super) fn offers_a_model(context: &RequestContext<RoleServer>) -> bool {
    let capabilities = context.client_capabilities();
    capabilities.is_some_and(|can| can.sampling.is_some())
}

impl Question {
    /// The question, as the answer to a request.
    pub(super) fn request(&self) -> InputRequest {
        InputRequest::CreateMessage(CreateMessageRequest::new(self.params.clone()))
    }

    /// Gives whoever asked what a host answered.
    pub(super) fn answer(self, answer: &Value) {
        let read = serde_json::from_value::<CreateMessageResult>(answer.clone());
        let read = read.map_err(|_| refused("it did not answer as a model does".to_owned()));
        let _ = self.answer.send(read);
    }
}

#[async_trait]
impl Model for HostModel {
    fn id(&self) -> &str {
        self.id.get().map_or("host/model", String::as_str)
    }

    async fn ask(&self, ask: &Ask, listener: Option<&Listener>) -> Result<Reply> {
        let turns = ask.turns.iter().map(|turn| match turn.role {
            Role::User => SamplingMessage::user_text(&turn.text),
            Role::Assistant => SamplingMessage::assistant_text(&turn.text),
        });
        let most = u32::try_from(ask.max_tokens).unwrap_or(u32::MAX);
        let mut params = CreateMessageRequestParams::new(turns.collect(), most);
        let schema = ask.schema.as_ref().map(|schema| {
            format!("Answer with JSON that fits this schema, and nothing else:\n{schema}")
        });
        let system: Vec<&str> = [ask.system.as_deref(), schema.as_deref()]
            .into_iter()
            .flatten()
            .collect();
        if !system.is_empty() {
            params = params.with_system_prompt(system.join("\n\n"));
        }
        if let Some(temperature) = ask.temperature {
            #[allow(clippy::cast_possible_truncation, reason = "a small number")]
            let temperature = temperature as f32;
            params = params.with_temperature(temperature);
        }
        let (answer, wait) = oneshot::channel();
        let question = Question { params, answer };
        let sent = self.questions.send(question).await;
        sent.map_err(|_| Error::Interrupted)?;
        let result = wait.await.map_err(|_| Error::Interrupted)??;
        let _ = self.id.set(format!("host/{}", shorten(&result.model)));
        let blocks = result.message.content.iter();
        let texts: Vec<&str> = blocks
            .filter_map(|block| Some(block.as_text()?.text.as_str()))
            .collect();
        if texts.is_empty() {
            return Err(refused("it answered without a text".to_owned()));
        }
        let text = texts.concat();
        if let Some(listener) = listener {
            listener(&text);
        }
        Ok(Reply {
            text,
            usage: Usage::default(),
            cut: result.stop_reason.as_deref() == Some("maxTokens"),
        })
    }
}

fn refused(reason: String) -> Error {
    Error::Provider {
        provider: "host".to_owned(),
        status: None,
        charged: false,
        reason,
    }
}

/// Puts a question to the host; whoever asked gets the answer.
pub(super) async fn put(question: Question, context: &RequestContext<RoleServer>) {
    let request = ServerRequest::CreateMessageRequest(CreateMessageRequest::new(question.params));
    let options = PeerRequestOptions::with_timeout(PATIENCE);
    let asked = async {
        let handle = context.peer.send_request_with_option(request, options);
        handle.await?.await_response().await
    };
    let answer = tokio::select! {
        answer = asked => answer,
        () = context.ct.cancelled() => return,
    };
    let answer = match answer {
        Ok(ClientResult::CreateMessageResult(result)) => Ok(*result),
        Ok(_) => Err(refused("it did not answer as a model does".to_owned())),
        Err(ServiceError::McpError(error)) => Err(refused(shorten(&error.message))),
        Err(ServiceError::Timeout { timeout }) => Err(Error::Timeout {
            provider: "host".to_owned(),
            after: timeout,
        }),
        Err(_) => Err(Error::Interrupted),
    };
    // A run that was stopped meanwhile does not wait for it.
    let _ = question.answer.send(answer);
}
