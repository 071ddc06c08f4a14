//! Reads: from a URI or an entry to the bytes that every surface serves.
//!
//! Invariant: no lock is taken that a writer holds across I/O. If bytes on disk differ from the
//! listing, the listing is updated; if bytes in a store differ, they are refused.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use repertoire_core::{
    Digest, RelPath, SkillId, Uri,
    look_alike::{LookAlike, NameIndex},
    mime,
    surface::{self, IndexEntry, IndexSection},
};

use super::{Registry, ServedContent};
use crate::{
    catalogue::{CatalogueEvent, Lagged, PromptEntry, SkillEntry, Snapshot},
    error::{Error, Result},
    origin::{Origin, StoreScope, Trusted},
    registered::{PROMPTS_SCOPE, SKILLS_SCOPE, parse_prompt_row, row_body, row_body_json},
    remote,
    skill_metadata::parse_utf8,
    source::{ContentLocation, Notice},
};

impl Registry {
    /// Returns the current catalogue.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.catalogue.snapshot()
    }

    /// Returns the number of the last event, as it changes. The receiver reports an error once the
    /// registry is dropped.
    pub fn subscribe_changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.catalogue.subscribe_changes()
    }

    /// Returns the events after a sequence number; waits for one until the timeout.
    pub fn wait_events(
        &self,
        after: u64,
        patience: Duration,
    ) -> Result<Vec<CatalogueEvent>, Lagged> {
        self.catalogue.wait_events(after, patience)
    }

    /// Returns everything that was skipped, and why.
    pub fn notices(&self) -> Vec<Notice> {
        let mut all = self.notices.clone();
        for source in self.lock_files().iter() {
            all.extend(source.notices());
        }
        all
    }

    /// Returns the trusted skills that some new names resemble and could be taken for (T15).
    pub fn look_alikes(&self, names: &[SkillId]) -> Vec<LookAlike> {
        let snapshot = self.snapshot();
        let is_known = |id: &SkillId| {
            let entry = snapshot.get(id);
            entry.is_some_and(|entry| entry.trusted == Trusted::Yes)
        };
        let names: Vec<&SkillId> = names.iter().filter(|id| !is_known(id)).collect();
        if names.is_empty() {
            return Vec::new();
        }
        let known = snapshot
            .skills()
            .filter(|entry| entry.trusted == Trusted::Yes);
        let index = NameIndex::new(known.map(|entry| entry.id.clone()));
        let found = names.into_iter().flat_map(|name| index.find(name));
        found.collect()
    }

    /// Returns the workspace and whether it is trusted.
    pub fn workspace(&self) -> Option<(&Path, Trusted)> {
        self.workspace
            .as_ref()
            .map(|(path, trusted)| (path.as_path(), *trusted))
    }

    /// Reads the resource that a URI names.
    pub fn read_uri(&self, uri: &Uri) -> Result<ServedContent> {
        self.read_uri_in(&self.snapshot(), uri)
    }

    /// Reads the resource that a URI names in a snapshot, which may be a part of the catalogue.
    pub fn read_uri_in(&self, snapshot: &Snapshot, uri: &Uri) -> Result<ServedContent> {
        let missing = || Error::NotFound {
            what: "resource",
            name: uri.to_string(),
        };
        let content = |mime: &'static str, bytes| {
            Ok(ServedContent {
                mime: mime.into(),
                bytes,
            })
        };
        match uri {
            Uri::Index => content("text/markdown", self.cached_index(snapshot)),
            Uri::DiscoveryIndex => {
                content("application/json", render_discovery_index(snapshot).into())
            }
            Uri::Body(id) => {
                let entry = snapshot.get(id).ok_or_else(missing)?;
                content("text/markdown", self.read_body(entry)?)
            }
            Uri::Skill(uri) => {
                // For nested skills the innermost one wins, but trusted ones come first.
                let (entry, path) = snapshot.locate_file(uri).ok_or_else(missing)?;
                Ok(ServedContent {
                    mime: entry.mime_type(&path),
                    bytes: self.read_file(&entry, &path)?,
                })
            }
            Uri::Function(_) => Err(missing()),
        }
    }

    /// Returns the rendered index; it is rendered again only after a change.
    fn cached_index(&self, snapshot: &Snapshot) -> Bytes {
        let most = self.max_index_bytes;
        if snapshot.is_restricted() {
            return render_index(snapshot, most).into();
        }
        let place = &self.indexes[usize::from(snapshot.hides_account())];
        if let Some(known) = &*place.load()
            && known.0 == snapshot.seq()
        {
            return known.1.clone();
        }
        let text = Bytes::from(render_index(snapshot, most));
        place.store(Some(Arc::new((snapshot.seq(), text.clone()))));
        text
    }

    /// Whether the rendered index of a snapshot is cached.
    pub fn has_index(&self, snapshot: &Snapshot) -> bool {
        let known = self.indexes[usize::from(snapshot.hides_account())].load();
        known
            .as_ref()
            .is_some_and(|known| known.0 == snapshot.seq())
    }

    /// Returns the body of a skill, as served under `iii://<id>`.
    pub fn read_body(&self, entry: &SkillEntry) -> Result<Bytes> {
        match &entry.location {
            ContentLocation::State(scope) => Ok(self.registered_body(*scope, &entry.id)?.into()),
            _ => self.read_file(entry, &RelPath::document()),
        }
    }

    /// Returns the body of a registered skill as a JSON string, ready to embed in a response;
    /// `None` if the skill is not in a store.
    pub fn body_json(&self, id: &SkillId) -> Result<Option<String>> {
        let snapshot = self.snapshot();
        let Some(ContentLocation::State(scope)) = snapshot.get(id).map(|entry| &entry.location)
        else {
            return Ok(None);
        };
        let row = self
            .attached_store(*scope)?
            .store
            .state_get(SKILLS_SCOPE, id.as_str())?;
        Ok(row.and_then(|row| row_body_json(&row).map(str::to_owned)))
    }

    /// Returns one file of a skill, as served under `skill://<id>/<path>`.
    pub fn read_file(&self, entry: &SkillEntry, path: &RelPath) -> Result<Bytes> {
        let missing = || Error::NotFound {
            what: "file",
            name: format!("{}/{path}", entry.id),
        };
        if let ContentLocation::Remote(place) = &entry.location {
            let remotes = self.remote_reader.get().ok_or_else(|| Error::Remote {
                label: place.label.to_string(),
                reason: "is not connected".to_owned(),
            })?;
            return remote::read_remote_file(&**remotes, self.cache.as_deref(), entry, place, path);
        }
        let expected = entry.complete_metadata().find_file(path);
        let expected = expected.ok_or_else(missing)?;
        match &entry.location {
            ContentLocation::Embedded(skill) if path.is_document() => {
                Ok(skill.body().to_owned().into())
            }
            ContentLocation::Embedded(skill) => {
                let found = skill
                    .references()
                    .iter()
                    .find(|r| r.path() == path.as_str());
                found.map(|r| r.body().clone()).ok_or_else(missing)
            }
            ContentLocation::State(scope) => {
                let body = self.registered_body(*scope, &entry.id)?;
                let document = surface::registered_document(&entry.id, &body);
                Ok(document.unwrap_or(body).into())
            }
            ContentLocation::Stored(scope) => {
                let store = &self.attached_store(*scope)?.store;
                let bytes = store.read_file(&entry.id, path)?;
                if Digest::hash_bytes(&bytes) != expected.digest
                    && store.skill_metadata(&entry.id)?.as_ref() == Some(&entry.metadata)
                {
                    return Err(Error::Corrupt {
                        path: store.location().into(),
                        reason: format!("{}/{path} differs from its listing", entry.id),
                    });
                }
                Ok(bytes)
            }
            location => {
                if let Some(bytes) = location.read_if_unchanged(expected) {
                    return Ok(bytes);
                }
                let bytes = location.read_file(path).ok_or_else(missing)??;
                if Digest::hash_bytes(&bytes) != expected.digest {
                    // The file was edited since the last scan, so the listing is updated too.
                    self.refresh_entry(entry, path);
                }
                Ok(bytes)
            }
        }
    }

    /// Renders a skill as one prompt text: the document and every supporting text file.
    pub fn prompt_text(&self, entry: &SkillEntry) -> Result<String> {
        let document = self.read_file(entry, &RelPath::document())?;
        let mut references = Vec::new();
        let untrusted = self.unapproved_nested(entry);
        for file in entry.files().filter(|f| !f.path.is_document()) {
            if untrusted.iter().any(|s| file.path.as_str().starts_with(s)) {
                continue;
            }
            if !mime::is_text(&entry.mime_type(&file.path)) {
                continue;
            }
            let bytes = self.read_file(entry, &file.path)?;
            if let Ok(text) = std::str::from_utf8(&bytes) {
                references.push((file.path.clone(), text.to_owned()));
            }
        }
        let document = parse_utf8(repertoire_core::DOCUMENT, &document)?;
        Ok(surface::prompt_text(
            document,
            references.iter().map(|(path, text)| (path, text.as_str())),
        ))
    }

    /// Returns the nested folders of a remote skill that are skills without an approval. The
    /// approval of the outer skill does not cover them.
    fn unapproved_nested(&self, entry: &SkillEntry) -> Vec<String> {
        if !entry.is_remote() {
            return Vec::new();
        }
        let snapshot = self.snapshot();
        let nested = entry.metadata.files.iter().filter_map(|file| {
            let folder = file.path.as_str().strip_suffix("SKILL.md")?;
            let name = folder.strip_suffix('/')?;
            let id: Option<SkillId> = format!("{}/{name}", entry.id).parse().ok();
            let approved = id
                .and_then(|id| snapshot.get(&id).map(|e| e.trusted == Trusted::Yes))
                .unwrap_or(false);
            (!approved).then(|| folder.to_owned())
        });
        nested.collect()
    }

    /// Returns the text of a static prompt; `None` if a function renders it.
    pub fn prompt_body(&self, entry: &PromptEntry) -> Result<Option<String>> {
        if let ContentLocation::State(scope) = &entry.location {
            let store = &self.attached_store(*scope)?.store;
            let name = entry.prompt.name.as_str();
            let row = store.state_get(PROMPTS_SCOPE, name)?;
            let row = row.and_then(|value| parse_prompt_row(name, &value));
            return Ok(row.and_then(|row| row.body));
        }
        let Some(bytes) = entry.location.read_file(&RelPath::document()) else {
            return Ok(None);
        };
        let bytes = bytes?;
        let text = parse_utf8(entry.prompt.name.as_str(), &bytes)?;
        Ok(Some(
            repertoire_core::frontmatter::strip_frontmatter(text).to_owned(),
        ))
    }

    fn registered_body(&self, scope: StoreScope, id: &SkillId) -> Result<String> {
        let store = &self.attached_store(scope)?.store;
        let row = store.state_get(SKILLS_SCOPE, id.as_str())?;
        row.and_then(|value| row_body(&value))
            .ok_or_else(|| Error::no_skill(id))
    }

    /// Updates one entry, unless another thread is already scanning the files.
    fn refresh_entry(&self, entry: &SkillEntry, path: &RelPath) {
        let Ok(mut files) = self.files.try_lock() else {
            return;
        };
        if let Some(source) = files.iter_mut().find(|s| s.origin == entry.origin) {
            source.refresh_file(&entry.location, path);
            self.catalogue.apply_changes(source.take_changes());
        }
    }
}

/// Renders the index of a snapshot, in at most so many bytes.
fn render_index(snapshot: &Snapshot, most: usize) -> String {
    // The index has no place for a label, so untrusted skills are left out (T44).
    let skills = snapshot.skills();
    let skills = skills.filter(|entry| entry.trusted == Trusted::Yes);
    let entries = skills.map(|entry| IndexEntry {
        id: &entry.id,
        title: entry.metadata.title.as_deref(),
        description: entry.metadata.description.as_deref(),
        section: match entry.origin {
            Origin::Files(_) | Origin::Remote(_) => IndexSection::Custom,
            Origin::State | Origin::Workspace | Origin::Embedded | Origin::Account => {
                IndexSection::Registered
            }
        },
    });
    let entries: Vec<IndexEntry<'_>> = entries.collect();
    surface::render_index_within(&entries, most)
}

fn render_discovery_index(snapshot: &Snapshot) -> String {
    let skills = snapshot.skills();
    let skills = skills.filter(|entry| {
        entry.has_files() && entry.metadata.unlisted.is_none() && entry.trusted == Trusted::Yes
    });
    surface::discovery_index(skills.map(|entry| {
        let description = entry.metadata.description.as_deref().unwrap_or_default();
        (&entry.id, entry.id.name(), description)
    }))
}
