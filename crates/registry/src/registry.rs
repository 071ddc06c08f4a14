//! The registry: stores and files joined into one catalogue.
//!
//! Here is how its sources are opened. How it reads, writes and follows them is in the files
//! beside this one.

mod artifacts;
mod follow;
mod read;
mod state;
mod write;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use arc_swap::ArcSwapOption;
pub use artifacts::Parts;
use bytes::Bytes;
pub use state::{Feed, Retell, StateLimit};
pub use write::History;

use crate::{
    catalogue::{Again, Catalogue, Change, Entry},
    error::{Error, Result},
    head::Head,
    origin::{Origin, Scope, Trusted},
    remote::Remotes,
    settings::{AskedBy, Place, Settings, StateFrom, StoreUse},
    source::{FileSource, Location, Notice, Pattern, Plan},
    store::{Store, Trust},
    trust,
};

/// Bytes with their MIME type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The MIME type.
    pub mime: Cow<'static, str>,
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
    /// What was registered here and is not in the catalogue yet, by the number of its event.
    fresh: Mutex<BTreeMap<i64, Arc<Head>>>,
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
    /// Why the account's store could not be opened.
    no_account: Option<Notice>,
    /// Held while what happened in stores is read and applied, so that it is applied in order.
    following: Mutex<()>,
    /// How other servers are asked, once somebody knows.
    remotes: OnceLock<Arc<dyn Remotes>>,
    cache: Option<PathBuf>,
    /// What of the stores is in the catalogue.
    uses: StoreUse,
    /// Where registered content is kept.
    state: StateFrom,
    /// The rendered index, and the number of the snapshot it was rendered from.
    index: ArcSwapOption<(u64, Bytes)>,
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
            no_account: None,
            following: Mutex::default(),
            remotes: OnceLock::new(),
            cache: settings.cache.clone(),
            uses: settings.stores,
            state: settings.state,
            index: ArcSwapOption::empty(),
        };
        registry.embed(&settings)?;
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
        registry
            .stores
            .retain(|attached| damaged.iter().all(|n| n.path != attached.store.path()));
        registry.notices.append(&mut damaged);
        let mut changes = Vec::new();
        for source in registry.lock_files().iter_mut() {
            changes.append(&mut source.take_changes());
        }
        registry.catalogue.apply(changes);
        Ok(Arc::new(registry))
    }

    fn embed(&self, settings: &Settings) -> Result<()> {
        settings.embedded.check()?;
        let embedded = settings.embedded.iter().map(|skill| {
            let entry = Entry {
                id: skill.id()?,
                origin: Origin::Embedded,
                trusted: Trusted::Yes,
                head: Arc::new(Head::of_skill(skill)?),
                location: Location::Embedded(Arc::new(skill.clone())),
            };
            Ok(Change::PutSkill(entry, Again::Ignore))
        });
        self.catalogue.apply(embedded.collect::<Result<Vec<_>>>()?);
        Ok(())
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
                let problem = notice(&file, &error);
                self.notices.push(problem.clone());
                let Ok(store) = Store::open(&file, Trust::ReadOnly) else {
                    self.no_account = Some(problem);
                    return Ok(());
                };
                store
            }
            Err(error) => return Err(error),
        };
        if settings.system && account.is_own() {
            account.refresh_system()?;
        }
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
            fresh: Mutex::default(),
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

    /// The store of a scope, if there is one.
    pub fn store(&self, scope: Scope) -> Result<&Arc<Store>> {
        Ok(&self.attached(scope)?.store)
    }

    /// The stores that are this user's own or trusted, and can be written to: what they hold may be
    /// acted upon without being asked for.
    pub fn trusted_stores(&self) -> impl Iterator<Item = &Arc<Store>> {
        let own = |attached: &&Attached| attached.store.is_own();
        self.trusted().filter(own).map(|attached| &attached.store)
    }

    fn attached(&self, scope: Scope) -> Result<&Attached> {
        let found = self.stores.iter().find(|attached| attached.scope == scope);
        found.ok_or_else(|| self.no_store(scope))
    }

    /// The stores whose registered content counts, the one that wins first.
    fn trusted(&self) -> impl Iterator<Item = &Attached> {
        self.stores.iter().filter(|a| a.trusted == Trusted::Yes)
    }

    /// The store that registered content goes to: the workspace's if it is trusted.
    fn primary(&self) -> Result<&Attached> {
        if !self.keeps_state() {
            return Err(Error::Conflict(
                "registered content is kept on the bus, not here".to_owned(),
            ));
        }
        self.trusted()
            .next()
            .ok_or_else(|| self.no_store(Scope::Account))
    }

    fn no_store(&self, scope: Scope) -> Error {
        match &self.no_account {
            Some(problem) if scope == Scope::Account => Error::Skipped {
                code: problem.code,
                message: problem.message.clone(),
            },
            _ => Error::NotFound {
                what: "scope",
                name: scope.as_str().to_owned(),
            },
        }
    }

    fn lock_files(&self) -> MutexGuard<'_, Vec<FileSource>> {
        // Sources are brought up to date from the disk, so a poisoned one heals at the next look.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Folder,
    Skills,
    Prompts,
}

fn notice(path: &Path, error: &Error) -> Notice {
    Notice {
        path: path.to_owned(),
        code: error.code(),
        message: error.to_string(),
    }
}
