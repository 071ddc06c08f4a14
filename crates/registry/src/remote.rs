//! Skills of other servers: held by what they listed, read when asked for, verified each time.
//!
//! Invariant: a byte of another server reaches nobody unless its size and digest are what the
//! held listing says, and a document besides that says of itself what was listed. Nothing is
//! fetched ahead, nothing unlisted is fetched at all, and an approval holds for exactly the set
//! of files it was given for. How a server is reached is not known here: see [`Remotes`].

use std::{
    collections::BTreeMap,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use repertoire_core::{
    Digest, FileEntry, Frontmatter, MAX_BYTES, Manifest, RelPath, SkillId, SkillName, Uri,
    frontmatter, markdown::one_line,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    catalogue::{Again, Change, Entry},
    error::{Error, Result},
    head::{Head, utf8},
    origin::{Origin, Trusted},
    source::Location,
    store::{Store, create_private_dir},
};

/// The most skills of one server that are taken.
pub const MAX_SKILLS: usize = 10_000;
/// The kind of an approval of a remote skill.
const KIND: &str = "remote-skill";

/// How other servers are asked for a file. Implemented where wire formats are known.
pub trait Remotes: Send + Sync + std::fmt::Debug {
    /// Reads one resource from the server with this label; at most `limit` bytes.
    fn read(&self, label: &str, uri: &str, limit: u64) -> Result<Bytes>;
}

/// The name a user gives another server: 1 to 64 lowercase letters, digits and hyphens.
///
/// It becomes the first segment of the ids of that server's skills, so their origin is always in
/// plain sight.
pub type Label = SkillName;

/// One skill as another server lists it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    /// The URI of its document.
    pub uri: String,
    /// Its frontmatter as JSON.
    pub frontmatter: Map<String, Value>,
    /// Its files.
    pub resources: Resources,
}

/// The files of a listed skill.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Resources {
    /// All of them.
    Files(Vec<ListedFile>),
    /// The word `dynamic`: content is made when it is read.
    Dynamic(Dynamic),
}

/// The word `dynamic`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dynamic {
    /// Content is made when it is read.
    #[serde(rename = "dynamic")]
    Dynamic,
}

/// A file of a listed skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedFile {
    /// Where to read it.
    pub uri: String,
    /// The digest of its bytes.
    pub digest: Digest,
    /// Their number.
    pub size: u64,
}

/// Where a remote skill is read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) label: Label,
    /// The URI of its document.
    uri: String,
    /// The URI of each file, as the server wrote it.
    uris: BTreeMap<RelPath, String>,
}

impl Place {
    /// The URI of a file; one that is not listed has none, unless nothing is.
    fn uri_of(&self, path: &RelPath, head: &Head) -> Option<String> {
        if path.is_document() {
            return Some(self.uri.clone());
        }
        if !head.dynamic {
            return self.uris.get(path).cloned();
        }
        let id: SkillId = skill_of(&self.uri).ok()?;
        Some(Uri::file(&id, path).to_string())
    }
}

/// The id of the skill whose document this is.
fn skill_of(uri: &str) -> repertoire_core::Result<SkillId> {
    let refuse = || repertoire_core::Error::Uri {
        uri: uri.to_owned(),
        rule: "must be the SKILL.md of a skill".to_owned(),
    };
    let Uri::Skill(parsed) = uri.parse()? else {
        return Err(refuse());
    };
    let path = parsed.as_str().strip_suffix("/SKILL.md");
    path.ok_or_else(refuse)?.parse()
}

/// A listed skill, checked, with the id it has here.
fn check(label: &Label, listed: &Listed) -> repertoire_core::Result<(SkillId, Head, Place)> {
    let theirs = skill_of(&listed.uri)?;
    let id: SkillId = format!("{label}/{theirs}").parse()?;
    let field = |field: &str, rule: &str| repertoire_core::Error::Field {
        field: field.to_owned(),
        rule: rule.to_owned(),
    };
    let text = |key| listed.frontmatter.get(key).and_then(Value::as_str);
    if text("name") != Some(id.name()) || id.skill_name().is_none() {
        return Err(field("name", "must be the last part of the skill's path"));
    }
    let description = text("description").filter(|d| !d.trim().is_empty());
    let description =
        description.ok_or_else(|| field("description", "must be there, as non-empty text"))?;
    let mut uris = BTreeMap::new();
    let mut files = Vec::new();
    if let Resources::Files(listed_files) = &listed.resources {
        for file in listed_files {
            let path = path_within(&theirs, &file.uri)?;
            files.push(FileEntry {
                path: path.clone(),
                size: file.size,
                digest: file.digest,
            });
            uris.insert(path, file.uri.clone());
        }
    }
    let dynamic = matches!(listed.resources, Resources::Dynamic(_));
    let head = Head {
        title: None,
        description: Some(one_line(description).into()),
        frontmatter: Some(Value::Object(listed.frontmatter.clone()).to_string().into()),
        files: if dynamic {
            Box::default()
        } else {
            Manifest::new(files)?.into_files()
        },
        package: None,
        dynamic,
        registered: None,
    };
    let place = Place {
        label: label.clone(),
        uri: listed.uri.clone(),
        uris,
    };
    Ok((id, head, place))
}

fn path_within(skill: &SkillId, uri: &str) -> repertoire_core::Result<RelPath> {
    let refuse = || repertoire_core::Error::Uri {
        uri: uri.to_owned(),
        rule: format!("is not beneath skill://{skill}/, the skill that lists it"),
    };
    let Uri::Skill(parsed) = uri.parse()? else {
        return Err(refuse());
    };
    let path = parsed.as_str().strip_prefix(skill.as_str());
    let path = path.and_then(|rest| rest.strip_prefix('/'));
    path.ok_or_else(refuse)?.parse()
}

/// A listed skill that is not taken, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Its URI on the server, as listed.
    pub uri: String,
    /// The stable code of the reason.
    pub code: &'static str,
    /// The reason.
    pub message: String,
}

/// The entries a listing comes to, and what of it cannot be used.
pub(crate) fn entries(
    account: &Store,
    label: &Label,
    listing: &[Listed],
) -> Result<(Vec<Entry>, Vec<Refused>)> {
    let mut found: BTreeMap<SkillId, Entry> = BTreeMap::new();
    let mut refused = Vec::new();
    for listed in listing.iter().take(MAX_SKILLS) {
        let mut refuse = |code, message| {
            refused.push(Refused {
                uri: listed.uri.clone(),
                code,
                message,
            });
        };
        match check(label, listed) {
            Err(error) => refuse(error.code(), error.to_string()),
            Ok((id, ..)) if found.contains_key(&id) => {
                refuse("duplicate_uri", "is listed twice".to_owned());
            }
            Ok((id, head, place)) => {
                let trusted = approved(account, label, &listed.uri, &head)?;
                let entry = Entry {
                    id: id.clone(),
                    origin: origin(label),
                    trusted,
                    head: Arc::new(head),
                    location: Location::Remote(Arc::new(place)),
                };
                found.insert(id, entry);
            }
        }
    }
    Ok((found.into_values().collect(), refused))
}

pub(crate) fn origin(label: &Label) -> Origin {
    Origin::Remote(label.as_str().into())
}

/// The changes that bring the catalogue from what it has of a server to these entries.
pub(crate) fn changes<'a>(
    label: &Label,
    now: impl Iterator<Item = &'a Arc<Entry>>,
    entries: Vec<Entry>,
) -> Vec<Change> {
    let origin = origin(label);
    let gone = now.filter(|old| {
        old.origin == origin
            && entries
                .binary_search_by(|entry| entry.id.cmp(&old.id))
                .is_err()
    });
    let mut changes: Vec<Change> = gone
        .map(|old| Change::RemoveSkill(old.id.clone(), origin.clone()))
        .collect();
    let put = entries.into_iter();
    changes.extend(put.map(|entry| Change::PutSkill(entry, Again::Ignore)));
    changes
}

/// What an approval of a remote skill is about, and what it is bound to.
///
/// The frontmatter is part of it, because it is shown before the document is read.
fn approval(label: &Label, uri: &str, head: &Head) -> (String, String) {
    let front = head.frontmatter.as_deref().unwrap_or_default();
    let binding = Digest::of(format!("{}\n{front}", head.digest()).as_bytes());
    (format!("{label} {uri}"), binding.to_string())
}

fn approved(account: &Store, label: &Label, uri: &str, head: &Head) -> Result<Trusted> {
    // What is made anew at each read was never what somebody approved.
    if head.dynamic {
        return Ok(Trusted::No);
    }
    let (subject, binding) = approval(label, uri, head);
    let given = account.approval(KIND, &subject)?;
    Ok(match given {
        Some(given) if given.binding == binding => Trusted::Yes,
        _ => Trusted::No,
    })
}

/// Approves a remote skill with exactly the files it has now.
pub(crate) fn approve(account: &Store, entry: &Entry) -> Result<()> {
    let place = place(entry)?;
    if entry.head.dynamic {
        return Err(Error::Conflict(format!(
            "{}: its content is made at each read, so no approval can hold for it",
            entry.id
        )));
    }
    let (subject, binding) = approval(&place.label, &place.uri, &entry.head);
    account.approve(KIND, &subject, &binding)
}

/// Takes an approval back; says whether there was one.
pub(crate) fn revoke(account: &Store, entry: &Entry) -> Result<bool> {
    let place = place(entry)?;
    let (subject, _) = approval(&place.label, &place.uri, &entry.head);
    account.revoke(KIND, &subject)
}

fn place(entry: &Entry) -> Result<&Arc<Place>> {
    match &entry.location {
        Location::Remote(place) => Ok(place),
        _ => Err(Error::Conflict(format!(
            "{} comes from {}: only skills of other servers are approved one by one",
            entry.id, entry.origin
        ))),
    }
}

/// Reads a file of a remote skill: from the cache if its bytes are right, else from the server.
pub(crate) fn read(
    remotes: &dyn Remotes,
    cache: Option<&Path>,
    entry: &Entry,
    place: &Place,
    path: &RelPath,
) -> Result<Bytes> {
    let missing = || Error::NotFound {
        what: "file",
        name: format!("{}/{path}", entry.id),
    };
    let uri = place.uri_of(path, &entry.head).ok_or_else(missing)?;
    let tampered = |reason: String| Error::Tampered {
        label: place.label.to_string(),
        uri: uri.clone(),
        reason,
    };
    let expected = entry.head.file(path);
    let kept = expected.and_then(|file| from_cache(cache?, file));
    let fetched = kept.is_none();
    let bytes = match (kept, expected) {
        (Some(bytes), _) => bytes,
        (None, None) if entry.head.dynamic => {
            remotes.read(place.label.as_str(), &uri, MAX_BYTES)?
        }
        (None, None) => return Err(missing()),
        (None, Some(file)) => {
            let bytes = remotes.read(place.label.as_str(), &uri, file.size)?;
            if bytes.len() as u64 != file.size {
                return Err(tampered(format!(
                    "{} bytes, and {} were listed",
                    bytes.len(),
                    file.size
                )));
            }
            let digest = Digest::of(&bytes);
            if digest != file.digest {
                return Err(tampered(format!(
                    "its digest is {digest}, and {} was listed",
                    file.digest
                )));
            }
            bytes
        }
    };
    if path.is_document() {
        same_frontmatter(&entry.head, &bytes).map_err(tampered)?;
    }
    if let (Some(cache), Some(file), true) = (cache, expected, fetched) {
        keep(cache, file, &bytes);
    }
    Ok(bytes)
}

/// Compares what a document says of itself with what was listed, field by field.
fn same_frontmatter(head: &Head, bytes: &[u8]) -> Result<(), String> {
    let read = || -> repertoire_core::Result<Map<String, Value>> {
        let text = utf8(repertoire_core::DOCUMENT, bytes)?;
        Ok(Frontmatter::parse(frontmatter::split(text)?.yaml, 2)?.to_json())
    };
    let theirs = read().map_err(|error| error.to_string())?;
    let listed = head.frontmatter.as_deref().unwrap_or("{}");
    let listed: Map<String, Value> =
        repertoire_core::json::from_str(listed).map_err(|error| error.to_string())?;
    for key in theirs.keys().chain(listed.keys()) {
        match (theirs.get(key), listed.get(key)) {
            (Some(a), Some(b)) if same(a, b) => {}
            (Some(_), Some(_)) => return Err(format!("`{key}` is not what was listed")),
            (Some(_), None) => return Err(format!("`{key}` was not listed")),
            (None, _) => return Err(format!("`{key}` was listed and is not there")),
        }
    }
    Ok(())
}

/// Whether two values are the same; `1` and `1.0` are, as languages disagree how to write them.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let equal = |(key, a): (&String, &Value)| b.get(key).is_some_and(|b| same(a, b));
            a.len() == b.len() && a.iter().all(equal)
        }
        _ => a == b,
    }
}

fn cache_file(cache: &Path, file: &FileEntry) -> PathBuf {
    cache.join("remote").join(file.digest.hex())
}

/// What was kept, if it still is what it was.
fn from_cache(cache: &Path, file: &FileEntry) -> Option<Bytes> {
    let bytes = std::fs::read(cache_file(cache, file)).ok()?;
    let same = bytes.len() as u64 == file.size && Digest::of(&bytes) == file.digest;
    same.then(|| bytes.into())
}

/// Keeps bytes under their digest. A cache that cannot be written is only slower.
fn keep(cache: &Path, file: &FileEntry, bytes: &Bytes) {
    let target = cache_file(cache, file);
    let write = || -> Result<()> {
        let folder = cache.join("remote");
        create_private_dir(&folder)?;
        let part = folder.join(format!("{}.part", uuid::Uuid::new_v4()));
        let io = |error| Error::io(&part, error);
        let mut open = std::fs::File::create_new(&part).map_err(io)?;
        open.write_all(bytes).map_err(io)?;
        drop(open);
        std::fs::rename(&part, &target).map_err(io)
    };
    if let Err(error) = write() {
        tracing::debug!(%error, "not kept");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "literals in tests")]
    fn listed(uri: &str, resources: Value) -> Listed {
        serde_json::from_value(json!({
            "uri": uri,
            "frontmatter": {"name": "pdf", "description": "Reads PDFs."},
            "resources": resources,
        }))
        .unwrap()
    }

    fn file(uri: &str) -> Value {
        json!({"uri": uri, "digest": format!("sha256:{:064}", 0), "size": 1})
    }

    #[test]
    fn what_a_server_lists_is_checked_before_it_is_taken() {
        let label: Label = "acme".parse().unwrap();
        let document = file("skill://pdf/SKILL.md");
        let ok = listed("skill://pdf/SKILL.md", json!([document]));
        assert_eq!(check(&label, &ok).unwrap().0.as_str(), "acme/pdf");
        for (uri, resources, code) in [
            ("skill://pdf/README.md", json!([document]), "invalid_uri"),
            ("https://x.test/SKILL.md", json!([document]), "invalid_uri"),
            ("skill://other/SKILL.md", json!([document]), "invalid_field"),
            ("skill://pdf/SKILL.md", json!([]), "missing_document"),
            (
                "skill://pdf/SKILL.md",
                json!([document, document]),
                "duplicate_path",
            ),
            (
                "skill://pdf/SKILL.md",
                json!([document, file("skill://pdf2/x.md")]),
                "invalid_uri",
            ),
            (
                "skill://pdf/SKILL.md",
                json!([document, file("skill://pdf/../x.md")]),
                "invalid_uri",
            ),
            (
                "skill://pdf/SKILL.md",
                json!([document, file("file:///etc/passwd")]),
                "invalid_uri",
            ),
        ] {
            let refused = check(&label, &listed(uri, resources)).unwrap_err();
            assert_eq!(refused.code(), code, "{uri}: {refused}");
        }
        let many: Vec<Value> = (0..513)
            .map(|n| file(&format!("skill://pdf/{n}")))
            .collect();
        let refused = check(&label, &listed("skill://pdf/SKILL.md", json!(many))).unwrap_err();
        assert_eq!(refused.code(), "too_many_files");
    }

    #[test]
    fn frontmatter_is_compared_field_by_field() {
        let label: Label = "acme".parse().unwrap();
        let (_, head, _) =
            check(&label, &listed("skill://pdf/SKILL.md", json!("dynamic"))).unwrap();
        let compare = |text: &str| same_frontmatter(&head, text.as_bytes());
        assert_eq!(
            compare("---\nname: pdf\ndescription: Reads PDFs.\n---\n"),
            Ok(())
        );
        for (text, word) in [
            (
                "---\nname: pdf\ndescription: Else.\n---\n",
                "`description` is not",
            ),
            ("---\nname: pdf\n---\n", "`description` was listed and"),
            (
                "---\nname: pdf\ndescription: Reads PDFs.\nallowed-tools: Bash\n---\n",
                "was not listed",
            ),
            ("no frontmatter", "line 1"),
        ] {
            let reason = compare(text).unwrap_err();
            assert!(reason.contains(word), "{reason}");
        }
        assert!(same(&json!({"a": [1]}), &json!({"a": [1.0]})));
        assert!(!same(&json!({"a": 1}), &json!({"a": "1"})));
    }
}
