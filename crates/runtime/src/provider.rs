//! Model providers: addresses, keys and prices.
//!
//! The wire formats come from rig. This module adds keys that are read on use and never shown, a
//! deadline for every call, retries with jitter for transient failures, and error messages without
//! secrets.

mod http;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::StreamExt;
use rig_core::{
    DynModel, ProviderError,
    catalog::Catalog,
    completion::{CompletionRequest, CompletionResponse, Message},
    model::ModelList,
    operation::Completion,
    providers::{
        anthropic::{Anthropic, AnthropicConfig},
        ollama::{Ollama, OllamaConfig},
        openai::{
            OpenAI, OpenAIConfig,
            wire::{self, Auth, Dialect},
        },
        registry::ProviderId,
    },
    streaming::{Item, StreamEvent},
};
use serde::Deserialize;

use self::http::ProviderHttpClient;
use crate::{
    error::{Error, Result},
    model::{ChatRole, Model, ModelReply, ModelRequest, ModelUsage, Price, ReplyListener},
    redact::Redactor,
};

/// A server of any vendor that speaks the `OpenAI` protocol.
const OPENAI_COMPATIBLE: Dialect = Dialect::gateway("openai-compatible", "", "");
/// How long a provider may take to list its models.
const CHECK_DEADLINE: Duration = Duration::from_secs(10);
/// The maximum number of attempts for a transient failure.
const MAX_ATTEMPTS: u32 = 4;
/// The maximum `Retry-After` time that is honoured.
const MAX_RETRY_WAIT: Duration = Duration::from_secs(30);
/// The maximum characters of a provider's error message that are reported.
const MAX_REASON_CHARS: usize = 300;

/// The maximum characters of the name of a model that a server lists.
const MAX_LISTED_CHARS: usize = 80;

/// The vendors known by name.
const VENDORS: [&Dialect; 12] = [
    &wire::OPENAI,
    &wire::GROQ,
    &wire::MISTRAL,
    &wire::DEEPSEEK,
    &wire::OPENROUTER,
    &wire::TOGETHER,
    &wire::PERPLEXITY,
    &wire::HUGGINGFACE,
    &wire::MOONSHOT,
    &wire::MINIMAX,
    &wire::ZAI,
    &wire::LLAMACPP,
];

/// The configuration of a provider.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    /// Which wire format it speaks: `openai`, `anthropic`, `ollama`, or a vendor's name. By
    /// default the provider's own name.
    #[serde(default)]
    pub kind: Option<String>,
    /// Its address, with the path before `/chat/completions` or `/v1/messages`.
    #[serde(default)]
    pub base_url: Option<String>,
    /// The environment variable that holds its key.
    #[serde(default)]
    pub key_env: Option<String>,
    /// The file that holds its key; it must be readable by its owner only.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
}

/// All configured providers and prices.
#[derive(Debug, Clone)]
pub struct Providers {
    /// The configured providers, by name.
    pub configured: BTreeMap<String, ProviderConfig>,
    /// Prices by model id; they override the built-in prices.
    pub prices: BTreeMap<String, Price>,
    /// The deadline of one call, including all attempts.
    pub deadline: Duration,
}

impl Default for Providers {
    fn default() -> Self {
        Self {
            configured: BTreeMap::new(),
            prices: BTreeMap::new(),
            deadline: Duration::from_mins(2),
        }
    }
}

/// Splits `PROVIDER/MODEL`.
fn split_model_id(id: &str) -> Result<(&str, &str)> {
    id.split_once('/')
        .filter(|(provider, name)| !provider.is_empty() && !name.is_empty())
        .ok_or_else(|| {
            Error::Model(format!(
                "model {id:?}: write PROVIDER/MODEL, such as openai/gpt-4o"
            ))
        })
}

fn env_value(name: &str) -> Option<String> {
    std::env::var(name)
        .ok()
        .map(|value| value.trim().to_owned())
        .filter(|value| !value.is_empty())
}

/// Returns the built-in price of a vendor's model.
fn catalogue_price(vendor: &str, model: &str) -> Option<Price> {
    let vendor = ProviderId::resolve(vendor).ok()?;
    let price = Catalog::builtin().find(vendor, model)?.pricing.as_ref()?;
    Some(Price {
        input: price.input,
        output: price.output,
    })
}

/// Reads the key from a file; a file that other users may read is refused.
fn read_key_file(path: &Path) -> Result<String> {
    let refuse = |reason: String| Error::Key(format!("key file {}: {reason}", path.display()));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let about = std::fs::metadata(path).map_err(|error| refuse(error.to_string()))?;
        if about.permissions().mode() & 0o077 != 0 {
            return Err(refuse("others may read it: chmod 600 it first".to_owned()));
        }
    }
    let key = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    let key = key.trim().to_owned();
    if key.is_empty() || key.contains(char::is_whitespace) {
        return Err(refuse("must hold one key and nothing else".to_owned()));
    }
    Ok(key)
}

impl Providers {
    /// The key of a provider, if it has one.
    fn provider_key(config: &ProviderConfig, usual: Option<&str>) -> Result<Option<String>> {
        if let Some(path) = &config.key_file {
            return read_key_file(path).map(Some);
        }
        if let Some(name) = &config.key_env {
            let missing = || Error::Key(format!("the environment variable {name} is not set"));
            return env_value(name).ok_or_else(missing).map(Some);
        }
        // A vendor's own key is for the vendor's own address: another one needs a key of its own.
        let usual = usual.filter(|name| !name.is_empty() && config.base_url.is_none());
        Ok(usual.and_then(env_value))
    }

    /// All configured keys, for redaction.
    pub fn secrets(&self) -> Vec<String> {
        let configured = self.configured.values();
        let keys = configured.filter_map(|config| Self::provider_key(config, None).ok().flatten());
        let usual = VENDORS.iter().map(|vendor| vendor.api_key_env);
        let usual = usual.chain(["ANTHROPIC_API_KEY"]).filter_map(env_value);
        keys.chain(usual).collect()
    }

    /// Contacts the provider of a model and looks for the model in its list. This costs nothing.
    pub async fn check_model(&self, id: &str) -> Result<ModelAvailability> {
        let (provider, name) = split_model_id(id)?;
        let none = ProviderConfig::default();
        let config = self.configured.get(provider).unwrap_or(&none);
        let deadline = self.deadline.min(CHECK_DEADLINE);
        let client = Self::connect_provider(provider, config, deadline)?;
        let timeout = || Error::Timeout {
            provider: provider.to_owned(),
            after: deadline,
        };
        let listed = tokio::time::timeout(deadline, client.list_models());
        let error = match listed.await.map_err(|_| timeout())? {
            Ok(models) => {
                let mut ids = models.data.into_iter().map(|model| model.id);
                // Ollama names the version of a model after a colon, and vendors a folder before it.
                let is_it = |id: &String| {
                    let id = id.strip_prefix("models/").unwrap_or(id);
                    id == name || id.strip_suffix(":latest") == Some(name)
                };
                let known: Vec<String> = ids.by_ref().take(1000).collect();
                return Ok(if known.iter().any(is_it) {
                    ModelAvailability::Listed
                } else {
                    let redactor = Redactor::with_environment(self.secrets());
                    let some = known.iter().take(5).map(|id| {
                        let id = redactor.redact(id);
                        repertoire_core::markdown::truncate_text(&id, MAX_LISTED_CHARS)
                    });
                    ModelAvailability::NotListed(some.collect())
                });
            }
            Err(error) => error,
        };
        if let ProviderError::Http(inner) = &error
            && http::is_timeout(inner)
        {
            return Err(timeout());
        }
        let status = error.provider_response_status().map(|s| s.as_u16());
        // Servers that only answer prompts have no such path, or answer with something else.
        if matches!(status, Some(404 | 405 | 501)) || matches!(error, ProviderError::Json(_)) {
            return Ok(ModelAvailability::NoList);
        }
        let said = match status {
            Some(status) => {
                let body = error.provider_response_body().unwrap_or_default();
                format!("answered {status}: {}", error_message(body))
            }
            None => error.to_string(),
        };
        // A key that was cut would no longer be recognized.
        let said = Redactor::with_environment(self.secrets()).redact(said.trim_end_matches(": "));
        Err(Error::Provider {
            provider: provider.to_owned(),
            status,
            charged: false,
            reason: repertoire_core::markdown::truncate_text(&said, MAX_REASON_CHARS),
        })
    }

    /// Connects to a model by its id, such as `ollama/llama3.2`.
    pub fn resolve_model(&self, id: &str) -> Result<Arc<dyn Model>> {
        let (provider, name) = split_model_id(id)?;
        let none = ProviderConfig::default();
        let config = self.configured.get(provider).unwrap_or(&none);
        let model = Self::connect_provider(provider, config, self.deadline)?;
        let model = model.completion(name);
        let kind = config.kind.as_deref().unwrap_or(provider);
        let price = self.prices.get(id).copied();
        let known = price.or_else(|| match config.base_url {
            None => catalogue_price(kind, name),
            Some(_) => None,
        });
        Ok(Arc::new(RemoteModel {
            id: id.to_owned(),
            provider: provider.to_owned(),
            model,
            price: known,
            configured_price: price,
            deadline: self.deadline,
            redactor: Redactor::with_environment(self.secrets()),
        }))
    }

    fn connect_provider(
        provider: &str,
        config: &ProviderConfig,
        deadline: Duration,
    ) -> Result<ProviderClient> {
        let kind = config.kind.as_deref().unwrap_or(provider);
        let http = ProviderHttpClient::new(deadline)?;
        let needed = |key: Option<String>, variable: &str| {
            key.ok_or_else(|| {
                Error::Key(if config.base_url.is_some() {
                    format!(
                        "{provider} has a base_url and no key of its own: set key_env or key_file \
                         in config.toml ({variable} goes to the vendor's own address only)"
                    )
                } else {
                    format!("{provider} has no key: set {variable}, or key_file in config.toml")
                })
            })
        };
        match kind {
            "anthropic" => {
                let key = needed(
                    Self::provider_key(config, Some("ANTHROPIC_API_KEY"))?,
                    "ANTHROPIC_API_KEY",
                )?;
                let mut there = AnthropicConfig::new(key);
                if let Some(url) = &config.base_url {
                    there = there.with_base_url(url);
                }
                Ok(ProviderClient::Anthropic(there.connect(http)))
            }
            "ollama" => {
                let url = config
                    .base_url
                    .clone()
                    .or_else(|| env_value("OLLAMA_API_BASE_URL"));
                let mut there = OllamaConfig::new();
                if let Some(url) = url {
                    there = there.with_base_url(url);
                }
                if let Some(key) = Self::provider_key(config, Some("OLLAMA_API_KEY"))? {
                    there = there.with_api_key(key);
                }
                Ok(ProviderClient::Ollama(there.connect(http)))
            }
            kind => {
                // A custom address is not one of the known vendors.
                if let Some(url) = &config.base_url
                    && matches!(kind, "openai" | "openai-compatible")
                {
                    let key = Self::provider_key(config, None)?.unwrap_or_default();
                    let there = OpenAIConfig::with_key(&OPENAI_COMPATIBLE, key)
                        .with_base_url(url)
                        .with_auth(Auth::OptionalBearer);
                    return Ok(ProviderClient::OpenAi(Box::new(there.connect(http))));
                }
                let vendor = VENDORS.iter().find(|vendor| vendor.name == kind);
                let Some(vendor) = vendor else {
                    if config.kind.is_some() {
                        return Err(Error::Model(format!(
                            "provider {provider:?}: unknown kind {kind:?}; openai, \
                             anthropic and ollama are the usual ones"
                        )));
                    }
                    let known: Vec<&str> = VENDORS.iter().map(|vendor| vendor.name).collect();
                    return Err(Error::Model(format!(
                        "no provider {provider:?}: there are anthropic, ollama, {}, and those \
                         under [providers] in config.toml",
                        known.join(", ")
                    )));
                };
                let key = Self::provider_key(config, Some(vendor.api_key_env))?;
                let key = if vendor.name == wire::LLAMACPP.name {
                    key.unwrap_or_default()
                } else {
                    needed(key, vendor.api_key_env)?
                };
                let mut there = OpenAIConfig::with_key(vendor, key);
                if vendor.name == wire::LLAMACPP.name {
                    there = there.with_auth(Auth::OptionalBearer);
                }
                if let Some(url) = &config.base_url {
                    there = there.with_base_url(url);
                }
                Ok(ProviderClient::OpenAi(Box::new(there.connect(http))))
            }
        }
    }
}

/// A connection to a provider.
enum ProviderClient {
    Anthropic(Anthropic),
    Ollama(Ollama),
    OpenAi(Box<OpenAI>),
}

impl ProviderClient {
    fn completion(&self, name: &str) -> DynModel<Completion> {
        match self {
            Self::Anthropic(client) => client.completion(name).erase(),
            Self::Ollama(client) => client.native_completion(name).erase(),
            Self::OpenAi(client) => client.chat(name).erase(),
        }
    }

    async fn list_models(&self) -> std::result::Result<ModelList, ProviderError> {
        match self {
            Self::Anthropic(client) => client.list_models().await,
            Self::Ollama(client) => client.list_models().await,
            Self::OpenAi(client) => client.list_models().await,
        }
    }
}

/// What a provider says of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelAvailability {
    /// It lists the model.
    Listed,
    /// It lists others, of which these are some.
    NotListed(Vec<String>),
    /// It answers, but it has no list of models.
    NoList,
}

/// A model behind an API.
struct RemoteModel {
    id: String,
    provider: String,
    model: DynModel<Completion>,
    /// The configured price; it overrides the cost the vendor reports.
    configured_price: Option<Price>,
    /// The price from the configuration or the built-in catalogue.
    price: Option<Price>,
    deadline: Duration,
    redactor: Redactor,
}

impl std::fmt::Debug for RemoteModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteModel")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Why a call failed, and whether it may be retried.
struct CallFailure {
    error: Error,
    retryable: bool,
    retry_after: Option<Duration>,
}

impl RemoteModel {
    fn build_request(ask: &ModelRequest) -> Result<CompletionRequest> {
        let system = ask.system.iter().map(|text| Message::system(text.clone()));
        let turns = ask.turns.iter().map(|turn| match turn.role {
            ChatRole::User => Message::user(turn.text.clone()),
            ChatRole::Assistant => Message::assistant(turn.text.clone()),
        });
        let messages: Vec<Message> = system.chain(turns).collect();
        let mut request = CompletionRequest::from(messages);
        request.max_tokens = Some(ask.max_tokens);
        request.temperature = ask.temperature;
        if let Some(schema) = &ask.schema {
            let schema = rig_core::schemars::Schema::try_from(schema.clone());
            let schema = schema.map_err(|error| Error::Model(format!("schema: {error}")))?;
            request.output_schema = Some(schema);
        }
        Ok(request)
    }

    /// Returns the beginning of what a provider answered, without secrets. A secret that was cut first
    /// would not be recognized.
    fn redact_reason(&self, text: &str) -> String {
        repertoire_core::markdown::truncate_text(&self.redactor.redact(text), MAX_REASON_CHARS)
    }

    fn describe_failure(&self, error: &ProviderError) -> CallFailure {
        let status = error
            .provider_response_status()
            .map(|status| status.as_u16());
        let wait = error
            .provider_response_headers()
            .and_then(|headers| {
                headers
                    .get("retry-after")?
                    .to_str()
                    .ok()?
                    .trim()
                    .parse()
                    .ok()
            })
            .map(Duration::from_secs);
        let timed_out = matches!(error, ProviderError::Http(inner) if http::is_timeout(inner));
        let unreachable =
            matches!(error, ProviderError::Http(inner) if http::is_unreachable(inner));
        let said = match (error, status) {
            (_, Some(status)) => {
                let body = error.provider_response_body().unwrap_or_default();
                let said = error_message(body);
                format!(
                    "answered {status}{}{said}",
                    if said.is_empty() { "" } else { ": " }
                )
            }
            (ProviderError::Truncated, _) => "the answer broke off".to_owned(),
            (ProviderError::Json(_), _) => "the answer cannot be read".to_owned(),
            (other, _) => other.to_string(),
        };
        let error_here = if timed_out {
            Error::Timeout {
                provider: self.provider.clone(),
                after: self.deadline,
            }
        } else {
            Error::Provider {
                provider: self.provider.clone(),
                status,
                charged: status.is_none() && !unreachable,
                reason: self.redact_reason(&said),
            }
        };
        CallFailure {
            error: error_here,
            retryable: error.is_retryable() && !timed_out,
            retry_after: wait,
        }
    }

    async fn try_once(
        &self,
        ask: &ModelRequest,
        listener: Option<&ReplyListener>,
    ) -> Result<ModelReply, CallFailure> {
        let request = Self::build_request(ask).map_err(|error| CallFailure {
            error,
            retryable: false,
            retry_after: None,
        })?;
        let response = match listener {
            None => self
                .model
                .call(request)
                .await
                .map_err(|error| self.describe_failure(&error))?,
            Some(listener) => self.stream_reply(request, listener).await?,
        };
        self.parse_reply(&response)
    }

    async fn stream_reply(
        &self,
        request: CompletionRequest,
        listener: &ReplyListener,
    ) -> Result<CompletionResponse, CallFailure> {
        let mut stream = self
            .model
            .stream(request)
            .map_err(|error| self.describe_failure(&error))?;
        let mut heard = false;
        while let Some(item) = stream.next().await {
            match item {
                Ok(Item::Event(StreamEvent::Text { text, .. })) => {
                    heard = true;
                    listener(&text);
                }
                Ok(_) => {}
                Err(error) => {
                    let mut failed = self.describe_failure(&error);
                    // Do not retry: the listener would receive the beginning twice.
                    failed.retryable &= !heard;
                    return Err(failed);
                }
            }
        }
        stream
            .finish()
            .await
            .map_err(|error| self.describe_failure(&error))
    }

    fn parse_reply(&self, response: &CompletionResponse) -> Result<ModelReply, CallFailure> {
        let stop = response.stop();
        if stop.is_failure() {
            let said = response
                .error
                .clone()
                .unwrap_or_else(|| "no answer".to_owned());
            return Err(CallFailure {
                error: Error::Provider {
                    provider: self.provider.clone(),
                    status: None,
                    charged: true,
                    reason: self.redact_reason(&said),
                },
                retryable: false,
                retry_after: None,
            });
        }
        let usage = &response.usage;
        let mut cost = usage.cost.map(|cost| cost.total);
        if let (Some(price), Some(input), Some(output)) = (
            self.configured_price,
            usage.input_tokens,
            usage.output_tokens,
        ) {
            #[allow(clippy::cast_precision_loss, reason = "numbers of tokens are small")]
            let tokens = |n: u64| n as f64 / 1e6;
            cost = Some(tokens(input) * price.input + tokens(output) * price.output);
        }
        Ok(ModelReply {
            text: response.text(),
            usage: ModelUsage {
                input_tokens: usage.input_tokens,
                output_tokens: usage.output_tokens,
                cost,
            },
            cut: matches!(
                response.finish_reason(),
                Some(rig_core::completion::FinishReason::Length)
            ),
        })
    }
}

/// Extracts the error message from a provider's response, on one line.
fn error_message(body: &str) -> String {
    let json: Option<serde_json::Value> = repertoire_core::json::from_str(body).ok();
    let message = json.as_ref().and_then(|json| {
        let places = ["/error/message", "/error", "/message", "/detail"];
        places
            .iter()
            .find_map(|place| json.pointer(place)?.as_str())
    });
    let text = message.unwrap_or(if json.is_some() { "" } else { body });
    repertoire_core::markdown::to_single_line(text)
}

#[async_trait]
impl Model for RemoteModel {
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
        let timeout = Error::Timeout {
            provider: self.provider.clone(),
            after: self.deadline,
        };
        let attempts = async {
            let mut attempt = 1;
            loop {
                let failed = match self.try_once(ask, listener).await {
                    Ok(reply) => return Ok(reply),
                    Err(failed) => failed,
                };
                if !failed.retryable || attempt >= MAX_ATTEMPTS {
                    return Err(failed.error);
                }
                // Jitter keeps clients that failed together from retrying together.
                let most = Duration::from_millis(500 << attempt).as_secs_f64();
                let jitter = Duration::from_secs_f64(fastrand::f64() * most);
                let wait = failed
                    .retry_after
                    .map_or(jitter, |asked| asked.min(MAX_RETRY_WAIT) + jitter / 4);
                tracing::debug!(provider = self.provider, attempt, ?wait, "retrying");
                tokio::time::sleep(wait).await;
                attempt += 1;
            }
        };
        tokio::time::timeout(self.deadline, attempts)
            .await
            .unwrap_or(Err(timeout))
    }
}
