//! The artifacts of a skill, one at a time.
//!
//! What a skill is made of is known from its package file; a content is read when it is asked
//! for, from wherever the skill is, through the same checks as any other file of it.

use repertoire_core::{
    Artifact, ArtifactKind, Package, RelPath, frontmatter, package::PACKAGE_FILE,
};

use super::Registry;
use crate::{
    catalogue::Entry,
    error::{Error, Result},
    head::utf8,
    origin::Trusted,
    store::{Trace, TraceFilter},
};

/// What a skill is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Parts {
    /// The UUID of the skill.
    pub skill_id: String,
    /// Its artifacts with their UUIDs and without their contents, by ordinal. None: it is a
    /// document and nothing else.
    pub artifacts: Vec<(String, Artifact)>,
}

impl Registry {
    /// What a skill is made of. No content is read, and nothing of a stranger's is given.
    pub fn parts(&self, entry: &Entry) -> Result<Parts> {
        if entry.trusted != Trusted::Yes || entry.is_remote() {
            return Err(Error::Conflict(format!(
                "skill {} came from elsewhere and can be read, not run: trust its workspace with \
                 `repertoire trust`, or keep a copy with `repertoire add`",
                entry.id
            )));
        }
        if entry.head.package.is_none() {
            let named = Package::named(entry.id.to_string(), String::new(), None);
            return Ok(Parts {
                skill_id: named.uuid().to_string(),
                artifacts: Vec::new(),
            });
        }
        let path: RelPath = PACKAGE_FILE.parse()?;
        let bytes = self.file(entry, &path)?;
        let package: Package = repertoire_core::json::from_slice(&bytes).map_err(|error| {
            let reason = format!("{}/{PACKAGE_FILE}: {error}", entry.id);
            repertoire_core::Error::Package(reason)
        })?;
        let mut artifacts: Vec<(String, Artifact)> = package
            .artifacts
            .iter()
            .map(|artifact| {
                (
                    package.artifact_uuid(artifact).to_string(),
                    artifact.clone(),
                )
            })
            .collect();
        artifacts.sort_by_key(|(_, artifact)| artifact.ordinal);
        Ok(Parts {
            skill_id: package.uuid().to_string(),
            artifacts,
        })
    }

    /// The content of one artifact.
    pub fn artifact_content(&self, entry: &Entry, artifact: &Artifact) -> Result<String> {
        let own = |path: &&RelPath| !path.is_document() && entry.head.file(path).is_some();
        let file = artifact.file.as_ref().filter(own);
        if let Some(path) = file {
            return Ok(utf8(path.as_str(), &self.file(entry, path)?)?.to_owned());
        }
        if artifact.kind != ArtifactKind::Description {
            return Err(Error::NotFound {
                what: "artifact",
                name: format!("{}/{}", entry.id, artifact.name),
            });
        }
        // The first description is the body of the document.
        let document = self.body(entry)?;
        let document = utf8(repertoire_core::DOCUMENT, &document)?;
        Ok(frontmatter::body(document).to_owned())
    }

    /// Keeps a trace, where this user's things are kept first.
    pub fn put_trace(&self, trace: Trace) -> Result<()> {
        self.traced()?.store.put_trace(trace)
    }

    /// What a session's artifact kept under a name, as JSON.
    pub fn checkpoint(&self, session: &str, artifact: &str, name: &str) -> Result<Option<String>> {
        self.traced()?.store.checkpoint(session, artifact, name)
    }

    /// Keeps a value for a session's artifact, durably.
    pub fn put_checkpoint(
        &self,
        session: &str,
        artifact: &str,
        name: &str,
        value: &str,
    ) -> Result<()> {
        let store = &self.traced()?.store;
        store.put_checkpoint(session, artifact, name, value)
    }

    fn traced(&self) -> Result<&super::Attached> {
        let first = self.trusted().next();
        first.ok_or_else(|| self.no_store(crate::origin::Scope::Account))
    }

    /// Traces of every store, newest first.
    pub fn traces(&self, filter: &TraceFilter) -> Result<Vec<Trace>> {
        let mut all = Vec::new();
        for attached in self.trusted() {
            all.extend(attached.store.traces(filter)?);
        }
        all.sort_by(|a, b| b.started_at.cmp(&a.started_at));
        all.truncate(filter.limit.unwrap_or(usize::MAX));
        Ok(all)
    }

    /// One trace, by its id or the beginning of it.
    pub fn trace(&self, id: &str) -> Result<Option<Trace>> {
        for attached in self.trusted() {
            if let Some(trace) = attached.store.trace(id)? {
                return Ok(Some(trace));
            }
        }
        Ok(None)
    }

    /// Forgets traces that began before a time; says how many.
    pub fn forget_traces(&self, before: &str) -> Result<usize> {
        self.trusted()
            .map(|attached| attached.store.forget_traces(before))
            .sum()
    }
}
