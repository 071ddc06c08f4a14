//! The registry: stores and files joined into one catalogue.
//!
//! This file opens the sources. Reading, writing and following them are in the files beside it.

mod artifacts;
mod early;
mod installed;
mod read;
mod state;
mod sync;
mod write;

use std::{
    borrow::Cow,
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use arc_swap::ArcSwapOption;
pub use artifacts::SkillArtifacts;
use bytes::Bytes;
use repertoire_core::permission::IdPrefix;
pub use state::{NotifyUnchanged, RegisteredScope, StateLimit};
pub use write::HistoryPolicy;

use crate::{
    catalogue::{Catalogue, CatalogueChange, RepeatPolicy, SkillEntry},
    error::{Error, Result, display_path},
    origin::{Origin, StoreScope, Trusted},
    remote::RemoteReader,
    settings::{
        CatalogueContent, RegisteredContent, RegistrySettings, RequestedBy, SourceLocation,
    },
    skill_metadata::SkillMetadata,
    source::{ContentLocation, FileSource, GlobPattern, LinkPolicy, Notice, SourcePlan},
    store::{Account, EventCursor, EventId, LocalStore, SqliteStore, Store, StoreOpenMode},
    trust,
};

/// Bytes with their MIME type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedContent {
    /// The MIME type.
    pub mime: Cow<'static, str>,
    /// The bytes, the same on every surface.
    pub bytes: Bytes,
}

/// A store with the position of the last event that was applied to the catalogue.
#[derive(Debug)]
struct AttachedStore {
    scope: StoreScope,
    trusted: Trusted,
    store: Arc<dyn Store>,
    /// `None` until the store was read once.
    cursor: Mutex<Option<EventCursor>>,
    /// Metadata of registrations by this process that are not yet in the catalogue.
    recent_metadata: Mutex<HashMap<EventId, Arc<SkillMetadata>>>,
}

/// The user's local data with the position of the last event that was applied.
#[derive(Debug)]
struct AttachedLocal {
    store: Arc<LocalStore>,
    cursor: Mutex<Option<EventCursor>>,
}

/// Opens the user's local data for a registry of named folders, if there is an account.
fn visibility_store(settings: &RegistrySettings) -> Option<AttachedLocal> {
    if settings.account.is_some() {
        return None;
    }
    let folder = settings.traces.as_ref()?;
    if Account::is_missing(folder) {
        return None;
    }
    match Account::open_read_only(folder) {
        Ok(account) => Some(AttachedLocal {
            store: account.local,
            cursor: Mutex::default(),
        }),
        Err(error) => {
            tracing::warn!(%error, "what is disabled in the account cannot be read");
            None
        }
    }
}

/// All skills from all sources.
///
/// ```
/// use repertoire_registry::{Registry, RegistrySettings};
///
/// let folder = tempfile::tempdir()?;
/// let settings = RegistrySettings { account: Some(folder.path().into()), ..RegistrySettings::default() };
/// let registry = Registry::open(settings)?;
/// registry.register_skill(&"demo".parse()?, "# Demo\n\nA body registered at run time.\n")?;
/// let content = registry.read_uri(&"iii://demo".parse()?)?;
/// assert_eq!(content.bytes, "# Demo\n\nA body registered at run time.\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Registry {
    catalogue: Catalogue,
    stores: Vec<AttachedStore>,
    /// The user's local data; none without an account.
    local: Option<AttachedLocal>,
    /// The user's local data where no store is opened: only what is disabled is read from it.
    visibility: Option<AttachedLocal>,
    files: Mutex<Vec<FileSource>>,
    notices: Vec<Notice>,
    workspace: Option<(PathBuf, Trusted)>,
    /// Why the account's store could not be opened.
    account_error: Option<Notice>,
    /// Held while store events are read and applied, so that they are applied in order.
    sync_lock: Mutex<()>,
    /// Reads files from other servers, once it is set.
    remote_reader: OnceLock<Arc<dyn RemoteReader>>,
    cache: Option<PathBuf>,
    /// Only skills below these paths are served; all if there are none.
    only: Vec<IdPrefix>,
    /// Which contents of the stores are in the catalogue.
    store_selection: CatalogueContent,
    /// Where registered content is kept.
    state: RegisteredContent,
    /// The account's folder for traces where no store is opened, and its store once it was needed.
    traces: Option<PathBuf>,
    trace_account: OnceLock<Option<Arc<dyn Store>>>,
    /// The rendered indexes: of everything, and of what a bus sees.
    indexes: [RenderedIndex; 2],
    /// The most bytes of an index.
    max_index_bytes: usize,
}

/// A rendered index, and the number of the snapshot it was rendered from.
type RenderedIndex = ArcSwapOption<(u64, Bytes)>;

/// The most bytes of an index, unless the settings have another number.
const MAX_INDEX_BYTES: usize = 1024 * 1024;

impl Registry {
    /// Opens every source. A source that fails leaves a notice; a damaged own store is an error.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "settings are made to open a registry with"
    )]
    pub fn open(settings: RegistrySettings) -> Result<Arc<Self>> {
        let mut registry = Self {
            catalogue: Catalogue::new(),
            stores: Vec::new(),
            local: None,
            visibility: visibility_store(&settings),
            files: Mutex::default(),
            notices: Vec::new(),
            workspace: None,
            account_error: None,
            sync_lock: Mutex::default(),
            remote_reader: OnceLock::new(),
            cache: settings.cache.clone(),
            store_selection: settings.stores,
            only: settings.only.clone(),
            state: settings.state,
            traces: settings.traces.clone(),
            trace_account: OnceLock::new(),
            indexes: Default::default(),
            max_index_bytes: settings.max_index_bytes.unwrap_or(MAX_INDEX_BYTES),
        };
        registry.attach_stores(&settings)?;
        // First, so that what is hidden never causes an event.
        registry.sync_visibility()?;
        registry.add_embedded(&settings)?;
        registry.open_files(&settings)?;
        let mut damaged = Vec::new();
        for attached in &registry.stores {
            match (registry.load_store(attached), attached.trusted) {
                (Ok(()), _) => {}
                // An untrusted store must not block access to the user's own skills.
                (Err(error), Trusted::No) => {
                    let location = PathBuf::from(attached.store.location());
                    damaged.push((attached.scope, error_notice(&location, &error)));
                }
                (Err(error), Trusted::Yes) => return Err(error),
            }
        }
        registry
            .stores
            .retain(|attached| damaged.iter().all(|(scope, _)| *scope != attached.scope));
        let damaged = damaged.into_iter().map(|(_, notice)| notice);
        registry.notices.extend(damaged);
        registry.sync_local()?;
        let mut changes = Vec::new();
        for source in registry.lock_files().iter_mut() {
            changes.append(&mut source.take_changes());
        }
        registry.catalogue.apply_changes(changes);
        Ok(Arc::new(registry))
    }

    fn add_embedded(&self, settings: &RegistrySettings) -> Result<()> {
        settings.embedded.check_uris()?;
        let embedded = settings.embedded.iter().map(|skill| {
            let entry = SkillEntry {
                id: skill.id()?,
                alias: None,
                origin: Origin::Embedded,
                trusted: Trusted::Yes,
                metadata: Arc::new(SkillMetadata::from_skill(skill)?),
                complete: None,
                location: ContentLocation::Embedded(Arc::new(skill.clone())),
            };
            Ok(CatalogueChange::PutSkill(entry, RepeatPolicy::Ignore))
        });
        self.catalogue
            .apply_changes(embedded.collect::<Result<Vec<_>>>()?);
        Ok(())
    }

    fn attach_stores(&mut self, settings: &RegistrySettings) -> Result<()> {
        // Trust is stored in the account, so without one the workspace is untrusted.
        self.workspace = settings.workspace.clone().map(|path| (path, Trusted::No));
        let Some(folder) = &settings.account else {
            return Ok(());
        };
        let account = match Account::open(folder) {
            Ok(account) => account,
            // Without write permission the skills can still be read.
            Err(error @ Error::Io { .. }) => {
                let problem = error_notice(&folder.join(trust::STORE_FILE_NAME), &error);
                self.notices.push(problem.clone());
                let Ok(account) = Account::open_read_only(folder) else {
                    self.account_error = Some(problem);
                    return Ok(());
                };
                account
            }
            Err(error) => return Err(error),
        };
        if settings.system_skills && account.store.is_writable() {
            account.store.refresh_system_skills()?;
        }
        if let Some(workspace) = &settings.workspace {
            let file = trust::workspace_store_path(workspace);
            let own = match account.local.open_trusted_store(workspace) {
                Ok(own) => own,
                // A damaged untrusted store must not block access to the user's own skills.
                Err(error) => {
                    self.notices.push(error_notice(&file, &error));
                    None
                }
            };
            let trusted = match own {
                Some(_) => Trusted::Yes,
                None => Trusted::No,
            };
            self.workspace = Some((workspace.clone(), trusted));
            let opened = match own {
                None if file.exists() => match SqliteStore::open(&file, StoreOpenMode::Untrusted) {
                    Ok(store) => Some(store),
                    Err(error) => {
                        self.notices.push(error_notice(&file, &error));
                        None
                    }
                },
                own => own,
            };
            if let Some(store) = opened {
                self.attach_store(StoreScope::Workspace, trusted, store);
            }
        }
        self.attach_store(StoreScope::Account, Trusted::Yes, account.store);
        self.local = Some(AttachedLocal {
            store: account.local,
            cursor: Mutex::default(),
        });
        Ok(())
    }

    fn attach_store(&mut self, scope: StoreScope, trusted: Trusted, store: Arc<dyn Store>) {
        tracing::info!(
            scope = scope.as_str(),
            location = store.location(),
            "opened"
        );
        self.stores.push(AttachedStore {
            scope,
            trusted,
            store,
            cursor: Mutex::default(),
            recent_metadata: Mutex::default(),
        });
    }

    fn open_files(&mut self, settings: &RegistrySettings) -> Result<()> {
        let mut number = 0;
        let plans = [
            (&settings.folders, SourceKind::Folder),
            (&settings.skills, SourceKind::Skills),
            (&settings.prompts, SourceKind::Prompts),
        ];
        for (place, kind) in plans
            .into_iter()
            .flat_map(|(places, kind)| places.iter().map(move |place| (place, kind)))
        {
            number += 1;
            let (origin, scope) = (Origin::Files(number), settings.only_folder.as_deref());
            match self.open_source(place, kind, origin, settings.cache.as_ref(), scope) {
                Ok(source) => {
                    tracing::info!(
                        origin = %source.origin,
                        folder = %source.root_path().display(),
                        found = source.len(),
                        skipped = source.notices().count(),
                        "scanned"
                    );
                    self.lock_files().push(source);
                }
                Err(error @ Error::InvalidPattern { .. })
                    if place.requested_by != RequestedBy::Workspace =>
                {
                    return Err(error);
                }
                Err(error) => self.notices.push(error_notice(&place.path, &error)),
            }
        }
        Ok(())
    }

    fn open_source(
        &self,
        place: &SourceLocation,
        kind: SourceKind,
        origin: Origin,
        cache: Option<&PathBuf>,
        scope: Option<&str>,
    ) -> Result<FileSource> {
        let text = place.pattern.as_deref().unwrap_or_default();
        let (folder, plan) = match kind {
            SourceKind::Folder => (place.path.clone(), SourcePlan::Folders),
            SourceKind::Skills | SourceKind::Prompts => {
                let pattern = GlobPattern::new(&place.path, text)?;
                let folder = pattern.base_folder().to_owned();
                match kind {
                    SourceKind::Prompts => (folder, SourcePlan::Prompts(pattern)),
                    _ => (folder, SourcePlan::Skills(pattern)),
                }
            }
        };
        let trusted = self.source_trust(place, &folder)?;
        let follows_links = trusted == Trusted::Yes && matches!(plan, SourcePlan::Folders);
        let links = follows_links.then(|| {
            let workspace = self.workspace.as_ref().map(|(path, _)| path.as_path());
            let local = self.local.as_ref().map(|local| local.store.clone());
            LinkPolicy::new(&folder, workspace, local)
        });
        FileSource::open(&folder, plan, origin, trusted, cache.cloned(), links, scope)
    }

    /// Returns the trust of a location. An untrusted workspace may only name folders within it.
    fn source_trust(&self, place: &SourceLocation, folder: &Path) -> Result<Trusted> {
        match place.requested_by {
            RequestedBy::User => return Ok(Trusted::Yes),
            RequestedBy::UntrustedWorkspace => return Ok(Trusted::No),
            RequestedBy::Workspace => {}
        }
        let Some((workspace, trusted)) = &self.workspace else {
            return Err(Error::OutsideWorkspace(folder.to_owned()));
        };
        let real = |path: &Path| path.canonicalize().map_err(|e| Error::from_io(path, e));
        let target = real(folder)?;
        if target.starts_with(real(workspace)?) {
            return Ok(*trusted);
        }
        if *trusted == Trusted::No {
            return Err(Error::OutsideWorkspace(folder.to_owned()));
        }
        // A pull can change where a folder leads, and the settings that name it.
        let confirmed = self.local.as_ref().is_some_and(|local| {
            let confirmed = local.store.is_folder_confirmed(folder);
            confirmed.unwrap_or(false)
        });
        if !confirmed {
            return Err(Error::Skipped {
                code: "link_outside",
                message: format!(
                    "{}: leads out of the workspace, to {}",
                    display_path(folder),
                    display_path(&target)
                ),
            });
        }
        Ok(*trusted)
    }

    /// Returns the store of a scope, if there is one.
    pub fn store(&self, scope: StoreScope) -> Result<&Arc<dyn Store>> {
        Ok(&self.attached_store(scope)?.store)
    }

    /// Returns the user's local data, if there is an account.
    pub fn local_store(&self) -> Result<&Arc<LocalStore>> {
        match &self.local {
            Some(local) => Ok(&local.store),
            None => Err(self.missing_store_error(StoreScope::Account)),
        }
    }

    /// Returns the stores that are the user's own or trusted, and writable. Their content may be
    /// used without confirmation.
    pub fn trusted_stores(&self) -> impl Iterator<Item = &Arc<dyn Store>> {
        let own = |attached: &&AttachedStore| attached.store.is_writable();
        self.trusted_attached()
            .filter(own)
            .map(|attached| &attached.store)
    }

    fn attached_store(&self, scope: StoreScope) -> Result<&AttachedStore> {
        let found = self.stores.iter().find(|attached| attached.scope == scope);
        found.ok_or_else(|| self.missing_store_error(scope))
    }

    /// Returns the stores whose registered content counts, the winning one first.
    fn trusted_attached(&self) -> impl Iterator<Item = &AttachedStore> {
        self.stores.iter().filter(|a| a.trusted == Trusted::Yes)
    }

    /// Returns the store for registered content: the workspace's if it is trusted.
    fn primary_store(&self) -> Result<&AttachedStore> {
        if !self.has_local_state() {
            return Err(Error::KeptOnBus);
        }
        self.trusted_attached()
            .next()
            .ok_or_else(|| self.missing_store_error(StoreScope::Account))
    }

    /// Returns why the account's store cannot be used at all, if it cannot.
    pub fn account_problem(&self) -> Option<&Notice> {
        self.account_error.as_ref()
    }

    /// Returns why the store of the workspace is not used, or not as the user's own, if there is a
    /// reason besides the missing trust.
    pub fn workspace_problem(&self) -> Option<&Notice> {
        let (workspace, _) = self.workspace.as_ref()?;
        let file = trust::workspace_store_path(workspace);
        self.notices.iter().find(|notice| notice.path == file)
    }

    fn missing_store_error(&self, scope: StoreScope) -> Error {
        match &self.account_error {
            Some(problem) if scope == StoreScope::Account => Error::Skipped {
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
        // Sources are updated from the disk, so the next scan repairs one after a panic.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone, Copy)]
enum SourceKind {
    Folder,
    Skills,
    Prompts,
}

fn error_notice(path: &Path, error: &Error) -> Notice {
    Notice {
        path: path.to_owned(),
        code: error.code(),
        message: error.to_string(),
    }
}
