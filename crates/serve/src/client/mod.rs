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

use std::{borrow::Cow, collections::HashSet, fmt, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use repertoire_registry::remote::{Listed, MAX_SKILLS, Refused};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};
use tokio::time::Instant;

pub use pool::Pool;
pub use process::end_all;
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
/// The most bytes of one entry of it.
const MAX_ENTRY: usize = 512 * 1024;
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
    ) -> Result<Message> {
        let question = Question {
            method,
            params,
            version: Some(&self.version),
            limit,
            until,
        };
        self.channel.ask(question).await
    }

    /// Everything the server lists, page by page, and what of it cannot even be read.
    pub(crate) async fn list(&self) -> Result<(Vec<Listed>, Vec<Refused>)> {
        let until = Instant::now() + LISTING;
        let mut found = Vec::new();
        let mut refused = Vec::new();
        let mut cursors = HashSet::new();
        let mut cursor: Option<String> = None;
        let mut bytes = 0;
        for _ in 0..MAX_PAGES {
            let mut params = Map::new();
            if let Some(cursor) = &cursor {
                params.insert("cursor".into(), cursor.as_str().into());
            }
            let until = until.min(Instant::now() + ANSWER);
            let message = self.ask("skills/list", params, MAX_PAGE, until).await?;
            let page: Page<'_> = message.result("skills/list")?;
            for raw in page.skills {
                bytes += raw.get().len();
                match read_entry(raw.get()) {
                    Ok(listed) => found.push(listed),
                    Err(one) => refused.push(one),
                }
            }
            if found.len() + refused.len() > MAX_SKILLS || bytes > MAX_LISTING {
                return Err(Failure::Unusable(format!(
                    "lists more than {MAX_SKILLS} skills, or more than {MAX_LISTING} bytes of them"
                )));
            }
            let Some(next) = page.next_cursor else {
                return Ok((found, refused));
            };
            if !cursors.insert(next.clone()) {
                return Err(Failure::Unusable("its pages go round in a circle".into()));
            }
            cursor = Some(next);
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
        let message = self.ask("resources/read", params, wire, until).await?;
        let Contents { contents } = message.result("resources/read")?;
        let unusable = |reason: &str| Failure::Unusable(format!("{uri}: {reason}"));
        let content = contents.0.into_iter().find(|content| content.uri == uri);
        let content = content.ok_or_else(|| unusable("is not in the answer"))?;
        match (content.text, content.blob) {
            (Some(text), None) => Ok(text.into_owned().into()),
            (None, Some(blob)) => {
                let bytes = STANDARD.decode(&*blob);
                Ok(bytes.map_err(|_| unusable("is no base64"))?.into())
            }
            _ => Err(unusable("has neither text nor blob")),
        }
    }
}

/// One entry of a listing, or why it cannot be read.
fn read_entry(raw: &str) -> std::result::Result<Listed, Refused> {
    let refuse = |message: String| {
        #[derive(Deserialize)]
        struct Named {
            uri: Option<String>,
        }
        let named = repertoire_core::json::from_str::<Named>(raw)
            .ok()
            .and_then(|n| n.uri);
        Refused {
            uri: crate::error::shorten(&named.unwrap_or_default()),
            code: "invalid_entry",
            message,
        }
    };
    if raw.len() > MAX_ENTRY {
        return Err(refuse(format!("its entry has more than {MAX_ENTRY} bytes")));
    }
    repertoire_core::json::from_str(raw).map_err(|error| refuse(error.to_string()))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    #[serde(borrow)]
    skills: Vec<&'a RawValue>,
    #[serde(default)]
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct Contents<'a> {
    #[serde(borrow)]
    contents: Few<'a>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow)]
    uri: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    blob: Option<Cow<'a, str>>,
}

/// A few contents: who sends more than that has something else in mind.
struct Few<'a>(Vec<Content<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Few<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Few<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("at most 16 contents")
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut from: A,
            ) -> std::result::Result<Few<'de>, A::Error> {
                let mut few = Vec::new();
                while let Some(content) = from.next_element()? {
                    few.push(content);
                    if few.len() > 16 {
                        return Err(serde::de::Error::invalid_length(few.len(), &self));
                    }
                }
                Ok(Few(few))
            }
        }
        from.deserialize_seq(Visitor)
    }
}

/// An answer as it came: looked at no further than it is needed.
#[derive(Debug)]
pub(crate) struct Message(Vec<u8>);

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

impl Message {
    /// The result, or the error it is.
    fn result<'a, T: Deserialize<'a>>(&'a self, method: &str) -> Result<T> {
        let wrong = |error: serde_json::Error| Failure::Unusable(format!("{method}: {error}"));
        let envelope: Envelope<'_> = repertoire_core::json::from_slice(&self.0).map_err(wrong)?;
        if let Some(error) = envelope.error {
            #[derive(Default, Deserialize)]
            struct Wire<'a> {
                #[serde(default)]
                code: i64,
                #[serde(borrow, default)]
                message: Cow<'a, str>,
            }
            let error: Wire<'_> = repertoire_core::json::from_str(error.get()).unwrap_or_default();
            return Err(Failure::Answer {
                code: error.code,
                message: crate::error::shorten(&error.message),
            });
        }
        let result = envelope
            .result
            .ok_or_else(|| Failure::Unusable("answered with neither result nor error".into()))?;
        repertoire_core::json::from_str(result.get()).map_err(wrong)
    }
}

impl Channel {
    fn open(target: &Target) -> Result<Self> {
        Ok(match target {
            Target::Http { .. } => Self::Http(http::Http::new(target)?),
            Target::Command { .. } => Self::Process(process::Process::start(target)?),
        })
    }

    async fn ask(&self, question: Question<'_>) -> Result<Message> {
        match self {
            Self::Http(http) => http.ask(question).await,
            Self::Process(process) => process.ask(question).await,
        }
    }

    /// Asks whether the server speaks the newest revision.
    async fn discover(&self, until: Instant) -> Result<Hello> {
        let question = Question {
            method: "server/discover",
            params: Map::new(),
            version: Some(MODERN),
            limit: MAX_PAGE,
            until: until.min(Instant::now() + Duration::from_secs(8)),
        };
        let answer: Hello = self.ask(question).await?.result("server/discover")?;
        if !answer.supported_versions.iter().any(|v| v == MODERN) {
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
        let answer: Hello = self.ask(question).await?.result("initialize")?;
        let version = answer.protocol_version.as_deref();
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

/// What a server says of itself, as far as it matters here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hello {
    #[serde(default)]
    supported_versions: Vec<String>,
    #[serde(default)]
    protocol_version: Option<String>,
    #[serde(default)]
    capabilities: Capabilities,
}

#[derive(Default, Deserialize)]
struct Capabilities {
    #[serde(default)]
    extensions: Map<String, Value>,
}

/// Refuses a server that has no skills to list.
fn need_skills(answer: &Hello) -> Result<()> {
    if answer
        .capabilities
        .extensions
        .contains_key(crate::mcp::EXTENSION)
    {
        return Ok(());
    }
    Err(Failure::Unusable(
        "serves no skills (it does not declare io.modelcontextprotocol/skills)".into(),
    ))
}

fn client() -> Value {
    json!({"name": "repertoire", "version": env!("CARGO_PKG_VERSION")})
}

fn capabilities() -> Value {
    json!({"extensions": {crate::mcp::EXTENSION: {}}})
}

/// A question as a message.
fn question(id: u64, question: &Question<'_>) -> Value {
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
