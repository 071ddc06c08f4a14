//! Skills from other MCP servers: how they are reached, asked and bounded.
//!
//! A server is asked for what it lists, and for one file when somebody reads it; nothing is
//! fetched ahead. Whatever it sends is bounded in bytes, time and pages before it is looked at.
//! What it sends is verified in [`repertoire_registry::remote`].
//!
//! The wire is spoken here by hand rather than through an SDK's client: results of methods that
//! an SDK does not know must arrive whole, and a body must be bounded before it is in memory.

mod http;
mod pool;
mod process;
mod target;

use std::{fmt, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use repertoire_registry::remote::{Listed, MAX_SKILLS};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

pub use pool::Pool;
pub use target::{Reach, Target};

/// The newest revision, which has no sessions.
const MODERN: &str = "2026-07-28";
/// The newest revision with a handshake.
const LEGACY: &str = "2025-11-25";

/// How long a server may take to say hello.
const HELLO: Duration = Duration::from_secs(20);
/// How long it may take to answer one question.
const ANSWER: Duration = Duration::from_secs(30);
/// How long a whole listing may take.
const LISTING: Duration = Duration::from_mins(2);
/// The most pages of a listing.
const MAX_PAGES: usize = 1000;
/// The most bytes of one page.
const MAX_PAGE: usize = 8 * 1024 * 1024;
/// The most bytes of a whole listing.
const MAX_LISTING: usize = 64 * 1024 * 1024;

/// Why a server could not be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It is not there, went away, or did not answer in time.
    Gone(String),
    /// It answered with an error.
    Answer { code: i64, message: String },
    /// It answered with something that cannot be used.
    Unusable(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(reason) | Self::Unusable(reason) => f.write_str(reason),
            Self::Answer { code, message } => write!(f, "answered with error {code}: {message}"),
        }
    }
}

type Result<T, E = Failure> = std::result::Result<T, E>;

/// Something messages can be sent through.
#[derive(Debug)]
enum Channel {
    Http(http::Http),
    Process(process::Process),
}

/// A server that said hello.
#[derive(Debug)]
pub(crate) struct Connection {
    channel: Channel,
    /// The revision that was agreed on.
    version: String,
}

/// One question.
#[derive(Debug)]
struct Question<'a> {
    method: &'a str,
    params: Map<String, Value>,
    /// The revision it is asked in, `None` before one is agreed on.
    version: Option<&'a str>,
    /// The most bytes of its answer.
    limit: usize,
    until: Instant,
}

impl Connection {
    /// Reaches a server and agrees on a revision.
    pub(crate) async fn open(target: &Target) -> Result<Self> {
        let until = Instant::now() + HELLO;
        let channel = Channel::open(target)?;
        match channel.discover(until).await {
            Ok(answer) => {
                need_skills(&answer)?;
                let version = MODERN.to_owned();
                return Ok(Self { channel, version });
            }
            Err(Failure::Gone(reason)) if matches!(channel, Channel::Http(_)) => {
                return Err(Failure::Gone(reason));
            }
            Err(_) => {}
        }
        // A program that ended over a question it did not know is asked the older one anew.
        let channel = match channel {
            Channel::Process(process) if process.has_ended() => Channel::open(target)?,
            channel => channel,
        };
        let version = channel.initialize(until).await?;
        Ok(Self { channel, version })
    }

    /// Whether there is still somebody to ask.
    pub(crate) fn is_alive(&self) -> bool {
        match &self.channel {
            Channel::Http(_) => true,
            Channel::Process(process) => !process.has_ended(),
        }
    }

    async fn ask(
        &self,
        method: &str,
        params: Map<String, Value>,
        limit: usize,
        until: Instant,
    ) -> Result<Value> {
        let question = Question {
            method,
            params,
            version: Some(&self.version),
            limit,
            until,
        };
        self.channel.ask(question).await
    }

    /// Everything the server lists, page by page.
    pub(crate) async fn list(&self) -> Result<Vec<Listed>> {
        let until = Instant::now() + LISTING;
        let mut found = Vec::new();
        let mut cursors = std::collections::HashSet::new();
        let mut cursor: Option<String> = None;
        let mut bytes = 0;
        for _ in 0..MAX_PAGES {
            let mut params = Map::new();
            if let Some(cursor) = &cursor {
                params.insert("cursor".into(), cursor.as_str().into());
            }
            let until = until.min(Instant::now() + ANSWER);
            let mut page = self.ask("skills/list", params, MAX_PAGE, until).await?;
            let skills = page.get_mut("skills").map(Value::take);
            let Some(Value::Array(skills)) = skills else {
                return Err(Failure::Unusable("skills/list gave no `skills`".into()));
            };
            for skill in skills {
                bytes += weight(&skill);
                let listed = serde_json::from_value::<Listed>(skill)
                    .map_err(|error| Failure::Unusable(format!("skills/list: {error}")))?;
                found.push(listed);
            }
            if found.len() > MAX_SKILLS || bytes > MAX_LISTING {
                return Err(Failure::Unusable(format!(
                    "lists more than {MAX_SKILLS} skills, or more than {MAX_LISTING} bytes of them"
                )));
            }
            cursor = match page.get("nextCursor") {
                None | Some(Value::Null) => return Ok(found),
                Some(Value::String(next)) => Some(next.clone()),
                Some(_) => return Err(Failure::Unusable("`nextCursor` is no string".into())),
            };
            if !cursors.insert(cursor.clone()) {
                return Err(Failure::Unusable("its pages go round in a circle".into()));
            }
        }
        Err(Failure::Unusable(format!(
            "has more than {MAX_PAGES} pages"
        )))
    }

    /// One resource, of at most so many bytes.
    pub(crate) async fn read(&self, uri: &str, limit: u64) -> Result<Bytes> {
        let mut params = Map::new();
        params.insert("uri".into(), uri.into());
        // Text may be escaped to six times its size; base64 takes a third more.
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let wire = limit.saturating_mul(6).saturating_add(64 * 1024);
        let until = Instant::now() + ANSWER;
        let answer = self.ask("resources/read", params, wire, until).await?;
        let unusable = |reason: &str| Failure::Unusable(format!("{uri}: {reason}"));
        let content = answer.get("contents").and_then(Value::as_array);
        let content = content.and_then(|contents| {
            let mut ours = contents.iter();
            ours.find(|content| content.get("uri").and_then(Value::as_str) == Some(uri))
        });
        let content = content.ok_or_else(|| unusable("is not in the answer"))?;
        let field = |key| content.get(key).and_then(Value::as_str);
        let bytes: Bytes = match (field("text"), field("blob")) {
            (Some(text), None) => text.to_owned().into(),
            (None, Some(blob)) => STANDARD
                .decode(blob)
                .map_err(|_| unusable("is no base64"))?
                .into(),
            _ => return Err(unusable("has neither text nor blob")),
        };
        Ok(bytes)
    }
}

/// The bytes a value takes, about.
fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(weight).sum::<usize>() + 2,
        Value::Object(fields) => fields.iter().map(|(k, v)| k.len() + 4 + weight(v)).sum(),
        _ => 8,
    }
}

impl Channel {
    fn open(target: &Target) -> Result<Self> {
        Ok(match target {
            Target::Http { .. } => Self::Http(http::Http::new(target)?),
            Target::Command { .. } => Self::Process(process::Process::start(target)?),
        })
    }

    async fn ask(&self, question: Question<'_>) -> Result<Value> {
        match self {
            Self::Http(http) => http.ask(question).await,
            Self::Process(process) => process.ask(question).await,
        }
    }

    /// Asks whether the server speaks the newest revision.
    async fn discover(&self, until: Instant) -> Result<Value> {
        let question = Question {
            method: "server/discover",
            params: Map::new(),
            version: Some(MODERN),
            limit: MAX_PAGE,
            until: until.min(Instant::now() + Duration::from_secs(8)),
        };
        let answer = self.ask(question).await?;
        let versions = answer.get("supportedVersions").and_then(Value::as_array);
        let speaks = versions.is_some_and(|v| v.iter().any(|v| v == MODERN));
        if !speaks {
            return Err(Failure::Unusable(
                "does not speak the newest revision".into(),
            ));
        }
        Ok(answer)
    }

    /// Shakes hands with a server of an older revision.
    async fn initialize(&self, until: Instant) -> Result<String> {
        let Value::Object(params) = json!({
            "protocolVersion": LEGACY,
            "capabilities": capabilities(),
            "clientInfo": client(),
        }) else {
            return Err(Failure::Unusable(String::new()));
        };
        let question = Question {
            method: "initialize",
            params,
            version: None,
            limit: MAX_PAGE,
            until,
        };
        let answer = self.ask(question).await?;
        let version = answer.get("protocolVersion").and_then(Value::as_str);
        let version = version.filter(|v| v.len() == 10 && v.is_ascii());
        let version = version
            .ok_or_else(|| Failure::Unusable("initialize gave no `protocolVersion`".into()))?;
        need_skills(&answer)?;
        self.tell("notifications/initialized", version, until)
            .await?;
        Ok(version.to_owned())
    }

    async fn tell(&self, method: &str, version: &str, until: Instant) -> Result<()> {
        match self {
            Self::Http(http) => http.tell(method, version, until).await,
            Self::Process(process) => process.tell(method, until).await,
        }
    }
}

/// Refuses a server that has no skills to list.
fn need_skills(answer: &Value) -> Result<()> {
    let extension = answer
        .get("capabilities")
        .and_then(|c| c.get("extensions"))
        .and_then(|e| e.get(crate::mcp::EXTENSION));
    if extension.is_none() {
        return Err(Failure::Unusable(
            "serves no skills (it does not declare io.modelcontextprotocol/skills)".into(),
        ));
    }
    Ok(())
}

fn client() -> Value {
    json!({"name": "repertoire", "version": env!("CARGO_PKG_VERSION")})
}

fn capabilities() -> Value {
    json!({"extensions": {crate::mcp::EXTENSION: {}}})
}

/// A question as a message.
fn message(id: u64, question: &Question<'_>) -> Value {
    let mut params = question.params.clone();
    if question.version == Some(MODERN) {
        params.insert(
            "_meta".into(),
            json!({
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientInfo": client(),
                "io.modelcontextprotocol/clientCapabilities": capabilities(),
            }),
        );
    }
    json!({"jsonrpc": "2.0", "id": id, "method": question.method, "params": params})
}

/// The result of an answer, or the error it is.
fn result(mut answer: Value) -> Result<Value> {
    if let Some(error) = answer.get("error") {
        let text = error.get("message").and_then(Value::as_str);
        return Err(Failure::Answer {
            code: error.get("code").and_then(Value::as_i64).unwrap_or(0),
            message: crate::error::shorten(text.unwrap_or_default()),
        });
    }
    match answer.get_mut("result").map(Value::take) {
        Some(result @ Value::Object(_)) => Ok(result),
        _ => Err(Failure::Unusable(
            "answered with neither result nor error".into(),
        )),
    }
}
