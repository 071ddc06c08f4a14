//! `resources/list`, `resources/templates/list` and `resources/read`.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use repertoire_core::{FileEntry, SkillId, Uri, mime};
use repertoire_registry::{Content, Entry, Origin, Registry, Snapshot};
use rmcp::{
    ErrorData,
    model::{MetaObject, Resource, ResourceContents, ResourceTemplate},
};
use serde_json::{Map, Value};

use super::cursor::{Cursor, Page, page};
use crate::{
    engine::Engine,
    error::{Unknown, about, missing, params},
};

/// What keys of ours in `_meta` start with.
const META: &str = "io.modelcontextprotocol.skills/";

/// A file of a skill as a resource.
pub(super) fn file_resource(entry: &Entry, file: &FileEntry) -> Resource {
    let uri = Uri::file(&entry.id, &file.path).to_string();
    if file.path.is_document() {
        return document(entry).with_size(file.size);
    }
    Resource::new(uri, file.path.file_name())
        .with_mime_type(entry.mime(&file.path))
        .with_size(file.size)
}

/// The document of a skill as a resource: its name and description are the frontmatter's.
pub(super) fn document(entry: &Entry) -> Resource {
    let mut front: Map<String, Value> = entry
        .head
        .frontmatter
        .as_deref()
        .and_then(|text| repertoire_core::json::from_str(text).ok())
        .unwrap_or_default();
    let name = front.remove("name");
    let name = name.as_ref().and_then(Value::as_str);
    let description = front.remove("description");
    let description = description.as_ref().and_then(Value::as_str);
    let description = description.or(entry.head.description.as_deref());
    let uri = Uri::document(&entry.id).to_string();
    let mut resource =
        Resource::new(uri, name.unwrap_or(entry.id.name())).with_mime_type("text/markdown");
    resource.title = entry.head.title.as_deref().map(str::to_owned);
    resource.description = description.map(str::to_owned);
    if !front.is_empty() {
        let mut meta = MetaObject::new();
        for (key, value) in front {
            meta.0.insert(format!("{META}{key}"), value);
        }
        resource.meta = Some(meta);
    }
    resource
}

/// A body as an `iii://` resource.
fn body(entry: &Entry) -> Resource {
    let uri = Uri::Body(entry.id.clone()).to_string();
    let mut resource = Resource::new(uri, entry.id.as_str()).with_mime_type("text/markdown");
    resource.title = entry.head.title.as_deref().map(str::to_owned);
    resource.description = entry.head.description.as_deref().map(str::to_owned);
    resource
}

/// The two resources that list the others.
fn indexes() -> [(&'static str, Resource); 2] {
    let index = Resource::new(Uri::Index.to_string(), "skills")
        .with_description("Every skill with its title and description, as markdown")
        .with_mime_type("text/markdown");
    let discovery = Resource::new(Uri::DiscoveryIndex.to_string(), "index.json")
        .with_description("Every skill with its URL, as the draft of skills over MCP lists them")
        .with_mime_type("application/json");
    [("0", index), ("1", discovery)]
}

/// A page of all resources. Supporting files are readable and not listed.
pub(super) fn list(
    snapshot: &Snapshot,
    cursor: Option<&str>,
    size: usize,
) -> Result<Page<Resource>, ErrorData> {
    let after = cursor.map(|text| Cursor::decode(text, "isb")).transpose()?;
    let (fixed, id, again) = match &after {
        None => (Some(String::new()), None, false),
        Some(cursor) if cursor.kind == 'i' => (Some(cursor.key.clone()), None, false),
        Some(cursor) => {
            let id: SkillId = cursor
                .key
                .parse()
                .map_err(|error| params(format!("cursor is none of ours: {error}")))?;
            // The page may have ended between the two resources of one entry.
            (None, Some(id), cursor.kind == 's')
        }
    };
    let fixed = fixed.into_iter().flat_map(|after| {
        let behind = indexes().into_iter().filter(move |(key, _)| **key > *after);
        behind.map(|(key, resource)| (Cursor::new('i', key), 256, resource))
    });
    let rest = id
        .as_ref()
        .filter(|_| again)
        .and_then(|id| snapshot.get(id))
        .and_then(|entry| second(entry));
    let entries = snapshot.skills_after(id.as_ref()).flat_map(|entry| {
        let first = entry.has_files().then(|| {
            let weight = 256 + entry.head.frontmatter.as_deref().map_or(0, str::len);
            let cursor = Cursor::new('s', entry.id.as_str());
            (cursor, weight, document(entry))
        });
        first.into_iter().chain(second(entry))
    });
    Ok(page(fixed.chain(rest).chain(entries), size))
}

/// The `iii://` resource of an entry, where it is another one than its document.
fn second(entry: &Entry) -> Option<(Cursor, usize, Resource)> {
    let other = !entry.has_files() || entry.origin == Origin::State;
    other.then(|| (Cursor::new('b', entry.id.as_str()), 256, body(entry)))
}

/// What the variables in a template stand for.
pub(super) const DOCUMENT_TEMPLATE: &str = "skill://{+id}/SKILL.md";
pub(super) const FILE_TEMPLATE: &str = "skill://{+id}/{+file}";
pub(super) const BODY_TEMPLATE: &str = "iii://{+id}";
pub(super) const FUNCTION_TEMPLATE: &str = "iii://fn/{+function}";

/// The templates of everything that can be read.
pub(super) fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new(DOCUMENT_TEMPLATE, "skill")
            .with_description("The instructions of a skill")
            .with_mime_type("text/markdown"),
        ResourceTemplate::new(FILE_TEMPLATE, "skill file")
            .with_description("A file that belongs to a skill"),
        ResourceTemplate::new(BODY_TEMPLATE, "skill body")
            .with_description("The body of a skill, as it was registered")
            .with_mime_type("text/markdown"),
        ResourceTemplate::new(FUNCTION_TEMPLATE, "function")
            .with_description("What a function of a worker answers, with / for ::"),
    ]
}

/// Reads what a URI names.
pub(super) async fn content(
    engine: &Engine,
    registry: &Arc<Registry>,
    uri: &str,
) -> Result<Content, ErrorData> {
    let Ok(parsed) = uri.parse::<Uri>() else {
        return Err(missing(uri, Unknown::Resource));
    };
    let read = engine.read(registry, &parsed).await;
    read.map_err(|error| about(uri, &error, Unknown::Resource))
}

/// The content of a resource: text as text, any other bytes in base64.
pub(super) fn contents(uri: &str, content: Content) -> ResourceContents {
    let Content { mime, bytes } = content;
    let text = if mime::is_text(&mime) {
        String::from_utf8(bytes.into()).map_err(std::string::FromUtf8Error::into_bytes)
    } else {
        Err(bytes.into())
    };
    match text {
        Ok(text) => ResourceContents::text(text, uri),
        Err(bytes) => ResourceContents::blob(STANDARD.encode(bytes), uri),
    }
    .with_mime_type(mime)
}
