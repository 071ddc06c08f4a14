//! Client for skills on other MCP servers.
//!
//! A server is asked for its listing, and for a file when that file is read; there is no
//! prefetching. Responses are limited in bytes, time and pages before they are parsed.
//! The registry verifies their content when it is read.
//!
//! The protocol is implemented here instead of with an SDK's client: results of methods that an
//! SDK does not know must be complete, and a body must be limited before it is in memory.

mod http;
mod older_forms;
mod process;
mod target;

use std::{borrow::Cow, collections::HashSet, fmt, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use repertoire_core::{
    listed_skill::{ListedSkill, MAX_SKILLS, RefusedSkill, SKILLS_EXTENSION},
    markdown::truncate_text,
};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};
use tokio::time::Instant;

pub use target::ServerTarget;

/// The newest revision, which has no sessions.
const MODERN_REVISION: &str = "2026-07-28";
/// The newest revision with a handshake.
const LEGACY_REVISION: &str = "2025-11-25";

/// The time limit of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);
/// The time limit of one request.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of a whole listing.
const LISTING_TIMEOUT: Duration = Duration::from_mins(2);
/// The maximum number of pages of a listing.
const MAX_PAGES: usize = 1000;
/// The maximum size of one page in bytes.
const MAX_PAGE_BYTES: usize = 8 * 1024 * 1024;
/// The maximum size of one entry in bytes.
const MAX_ENTRY_BYTES: usize = 512 * 1024;
/// The maximum size of a whole listing in bytes.
const MAX_LISTING_BYTES: usize = 64 * 1024 * 1024;

/// Why a request to another server failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteFailure {
    /// The server cannot be reached, closed the connection or timed out.
    Unreachable(String),
    /// The server responded with an error.
    ErrorResponse {
        /// The JSON-RPC code or HTTP status.
        code: i64,
        /// The message.
        message: String,
    },
    /// The server responded with something that cannot be used.
    Unusable(String),
}

impl fmt::Display for RemoteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(reason) | Self::Unusable(reason) => f.write_str(reason),
            Self::ErrorResponse { code, message } => {
                write!(f, "responded with error {code}: {message}")
            }
        }
    }
}

/// Shortens text of a server for messages.
fn shorten_text(text: &str) -> String {
    truncate_text(text, 512)
}

type Result<T, E = RemoteFailure> = std::result::Result<T, E>;

/// A channel for messages to a server.
#[derive(Debug)]
enum RemoteChannel {
    Http(http::HttpChannel),
    Process(process::ProcessChannel),
}

/// A connection to a server after the handshake.
#[derive(Debug)]
pub struct RemoteConnection {
    channel: RemoteChannel,
    /// The negotiated revision.
    version: String,
    /// Whether the server declares that it lists skills.
    lists_skills: bool,
}

/// One request.
#[derive(Debug)]
struct RemoteRequest<'a> {
    method: &'a str,
    params: Map<String, Value>,
    /// The revision of the request; `None` before one is negotiated.
    version: Option<&'a str>,
    /// The maximum size of the response in bytes.
    limit: usize,
    deadline: Instant,
}

impl RemoteConnection {
    /// Connects to a server and negotiates a revision.
    pub async fn open(target: &ServerTarget) -> Result<Self> {
        let until = Instant::now() + HANDSHAKE_TIMEOUT;
        let channel = RemoteChannel::open(target)?;
        match channel.discover_server(until).await {
            Ok(answer) => {
                return Ok(Self {
                    channel,
                    version: MODERN_REVISION.to_owned(),
                    lists_skills: answer.declares_skills(),
                });
            }
            Err(RemoteFailure::Unreachable(reason))
                if matches!(channel, RemoteChannel::Http(_)) =>
            {
                return Err(RemoteFailure::Unreachable(reason));
            }
            Err(_) => {}
        }
        // Some programs exit on an unknown method: restart them for the older handshake.
        let channel = match channel {
            RemoteChannel::Process(process) if process.has_ended() => RemoteChannel::open(target)?,
            channel => channel,
        };
        let (version, lists_skills) = channel.initialize_session(until).await?;
        Ok(Self {
            channel,
            version,
            lists_skills,
        })
    }

    /// Whether the connection is still usable.
    pub fn is_alive(&self) -> bool {
        match &self.channel {
            RemoteChannel::Http(_) => true,
            RemoteChannel::Process(process) => !process.has_ended(),
        }
    }

    async fn send_request(
        &self,
        method: &str,
        params: Map<String, Value>,
        limit: usize,
        until: Instant,
    ) -> Result<RawResponse> {
        let question = RemoteRequest {
            method,
            params,
            version: Some(&self.version),
            limit,
            deadline: until,
        };
        self.channel.send_request(question).await
    }

    /// Lists all skills, in the form that the server has, and the entries that could not be parsed.
    pub async fn list_skills(&self) -> Result<(Vec<ListedSkill>, Vec<RefusedSkill>)> {
        const UNKNOWN_METHOD: i64 = -32601;
        if self.lists_skills {
            match self.list_final_form().await {
                // Some declare it and do not have it.
                Err(RemoteFailure::ErrorResponse { code, .. }) if code == UNKNOWN_METHOD => {}
                listed => return listed,
            }
        }
        match self.list_older_forms().await? {
            (found, refused) if found.is_empty() && refused.is_empty() => {
                Err(RemoteFailure::Unusable(
                    "serves no skills (no skills/list, no skill://index.json and no resources \
                     skill://…/SKILL.md)"
                        .into(),
                ))
            }
            listed => Ok(listed),
        }
    }

    /// Lists all skills, page by page, and the entries that could not be parsed.
    async fn list_final_form(&self) -> Result<(Vec<ListedSkill>, Vec<RefusedSkill>)> {
        let mut found = Vec::new();
        let mut refused = Vec::new();
        let mut bytes = 0;
        let method = "skills/list";
        self.read_pages(method, |message| {
            let page: SkillsPage<'_> = message.parse_result(method)?;
            for raw in page.skills {
                bytes += raw.get().len();
                match read_entry(raw.get()) {
                    Ok(listed) => found.push(listed),
                    Err(one) => refused.push(one),
                }
            }
            if found.len() + refused.len() > MAX_SKILLS || bytes > MAX_LISTING_BYTES {
                return Err(RemoteFailure::Unusable(format!(
                    "lists more than {MAX_SKILLS} skills, or more than {MAX_LISTING_BYTES} bytes of them"
                )));
            }
            Ok(page.next_cursor)
        })
        .await?;
        Ok((found, refused))
    }

    /// Requests a list page by page, until one names no next page.
    async fn read_pages(
        &self,
        method: &str,
        mut read: impl FnMut(&RawResponse) -> Result<Option<String>>,
    ) -> Result<()> {
        let until = Instant::now() + LISTING_TIMEOUT;
        let mut cursors = HashSet::new();
        let mut params = Map::new();
        for _ in 0..MAX_PAGES {
            let until = until.min(Instant::now() + RESPONSE_TIMEOUT);
            let message = self
                .send_request(method, params, MAX_PAGE_BYTES, until)
                .await?;
            let Some(next) = read(&message)? else {
                return Ok(());
            };
            if !cursors.insert(next.clone()) {
                return Err(RemoteFailure::Unusable(
                    "its page cursors go in a circle".into(),
                ));
            }
            params = Map::from_iter([("cursor".to_owned(), next.into())]);
        }
        Err(RemoteFailure::Unusable(format!(
            "has more than {MAX_PAGES} pages"
        )))
    }

    /// Reads one resource with a size limit.
    pub async fn read_resource(&self, uri: &str, limit: u64) -> Result<Bytes> {
        let mut params = Map::new();
        params.insert("uri".into(), uri.into());
        // JSON escapes may expand text sixfold; base64 adds a third.
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let wire = limit.saturating_mul(6).saturating_add(64 * 1024);
        let until = Instant::now() + RESPONSE_TIMEOUT;
        let message = self
            .send_request("resources/read", params, wire, until)
            .await?;
        let ReadResult { contents } = message.parse_result("resources/read")?;
        let unusable = |reason: &str| RemoteFailure::Unusable(format!("{uri}: {reason}"));
        let content = contents.0.into_iter().find(|content| content.uri == uri);
        let content = content.ok_or_else(|| unusable("is not in the response"))?;
        match (content.text, content.blob) {
            (Some(text), None) => Ok(text.into_owned().into()),
            (None, Some(blob)) => {
                let bytes = STANDARD.decode(&*blob);
                Ok(bytes.map_err(|_| unusable("is not valid base64"))?.into())
            }
            _ => Err(unusable("has neither text nor blob")),
        }
    }
}

/// Parses one entry of a listing, or returns why it is refused.
fn read_entry(raw: &str) -> std::result::Result<ListedSkill, RefusedSkill> {
    let refuse = |message: String| {
        #[derive(Deserialize)]
        struct EntryUri {
            uri: Option<String>,
        }
        let named = repertoire_core::json::from_str::<EntryUri>(raw)
            .ok()
            .and_then(|n| n.uri);
        RefusedSkill {
            uri: shorten_text(&named.unwrap_or_default()),
            code: "invalid_entry",
            message,
        }
    };
    if raw.len() > MAX_ENTRY_BYTES {
        return Err(refuse(format!(
            "its entry has more than {MAX_ENTRY_BYTES} bytes"
        )));
    }
    let listed = repertoire_core::json::from_str::<ListedSkill>(raw);
    let listed = listed.map_err(|error| refuse(error.to_string()))?;
    // Only this program says so: the frontmatter of this form is compared with the document.
    Ok(ListedSkill {
        partial: false,
        archive: None,
        ..listed
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SkillsPage<'a> {
    #[serde(borrow)]
    skills: Vec<&'a RawValue>,
    #[serde(default)]
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct ReadResult<'a> {
    #[serde(borrow)]
    contents: BoundedContents<'a>,
}

#[derive(Deserialize)]
struct RemoteContent<'a> {
    #[serde(borrow)]
    uri: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    blob: Option<Cow<'a, str>>,
}

/// At most 16 contents; a longer list is refused while parsing.
struct BoundedContents<'a>(Vec<RemoteContent<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for BoundedContents<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = BoundedContents<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("at most 16 contents")
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut from: A,
            ) -> std::result::Result<BoundedContents<'de>, A::Error> {
                let mut few = Vec::new();
                while let Some(content) = from.next_element()? {
                    few.push(content);
                    if few.len() > 16 {
                        return Err(serde::de::Error::invalid_length(few.len(), &self));
                    }
                }
                Ok(BoundedContents(few))
            }
        }
        from.deserialize_seq(Visitor)
    }
}

/// A raw response, parsed only as far as needed.
#[derive(Debug)]
pub(crate) struct RawResponse(Vec<u8>);

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

impl RawResponse {
    /// Parses the result, or returns the error of the response.
    fn parse_result<'a, T: Deserialize<'a>>(&'a self, method: &str) -> Result<T> {
        let wrong =
            |error: serde_json::Error| RemoteFailure::Unusable(format!("{method}: {error}"));
        let envelope: Envelope<'_> = repertoire_core::json::from_slice(&self.0).map_err(wrong)?;
        if let Some(error) = envelope.error {
            #[derive(Default, Deserialize)]
            struct ErrorObject<'a> {
                #[serde(default)]
                code: i64,
                #[serde(borrow, default)]
                message: Cow<'a, str>,
            }
            let error: ErrorObject<'_> =
                repertoire_core::json::from_str(error.get()).unwrap_or_default();
            return Err(RemoteFailure::ErrorResponse {
                code: error.code,
                message: shorten_text(&error.message),
            });
        }
        let result = envelope.result.ok_or_else(|| {
            RemoteFailure::Unusable("responded with neither result nor error".into())
        })?;
        repertoire_core::json::from_str(result.get()).map_err(wrong)
    }
}

impl RemoteChannel {
    fn open(target: &ServerTarget) -> Result<Self> {
        Ok(match target {
            ServerTarget::Http { .. } => Self::Http(http::HttpChannel::new(target)?),
            ServerTarget::Command { .. } => {
                Self::Process(process::ProcessChannel::spawn_server(target)?)
            }
        })
    }

    async fn send_request(&self, question: RemoteRequest<'_>) -> Result<RawResponse> {
        match self {
            Self::Http(http) => http.send_request(question).await,
            Self::Process(process) => process.send_request(question).await,
        }
    }

    /// Asks the server whether it supports the newest revision.
    async fn discover_server(&self, until: Instant) -> Result<ServerHello> {
        let question = RemoteRequest {
            method: "server/discover",
            params: Map::new(),
            version: Some(MODERN_REVISION),
            limit: MAX_PAGE_BYTES,
            deadline: until.min(Instant::now() + Duration::from_secs(8)),
        };
        let answer: ServerHello = self
            .send_request(question)
            .await?
            .parse_result("server/discover")?;
        if !answer
            .supported_versions
            .iter()
            .any(|v| v == MODERN_REVISION)
        {
            return Err(RemoteFailure::Unusable(
                "does not support the newest revision".into(),
            ));
        }
        Ok(answer)
    }

    /// Performs the handshake of the older revisions.
    async fn initialize_session(&self, until: Instant) -> Result<(String, bool)> {
        let Value::Object(params) = json!({
            "protocolVersion": LEGACY_REVISION,
            "capabilities": client_capabilities(),
            "clientInfo": client_info(),
        }) else {
            return Err(RemoteFailure::Unusable(String::new()));
        };
        let question = RemoteRequest {
            method: "initialize",
            params,
            version: None,
            limit: MAX_PAGE_BYTES,
            deadline: until,
        };
        let answer: ServerHello = self
            .send_request(question)
            .await?
            .parse_result("initialize")?;
        let version = answer.protocol_version.as_deref();
        let version = version.filter(|v| v.len() == 10 && v.is_ascii());
        let version = version.ok_or_else(|| {
            RemoteFailure::Unusable("initialize returned no `protocolVersion`".into())
        })?;
        self.send_notification("notifications/initialized", version, until)
            .await?;
        Ok((version.to_owned(), answer.declares_skills()))
    }

    async fn send_notification(&self, method: &str, version: &str, until: Instant) -> Result<()> {
        match self {
            Self::Http(http) => http.send_notification(method, version, until).await,
            Self::Process(process) => process.send_notification(method, until).await,
        }
    }
}

/// The parts of a handshake response that are needed here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServerHello {
    #[serde(default)]
    supported_versions: Vec<String>,
    #[serde(default)]
    protocol_version: Option<String>,
    #[serde(default)]
    capabilities: RemoteCapabilities,
}

#[derive(Default, Deserialize)]
struct RemoteCapabilities {
    #[serde(default)]
    extensions: Map<String, Value>,
}

impl ServerHello {
    /// Whether the server declares the skills extension.
    fn declares_skills(&self) -> bool {
        let extensions = &self.capabilities.extensions;
        extensions.contains_key(SKILLS_EXTENSION)
    }
}

fn client_info() -> Value {
    json!({"name": "repertoire", "version": env!("CARGO_PKG_VERSION")})
}

fn client_capabilities() -> Value {
    json!({"extensions": {SKILLS_EXTENSION: {}}})
}

/// Builds the JSON-RPC message of a request.
fn request_message(id: u64, question: &RemoteRequest<'_>) -> Value {
    let mut params = question.params.clone();
    if question.version == Some(MODERN_REVISION) {
        params.insert(
            "_meta".into(),
            json!({
                "io.modelcontextprotocol/protocolVersion": MODERN_REVISION,
                "io.modelcontextprotocol/clientInfo": client_info(),
                "io.modelcontextprotocol/clientCapabilities": client_capabilities(),
            }),
        );
    }
    json!({"jsonrpc": "2.0", "id": id, "method": question.method, "params": params})
}
