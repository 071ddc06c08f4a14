//! Skills: register, list, read and fetch.

use std::sync::Arc;

use repertoire_core::{SkillId, Uri, surface};
use repertoire_registry::{SkillEntry, Snapshot, Trusted, registered};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    BusResult, CallError, SharedRegistry, SkillFunctions, paging::ListInput, to_json_text,
};
use crate::{
    error::shorten_text,
    resource_json::{ResourceContent, push_contents},
};

/// The most bytes in the answer of one fetch.
const MAX_FETCH_BYTES: usize = 8 * 1024 * 1024;

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "RegisterSkillInput")]
pub(super) struct RegisterSkillInput {
    /// One or more segments joined by `/`; each of lowercase letters, digits, `-` and `_`, at
    /// most 64 characters; at most 1024 in all. The first one is not `fn`.
    id: String,
    /// The markdown body, at most 256 KiB.
    skill: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "RegisterSkillOutput")]
pub(super) struct RegisterSkillOutput {
    id: String,
    /// RFC 3339 in UTC.
    registered_at: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "UnregisterSkillInput")]
pub(super) struct UnregisterSkillInput {
    id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "UnregisterSkillOutput")]
pub(super) struct UnregisterSkillOutput {
    id: String,
    /// Whether there was one.
    removed: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SkillListRow<'a> {
    id: &'a str,
    /// The length of the body.
    bytes: u64,
    /// RFC 3339 in UTC; empty for a skill that was never registered.
    registered_at: &'a str,
    /// `state` if it was registered, `fs` if it is in files, else where it comes from.
    origin: String,
    /// `untrusted` if the user has not trusted its origin.
    #[serde(skip_serializing_if = "Option::is_none")]
    trust: Option<&'static str>,
}

#[derive(JsonSchema)]
#[schemars(title = "ListSkillsOutput")]
#[allow(dead_code, reason = "the schema of what is written row by row")]
pub(super) struct ListSkillsOutput {
    skills: Vec<SkillListRow<'static>>,
    /// Where the next page starts, if there is one.
    next_cursor: Option<String>,
    /// The same, under the name that MCP has for it.
    #[serde(rename = "nextCursor")]
    next_cursor_of_mcp: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ResourceRow<'a> {
    uri: String,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    mime_type: &'static str,
    /// Names the origin of a skill that the user has not trusted.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<TrustMeta>,
}

/// The label of text from an untrusted origin (T44).
#[derive(Debug, Serialize, JsonSchema)]
struct TrustMeta {
    #[serde(rename = "repertoire/trust")]
    trust: &'static str,
    #[serde(rename = "repertoire/origin")]
    origin: String,
}

fn trust_label(entry: &SkillEntry) -> Option<&'static str> {
    entry.untrusted_origin().map(|_| "untrusted")
}

fn trust_meta(entry: &SkillEntry) -> Option<TrustMeta> {
    let origin = entry.untrusted_origin()?;
    Some(TrustMeta {
        trust: "untrusted",
        origin,
    })
}

#[derive(JsonSchema)]
#[schemars(title = "ResourcesListOutput")]
#[allow(dead_code, reason = "the schema of what is written row by row")]
pub(super) struct ResourcesListOutput {
    resources: Vec<ResourceRow<'static>>,
    /// Where the next page starts, if there is one.
    next_cursor: Option<String>,
    /// The same, under the name that MCP has for it.
    #[serde(rename = "nextCursor")]
    next_cursor_of_mcp: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "ReadResourceInput")]
pub(super) struct ReadResourceInput {
    /// `iii://skills`, `iii://{id}` or `iii://fn/{a}/{b}`.
    uri: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ResourceText<'a> {
    uri: &'a str,
    mime_type: &'a str,
    text: &'a str,
    /// Names the origin of a skill that the user has not trusted.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<TrustMeta>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "ReadResourceOutput")]
pub(super) struct ReadResourceOutput<'a> {
    contents: [ResourceText<'a>; 1],
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct UriTemplate {
    #[serde(rename = "uriTemplate")]
    form: &'static str,
    name: &'static str,
    description: &'static str,
    mime_type: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "ResourceTemplatesOutput")]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceTemplatesOutput {
    resource_templates: [UriTemplate; 2],
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "FetchSkillInput")]
pub(super) struct FetchSkillInput {
    /// One URI.
    #[serde(default)]
    uri: Option<String>,
    /// Several URIs; they win over `uri`.
    #[serde(default)]
    uris: Option<Vec<String>>,
}

impl SkillFunctions {
    pub(super) async fn register_skill(&self, input: RegisterSkillInput) -> BusResult {
        let id: SkillId = input.id.parse()?;
        let row = registered::skill_row(&id, &input.skill)?;
        let registered_at = row.at.clone();
        self.store_row(&self.options.skills, id.as_str(), row)
            .await?;
        to_json_text(&RegisterSkillOutput {
            id: id.to_string(),
            registered_at,
        })
    }

    pub(super) async fn unregister_skill(&self, input: UnregisterSkillInput) -> BusResult {
        let id: SkillId = input.id.parse()?;
        let removed = self.delete_row(&self.options.skills, id.as_str()).await?;
        to_json_text(&UnregisterSkillOutput {
            id: id.to_string(),
            removed,
        })
    }

    pub(super) async fn read_resource(
        &self,
        registry: &SharedRegistry,
        input: &ReadResourceInput,
    ) -> BusResult {
        let parsed = parse_uri(input.uri.trim())?;
        let snapshot = self.snapshot(registry);
        if let Some(entry) = untrusted_entry(&snapshot, &parsed) {
            let (mime, text) = self.read_text(registry, &snapshot, &parsed).await?;
            return to_json_text(&ReadResourceOutput {
                contents: [ResourceText {
                    uri: input.uri.trim(),
                    mime_type: &mime,
                    text: &text,
                    meta: trust_meta(&entry),
                }],
            });
        }
        if let Uri::Body(id) = &parsed
            && let Some(body) = registry.body_json(id)?
        {
            // The body is stored as JSON, so it is inserted without being parsed.
            let content = ResourceContent::JsonText(&body);
            return Ok(contents_json(input, "text/markdown", content));
        }
        let (mime, text) = self.read_text(registry, &snapshot, &parsed).await?;
        Ok(contents_json(input, &mime, ResourceContent::Text(&text)))
    }

    /// Returns the MIME type and text behind a URI.
    async fn read_text(
        &self,
        registry: &SharedRegistry,
        snapshot: &Arc<Snapshot>,
        uri: &Uri,
    ) -> Result<(String, String), CallError> {
        let content = self.service.read_uri(registry, snapshot, uri).await?;
        let text = String::from_utf8(content.bytes.into());
        let text = text.map_err(|_| CallError::new("not_utf8", format!("{uri}: not text")))?;
        Ok((content.mime.into_owned(), text))
    }

    /// Reads every URI or none: all are parsed before the first is read.
    pub(super) async fn fetch_skills(
        &self,
        registry: &SharedRegistry,
        input: FetchSkillInput,
    ) -> BusResult {
        let given = |uris: Vec<String>| -> Vec<String> {
            let trimmed = uris.into_iter().map(|uri| uri.trim().to_owned());
            trimmed.filter(|uri| !uri.is_empty()).collect()
        };
        let mut uris = given(input.uris.unwrap_or_default());
        if uris.is_empty() {
            uris = given(input.uri.into_iter().collect());
        }
        let refuse = |message: String| Err(CallError::new("invalid_request", message));
        if uris.is_empty() {
            return refuse("`uri` or `uris` must be non-empty, such as iii://skills".to_owned());
        }
        let most = self.options.limits.fetch_uris;
        if uris.len() > most {
            return refuse(format!("{} URIs: at most {most} in one call", uris.len()));
        }
        let parsed = uris.iter().map(|uri| parse_uri(uri));
        let parsed = parsed.collect::<Result<Vec<Uri>, _>>()?;
        // One text for a model has no place for a label. The same snapshot is read, so that no other
        // skill takes the place of one that was checked.
        let snapshot = self.snapshot(registry);
        if let Some(uri) = parsed
            .iter()
            .find(|uri| untrusted_entry(&snapshot, uri).is_some())
        {
            let message = format!(
                "{uri}: the user has not trusted its origin; skills::resources-read reads it with a \
                 label"
            );
            return Err(CallError::new("untrusted", message));
        }
        let mut sections = Vec::with_capacity(uris.len());
        let mut bytes = 0;
        for (uri, parsed) in uris.into_iter().zip(parsed) {
            let (_, text) = self.read_text(registry, &snapshot, &parsed).await?;
            bytes += text.len();
            if bytes > MAX_FETCH_BYTES {
                let message =
                    format!("{uri}: too large: more than {MAX_FETCH_BYTES} bytes in one answer");
                return Err(CallError::new("too_large", message));
            }
            sections.push((uri, text));
        }
        let sections = sections.iter().map(|(u, t)| (u.as_str(), t.as_str()));
        to_json_text(&surface::fetch_text(sections))
    }
}

/// Returns the skill that a URI reads from, if it is untrusted.
fn untrusted_entry(snapshot: &Snapshot, uri: &Uri) -> Option<Arc<SkillEntry>> {
    let Uri::Body(id) = uri else {
        return None;
    };
    let entry = snapshot.get(id)?.clone();
    (entry.trusted == Trusted::No).then_some(entry)
}

/// Parses an `iii://` URI.
fn parse_uri(uri: &str) -> Result<Uri, CallError> {
    if !uri.starts_with("iii://") {
        let message = format!("{}: every URI must start with iii://", shorten_text(uri));
        return Err(CallError::new("invalid_uri", message));
    }
    Ok(uri.parse()?)
}

pub(super) fn list_skills(snapshot: &Snapshot, input: &ListInput) -> BusResult {
    let after = input.after_key::<SkillId>('s')?;
    let rows = snapshot.skills_after(after.as_ref()).map(|entry| {
        let row = match &entry.metadata.registered {
            Some(registered) => SkillListRow {
                id: entry.id.as_str(),
                bytes: registered.bytes,
                registered_at: &registered.at,
                origin: super::origin_label(&entry.origin),
                trust: trust_label(entry),
            },
            None => SkillListRow {
                id: entry.id.as_str(),
                bytes: entry
                    .metadata
                    .find_file(&repertoire_core::RelPath::document())
                    .map_or(0, |file| file.size),
                registered_at: "",
                origin: super::origin_label(&entry.origin),
                trust: trust_label(entry),
            },
        };
        (entry.id.as_str(), to_json_text(&row))
    });
    input.write_page("skills", 's', None, rows)
}

pub(super) fn list_resources(snapshot: &Snapshot, input: &ListInput) -> BusResult {
    let after = input.after_key::<SkillId>('s')?;
    let index = to_json_text(&ResourceRow {
        uri: Uri::Index.to_string(),
        name: "skills",
        title: Some("Skills"),
        description: Some("The index of all skills."),
        mime_type: "text/markdown",
        meta: None,
    })?;
    let rows = snapshot.skills_after(after.as_ref()).map(|entry| {
        let row = ResourceRow {
            uri: format!("iii://{}", entry.id),
            // The first heading, as workers before this one named it.
            name: entry.metadata.title.as_deref().unwrap_or(entry.id.as_str()),
            title: entry.metadata.title.as_deref(),
            description: entry.metadata.description.as_deref(),
            mime_type: "text/markdown",
            meta: trust_meta(entry),
        };
        (entry.id.as_str(), to_json_text(&row))
    });
    input.write_page("resources", 's', Some(index), rows)
}

pub(crate) fn list_templates() -> String {
    let template = |form, name, description| UriTemplate {
        form,
        name,
        description,
        mime_type: "text/markdown",
    };
    json!(ResourceTemplatesOutput {
        resource_templates: [
            template(
                "iii://{+id}",
                "skill",
                "The body of a skill, at any depth: iii://resend/email/send",
            ),
            template(
                "iii://fn/{+function}",
                "function",
                "What a function answers: iii://fn/resend/health calls resend::health",
            ),
        ],
    })
    .to_string()
}

fn contents_json(input: &ReadResourceInput, mime: &str, content: ResourceContent<'_>) -> String {
    let mut out = "{".to_owned();
    push_contents(&mut out, input.uri.trim(), mime, content);
    out.push('}');
    out
}
