//! The registry: stores and files joined into one catalogue, with reads and writes.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use repertoire_core::{
    Digest, Prompt, PromptName, RelPath, SkillId, Uri, mime,
    surface::{self, IndexEntry, Section},
};
use serde_json::json;

use crate::{
    catalogue::{Again, Catalogue, Change, Entry, Event, Lagged, PromptEntry, Snapshot},
    error::{Error, Result},
    head::{Head, utf8},
    origin::{Origin, Scope, Trusted},
    settings::{AskedBy, Place, Settings},
    source::{FileSource, Location, Notice, Pattern, Plan},
    store::{NewSkill, Revision, StateRow, Store, Trust},
    trust,
};

/// The scope of registered skills in the state.
const SKILLS: &str = "skills";
/// The most bytes of a registered body.
const MAX_BODY: usize = 256 * 1024;

/// Bytes with their MIME type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The MIME type.
    pub mime: &'static str,
    /// The bytes as they are served everywhere.
    pub bytes: Bytes,
}

/// A store with the number of the last event that is in the catalogue.
#[derive(Debug)]
struct Attached {
    scope: Scope,
    trusted: Trusted,
    store: Arc<Store>,
    seen: Mutex<i64>,
}

/// All skills from all sources.
///
/// ```
/// use repertoire_registry::{Registry, Settings};
///
/// let folder = tempfile::tempdir()?;
/// let settings = Settings { account: Some(folder.path().into()), ..Settings::default() };
/// let registry = Registry::open(settings)?;
/// registry.register(&"demo".parse()?, "# Demo\n\nA body registered at run time.\n")?;
/// let content = registry.read(&"iii://demo".parse()?)?;
/// assert_eq!(content.bytes, "# Demo\n\nA body registered at run time.\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Registry {
    catalogue: Catalogue,
    stores: Vec<Attached>,
    files: Mutex<Vec<FileSource>>,
    notices: Vec<Notice>,
    workspace: Option<(PathBuf, Trusted)>,
}

impl Registry {
    /// Opens every source. One that cannot be opened leaves a notice; a damaged store refuses.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "settings are made to open a registry with"
    )]
    pub fn open(settings: Settings) -> Result<Arc<Self>> {
        let mut registry = Self {
            catalogue: Catalogue::new(),
            stores: Vec::new(),
            files: Mutex::default(),
            notices: Vec::new(),
            workspace: None,
        };
        registry.attach_stores(&settings)?;
        registry.open_files(&settings)?;
        let mut damaged = Vec::new();
        for attached in &registry.stores {
            match (registry.load(attached), attached.trusted) {
                (Ok(()), _) => {}
                // A stranger's store must not keep the user from the own skills.
                (Err(error), Trusted::No) => damaged.push(notice(attached.store.path(), &error)),
                (Err(error), Trusted::Yes) => return Err(error),
            }
        }
        registry.notices.append(&mut damaged);
        let mut changes = Vec::new();
        for source in registry.lock_files().iter_mut() {
            changes.append(&mut source.take_changes());
        }
        registry.catalogue.apply(changes);
        Ok(Arc::new(registry))
    }

    fn attach_stores(&mut self, settings: &Settings) -> Result<()> {
        // Without an account nobody can have trusted a workspace.
        self.workspace = settings.workspace.clone().map(|path| (path, Trusted::No));
        let Some(folder) = &settings.account else {
            return Ok(());
        };
        let file = folder.join(trust::STORE);
        let account = match Store::open(&file, Trust::Own) {
            Ok(store) => store,
            // Skills can be looked at where nothing may be written.
            Err(error @ Error::Io { .. }) => {
                self.notices.push(notice(&file, &error));
                match Store::open(&file, Trust::ReadOnly) {
                    Ok(store) => store,
                    Err(_) => return Ok(()),
                }
            }
            Err(error) => return Err(error),
        };
        if let Some(workspace) = &settings.workspace {
            let file = trust::workspace_store(workspace);
            let own = match trust::open_trusted(&account, workspace) {
                Ok(own) => own,
                // A damaged store of a stranger must not keep the user from the own skills.
                Err(error) => {
                    self.notices.push(notice(&file, &error));
                    None
                }
            };
            let trusted = match own {
                Some(_) => Trusted::Yes,
                None => Trusted::No,
            };
            self.workspace = Some((workspace.clone(), trusted));
            let opened = match own {
                None if file.exists() => match Store::open(&file, Trust::Foreign) {
                    Ok(store) => Some(store),
                    Err(error) => {
                        self.notices.push(notice(&file, &error));
                        None
                    }
                },
                own => own,
            };
            if let Some(store) = opened {
                self.attach(Scope::Workspace, trusted, store);
            }
        }
        self.attach(Scope::Account, Trusted::Yes, account);
        Ok(())
    }

    fn attach(&mut self, scope: Scope, trusted: Trusted, store: Arc<Store>) {
        tracing::info!(scope = scope.as_str(), file = %store.path().display(), "opened");
        self.stores.push(Attached {
            scope,
            trusted,
            store,
            seen: Mutex::new(0),
        });
    }

    fn open_files(&mut self, settings: &Settings) -> Result<()> {
        let mut number = 0;
        let plans = [
            (&settings.folders, Kind::Folder),
            (&settings.skills, Kind::Skills),
            (&settings.prompts, Kind::Prompts),
        ];
        for (place, kind) in plans
            .into_iter()
            .flat_map(|(places, kind)| places.iter().map(move |place| (place, kind)))
        {
            number += 1;
            match self.open_place(place, kind, Origin::Files(number), settings.cache.as_ref()) {
                Ok(source) => {
                    tracing::info!(
                        origin = %source.origin,
                        folder = %source.root().display(),
                        found = source.len(),
                        skipped = source.notices().count(),
                        "looked at"
                    );
                    self.lock_files().push(source);
                }
                Err(error @ Error::Pattern { .. }) if place.asked_by == AskedBy::User => {
                    return Err(error);
                }
                Err(error) => self.notices.push(notice(&place.path, &error)),
            }
        }
        Ok(())
    }

    fn open_place(
        &self,
        place: &Place,
        kind: Kind,
        origin: Origin,
        cache: Option<&PathBuf>,
    ) -> Result<FileSource> {
        let text = place.pattern.as_deref().unwrap_or_default();
        let (folder, plan) = match kind {
            Kind::Folder => (place.path.clone(), Plan::Folders),
            Kind::Skills | Kind::Prompts => {
                let pattern = Pattern::new(&place.path, text)?;
                let folder = pattern.folder().to_owned();
                match kind {
                    Kind::Prompts => (folder, Plan::Prompts(pattern)),
                    _ => (folder, Plan::Skills(pattern)),
                }
            }
        };
        let trusted = self.trusted_place(place, &folder)?;
        FileSource::open(&folder, plan, origin, trusted, cache.cloned())
    }

    /// What a workspace asks for is as trusted as the workspace, and beneath it until trusted.
    fn trusted_place(&self, place: &Place, folder: &Path) -> Result<Trusted> {
        if place.asked_by == AskedBy::User {
            return Ok(Trusted::Yes);
        }
        let Some((workspace, trusted)) = &self.workspace else {
            return Err(Error::OutsideWorkspace(folder.to_owned()));
        };
        if *trusted == Trusted::No {
            let real = |path: &Path| path.canonicalize().map_err(|e| Error::io(path, e));
            if !real(folder)?.starts_with(real(workspace)?) {
                return Err(Error::OutsideWorkspace(folder.to_owned()));
            }
        }
        Ok(*trusted)
    }

    fn lock_files(&self) -> MutexGuard<'_, Vec<FileSource>> {
        // Sources are brought up to date from the disk, so a poisoned one heals at the next look.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- reading ----

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
        let content = |mime, bytes| Ok(Content { mime, bytes });
        match uri {
            Uri::Index => content("text/markdown", index(&snapshot).into()),
            Uri::DiscoveryIndex => content("application/json", discovery(&snapshot).into()),
            Uri::Body(id) => {
                let entry = snapshot.get(id).ok_or_else(missing)?;
                content("text/markdown", self.body(entry)?)
            }
            Uri::Skill(uri) => {
                // Skills nest: the file belongs to the origin that wins, whatever ids are longer.
                let found = uri
                    .splits()
                    .filter_map(|(id, path)| {
                        let entry = snapshot.get(&id).filter(|e| e.head.is_skill())?;
                        entry.head.file(&path).map(|_| (entry.clone(), path))
                    })
                    .min_by_key(|(entry, _)| entry.origin.rank(entry.trusted));
                let (entry, path) = found.ok_or_else(missing)?;
                content(mime::of_path(path.as_str()), self.file(&entry, &path)?)
            }
            Uri::Function(_) => Err(missing()),
        }
    }

    /// The body of a skill, as `iii://<id>` serves it.
    pub fn body(&self, entry: &Entry) -> Result<Bytes> {
        match &entry.location {
            Location::State(scope) => Ok(self.registered_body(*scope, &entry.id)?.into()),
            _ => self.file(entry, &RelPath::document()),
        }
    }

    /// One file of a skill, as `skill://<id>/<path>` serves it.
    pub fn file(&self, entry: &Entry, path: &RelPath) -> Result<Bytes> {
        let missing = || Error::NotFound {
            what: "file",
            name: format!("{}/{path}", entry.id),
        };
        let expected = entry.head.file(path).ok_or_else(missing)?;
        match &entry.location {
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
        for file in entry.head.files.iter().filter(|f| !f.path.is_document()) {
            if !mime::is_text(file.mime()) {
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

    /// The text of a static prompt; `None` if a function renders it.
    pub fn prompt_body(&self, entry: &PromptEntry) -> Result<Option<String>> {
        if let Location::State(scope) = &entry.location {
            let store = &self.attached(*scope)?.store;
            let stored = store.prompt(entry.prompt.name.as_str())?;
            return Ok(stored.and_then(|prompt| prompt.body));
        }
        let Some(bytes) = entry.location.read(&RelPath::document()) else {
            return Ok(None);
        };
        let bytes = bytes?;
        let text = utf8(entry.prompt.name.as_str(), &bytes)?;
        Ok(Some(repertoire_core::frontmatter::body(text).to_owned()))
    }

    fn registered_body(&self, scope: Scope, id: &SkillId) -> Result<String> {
        /// The part of a row that is the body; the rest is not even copied.
        #[derive(serde::Deserialize)]
        struct Row {
            skill: String,
        }
        let store = &self.attached(scope)?.store;
        let row = store.state_text(SKILLS, id.as_str())?;
        row.and_then(|text| serde_json::from_str::<Row>(&text).ok())
            .map(|row| row.skill)
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

    // ---- writing ----

    /// The store of a scope, if there is one.
    pub fn store(&self, scope: Scope) -> Result<&Arc<Store>> {
        Ok(&self.attached(scope)?.store)
    }

    fn attached(&self, scope: Scope) -> Result<&Attached> {
        self.stores
            .iter()
            .find(|attached| attached.scope == scope)
            .ok_or(Error::NotFound {
                what: "scope",
                name: scope.as_str().to_owned(),
            })
    }

    /// The stores whose registered content counts, the one that wins first.
    fn trusted(&self) -> impl Iterator<Item = &Attached> {
        self.stores.iter().filter(|a| a.trusted == Trusted::Yes)
    }

    /// The store that registered content goes to: the workspace's if it is trusted.
    fn primary(&self) -> Result<&Attached> {
        self.trusted().next().ok_or(Error::NotFound {
            what: "scope",
            name: Scope::Account.as_str().to_owned(),
        })
    }

    /// Stores skills, all or none. Gives the new revision of each, `None` where nothing changed.
    pub fn add(&self, scope: Scope, skills: Vec<NewSkill>) -> Result<Vec<Option<i64>>> {
        let attached = self.attached(scope)?;
        let revisions = attached.store.put_skills(skills)?;
        self.sync_store(attached)?;
        Ok(revisions)
    }

    /// Removes a skill from a scope; its history stays unless it is purged.
    pub fn remove(&self, scope: Scope, id: &SkillId, history: History) -> Result<bool> {
        let attached = self.attached(scope)?;
        let removed = match history {
            History::Keep => attached.store.remove_skill(id)?,
            History::Purge => attached.store.purge_skill(id)?,
        };
        self.sync_store(attached)?;
        Ok(removed)
    }

    /// Every state a skill had in a scope, newest first.
    pub fn history(&self, scope: Scope, id: &SkillId) -> Result<Vec<Revision>> {
        self.attached(scope)?.store.history(id)
    }

    /// Makes an earlier state the current one.
    pub fn rollback(&self, scope: Scope, id: &SkillId, revision: i64) -> Result<i64> {
        let attached = self.attached(scope)?;
        let new = attached.store.rollback(id, revision)?;
        self.sync_store(attached)?;
        Ok(new)
    }

    /// Registers a markdown body under an id, in place of any that is there.
    pub fn register(&self, id: &SkillId, body: &str) -> Result<()> {
        let field = |rule: String| repertoire_core::Error::Field {
            field: "skill".to_owned(),
            rule,
        };
        if body.trim().is_empty() {
            return Err(field("must be non-empty".to_owned()).into());
        }
        if body.len() > MAX_BODY {
            let rule = format!("too large: {} bytes, at most {MAX_BODY}", body.len());
            return Err(field(rule).into());
        }
        let head = Head::of_body(id, body);
        let row = json!({"id": id, "skill": body, "registered_at": crate::store::now()});
        let attached = self.primary()?;
        attached
            .store
            .state_set(SKILLS, id.as_str(), &row, Some(&head))?;
        self.sync_store(attached)
    }

    /// Takes a registered body away, from the workspace first; says whether there was one.
    pub fn unregister(&self, id: &SkillId) -> Result<bool> {
        for attached in self.trusted() {
            let old = attached.store.state_delete(SKILLS, id.as_str())?;
            self.sync_store(attached)?;
            if old.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Stores a prompt in place of any of its name.
    pub fn put_prompt(&self, prompt: &Prompt, body: Option<&str>) -> Result<()> {
        let attached = self.primary()?;
        attached.store.put_prompt(prompt, body)?;
        self.sync_store(attached)
    }

    /// Removes a stored prompt, from the workspace first; says whether there was one.
    pub fn remove_prompt(&self, name: &PromptName) -> Result<bool> {
        for attached in self.trusted() {
            let removed = attached.store.remove_prompt(name)?;
            self.sync_store(attached)?;
            if removed {
                return Ok(true);
            }
        }
        Ok(false)
    }

    // ---- following ----

    /// Brings the catalogue up to date with what other processes wrote.
    pub fn sync(&self) -> Result<()> {
        self.stores.iter().try_for_each(|a| self.sync_store(a))
    }

    /// Brings the catalogue up to date after these files changed.
    pub fn reconcile(&self, paths: &[PathBuf]) {
        let mut changes = Vec::new();
        let mut files = self.lock_files();
        for source in files.iter_mut() {
            source.reconcile(paths.iter().map(PathBuf::as_path));
            changes.append(&mut source.take_changes());
        }
        self.catalogue.apply(changes);
    }

    /// Looks at every file again, as after events were missed.
    pub fn rescan(&self) {
        let mut changes = Vec::new();
        let mut files = self.lock_files();
        for source in files.iter_mut() {
            source.scan();
            changes.append(&mut source.take_changes());
        }
        self.catalogue.apply(changes);
    }

    /// The folders whose changes concern this registry.
    pub(crate) fn roots(&self) -> Vec<PathBuf> {
        let files = self.lock_files();
        let mut roots: Vec<PathBuf> = files.iter().map(|s| s.root().to_owned()).collect();
        roots.sort();
        roots.dedup();
        roots
    }

    fn load(&self, attached: &Attached) -> Result<()> {
        let mut seen = attached.seen.lock().unwrap_or_else(PoisonError::into_inner);
        // Read the number first: what comes in between is applied twice, never lost.
        let last = attached.store.last_seq()?;
        let origin = Origin::of_scope(attached.scope);
        // Whatever the store no longer has goes; what it has comes back right after.
        let snapshot = self.snapshot();
        let is_here = |location: &Location| matches!(location, Location::State(scope) if *scope == attached.scope);
        let mut changes: Vec<Change> = snapshot
            .all_skills()
            .filter(|(entry, _)| entry.origin == origin || is_here(&entry.location))
            .map(|(entry, _)| Change::RemoveSkill(entry.id.clone(), entry.origin.clone()))
            .collect();
        let prompts = snapshot.prompts().filter(|p| is_here(&p.location));
        changes.extend(prompts.map(|p| Change::RemovePrompt(p.prompt.name.clone(), Origin::State)));
        for (id, head) in attached.store.heads()? {
            changes.push(put_package(attached, id, head, Again::Ignore));
        }
        if attached.trusted == Trusted::Yes {
            for row in attached.store.state_rows(SKILLS)? {
                changes.extend(self.registered_change(
                    &row.key,
                    Again::Ignore,
                    Some((attached, &row)),
                )?);
            }
            for stored in attached.store.prompts()? {
                changes.extend(self.prompt_change(&stored.prompt.name, Again::Ignore)?);
            }
        }
        self.catalogue.apply(changes);
        *seen = last;
        Ok(())
    }

    fn is_primary(&self, attached: &Attached) -> bool {
        self.primary()
            .is_ok_and(|primary| std::ptr::eq(primary, attached))
    }

    /// What registered content under a key means to the catalogue: the first store that has it.
    ///
    /// A row that is no skill (a direct write to the scope may be anything) is left out.
    fn registered_change(
        &self,
        key: &str,
        again: Again,
        known: Option<(&Attached, &StateRow)>,
    ) -> Result<Option<Change>> {
        let Ok(id) = key.parse::<SkillId>() else {
            return Ok(None);
        };
        // The first store's own row needs no second look.
        if let Some((attached, row)) = known
            && self.is_primary(attached)
        {
            let head = row.head.clone();
            return Ok(head.map(|head| put_registered(attached, id, head, again)));
        }
        for attached in self.trusted() {
            if let Some(row) = attached.store.state_row(SKILLS, key)? {
                return Ok(row
                    .head
                    .map(|head| put_registered(attached, id, head, again)));
            }
        }
        Ok(Some(Change::RemoveSkill(id, Origin::State)))
    }

    /// What a stored prompt means to the catalogue: the first store that has it.
    fn prompt_change(&self, name: &PromptName, again: Again) -> Result<Option<Change>> {
        for attached in self.trusted() {
            if let Some(stored) = attached.store.prompt(name.as_str())? {
                return Ok(Some(put_prompt(attached, stored.prompt, again)));
            }
        }
        Ok(Some(Change::RemovePrompt(name.clone(), Origin::State)))
    }

    /// Applies what happened in a store since the last look, in the order it happened.
    fn sync_store(&self, attached: &Attached) -> Result<()> {
        let mut seen = attached.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(events) = attached.store.events_since(*seen)? else {
            drop(seen);
            return self.load(attached);
        };
        let Some(last) = events.last().map(|event| event.seq) else {
            return Ok(());
        };
        let mut changes = Vec::new();
        for event in events {
            let origin = Origin::of_scope(attached.scope);
            match event.kind.as_str() {
                "skill" => {
                    let id: SkillId = event.id.parse()?;
                    changes.push(match attached.store.head(&id)? {
                        Some(head) => put_package(attached, id, head, Again::Tell),
                        None => Change::RemoveSkill(id, origin),
                    });
                }
                "state:skills" if attached.trusted == Trusted::Yes => {
                    changes.extend(self.registered_change(&event.id, Again::Tell, None)?);
                }
                "prompt" if attached.trusted == Trusted::Yes => {
                    changes.extend(self.prompt_change(&event.id.parse()?, Again::Tell)?);
                }
                _ => {}
            }
        }
        self.catalogue.apply(changes);
        *seen = last;
        Ok(())
    }
}

/// What happens to the history of a skill that is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum History {
    /// It stays, and the skill can be rolled back to.
    Keep,
    /// It goes, with every file nothing else needs.
    Purge,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Folder,
    Skills,
    Prompts,
}

fn put_package(attached: &Attached, id: SkillId, head: Head, again: Again) -> Change {
    let entry = Entry {
        id,
        origin: Origin::of_scope(attached.scope),
        trusted: attached.trusted,
        head: Arc::new(head),
        location: Location::Stored(attached.scope),
    };
    Change::PutSkill(entry, again)
}

fn put_registered(attached: &Attached, id: SkillId, head: Head, again: Again) -> Change {
    let entry = Entry {
        id,
        origin: Origin::State,
        trusted: Trusted::Yes,
        head: Arc::new(head),
        location: Location::State(attached.scope),
    };
    Change::PutSkill(entry, again)
}

fn put_prompt(attached: &Attached, prompt: Prompt, again: Again) -> Change {
    let entry = PromptEntry {
        prompt: Arc::new(prompt),
        origin: Origin::State,
        trusted: Trusted::Yes,
        location: Location::State(attached.scope),
    };
    Change::PutPrompt(entry, again)
}

fn notice(path: &Path, error: &Error) -> Notice {
    Notice {
        path: path.to_owned(),
        code: error.code(),
        message: error.to_string(),
    }
}

/// The rendered index of a snapshot.
fn index(snapshot: &Snapshot) -> String {
    surface::index(snapshot.skills().map(|entry| IndexEntry {
        id: &entry.id,
        title: entry.head.title.as_deref(),
        description: entry.head.description.as_deref(),
        section: match entry.origin {
            Origin::Files(_) => Section::Custom,
            Origin::State | Origin::Workspace | Origin::Account => Section::Registered,
        },
    }))
}

fn discovery(snapshot: &Snapshot) -> String {
    let skills = snapshot.skills().filter(|entry| entry.head.is_skill());
    surface::discovery_index(skills.map(|entry| {
        let description = entry.head.description.as_deref().unwrap_or_default();
        (&entry.id, entry.id.name(), description)
    }))
}
