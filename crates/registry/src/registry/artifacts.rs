//! The artifacts of a skill, one at a time.
//!
//! The list of artifacts comes from the package file; a content is read on demand from the
//! skill's location, with the same checks as any other file of the skill.

use std::sync::Arc;

use repertoire_core::{
    Artifact, ArtifactKind, CallGroup, ExecutionRecord, Package, RelPath, Span, frontmatter,
    package::PACKAGE_FILE,
};

use super::Registry;
use crate::{
    catalogue::SkillEntry,
    error::{Error, Result},
    origin::{Origin, StoreScope, Trusted},
    skill_metadata::parse_utf8,
    store::{Account, Store, TraceFilter},
};

/// The artifacts of a skill.
#[derive(Debug, Clone, PartialEq)]
pub struct SkillArtifacts {
    /// The UUID of the skill.
    pub skill_id: String,
    /// Its artifacts with their UUIDs and without their contents, by ordinal. Empty for a skill
    /// that is only a document.
    pub artifacts: Vec<(String, Artifact)>,
}

impl Registry {
    /// Lists the artifacts of a skill without reading contents. Refuses untrusted skills.
    pub fn skill_artifacts(&self, entry: &SkillEntry) -> Result<SkillArtifacts> {
        if entry.trusted != Trusted::Yes || entry.is_remote() {
            return Err(Error::UntrustedSkill(entry.id.clone()));
        }
        if entry.metadata.package.is_none() {
            let named = Package::new(entry.id.to_string(), String::new(), None);
            return Ok(SkillArtifacts {
                skill_id: named.uuid().to_string(),
                artifacts: Vec::new(),
            });
        }
        let path: RelPath = PACKAGE_FILE.parse()?;
        let bytes = self.read_file(entry, &path)?;
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
        Ok(SkillArtifacts {
            skill_id: package.uuid().to_string(),
            artifacts,
        })
    }

    /// Reads the content of one artifact.
    pub fn artifact_content(&self, entry: &SkillEntry, artifact: &Artifact) -> Result<String> {
        let own = |path: &&RelPath| !path.is_document() && entry.metadata.find_file(path).is_some();
        let file = artifact.file.as_ref().filter(own);
        if let Some(path) = file {
            return Ok(parse_utf8(path.as_str(), &self.read_file(entry, path)?)?.to_owned());
        }
        if artifact.kind != ArtifactKind::Description {
            return Err(Error::NotFound {
                what: "artifact",
                name: format!("{}/{}", entry.id, artifact.name),
            });
        }
        // The first description is the body of the document.
        let document = self.read_body(entry)?;
        let document = parse_utf8(repertoire_core::DOCUMENT, &document)?;
        Ok(frontmatter::strip_frontmatter(document).to_owned())
    }

    /// Stores a trace in the first trusted store.
    pub fn put_trace(&self, trace: ExecutionRecord) -> Result<()> {
        self.trace_store()?.put_trace(trace)
    }

    /// Stores spans of a run in the first trusted store.
    pub fn put_spans(&self, spans: Vec<Span>) -> Result<()> {
        self.trace_store()?.put_spans(spans)
    }

    /// Returns the spans of all trusted stores, newest first. The spans of artifacts are their traces.
    pub fn spans(&self, filter: &TraceFilter) -> Result<Vec<Span>> {
        let mut all = Vec::new();
        for store in self.trace_stores() {
            all.extend(store.spans(filter)?);
        }
        all.sort_by(|a, b| b.started_at.cmp(&a.started_at));
        all.truncate(filter.limit.unwrap_or(usize::MAX));
        Ok(all)
    }

    /// Returns the model calls of all trusted stores that belong to no stored artifact, in groups, newest
    /// first.
    pub fn model_calls(&self, filter: &TraceFilter) -> Result<Vec<CallGroup>> {
        let mut all = Vec::new();
        for store in self.trace_stores() {
            all.extend(store.model_calls(filter)?);
        }
        all.sort_by(|a, b| b.started_at.cmp(&a.started_at));
        all.truncate(filter.limit.unwrap_or(usize::MAX));
        Ok(all)
    }

    /// Finds a session by its id, by the id of one of its traces or spans, or by a prefix of these.
    pub fn find_session(&self, id: &str) -> Result<Option<String>> {
        for store in self.trace_stores() {
            if let Some(session) = store.find_session(id)? {
                return Ok(Some(session));
            }
        }
        Ok(None)
    }

    /// Returns the number of the current revision of a skill, if a store keeps its history.
    pub fn current_revision(&self, entry: &SkillEntry) -> Option<i64> {
        let scope = [StoreScope::Workspace, StoreScope::Account]
            .into_iter()
            .find(|scope| entry.origin == Origin::from_scope(*scope))?;
        let history = self.store(scope).ok()?.history(&entry.id).ok()?;
        history.first().map(|newest| newest.revision)
    }

    /// Returns the JSON value that an artifact stored under a name in a session.
    pub fn checkpoint(&self, session: &str, artifact: &str, name: &str) -> Result<Option<String>> {
        self.trace_store()?.checkpoint(session, artifact, name)
    }

    /// Stores a value for an artifact in a session, durably.
    pub fn put_checkpoint(
        &self,
        session: &str,
        artifact: &str,
        name: &str,
        value: &str,
    ) -> Result<()> {
        let store = self.trace_store()?;
        store.put_checkpoint(session, artifact, name, value)
    }

    fn trace_store(&self) -> Result<Arc<dyn Store>> {
        let first = self.trace_stores().into_iter().next();
        first.ok_or_else(|| self.missing_store_error(StoreScope::Account))
    }

    /// Whether there is a store for traces; a registry of plain folders may have none.
    pub fn keeps_traces(&self) -> bool {
        !self.trace_stores().is_empty()
    }

    /// Returns the stores that keep traces: those that are trusted, else the account's, which is opened
    /// when it is needed first.
    fn trace_stores(&self) -> Vec<Arc<dyn Store>> {
        let trusted: Vec<_> = self.trusted_attached().map(|a| a.store.clone()).collect();
        if !trusted.is_empty() {
            return trusted;
        }
        let Some(folder) = &self.traces else {
            return Vec::new();
        };
        let opened = self.trace_account.get_or_init(|| {
            let opened = Account::open(folder);
            let opened = opened.inspect_err(|error| {
                tracing::warn!(%error, "traces cannot be stored in the account");
            });
            opened.ok().map(|account| account.store)
        });
        opened.iter().cloned().collect()
    }

    /// Returns the traces of all trusted stores, newest first.
    pub fn traces(&self, filter: &TraceFilter) -> Result<Vec<ExecutionRecord>> {
        let mut all = Vec::new();
        for store in self.trace_stores() {
            all.extend(store.traces(filter)?);
        }
        all.sort_by(|a, b| b.started_at.cmp(&a.started_at));
        all.truncate(filter.limit.unwrap_or(usize::MAX));
        Ok(all)
    }

    /// Finds one trace by its id or a prefix of it.
    pub fn find_trace(&self, id: &str) -> Result<Option<ExecutionRecord>> {
        for store in self.trace_stores() {
            if let Some(trace) = store.find_trace(id)? {
                return Ok(Some(trace));
            }
        }
        Ok(None)
    }

    /// Deletes traces that started before a time; returns how many.
    pub fn delete_traces(&self, before: &str) -> Result<usize> {
        self.trace_stores()
            .iter()
            .map(|store| store.delete_traces(before))
            .sum()
    }
}
