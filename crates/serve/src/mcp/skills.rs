//! `skills/list`, `skills/get` and `resources/directory/read`.

use std::{collections::BTreeMap, sync::Arc};

use repertoire_core::{RelPath, SkillId, SkillUri, Uri, surface};
use repertoire_registry::{Entry, Snapshot};
use rmcp::ErrorData;
use serde_json::{Value, json};

use super::{
    cursor::{Cursor, Page, page},
    resources::{document, file_resource},
};
use crate::error::{Unknown, missing};

/// Adds a skill to a text, as `skills/list` shows it.
pub(super) fn push(out: &mut String, entry: &Entry) {
    // The head keeps what the author wrote, as JSON; it was made by our own parser.
    let front = entry.head.frontmatter.as_deref().unwrap_or("{}");
    let files = (!entry.head.dynamic).then(|| entry.files());
    surface::skill_entry(out, &entry.id, front, files);
}

/// A skill as a value.
fn value(entry: &Entry) -> Value {
    let mut text = String::new();
    push(&mut text, entry);
    repertoire_core::json::from_str(&text).unwrap_or_default()
}

/// The bytes an entry takes in a listing, about.
fn weight(entry: &Entry) -> usize {
    let front = entry.head.frontmatter.as_deref().map_or(0, str::len);
    front + 128 + entry.head.files.len() * (128 + entry.id.as_str().len())
}

/// A page of all skills, as values.
pub(super) fn list(
    snapshot: &Snapshot,
    cursor: Option<&str>,
    size: usize,
) -> Result<Page<Value>, ErrorData> {
    let page = list_entries(snapshot, cursor, size)?;
    Ok(Page {
        items: page.items.into_iter().map(|entry| value(entry)).collect(),
        next: page.next,
    })
}

/// A page of all skills.
pub(super) fn list_entries<'a>(
    snapshot: &'a Snapshot,
    cursor: Option<&str>,
    size: usize,
) -> Result<Page<&'a Arc<Entry>>, ErrorData> {
    let after = match cursor {
        None => None,
        Some(text) => {
            let cursor = Cursor::decode(text, "s")?;
            Some(cursor.key.parse::<SkillId>().map_err(|error| {
                crate::error::params(format!("cursor is none of ours: {error}"))
            })?)
        }
    };
    let skills = snapshot
        .skills_after(after.as_ref())
        .filter(|entry| entry.head.is_skill());
    let weighed = skills.map(|entry| (Cursor::new('s', entry.id.as_str()), weight(entry), entry));
    Ok(page(weighed, size))
}

/// One skill by the URI of its document.
pub(super) fn get(snapshot: &Snapshot, uri: &str) -> Result<Value, ErrorData> {
    find(snapshot, uri)
        .map(|entry| value(entry))
        .ok_or_else(|| missing(uri, Unknown::Params))
}

/// The skill whose document has this URI.
pub(super) fn find<'a>(snapshot: &'a Snapshot, uri: &str) -> Option<&'a Arc<Entry>> {
    let id = match uri.parse() {
        Ok(Uri::Skill(path)) => path
            .as_str()
            .strip_suffix("/SKILL.md")
            .and_then(|id| id.parse::<SkillId>().ok()),
        _ => None,
    };
    let found = id.and_then(|id| snapshot.get(&id));
    found.filter(|entry| entry.head.is_skill())
}

/// What a directory holds under one name.
enum Child {
    Folder,
    File(Value),
}

/// The direct children of a directory; `None` if there is no such directory.
fn children(snapshot: &Snapshot, directory: &SkillUri) -> Option<BTreeMap<String, Child>> {
    let mut found: BTreeMap<String, Child> = BTreeMap::new();
    let path = directory.as_str();
    let mut take = |entry: &Entry, within: &str| {
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
                    found.entry(name.to_owned()).or_insert(Child::Folder);
                }
                Some((name, None)) => {
                    let value = file_resource(entry, file);
                    found
                        .entry(name.to_owned())
                        .or_insert_with(|| Child::File(json!(value)));
                }
                None => {}
            }
        }
    };
    let own = directory.skill().and_then(|id| snapshot.get(&id).cloned());
    if let Some(entry) = &own {
        take(entry, "");
    }
    for (id, within) in directory.splits() {
        if let Some(entry) = snapshot.get(&id) {
            take(entry, within.as_str());
        }
    }
    // Skills further down make directories of the segments above them.
    if let Some(id) = directory.skill() {
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
                found.entry(name.to_owned()).or_insert(Child::Folder);
            }
        }
    }
    if let Some(entry) = own.filter(|entry| entry.head.dynamic) {
        // What is made when it is read has a document at least.
        let document = json!(document(&entry));
        let name = repertoire_core::DOCUMENT.to_owned();
        found.entry(name).or_insert(Child::File(document));
    }
    (!found.is_empty()).then_some(found)
}

/// A page of the direct children of a directory.
pub(super) fn directory(
    snapshot: &Snapshot,
    uri: &str,
    cursor: Option<&str>,
    size: usize,
) -> Result<Page<Value>, ErrorData> {
    let unknown = || missing(uri, Unknown::Params);
    let Ok(Uri::Skill(path)) = uri.parse::<Uri>() else {
        return Err(unknown());
    };
    let children = children(snapshot, &path).ok_or_else(unknown)?;
    let after = cursor.map(|text| Cursor::decode(text, "d")).transpose()?;
    let behind = children
        .into_iter()
        .filter(|(name, _)| after.as_ref().is_none_or(|after| *name > after.key));
    let entries = behind.map(|(name, child)| {
        let value = match child {
            Child::File(value) => value,
            Child::Folder => {
                let uri = format!("{}/{}", path.as_str(), name);
                // Made of checked parts, so it parses.
                let uri = uri.parse::<RelPath>().map_or_else(
                    |_| format!("skill://{uri}"),
                    |path| Uri::from_path(&path).to_string(),
                );
                json!({"uri": uri, "name": name, "mimeType": "inode/directory"})
            }
        };
        (Cursor::new('d', name), 256, value)
    });
    Ok(page(entries, size))
}
