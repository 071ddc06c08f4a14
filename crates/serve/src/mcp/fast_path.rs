//! Fast path: the most frequent requests, answered without `rmcp`.
//!
//! `resources/read`, `skills/get` and `skills/list` are nearly all requests of a server. Where
//! such a request is well-formed and its content is at hand, the response is written directly as
//! bytes. Everything else, including every error, is passed to `rmcp`, so that both paths give the
//! same responses and differ only in time.

use std::{borrow::Cow, time::Instant};

use repertoire_core::Uri;
use repertoire_registry::Trusted;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::skills;
use crate::{
    resource_json::{ResourceContent, push_contents},
    resource_reader::MAX_INLINE_READ,
    service::SkillService,
};

const MODERN_REVISION: &str = "2026-07-28";

/// The parts of a message that the fast path needs.
#[derive(Debug, Deserialize)]
pub(crate) struct FastMessage<'a> {
    #[serde(borrow)]
    jsonrpc: Cow<'a, str>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) params: Option<FastParams<'a>>,
}

/// The parameters that the fast path needs.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct FastParams<'a> {
    #[serde(borrow, default)]
    pub(crate) uri: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    cursor: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<FastMeta<'a>>,
}

#[derive(Debug, Deserialize)]
struct FastMeta<'a> {
    #[serde(borrow, default, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Option<&'a RawValue>,
}

/// The protocol era of a message that can be answered here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProtocolEra {
    /// A revision with a handshake, which has been completed.
    Legacy,
    /// 2026-07-28, declared in each message.
    Modern,
}

/// The revision that a message declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeclaredRevision {
    /// None.
    Unspecified,
    /// 2026-07-28, with all required fields.
    Modern,
    /// Another or an incomplete one.
    Other,
}

impl FastMessage<'_> {
    /// Returns the revision that the message declares.
    pub(crate) fn declared_revision(&self) -> DeclaredRevision {
        let meta = self.params.as_ref().and_then(|params| params.meta.as_ref());
        let Some((meta, version)) = meta.and_then(|meta| Some((meta, meta.version.as_ref()?)))
        else {
            return DeclaredRevision::Unspecified;
        };
        let complete = meta
            .capabilities
            .is_some_and(|raw| raw.get().starts_with('{'));
        if version == MODERN_REVISION && complete {
            DeclaredRevision::Modern
        } else {
            DeclaredRevision::Other
        }
    }

    /// Returns the id as it was sent, if it is valid.
    fn valid_id(&self) -> Option<&str> {
        let raw = self.id?.get();
        let number = || {
            let digits = raw.strip_prefix('-').unwrap_or(raw);
            (1..=15).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
        };
        (raw.starts_with('"') || number()).then_some(raw)
    }
}

/// Answers a message, if it is one that the fast path supports.
pub(crate) fn try_answer(
    service: &SkillService,
    message: &FastMessage<'_>,
    era: ProtocolEra,
) -> Option<Vec<u8>> {
    let start = Instant::now();
    let method = message.method.as_deref()?;
    if message.jsonrpc != "2.0"
        || !matches!(method, "resources/read" | "skills/get" | "skills/list")
    {
        return None;
    }
    let id = message.valid_id()?;
    let none = FastParams::default();
    let params = message.params.as_ref().unwrap_or(&none);
    let mut out = String::with_capacity(1024);
    out.push_str("{\"jsonrpc\":\"2.0\",\"id\":");
    out.push_str(id);
    out.push_str(",\"result\":{");
    if era == ProtocolEra::Modern {
        out.push_str("\"resultType\":\"complete\",\"ttlMs\":0,\"cacheScope\":\"private\",");
    }
    match method {
        "resources/read" => write_resource(service, params.uri.as_deref()?, &mut out)?,
        "skills/get" => {
            let snapshot = service.opened_registry()?.snapshot();
            out.push_str("\"skill\":");
            skills::push_skill_entry(
                &mut out,
                skills::find_by_uri(&snapshot, params.uri.as_deref()?)?,
            );
        }
        _ => write_skill_list(service, params.cursor.as_deref(), &mut out)?,
    }
    out.push_str("}}");
    service.metrics.count_request(method, true, start.elapsed());
    Some(out.into_bytes())
}

fn write_skill_list(service: &SkillService, cursor: Option<&str>, out: &mut String) -> Option<()> {
    let snapshot = service.opened_registry()?.snapshot();
    let size = service.options.page_size.max(1);
    let page = skills::list_entries(&snapshot, cursor, size).ok()?;
    out.push_str("\"skills\":[");
    for (at, entry) in page.items.into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        skills::push_skill_entry(out, entry);
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

fn write_resource(service: &SkillService, uri: &str, out: &mut String) -> Option<()> {
    let registry = service.opened_registry()?;
    let Ok(Uri::Skill(path)) = uri.parse::<Uri>() else {
        return None;
    };
    let (entry, path) = registry.snapshot().locate_file(&path)?;
    let small = entry
        .metadata
        .find_file(&path)
        .is_some_and(|file| file.size <= MAX_INLINE_READ);
    // The label of untrusted text is written by the other path, which also knows who chose a skill.
    let is_choice = || {
        let tools = service.optional_tools();
        tools.is_some_and(|tools| tools.feedback.awaits_choice(&entry.id))
    };
    if is_choice() || entry.is_remote() || !small || entry.trusted == Trusted::No {
        return None;
    }
    let bytes = registry.read_file(&entry, &path).ok()?;
    let kind = entry.mime_type(&path);
    let content = ResourceContent::from_bytes(&kind, &bytes);
    push_contents(out, uri, &kind, content);
    Some(())
}
