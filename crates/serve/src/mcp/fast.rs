//! The questions that are asked most, answered on the spot.
//!
//! `resources/read`, `skills/get` and `skills/list` make up nearly all that a server is asked.
//! Where such a question is well-formed and its answer is at hand, the answer is written straight
//! into bytes. Anything else, every error included, goes the long way through `rmcp`, which
//! decides alone what is wrong and how that is said; so the two ways differ in time only.

use std::{borrow::Cow, time::Instant};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use repertoire_core::{Uri, mime};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::skills;
use crate::{engine::Engine, read::SMALL};

const MODERN: &str = "2026-07-28";

/// A message, as far as it matters here.
#[derive(Debug, Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(borrow)]
    jsonrpc: Cow<'a, str>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) params: Option<Params<'a>>,
}

/// Parameters, as far as they matter here.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Params<'a> {
    #[serde(borrow, default)]
    pub(crate) uri: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    cursor: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<Meta<'a>>,
}

#[derive(Debug, Deserialize)]
struct Meta<'a> {
    #[serde(borrow, default, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Option<&'a RawValue>,
}

/// Which revision a message is in, if it can be answered here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    /// With a handshake that has taken place.
    Legacy,
    /// 2026-07-28, which each message says of itself.
    Modern,
}

/// What a message says of its own revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// Nothing.
    Nothing,
    /// That it is in 2026-07-28, with everything that takes.
    Modern,
    /// Something else.
    Other,
}

impl Message<'_> {
    /// What a message says of its own revision.
    pub(crate) fn said(&self) -> Said {
        let meta = self.params.as_ref().and_then(|params| params.meta.as_ref());
        let Some((meta, version)) = meta.and_then(|meta| Some((meta, meta.version.as_ref()?)))
        else {
            return Said::Nothing;
        };
        let complete = meta
            .capabilities
            .is_some_and(|raw| raw.get().starts_with('{'));
        if version == MODERN && complete {
            Said::Modern
        } else {
            Said::Other
        }
    }

    /// The id as it was sent, if it is one.
    fn id(&self) -> Option<&str> {
        let raw = self.id?.get();
        let number = || {
            let digits = raw.strip_prefix('-').unwrap_or(raw);
            (1..=15).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
        };
        (raw.starts_with('"') || number()).then_some(raw)
    }
}

/// The answer to a message, if it is one of those that are answered here.
pub(crate) fn answer(engine: &Engine, message: &Message<'_>, era: Era) -> Option<Vec<u8>> {
    let start = Instant::now();
    let method = message.method.as_deref()?;
    if message.jsonrpc != "2.0"
        || !matches!(method, "resources/read" | "skills/get" | "skills/list")
    {
        return None;
    }
    let id = message.id()?;
    let none = Params::default();
    let params = message.params.as_ref().unwrap_or(&none);
    let mut out = String::with_capacity(1024);
    out.push_str("{\"jsonrpc\":\"2.0\",\"id\":");
    out.push_str(id);
    out.push_str(",\"result\":{");
    if era == Era::Modern {
        out.push_str("\"resultType\":\"complete\",\"ttlMs\":0,\"cacheScope\":\"private\",");
    }
    match method {
        "resources/read" => read(engine, params.uri.as_deref()?, &mut out)?,
        "skills/get" => {
            let snapshot = engine.opened()?.snapshot();
            out.push_str("\"skill\":");
            skills::push(&mut out, skills::find(&snapshot, params.uri.as_deref()?)?);
        }
        _ => list(engine, params.cursor.as_deref(), &mut out)?,
    }
    out.push_str("}}");
    engine.metrics.answered(method, true, start.elapsed());
    Some(out.into_bytes())
}

fn list(engine: &Engine, cursor: Option<&str>, out: &mut String) -> Option<()> {
    let snapshot = engine.opened()?.snapshot();
    let size = engine.options.page_size.max(1);
    let page = skills::list_entries(&snapshot, cursor, size).ok()?;
    out.push_str("\"skills\":[");
    for (at, entry) in page.items.into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        skills::push(out, entry);
    }
    out.push(']');
    if let Some(next) = page.next {
        out.push_str(",\"nextCursor\":\"");
        // Base64 needs no escaping.
        out.push_str(&next);
        out.push('"');
    }
    Some(())
}

fn read(engine: &Engine, uri: &str, out: &mut String) -> Option<()> {
    let registry = engine.opened()?;
    let Ok(Uri::Skill(path)) = uri.parse::<Uri>() else {
        return None;
    };
    let (entry, path) = registry.snapshot().locate(&path)?;
    let small = entry
        .head
        .file(&path)
        .is_some_and(|file| file.size <= SMALL);
    if entry.is_remote() || !small {
        return None;
    }
    let bytes = registry.file(&entry, &path).ok()?;
    let kind = entry.mime(&path);
    out.reserve(bytes.len() + bytes.len() / 8 + 256);
    out.push_str("\"contents\":[{\"uri\":");
    push_text(out, uri)?;
    out.push_str(",\"mimeType\":");
    push_text(out, &kind)?;
    match std::str::from_utf8(&bytes) {
        Ok(text) if mime::is_text(&kind) => {
            out.push_str(",\"text\":");
            push_text(out, text)?;
        }
        _ => {
            out.push_str(",\"blob\":\"");
            STANDARD.encode_string(&bytes, out);
            out.push('"');
        }
    }
    out.push_str("}]");
    Some(())
}

/// Adds a text as JSON.
fn push_text(out: &mut String, text: &str) -> Option<()> {
    // Most texts need few escapes; writing whole runs between them is what costs least.
    out.push('"');
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            // Rare enough to be left to somebody else.
            0..0x20 => return push_rest(out, &text[from..]),
            _ => continue,
        };
        out.push_str(&text[from..at]);
        out.push_str(escape);
        from = at + 1;
    }
    out.push_str(&text[from..]);
    out.push('"');
    Some(())
}

/// Adds the rest of a text that holds rare characters, and closes it.
fn push_rest(out: &mut String, text: &str) -> Option<()> {
    let whole = serde_json::to_string(text).ok()?;
    out.push_str(whole.strip_prefix('"')?);
    Some(())
}
