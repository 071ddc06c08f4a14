//! `resources/list`, `resources/templates/list` and `resources/read`.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use repertoire_app::{Caller, Permission};
use repertoire_core::{
    FileEntry, SkillId, Uri, mime,
    surface::{ORIGIN_META_KEY, TRUST_META_KEY},
};
use repertoire_registry::{Origin, Registry, ServedContent, SkillEntry, Snapshot, Trusted};
use rmcp::{
    ErrorData,
    model::{MetaObject, Resource, ResourceContents, ResourceTemplate},
};
use serde_json::{Map, Value};

use super::cursor::{Cursor, CursorPage, take_page};
use crate::{
    error::{NotFoundKind, error_for_uri, forbidden_error, invalid_params, not_found_error},
    service::{SkillService, tool_name},
};

/// The prefix of the `_meta` keys of this server.
const META_PREFIX: &str = "io.modelcontextprotocol.skills/";

/// Describes a file of a skill as a resource.
pub(super) fn file_resource(entry: &SkillEntry, file: &FileEntry) -> Resource {
    let uri = Uri::for_file(&entry.id, &file.path).to_string();
    if file.path.is_document() {
        return document_resource(entry).with_size(file.size);
    }
    let mut resource = Resource::new(uri, file.path.file_name())
        .with_mime_type(entry.mime_type(&file.path))
        .with_size(file.size);
    resource.meta = untrusted_meta(entry);
    resource
}

/// Returns the label of a skill from an untrusted origin (T44).
pub(super) fn untrusted_meta(entry: &SkillEntry) -> Option<MetaObject> {
    let origin = entry.untrusted_origin()?;
    let mut meta = MetaObject::new();
    meta.0.insert(TRUST_META_KEY.to_owned(), "untrusted".into());
    meta.0.insert(ORIGIN_META_KEY.to_owned(), origin.into());
    Some(meta)
}

/// Describes the document of a skill as a resource, with name and description from frontmatter.
pub(super) fn document_resource(entry: &SkillEntry) -> Resource {
    let mut front: Map<String, Value> = entry
        .metadata
        .frontmatter
        .as_deref()
        .and_then(|text| repertoire_core::json::from_str(text).ok())
        .unwrap_or_default();
    let name = front.remove("name");
    let name = name.as_ref().and_then(Value::as_str);
    let description = front.remove("description");
    let description = description.as_ref().and_then(Value::as_str);
    let description = description.or(entry.metadata.description.as_deref());
    let uri = Uri::for_document(&entry.id).to_string();
    let mut resource =
        Resource::new(uri, name.unwrap_or(entry.id.name())).with_mime_type("text/markdown");
    resource.title = entry.metadata.title.as_deref().map(str::to_owned);
    resource.description = description.map(str::to_owned);
    let mut meta = untrusted_meta(entry).unwrap_or_default();
    for (key, value) in front {
        meta.0.insert(format!("{META_PREFIX}{key}"), value);
    }
    resource.meta = (!meta.0.is_empty()).then_some(meta);
    resource
}

/// Describes a body as an `iii://` resource.
fn body_resource(entry: &SkillEntry) -> Resource {
    let uri = Uri::Body(entry.id.clone()).to_string();
    let mut resource = Resource::new(uri, entry.id.as_str()).with_mime_type("text/markdown");
    resource.title = entry.metadata.title.as_deref().map(str::to_owned);
    resource.description = entry.metadata.description.as_deref().map(str::to_owned);
    resource.meta = untrusted_meta(entry);
    resource
}

/// Returns the skill that a URI reads from, if it is untrusted.
pub(super) fn untrusted_entry(snapshot: &Snapshot, uri: &str) -> Option<Arc<SkillEntry>> {
    let entry = match uri.parse().ok()? {
        Uri::Skill(path) => snapshot.locate_file(&path)?.0,
        Uri::Body(id) => snapshot.get(&id)?.clone(),
        Uri::Index | Uri::DiscoveryIndex | Uri::Function(_) => return None,
    };
    (entry.trusted == Trusted::No).then_some(entry)
}

/// The two index resources.
fn index_resources() -> [(&'static str, Resource); 2] {
    let index = Resource::new(Uri::Index.to_string(), "skills")
        .with_description("Every skill with its title and description, as markdown")
        .with_mime_type("text/markdown");
    let discovery = Resource::new(Uri::DiscoveryIndex.to_string(), "index.json")
        .with_description("Every skill with its URL, as the draft of skills over MCP lists them")
        .with_mime_type("application/json");
    [("0", index), ("1", discovery)]
}

/// Lists one page of resources. Supporting files are readable but not listed.
pub(super) fn list_resources(
    snapshot: &Snapshot,
    cursor: Option<&str>,
    size: usize,
) -> Result<CursorPage<Resource>, ErrorData> {
    let after = cursor.map(|text| Cursor::decode(text, "isb")).transpose()?;
    let (fixed, id, again) = match &after {
        None => (Some(String::new()), None, false),
        Some(cursor) if cursor.kind == 'i' => (Some(cursor.key.clone()), None, false),
        Some(cursor) => {
            let id: SkillId = cursor
                .key
                .parse()
                .map_err(|error| invalid_params(format!("invalid cursor: {error}")))?;
            // The page may have ended between the two resources of an entry.
            (None, Some(id), cursor.kind == 's')
        }
    };
    let fixed = fixed.into_iter().flat_map(|after| {
        let behind = index_resources()
            .into_iter()
            .filter(move |(key, _)| **key > *after);
        behind.map(|(key, resource)| (Cursor::new('i', key), 256, resource))
    });
    let rest = id
        .as_ref()
        .filter(|_| again)
        .and_then(|id| snapshot.get(id))
        .and_then(|entry| separate_body_resource(entry));
    let entries = snapshot.skills_after(id.as_ref()).flat_map(|entry| {
        let first = entry.has_files().then(|| {
            let weight = 256 + entry.metadata.frontmatter.as_deref().map_or(0, str::len);
            let cursor = Cursor::new('s', entry.id.as_str());
            (cursor, weight, document_resource(entry))
        });
        first.into_iter().chain(separate_body_resource(entry))
    });
    Ok(take_page(fixed.chain(rest).chain(entries), size))
}

/// Returns the `iii://` resource of an entry, if it differs from its document.
fn separate_body_resource(entry: &SkillEntry) -> Option<(Cursor, usize, Resource)> {
    let other = !entry.has_files() || entry.origin == Origin::State;
    other.then(|| {
        (
            Cursor::new('b', entry.id.as_str()),
            256,
            body_resource(entry),
        )
    })
}

/// The URI template of a document.
pub(super) const DOCUMENT_TEMPLATE: &str = "skill://{+id}/SKILL.md";
pub(super) const FILE_TEMPLATE: &str = "skill://{+id}/{+file}";
pub(super) const BODY_TEMPLATE: &str = "iii://{+id}";
pub(super) const FUNCTION_TEMPLATE: &str = "iii://fn/{+function}";

/// The URI templates of everything that can be read.
pub(super) fn resource_templates() -> Vec<ResourceTemplate> {
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
            .with_description("The result of a worker function, with / for ::"),
    ]
}

/// Reads the content of a URI, as far as a caller may see it. A function is called only for callers
/// that may run something, and only if its content is meant to be read (T41).
pub(super) async fn read_content(
    service: &SkillService,
    registry: &Arc<Registry>,
    caller: &Caller,
    uri: &str,
) -> Result<ServedContent, ErrorData> {
    let Ok(parsed) = uri.parse::<Uri>() else {
        return Err(not_found_error(uri, NotFoundKind::Resource));
    };
    let snapshot = service.visible_snapshot(registry, caller);
    if let Uri::Function(function) = &parsed {
        authorize_function(caller, function.as_str())?;
        if let Some(bus) = service.bus() {
            let guarded = bus.options.guard.check_function(function.as_str());
            guarded.map_err(|error| error_for_uri(uri, &error.into(), NotFoundKind::Resource))?;
        }
        let is_allowed = service.is_content_function(function.as_str())
            || service.is_function_linked(registry, &snapshot, uri).await;
        if !is_allowed {
            return Err(not_found_error(uri, NotFoundKind::Resource));
        }
    }
    let read = service.read_uri(registry, &snapshot, &parsed).await;
    if let (Ok(_), Some(id)) = (&read, skill_of(&snapshot, &parsed)) {
        service.record_choice(registry, caller, &id).await;
    }
    read.map_err(|error| error_for_uri(uri, &error, NotFoundKind::Resource))
}

/// The skill whose document or file a URI names.
fn skill_of(snapshot: &Snapshot, uri: &Uri) -> Option<SkillId> {
    match uri {
        Uri::Skill(path) => Some(snapshot.locate_file(path)?.0.id.clone()),
        Uri::Body(id) => Some(id.clone()),
        _ => None,
    }
}

/// Checks that a caller may call a function of a worker: that it may run something, and that a token
/// for some tools has the tool of this function.
pub(super) fn authorize_function(caller: &Caller, function_id: &str) -> Result<(), ErrorData> {
    caller
        .require(Permission::Run)
        .and_then(|()| caller.require_tool(&tool_name(function_id)))
        .map_err(|error| forbidden_error(&error))
}

/// Converts content to resource contents: text as text, other bytes as base64.
pub(super) fn resource_contents(uri: &str, content: ServedContent) -> ResourceContents {
    let ServedContent { mime, bytes } = content;
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
