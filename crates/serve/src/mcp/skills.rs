//! `skills/list`, `skills/get` and `resources/directory/read`.

use std::{collections::BTreeMap, sync::Arc};

use repertoire_core::{RelPath, SkillId, SkillUri, Uri, surface};
use repertoire_registry::{SkillEntry, Snapshot};
use rmcp::ErrorData;
use serde_json::{Value, json};

use super::{
    cursor::{Cursor, CursorPage, take_page},
    resources::{document_resource, file_resource},
};
use crate::error::{NotFoundKind, not_found_error};

/// Appends the `skills/list` entry of a skill to a text.
pub(super) fn push_skill_entry(out: &mut String, entry: &SkillEntry) {
    // The frontmatter is stored as JSON written by our own parser.
    let front = entry.metadata.frontmatter.as_deref().unwrap_or("{}");
    let files = (!entry.metadata.dynamic).then(|| entry.files());
    let origin = entry.untrusted_origin();
    surface::skill_entry(out, &entry.id, front, files, origin.as_deref());
}

/// Returns the `skills/list` entry of a skill as a value.
fn skill_entry_value(entry: &SkillEntry) -> Value {
    let mut text = String::new();
    push_skill_entry(&mut text, entry);
    repertoire_core::json::from_str(&text).unwrap_or_default()
}

/// Estimates the size of an entry in a listing, in bytes.
fn estimated_size(entry: &SkillEntry) -> usize {
    let front = entry.metadata.frontmatter.as_deref().map_or(0, str::len);
    front + 128 + entry.metadata.files.len() * (128 + entry.id.as_str().len())
}

/// Lists one page of skills as values.
pub(super) fn list_skills(
    snapshot: &Snapshot,
    cursor: Option<&str>,
    size: usize,
) -> Result<CursorPage<Value>, ErrorData> {
    let page = list_entries(snapshot, cursor, size)?;
    Ok(CursorPage {
        items: page
            .items
            .into_iter()
            .map(|entry| skill_entry_value(entry))
            .collect(),
        next: page.next,
    })
}

/// Lists one page of skills.
pub(super) fn list_entries<'a>(
    snapshot: &'a Snapshot,
    cursor: Option<&str>,
    size: usize,
) -> Result<CursorPage<&'a Arc<SkillEntry>>, ErrorData> {
    let after = match cursor {
        None => None,
        Some(text) => {
            let cursor = Cursor::decode(text, "s")?;
            Some(cursor.key.parse::<SkillId>().map_err(|error| {
                crate::error::invalid_params(format!("invalid cursor: {error}"))
            })?)
        }
    };
    let skills = snapshot
        .skills_after(after.as_ref())
        .filter(|entry| entry.metadata.is_listed());
    let weighed = skills.map(|entry| {
        (
            Cursor::new('s', entry.id.as_str()),
            estimated_size(entry),
            entry,
        )
    });
    Ok(take_page(weighed, size))
}

/// Returns one skill by the URI of its document.
pub(super) fn get_skill(snapshot: &Snapshot, uri: &str) -> Result<Value, ErrorData> {
    find_by_uri(snapshot, uri)
        .map(|entry| skill_entry_value(entry))
        .ok_or_else(|| not_found_error(uri, NotFoundKind::Params))
}

/// Finds the skill whose document has this URI.
pub(super) fn find_by_uri<'a>(snapshot: &'a Snapshot, uri: &str) -> Option<&'a Arc<SkillEntry>> {
    let id = match uri.parse() {
        Ok(Uri::Skill(path)) => path
            .as_str()
            .strip_suffix("/SKILL.md")
            .and_then(|id| id.parse::<SkillId>().ok()),
        _ => None,
    };
    let found = id.and_then(|id| snapshot.get(&id));
    found.filter(|entry| entry.metadata.is_listed())
}

/// An entry of a directory.
enum DirectoryChild {
    Folder,
    File(Value),
}

/// Returns the direct children of a directory; `None` if it does not exist.
fn directory_children(
    snapshot: &Snapshot,
    directory: &SkillUri,
) -> Option<BTreeMap<String, DirectoryChild>> {
    let mut found: BTreeMap<String, DirectoryChild> = BTreeMap::new();
    let path = directory.as_str();
    let mut take = |entry: &SkillEntry, within: &str| {
        if !entry.has_files() {
            return;
        }
        for file in entry.files() {
            let rest = match within {
                "" => Some(file.path.as_str()),
                _ => file
                    .path
                    .as_str()
                    .strip_prefix(within)
                    .and_then(|rest| rest.strip_prefix('/')),
            };
            match rest.and_then(|rest| {
                rest.split_once('/')
                    .map_or(Some((rest, None)), |(a, b)| Some((a, Some(b))))
            }) {
                Some((name, Some(_))) => {
                    found
                        .entry(name.to_owned())
                        .or_insert(DirectoryChild::Folder);
                }
                Some((name, None)) => {
                    let value = file_resource(entry, file);
                    found
                        .entry(name.to_owned())
                        .or_insert_with(|| DirectoryChild::File(json!(value)));
                }
                None => {}
            }
        }
    };
    let own = directory
        .to_skill_id()
        .and_then(|id| snapshot.get(&id).cloned());
    if let Some(entry) = &own {
        take(entry, "");
    }
    for (id, within) in directory.possible_splits() {
        if let Some(entry) = snapshot.get(&id) {
            take(entry, within.as_str());
        }
    }
    // Nested skills make directories of the path segments above them.
    if let Some(id) = directory.to_skill_id() {
        for entry in snapshot.skills_after(Some(&id)) {
            // Ids are sorted as text, and `-` comes before `/`.
            let Some(rest) = entry.id.as_str().strip_prefix(path) else {
                break;
            };
            let Some(rest) = rest.strip_prefix('/') else {
                if rest.as_bytes().first() > Some(&b'/') {
                    break;
                }
                continue;
            };
            if entry.has_files() {
                let name = rest.split('/').next().unwrap_or(rest);
                found
                    .entry(name.to_owned())
                    .or_insert(DirectoryChild::Folder);
            }
        }
    }
    if let Some(entry) = own.filter(|entry| entry.metadata.dynamic) {
        // A skill made on demand has at least a document.
        let document = json!(document_resource(&entry));
        let name = repertoire_core::DOCUMENT.to_owned();
        found.entry(name).or_insert(DirectoryChild::File(document));
    }
    (!found.is_empty()).then_some(found)
}

/// Lists one page of the direct children of a directory.
pub(super) fn list_directory(
    snapshot: &Snapshot,
    uri: &str,
    cursor: Option<&str>,
    size: usize,
) -> Result<CursorPage<Value>, ErrorData> {
    let unknown = || not_found_error(uri, NotFoundKind::Params);
    let Ok(Uri::Skill(path)) = uri.parse::<Uri>() else {
        return Err(unknown());
    };
    let children = directory_children(snapshot, &path).ok_or_else(unknown)?;
    let after = cursor.map(|text| Cursor::decode(text, "d")).transpose()?;
    let behind = children
        .into_iter()
        .filter(|(name, _)| after.as_ref().is_none_or(|after| *name > after.key));
    let entries = behind.map(|(name, child)| {
        let value = match child {
            DirectoryChild::File(value) => value,
            DirectoryChild::Folder => {
                let uri = format!("{}/{}", path.as_str(), name);
                // Built from validated parts, so it parses.
                let uri = uri.parse::<RelPath>().map_or_else(
                    |_| format!("skill://{uri}"),
                    |path| Uri::from_path(&path).to_string(),
                );
                json!({"uri": uri, "name": name, "mimeType": "inode/directory"})
            }
        };
        (Cursor::new('d', name), 256, value)
    });
    Ok(take_page(entries, size))
}
