//! The host's own model, used over MCP sampling.
//!
//! A run sends its model requests through a channel, independent of peer and protocol. Up to
//! revision 2025-11-25, the task that handles the tool call sends a sampling request to the host.
//! From 2026-07-28 on, the tool call returns the sampling request, the run is parked, and the host
//! repeats the call with the model's answer.
#![expect(
    deprecated,
    reason = "sampling is deprecated, but hosts have no replacement yet"
)]

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use repertoire_runtime::{
    ChatRole, Error, Model, ModelReply, ModelRequest, ModelUsage, Result, model::ReplyListener,
};
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

use crate::error::shorten_text;

/// The time limit for the host; a person may have to approve the request first.
const SAMPLING_TIMEOUT: Duration = Duration::from_mins(2);

/// A model request on its way to the host.
#[derive(Debug)]
pub(super) struct SamplingRequest {
    params: CreateMessageRequestParams,
    answer: oneshot::Sender<Result<CreateMessageResult>>,
}

/// The model of the host that started a run.
#[derive(Debug)]
pub(super) struct HostModel {
    requests: mpsc::Sender<SamplingRequest>,
    /// The model's own name, known after its first answer.
    id: OnceLock<String>,
}

impl HostModel {
    /// Creates the model and the receiver of its requests.
    pub(super) fn new() -> (Arc<Self>, mpsc::Receiver<SamplingRequest>) {
        let (questions, asked) = mpsc::channel(1);
        let id = OnceLock::new();
        (
            Arc::new(Self {
                requests: questions,
                id,
            }),
            asked,
        )
    }
}

/// Whether a host offers its model over sampling.
pub(super) fn has_sampling(context: &RequestContext<RoleServer>) -> bool {
    let capabilities = context.client_capabilities();
    capabilities.is_some_and(|can| can.sampling.is_some())
}

impl SamplingRequest {
    /// Returns the request as the response to a tool call.
    pub(super) fn to_input_request(&self) -> InputRequest {
        InputRequest::CreateMessage(CreateMessageRequest::new(self.params.clone()))
    }

    /// Passes the host's answer to the run.
    pub(super) fn send_answer(self, answer: &Value) {
        let read = serde_json::from_value::<CreateMessageResult>(answer.clone());
        let read =
            read.map_err(|_| sampling_error("it returned no valid model response".to_owned()));
        let _ = self.answer.send(read);
    }
}

#[async_trait]
impl Model for HostModel {
    fn id(&self) -> &str {
        self.id.get().map_or("host/model", String::as_str)
    }

    async fn send_request(
        &self,
        ask: &ModelRequest,
        listener: Option<&ReplyListener>,
    ) -> Result<ModelReply> {
        let turns = ask.turns.iter().map(|turn| match turn.role {
            ChatRole::User => SamplingMessage::user_text(&turn.text),
            ChatRole::Assistant => SamplingMessage::assistant_text(&turn.text),
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
        let question = SamplingRequest { params, answer };
        let sent = self.requests.send(question).await;
        sent.map_err(|_| Error::Interrupted)?;
        let result = wait.await.map_err(|_| Error::Interrupted)??;
        let _ = self.id.set(format!("host/{}", shorten_text(&result.model)));
        let blocks = result.message.content.iter();
        let texts: Vec<&str> = blocks
            .filter_map(|block| Some(block.as_text()?.text.as_str()))
            .collect();
        if texts.is_empty() {
            return Err(sampling_error("it returned no text".to_owned()));
        }
        let text = texts.concat();
        if let Some(listener) = listener {
            listener(&text);
        }
        Ok(ModelReply {
            text,
            usage: ModelUsage::default(),
            cut: result.stop_reason.as_deref() == Some("maxTokens"),
        })
    }
}

fn sampling_error(reason: String) -> Error {
    Error::Provider {
        provider: "host".to_owned(),
        status: None,
        charged: false,
        reason,
    }
}

/// Sends a request to the host and passes the answer to the run.
pub(super) async fn send_to_host(question: SamplingRequest, context: &RequestContext<RoleServer>) {
    let request = ServerRequest::CreateMessageRequest(CreateMessageRequest::new(question.params));
    let options = PeerRequestOptions::with_timeout(SAMPLING_TIMEOUT);
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
        Ok(_) => Err(sampling_error(
            "it returned no valid model response".to_owned(),
        )),
        Err(ServiceError::McpError(error)) => Err(sampling_error(shorten_text(&error.message))),
        Err(ServiceError::Timeout { timeout }) => Err(Error::Timeout {
            provider: "host".to_owned(),
            after: timeout,
        }),
        Err(_) => Err(Error::Interrupted),
    };
    // The run may have been stopped meanwhile; the answer is dropped then.
    let _ = question.answer.send(answer);
}
