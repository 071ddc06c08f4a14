//! Skills of other servers: known from their listings, read on demand, verified at each read.
//!
//! Invariant: bytes of another server are returned only if their size and digest match the stored
//! listing, and for a document only if its frontmatter matches as well. Nothing is prefetched,
//! unlisted files are never fetched, and an approval is valid only for the exact set of files it
//! was granted for. How a server is reached is not known here: see [`RemoteReader`].

use std::{
    collections::BTreeMap,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
pub use repertoire_core::listed_skill::{
    DynamicMarker, ListedFile, ListedResources, ListedSkill, MAX_SKILLS, RefusedSkill, RemoteLabel,
};
use repertoire_core::{
    Digest, FileEntry, Frontmatter, MAX_BYTES, Manifest, RelPath, SkillId, Uri, frontmatter,
    listing::ListingProblem, markdown::to_single_line,
};
use serde_json::{Map, Value};

use crate::{
    catalogue::{CatalogueChange, RepeatPolicy, SkillEntry},
    error::{Error, Result},
    origin::{Origin, Trusted},
    skill_metadata::{SkillMetadata, parse_utf8},
    source::ContentLocation,
    store::{LocalStore, create_private_dir},
};

/// The kind of an approval of a remote skill.
const REMOTE_APPROVAL_KIND: &str = "remote-skill";

/// Reads files from other servers. Implemented where wire formats are known.
pub trait RemoteReader: Send + Sync + std::fmt::Debug {
    /// Reads one resource from the server with this label; at most `limit` bytes.
    fn read_resource(&self, label: &str, uri: &str, limit: u64) -> Result<Bytes>;

    /// Reads a resource that is an archive and returns the files in it.
    fn read_archive(&self, label: &str, uri: &str) -> Result<BTreeMap<RelPath, Bytes>>;
}

/// The location of a remote skill.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RemoteLocation {
    pub(crate) label: RemoteLabel,
    /// The URI of its document.
    uri: String,
    /// The URI of each file, as sent by the server.
    uris: BTreeMap<RelPath, String>,
    /// Whether only some fields of the frontmatter are known.
    partial: bool,
    /// The archive that has all files.
    archive: Option<String>,
}

impl RemoteLocation {
    /// Returns the URI of a file; `None` if it is not listed, unless the skill is dynamic.
    fn file_uri(&self, path: &RelPath, head: &SkillMetadata) -> Option<String> {
        if path.is_document() {
            return Some(self.uri.clone());
        }
        if !head.dynamic {
            return self.uris.get(path).cloned();
        }
        let id: SkillId = parse_document_uri(&self.uri).ok()?;
        Some(Uri::for_file(&id, path).to_string())
    }
}

/// Returns the id of the skill whose document has this URI.
fn parse_document_uri(uri: &str) -> repertoire_core::Result<SkillId> {
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

/// Checks a listed skill, and returns it with its local id.
fn check_listed_skill(
    label: &RemoteLabel,
    listed: &ListedSkill,
) -> repertoire_core::Result<(SkillId, SkillMetadata, RemoteLocation)> {
    let theirs = parse_document_uri(&listed.uri)?;
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
    if let ListedResources::Files(listed_files) = &listed.resources {
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
    let dynamic = matches!(listed.resources, ListedResources::Dynamic(_));
    let head = SkillMetadata {
        title: None,
        description: Some(to_single_line(description).into()),
        frontmatter: Some(Value::Object(listed.frontmatter.clone()).to_string().into()),
        unlisted: if listed.partial {
            Some(Box::new(ListingProblem::partial()))
        } else {
            ListingProblem::find(&listed.frontmatter).map(Box::new)
        },
        files: if dynamic {
            Box::default()
        } else {
            Manifest::new(files)?.into_files()
        },
        package: None,
        dynamic,
        registered: None,
    };
    let place = RemoteLocation {
        label: label.clone(),
        uri: listed.uri.clone(),
        uris,
        partial: listed.partial,
        archive: listed.archive.clone(),
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

/// Returns the catalogue entries of a listing, and the skills that were refused.
pub(crate) fn listing_entries(
    local: &LocalStore,
    label: &RemoteLabel,
    listing: &[ListedSkill],
) -> Result<(Vec<SkillEntry>, Vec<RefusedSkill>)> {
    let mut found: BTreeMap<SkillId, SkillEntry> = BTreeMap::new();
    let mut refused = Vec::new();
    for listed in listing.iter().take(MAX_SKILLS) {
        let mut refuse = |code, message| {
            refused.push(RefusedSkill {
                uri: listed.uri.clone(),
                code,
                message,
            });
        };
        match check_listed_skill(label, listed) {
            Err(error) => refuse(error.code(), error.to_string()),
            Ok((id, ..)) if found.contains_key(&id) => {
                refuse("duplicate_uri", "is listed twice".to_owned());
            }
            Ok((id, head, place)) => {
                // What was listed is not what its document says, so no approval covers it.
                let trusted = if listed.partial {
                    Trusted::No
                } else {
                    skill_trust(local, label, &listed.uri, &head)?
                };
                let entry = SkillEntry {
                    id: id.clone(),
                    alias: None,
                    origin: remote_origin(label),
                    trusted,
                    metadata: Arc::new(head),
                    complete: None,
                    location: ContentLocation::Remote(Arc::new(place)),
                };
                found.insert(id, entry);
            }
        }
    }
    Ok((found.into_values().collect(), refused))
}

pub(crate) fn remote_origin(label: &RemoteLabel) -> Origin {
    Origin::Remote(label.as_str().into())
}

/// Returns the changes that replace a server's entries in the catalogue with these entries.
pub(crate) fn listing_changes<'a>(
    label: &RemoteLabel,
    now: impl Iterator<Item = &'a Arc<SkillEntry>>,
    entries: Vec<SkillEntry>,
) -> Vec<CatalogueChange> {
    let origin = remote_origin(label);
    let gone = now.filter(|old| {
        old.origin == origin
            && entries
                .binary_search_by(|entry| entry.id.cmp(&old.id))
                .is_err()
    });
    let mut changes: Vec<CatalogueChange> = gone
        .map(|old| CatalogueChange::RemoveSkill(old.id.clone(), origin.clone()))
        .collect();
    let put = entries.into_iter();
    changes.extend(put.map(|entry| CatalogueChange::PutSkill(entry, RepeatPolicy::Ignore)));
    changes
}

/// Returns the subject of a remote skill's approval, and the digest the approval is bound to.
///
/// The digest covers the frontmatter, because it is shown before the document is read.
fn approval_identity(label: &RemoteLabel, uri: &str, head: &SkillMetadata) -> (String, String) {
    (
        format!("{label} {uri}"),
        approval_binding(head, head.digest()),
    )
}

fn approval_binding(head: &SkillMetadata, files: Digest) -> String {
    let front = head.frontmatter.as_deref().unwrap_or_default();
    Digest::hash_bytes(format!("{files}\n{front}").as_bytes()).to_string()
}

fn skill_trust(
    local: &LocalStore,
    label: &RemoteLabel,
    uri: &str,
    head: &SkillMetadata,
) -> Result<Trusted> {
    // Dynamic content differs at each read, so an approval cannot cover it.
    if head.dynamic {
        return Ok(Trusted::No);
    }
    let (subject, binding) = approval_identity(label, uri, head);
    let Some(given) = local.find_approval(REMOTE_APPROVAL_KIND, &subject)? else {
        return Ok(Trusted::No);
    };
    if given.binding == binding {
        return Ok(Trusted::Yes);
    }
    // An approval from before the final form of the digest is renewed if it was given for exactly
    // the files listed now: both digests are computed from the same list.
    let legacy = approval_binding(head, Manifest::legacy_digest_of(&head.files));
    if given.binding != legacy {
        return Ok(Trusted::No);
    }
    if !local.is_writable() {
        return Ok(Trusted::Yes);
    }
    // Only while it is still bound to that: the user may revoke it at the same time.
    match local.rebind_approval(REMOTE_APPROVAL_KIND, &subject, &legacy, &binding) {
        Ok(true) => Ok(Trusted::Yes),
        Ok(false) => Ok(Trusted::No),
        Err(error) => {
            tracing::warn!(%error, "an approval could not be renewed");
            Ok(Trusted::Yes)
        }
    }
}

/// Approves a remote skill with exactly its current files.
pub(crate) fn approve_skill(local: &LocalStore, entry: &SkillEntry) -> Result<()> {
    let place = remote_location(entry)?;
    if entry.metadata.dynamic {
        return Err(Error::DynamicSkill(entry.id.clone()));
    }
    if place.partial {
        return Err(Error::PartialSkill(entry.id.clone()));
    }
    let (subject, binding) = approval_identity(&place.label, &place.uri, entry.complete_metadata());
    local.grant_approval(REMOTE_APPROVAL_KIND, &subject, &binding)
}

/// Revokes an approval; returns whether there was one.
pub(crate) fn revoke_approval(local: &LocalStore, entry: &SkillEntry) -> Result<bool> {
    let place = remote_location(entry)?;
    let (subject, _) = approval_identity(&place.label, &place.uri, entry.complete_metadata());
    local.revoke_approval(REMOTE_APPROVAL_KIND, &subject)
}

fn remote_location(entry: &SkillEntry) -> Result<&Arc<RemoteLocation>> {
    match &entry.location {
        ContentLocation::Remote(place) => Ok(place),
        _ => Err(Error::NotRemote {
            id: entry.id.clone(),
            origin: entry.origin.clone(),
        }),
    }
}

/// Reads a file of a remote skill: from the cache if its digest matches, else from the server.
pub(crate) fn read_remote_file(
    remotes: &dyn RemoteReader,
    cache: Option<&Path>,
    entry: &SkillEntry,
    place: &RemoteLocation,
    path: &RelPath,
) -> Result<Bytes> {
    let missing = || Error::NotFound {
        what: "file",
        name: format!("{}/{path}", entry.id),
    };
    let uri = place.file_uri(path, &entry.metadata).ok_or_else(missing)?;
    let tampered = |reason: String| Error::Tampered {
        label: place.label.to_string(),
        uri: uri.clone(),
        reason,
    };
    let expected = entry.complete_metadata().find_file(path);
    let kept = expected.and_then(|file| read_cached_file(cache?, file));
    let fetched = kept.is_none();
    let bytes = match (kept, expected) {
        (Some(bytes), _) => bytes,
        (None, None) if entry.metadata.dynamic => {
            remotes.read_resource(place.label.as_str(), &uri, MAX_BYTES)?
        }
        (None, None) => return Err(missing()),
        (None, Some(file)) => {
            let bytes = match &place.archive {
                Some(archive) => {
                    let mut files = remotes.read_archive(place.label.as_str(), archive)?;
                    files.remove(path).ok_or_else(missing)?
                }
                None => remotes.read_resource(place.label.as_str(), &uri, file.size)?,
            };
            if bytes.len() as u64 != file.size {
                return Err(tampered(format!(
                    "{} bytes, and {} were listed",
                    bytes.len(),
                    file.size
                )));
            }
            let digest = Digest::hash_bytes(&bytes);
            if digest != file.digest {
                return Err(tampered(format!(
                    "its digest is {digest}, and {} was listed",
                    file.digest
                )));
            }
            bytes
        }
    };
    if path.is_document() && !place.partial {
        check_frontmatter(&entry.metadata, &bytes).map_err(tampered)?;
    }
    if let (Some(cache), Some(file), true) = (cache, expected, fetched) {
        write_cached_file(cache, file, &bytes);
    }
    Ok(bytes)
}

/// Compares the frontmatter of a document with the listed one, field by field.
fn check_frontmatter(head: &SkillMetadata, bytes: &[u8]) -> Result<(), String> {
    let read = || -> repertoire_core::Result<Map<String, Value>> {
        let text = parse_utf8(repertoire_core::DOCUMENT, bytes)?;
        Ok(Frontmatter::parse(frontmatter::split_document(text)?.yaml, 2)?.to_json())
    };
    let theirs = read().map_err(|error| error.to_string())?;
    let listed = head.frontmatter.as_deref().unwrap_or("{}");
    let listed: Map<String, Value> =
        repertoire_core::json::from_str(listed).map_err(|error| error.to_string())?;
    for key in theirs.keys().chain(listed.keys()) {
        match (theirs.get(key), listed.get(key)) {
            (Some(a), Some(b)) if is_same_value(a, b) => {}
            (Some(_), Some(_)) => return Err(format!("`{key}` is not what was listed")),
            (Some(_), None) => return Err(format!("`{key}` was not listed")),
            (None, _) => return Err(format!("`{key}` was listed and is not there")),
        }
    }
    Ok(())
}

/// Whether two values are equal; `1` equals `1.0`, because languages write it differently.
fn is_same_value(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same_value(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let equal =
                |(key, a): (&String, &Value)| b.get(key).is_some_and(|b| is_same_value(a, b));
            a.len() == b.len() && a.iter().all(equal)
        }
        _ => a == b,
    }
}

fn cache_file(cache: &Path, file: &FileEntry) -> PathBuf {
    cache.join("remote").join(file.digest.hex_digits())
}

/// Returns a cached file if its size and digest still match.
fn read_cached_file(cache: &Path, file: &FileEntry) -> Option<Bytes> {
    let bytes = std::fs::read(cache_file(cache, file)).ok()?;
    let same = bytes.len() as u64 == file.size && Digest::hash_bytes(&bytes) == file.digest;
    same.then(|| bytes.into())
}

/// Caches bytes under their digest. A failure is ignored, because the cache is only for speed.
fn write_cached_file(cache: &Path, file: &FileEntry, bytes: &Bytes) {
    let target = cache_file(cache, file);
    let write = || -> Result<()> {
        let folder = cache.join("remote");
        create_private_dir(&folder)?;
        let part = folder.join(format!("{}.part", uuid::Uuid::new_v4()));
        let io = |error| Error::from_io(&part, error);
        let mut open = std::fs::File::create_new(&part).map_err(io)?;
        open.write_all(bytes).map_err(io)?;
        drop(open);
        std::fs::rename(&part, &target).map_err(io)
    };
    if let Err(error) = write() {
        tracing::debug!(%error, "could not cache a remote file");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "literals in tests")]
    fn listed_skill(uri: &str, resources: Value) -> ListedSkill {
        serde_json::from_value(json!({
            "uri": uri,
            "frontmatter": {"name": "pdf", "description": "Reads PDFs."},
            "resources": resources,
        }))
        .unwrap()
    }

    fn listed_file(uri: &str) -> Value {
        json!({"uri": uri, "digest": format!("sha256:{:064}", 0), "size": 1})
    }

    #[test]
    fn invalid_listed_skills_are_refused_with_a_code() {
        let label: RemoteLabel = "acme".parse().unwrap();
        let document = listed_file("skill://pdf/SKILL.md");
        let ok = listed_skill("skill://pdf/SKILL.md", json!([document]));
        assert_eq!(
            check_listed_skill(&label, &ok).unwrap().0.as_str(),
            "acme/pdf"
        );
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
                json!([document, listed_file("skill://pdf2/x.md")]),
                "invalid_uri",
            ),
            (
                "skill://pdf/SKILL.md",
                json!([document, listed_file("skill://pdf/../x.md")]),
                "invalid_uri",
            ),
            (
                "skill://pdf/SKILL.md",
                json!([document, listed_file("file:///etc/passwd")]),
                "invalid_uri",
            ),
        ] {
            let refused = check_listed_skill(&label, &listed_skill(uri, resources)).unwrap_err();
            assert_eq!(refused.code(), code, "{uri}: {refused}");
        }
        let many: Vec<Value> = (0..513)
            .map(|n| listed_file(&format!("skill://pdf/{n}")))
            .collect();
        let refused =
            check_listed_skill(&label, &listed_skill("skill://pdf/SKILL.md", json!(many)))
                .unwrap_err();
        assert_eq!(refused.code(), "too_many_files");
    }

    #[test]
    fn frontmatter_is_compared_field_by_field() {
        let label: RemoteLabel = "acme".parse().unwrap();
        let (_, head, _) = check_listed_skill(
            &label,
            &listed_skill("skill://pdf/SKILL.md", json!("dynamic")),
        )
        .unwrap();
        let compare = |text: &str| check_frontmatter(&head, text.as_bytes());
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
        assert!(is_same_value(&json!({"a": [1]}), &json!({"a": [1.0]})));
        assert!(!is_same_value(&json!({"a": 1}), &json!({"a": "1"})));
    }

    #[test]
    fn approvals_move_to_the_final_digest_only_over_unchanged_files() {
        let folder = tempfile::tempdir().unwrap();
        let local = crate::store::Account::open(folder.path()).unwrap().local;
        let label: RemoteLabel = "acme".parse().unwrap();
        let uri = "skill://pdf/SKILL.md";
        let skill = listed_skill(uri, json!([listed_file(uri)]));
        let (_, head, _) = check_listed_skill(&label, &skill).unwrap();
        let (subject, binding) = approval_identity(&label, uri, &head);
        let legacy = approval_binding(&head, Manifest::legacy_digest_of(&head.files));
        assert_ne!(legacy, binding);
        let grant = |binding: &str| {
            local
                .grant_approval(REMOTE_APPROVAL_KIND, &subject, binding)
                .unwrap();
        };
        let stored = || {
            let approval = local.find_approval(REMOTE_APPROVAL_KIND, &subject);
            approval.unwrap().unwrap().binding
        };

        grant(&legacy);
        let trusted = skill_trust(&local, &label, uri, &head).unwrap();
        assert_eq!((trusted, stored()), (Trusted::Yes, binding.clone()));

        let more = listed_skill(
            uri,
            json!([listed_file(uri), listed_file("skill://pdf/more.md")]),
        );
        let (_, changed, _) = check_listed_skill(&label, &more).unwrap();
        grant(&legacy);
        let trusted = skill_trust(&local, &label, uri, &changed).unwrap();
        assert_eq!((trusted, stored()), (Trusted::No, legacy));
    }
}
