//! Reading: from a URI or an entry to the bytes every surface serves.
//!
//! Invariant: no lock is taken that a writer holds across I/O. Bytes on disk that are not what
//! the listing says bring the listing along; bytes in a store that are not are refused.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use repertoire_core::{
    Digest, RelPath, SkillId, Uri, mime,
    surface::{self, IndexEntry, Section},
};

use super::{Content, Registry};
use crate::{
    catalogue::{Entry, Event, Lagged, PromptEntry, Snapshot},
    error::{Error, Result},
    head::utf8,
    origin::{Origin, Scope, Trusted},
    registered::{PROMPTS, SKILLS, body_of, prompt_of, raw_body_of},
    remote,
    source::{Location, Notice},
};

impl Registry {
    /// The catalogue at this moment.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.catalogue.snapshot()
    }

    /// The events after a number; waits for one until the time is up.
    pub fn wait_events(&self, after: u64, patience: Duration) -> Result<Vec<Event>, Lagged> {
        self.catalogue.wait(after, patience)
    }

    /// Everything that was found and not taken, and why.
    pub fn notices(&self) -> Vec<Notice> {
        let mut all = self.notices.clone();
        for source in self.lock_files().iter() {
            all.extend(source.notices());
        }
        all
    }

    /// The workspace and whether it is trusted.
    pub fn workspace(&self) -> Option<(&Path, Trusted)> {
        self.workspace
            .as_ref()
            .map(|(path, trusted)| (path.as_path(), *trusted))
    }

    /// Reads whatever a URI names.
    pub fn read(&self, uri: &Uri) -> Result<Content> {
        let snapshot = self.snapshot();
        let missing = || Error::NotFound {
            what: "resource",
            name: uri.to_string(),
        };
        let content = |mime: &'static str, bytes| {
            Ok(Content {
                mime: mime.into(),
                bytes,
            })
        };
        match uri {
            Uri::Index => content("text/markdown", self.index(&snapshot)),
            Uri::DiscoveryIndex => content("application/json", discovery(&snapshot).into()),
            Uri::Body(id) => {
                let entry = snapshot.get(id).ok_or_else(missing)?;
                content("text/markdown", self.body(entry)?)
            }
            Uri::Skill(uri) => {
                // Skills nest: the innermost one has the file, but never a stranger's before ours.
                let (entry, path) = snapshot.locate(uri).ok_or_else(missing)?;
                Ok(Content {
                    mime: entry.mime(&path),
                    bytes: self.file(&entry, &path)?,
                })
            }
            Uri::Function(_) => Err(missing()),
        }
    }

    /// The rendered index; it is rendered again only when something has changed.
    fn index(&self, snapshot: &Snapshot) -> Bytes {
        if let Some(known) = &*self.index.load()
            && known.0 == snapshot.seq()
        {
            return known.1.clone();
        }
        let text = Bytes::from(index(snapshot));
        self.index
            .store(Some(Arc::new((snapshot.seq(), text.clone()))));
        text
    }

    /// Whether the index is at hand, or has to be rendered.
    pub fn has_index(&self) -> bool {
        let known = self.index.load();
        known
            .as_ref()
            .is_some_and(|known| known.0 == self.snapshot().seq())
    }

    /// The body of a skill, as `iii://<id>` serves it.
    pub fn body(&self, entry: &Entry) -> Result<Bytes> {
        match &entry.location {
            Location::State(scope) => Ok(self.registered_body(*scope, &entry.id)?.into()),
            _ => self.file(entry, &RelPath::document()),
        }
    }

    /// The body of a registered skill as a JSON text, for whoever writes it into one; `None` if
    /// the skill is none of the stores'.
    pub fn body_json(&self, id: &SkillId) -> Result<Option<String>> {
        let snapshot = self.snapshot();
        let Some(Location::State(scope)) = snapshot.get(id).map(|entry| &entry.location) else {
            return Ok(None);
        };
        let row = self
            .attached(*scope)?
            .store
            .state_get(SKILLS, id.as_str())?;
        Ok(row.and_then(|row| raw_body_of(&row).map(str::to_owned)))
    }

    /// One file of a skill, as `skill://<id>/<path>` serves it.
    pub fn file(&self, entry: &Entry, path: &RelPath) -> Result<Bytes> {
        let missing = || Error::NotFound {
            what: "file",
            name: format!("{}/{path}", entry.id),
        };
        if let Location::Remote(place) = &entry.location {
            let remotes = self.remotes.get().ok_or_else(|| Error::Remote {
                label: place.label.to_string(),
                reason: "is not connected".to_owned(),
            })?;
            return remote::read(&**remotes, self.cache.as_deref(), entry, place, path);
        }
        let expected = entry.head.file(path).ok_or_else(missing)?;
        match &entry.location {
            Location::Embedded(skill) if path.is_document() => Ok(skill.body().to_owned().into()),
            Location::Embedded(skill) => {
                let found = skill
                    .references()
                    .iter()
                    .find(|r| r.path() == path.as_str());
                found.map(|r| r.body().clone()).ok_or_else(missing)
            }
            Location::State(scope) => {
                let body = self.registered_body(*scope, &entry.id)?;
                let document = surface::registered_document(&entry.id, &body);
                Ok(document.unwrap_or(body).into())
            }
            Location::Stored(scope) => {
                let store = &self.attached(*scope)?.store;
                let bytes = store.file(&entry.id, path)?;
                if Digest::of(&bytes) != expected.digest
                    && store.head(&entry.id)?.as_ref() == Some(&entry.head)
                {
                    return Err(Error::Corrupt {
                        path: store.path().to_owned(),
                        reason: format!("{}/{path} differs from its listing", entry.id),
                    });
                }
                Ok(bytes)
            }
            location => {
                if let Some(bytes) = location.read_known(expected) {
                    return Ok(bytes);
                }
                let bytes = location.read(path).ok_or_else(missing)??;
                if Digest::of(&bytes) != expected.digest {
                    // Edited since it was looked at: the listing has to say so too.
                    self.refresh(entry, path);
                }
                Ok(bytes)
            }
        }
    }

    /// A skill as one prompt text: the document and every supporting text file.
    pub fn prompt_text(&self, entry: &Entry) -> Result<String> {
        let document = self.file(entry, &RelPath::document())?;
        let mut references = Vec::new();
        let strangers = self.strangers_within(entry);
        for file in entry.files().filter(|f| !f.path.is_document()) {
            if strangers.iter().any(|s| file.path.as_str().starts_with(s)) {
                continue;
            }
            if !mime::is_text(&entry.mime(&file.path)) {
                continue;
            }
            let bytes = self.file(entry, &file.path)?;
            if let Ok(text) = std::str::from_utf8(&bytes) {
                references.push((file.path.clone(), text.to_owned()));
            }
        }
        let document = utf8(repertoire_core::DOCUMENT, &document)?;
        Ok(surface::prompt_text(
            document,
            references.iter().map(|(path, text)| (path, text.as_str())),
        ))
    }

    /// The folders within a skill of another server that are skills nobody approved: they have no
    /// effect through the one around them.
    fn strangers_within(&self, entry: &Entry) -> Vec<String> {
        if !entry.is_remote() {
            return Vec::new();
        }
        let snapshot = self.snapshot();
        let nested = entry.head.files.iter().filter_map(|file| {
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

    /// The text of a static prompt; `None` if a function renders it.
    pub fn prompt_body(&self, entry: &PromptEntry) -> Result<Option<String>> {
        if let Location::State(scope) = &entry.location {
            let store = &self.attached(*scope)?.store;
            let name = entry.prompt.name.as_str();
            let row = store.state_get(PROMPTS, name)?;
            let row = row.and_then(|value| prompt_of(name, &value));
            return Ok(row.and_then(|row| row.body));
        }
        let Some(bytes) = entry.location.read(&RelPath::document()) else {
            return Ok(None);
        };
        let bytes = bytes?;
        let text = utf8(entry.prompt.name.as_str(), &bytes)?;
        Ok(Some(repertoire_core::frontmatter::body(text).to_owned()))
    }

    fn registered_body(&self, scope: Scope, id: &SkillId) -> Result<String> {
        let store = &self.attached(scope)?.store;
        let row = store.state_get(SKILLS, id.as_str())?;
        row.and_then(|value| body_of(&value))
            .ok_or_else(|| Error::no_skill(id))
    }

    /// Brings one entry up to date, unless someone is looking at the files already.
    fn refresh(&self, entry: &Entry, path: &RelPath) {
        let Ok(mut files) = self.files.try_lock() else {
            return;
        };
        if let Some(source) = files.iter_mut().find(|s| s.origin == entry.origin) {
            source.refresh(&entry.location, path);
            self.catalogue.apply(source.take_changes());
        }
    }
}

/// The rendered index of a snapshot.
fn index(snapshot: &Snapshot) -> String {
    surface::index(snapshot.skills().map(|entry| IndexEntry {
        id: &entry.id,
        title: entry.head.title.as_deref(),
        description: entry.head.description.as_deref(),
        section: match entry.origin {
            Origin::Files(_) | Origin::Remote(_) => Section::Custom,
            Origin::State | Origin::Workspace | Origin::Embedded | Origin::Account => {
                Section::Registered
            }
        },
    }))
}

fn discovery(snapshot: &Snapshot) -> String {
    let skills = snapshot.skills().filter(|entry| entry.has_files());
    surface::discovery_index(skills.map(|entry| {
        let description = entry.head.description.as_deref().unwrap_or_default();
        (&entry.id, entry.id.name(), description)
    }))
}
