//! `skills/list`, `skills/get` and `resources/directory/read`.

use std::collections::BTreeMap;

use repertoire_core::{RelPath, SkillId, SkillUri, Uri};
use repertoire_registry::{Entry, Snapshot};
use rmcp::ErrorData;
use serde_json::{Map, Value, json};

use super::{
    cursor::{Cursor, Page, page},
    resources::file_resource,
};
use crate::error::{Unknown, missing};

/// One skill as `skills/list` shows it.
pub(super) fn entry(entry: &Entry) -> Value {
    // The head keeps what the author wrote, as JSON; it was made by our own parser.
    let front = entry.head.frontmatter.as_deref().unwrap_or("{}");
    let front: Value = serde_json::from_str(front).unwrap_or_default();
    let mut value = Map::with_capacity(3);
    value.insert("uri".into(), Uri::document(&entry.id).to_string().into());
    value.insert("frontmatter".into(), front);
    let resources = if entry.head.dynamic {
        Value::from("dynamic")
    } else {
        let files = entry.files().map(|file| {
            let mut value = Map::with_capacity(3);
            let uri = Uri::file(&entry.id, &file.path).to_string();
            value.insert("uri".into(), uri.into());
            value.insert("digest".into(), file.digest.to_string().into());
            value.insert("size".into(), file.size.into());
            Value::Object(value)
        });
        Value::Array(files.collect())
    };
    value.insert("resources".into(), resources);
    Value::Object(value)
}

/// The bytes an entry takes in a listing, about.
fn weight(entry: &Entry) -> usize {
    let front = entry.head.frontmatter.as_deref().map_or(0, str::len);
    front + 128 + entry.head.files.len() * (128 + entry.id.as_str().len())
}

/// A page of all skills.
pub(super) fn list(
    snapshot: &Snapshot,
    cursor: Option<&str>,
    size: usize,
) -> Result<Page<Value>, ErrorData> {
    let after = match cursor {
        None => None,
        Some(text) => {
            let cursor = Cursor::decode(text, "s")?;
            Some(cursor.key.parse::<SkillId>().map_err(|error| {
                crate::error::params(format!("cursor {text:?} is none of ours: {error}"))
            })?)
        }
    };
    let skills = snapshot
        .skills_after(after.as_ref())
        .filter(|entry| entry.head.is_skill());
    let weighed = skills.map(|entry| (Cursor::new('s', entry.id.as_str()), weight(entry), entry));
    let page = page(weighed, size);
    Ok(Page {
        items: page.items.into_iter().map(|e| self::entry(e)).collect(),
        next: page.next,
    })
}

/// One skill by the URI of its document.
pub(super) fn get(snapshot: &Snapshot, uri: &str) -> Result<Value, ErrorData> {
    let id = match uri.parse() {
        Ok(Uri::Skill(path)) => path
            .as_str()
            .strip_suffix("/SKILL.md")
            .and_then(|id| id.parse::<SkillId>().ok()),
        _ => None,
    };
    let found = id.and_then(|id| snapshot.get(&id));
    let found = found.filter(|entry| entry.head.is_skill());
    found
        .map(|entry| self::entry(entry))
        .ok_or_else(|| missing(uri, Unknown::Params))
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
    if let Some(entry) = directory.skill().and_then(|id| snapshot.get(&id).cloned()) {
        take(&entry, "");
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
