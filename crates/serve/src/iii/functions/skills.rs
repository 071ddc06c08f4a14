//! Skills: register, list, read and fetch.

use repertoire_core::{SkillId, Uri, surface};
use repertoire_registry::registered;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Answer, CallError, Catalogue, Functions, output, page::Paged};
use crate::error::shorten;

/// The most URIs one call may name.
const MAX_URIS: usize = 64;
/// The most bytes one fetch answers with.
const MAX_BYTES: usize = 8 * 1024 * 1024;

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "RegisterSkillInput")]
pub(super) struct Register {
    /// One or more segments joined by `/`; each of lowercase letters, digits, `-` and `_`, at
    /// most 64 characters; at most 1024 in all. The first one is not `fn`.
    id: String,
    /// The markdown body, at most 256 KiB.
    skill: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "RegisterSkillOutput")]
pub(super) struct Registered {
    id: String,
    /// RFC 3339 in UTC.
    registered_at: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "UnregisterSkillInput")]
pub(super) struct Unregister {
    id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "UnregisterSkillOutput")]
pub(super) struct Unregistered {
    id: String,
    /// Whether there was one.
    removed: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Row<'a> {
    id: &'a str,
    /// The length of the body.
    bytes: u64,
    /// RFC 3339 in UTC; empty for a skill that was never registered.
    registered_at: &'a str,
    /// `state` if it was registered, `fs` if it is in files, else where it comes from.
    origin: String,
}

#[derive(JsonSchema)]
#[schemars(title = "ListSkillsOutput")]
#[allow(dead_code, reason = "the schema of what is written row by row")]
pub(super) struct Listing {
    skills: Vec<Row<'static>>,
    /// Where the next page starts, if there is one.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Resource<'a> {
    uri: String,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    mime_type: &'static str,
}

#[derive(JsonSchema)]
#[schemars(title = "ResourcesListOutput")]
#[allow(dead_code, reason = "the schema of what is written row by row")]
pub(super) struct Resources {
    resources: Vec<Resource<'static>>,
    /// Where the next page starts, if there is one.
    next_cursor: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "ReadResourceInput")]
pub(super) struct Read {
    /// `iii://skills`, `iii://{id}` or `iii://fn/{a}/{b}`.
    uri: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Content<'a> {
    uri: &'a str,
    mime_type: &'a str,
    text: &'a str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "ReadResourceOutput")]
pub(super) struct Contents<'a> {
    contents: [Content<'a>; 1],
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Template {
    #[serde(rename = "uriTemplate")]
    form: &'static str,
    name: &'static str,
    description: &'static str,
    mime_type: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "ResourceTemplatesOutput")]
#[serde(rename_all = "camelCase")]
pub(super) struct Templates {
    resource_templates: [Template; 2],
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "FetchSkillInput")]
pub(super) struct Fetch {
    /// One URI.
    #[serde(default)]
    uri: Option<String>,
    /// Several URIs; they win over `uri`.
    #[serde(default)]
    uris: Option<Vec<String>>,
}

impl Functions {
    pub(super) async fn register_skill(&self, input: Register) -> Answer {
        let id: SkillId = input.id.parse()?;
        let row = registered::skill_row(&id, &input.skill)?;
        let registered_at = row.at.clone();
        self.keep(&self.options.skills, id.as_str(), row).await?;
        output(&Registered {
            id: id.to_string(),
            registered_at,
        })
    }

    pub(super) async fn unregister_skill(&self, input: Unregister) -> Answer {
        let id: SkillId = input.id.parse()?;
        let removed = self.forget(&self.options.skills, id.as_str()).await?;
        output(&Unregistered {
            id: id.to_string(),
            removed,
        })
    }

    pub(super) async fn read(&self, registry: &Catalogue, input: &Read) -> Answer {
        let parsed = parse(input.uri.trim())?;
        if let Uri::Body(id) = &parsed
            && let Some(body) = registry.body_json(id)?
        {
            // Kept as JSON and answered as JSON: nothing of it is read in between.
            let uri = output(&input.uri.trim())?;
            return Ok(format!(
                r#"{{"contents":[{{"uri":{uri},"mimeType":"text/markdown","text":{body}}}]}}"#
            ));
        }
        let (mime, text) = self.text(registry, &parsed).await?;
        output(&Contents {
            contents: [Content {
                uri: input.uri.trim(),
                mime_type: &mime,
                text: &text,
            }],
        })
    }

    /// The text behind a URI of the bus.
    async fn text(&self, registry: &Catalogue, uri: &Uri) -> Result<(String, String), CallError> {
        let content = self.engine.read(registry, uri).await?;
        let text = String::from_utf8(content.bytes.into());
        let text = text.map_err(|_| CallError::new("not_utf8", format!("{uri}: not text")))?;
        Ok((content.mime.into_owned(), text))
    }

    /// Reads every URI or none: all are looked at before the first is touched.
    pub(super) async fn fetch(&self, registry: &Catalogue, input: Fetch) -> Answer {
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
        if uris.len() > MAX_URIS {
            return refuse(format!(
                "{} URIs: at most {MAX_URIS} in one call",
                uris.len()
            ));
        }
        let parsed = uris.iter().map(|uri| parse(uri));
        let parsed = parsed.collect::<Result<Vec<Uri>, _>>()?;
        let mut sections = Vec::with_capacity(uris.len());
        let mut bytes = 0;
        for (uri, parsed) in uris.into_iter().zip(parsed) {
            let (_, text) = self.text(registry, &parsed).await?;
            bytes += text.len();
            if bytes > MAX_BYTES {
                let message =
                    format!("{uri}: too large: more than {MAX_BYTES} bytes in one answer");
                return Err(CallError::new("too_large", message));
            }
            sections.push((uri, text));
        }
        let sections = sections.iter().map(|(u, t)| (u.as_str(), t.as_str()));
        output(&surface::fetch_text(sections))
    }
}

/// An address on the bus.
fn parse(uri: &str) -> Result<Uri, CallError> {
    if !uri.starts_with("iii://") {
        let message = format!("{}: every URI must start with iii://", shorten(uri));
        return Err(CallError::new("invalid_uri", message));
    }
    Ok(uri.parse()?)
}

pub(super) fn list(registry: &Catalogue, input: &Paged) -> Answer {
    let snapshot = registry.snapshot();
    let after = input.after::<SkillId>('s')?;
    let rows = snapshot.skills_after(after.as_ref()).map(|entry| {
        let row = match &entry.head.registered {
            Some(registered) => Row {
                id: entry.id.as_str(),
                bytes: registered.bytes,
                registered_at: &registered.at,
                origin: super::origin(&entry.origin),
            },
            None => Row {
                id: entry.id.as_str(),
                bytes: entry
                    .head
                    .file(&repertoire_core::RelPath::document())
                    .map_or(0, |file| file.size),
                registered_at: "",
                origin: super::origin(&entry.origin),
            },
        };
        (entry.id.as_str(), output(&row))
    });
    input.write("skills", 's', None, rows)
}

pub(super) fn resources(registry: &Catalogue, input: &Paged) -> Answer {
    let snapshot = registry.snapshot();
    let after = input.after::<SkillId>('s')?;
    let index = output(&Resource {
        uri: Uri::Index.to_string(),
        name: "skills",
        title: Some("Skills"),
        description: Some("The index of all skills."),
        mime_type: "text/markdown",
    })?;
    let rows = snapshot.skills_after(after.as_ref()).map(|entry| {
        let row = Resource {
            uri: format!("iii://{}", entry.id),
            name: entry.id.as_str(),
            title: entry.head.title.as_deref(),
            description: entry.head.description.as_deref(),
            mime_type: "text/markdown",
        };
        (entry.id.as_str(), output(&row))
    });
    input.write("resources", 's', Some(index), rows)
}

pub(super) fn templates() -> String {
    let template = |form, name, description| Template {
        form,
        name,
        description,
        mime_type: "text/markdown",
    };
    json!(Templates {
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
