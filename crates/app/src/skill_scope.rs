//! Decides which skill a name means and which store a change goes to.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use repertoire_registry::{
    Error as RegistryError, Notice, Origin, QualifiedSkillId, Registry, RequestedBy,
    SourceLocation, StoreScope, Trusted, store::Account, trust::find_workspace,
};

use crate::{
    error::{Error, Result, io_error_at},
    skill_query::{SkillQuery, find_skill},
};

/// The stores that settings name for changes.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScopePreference {
    /// What the workspace's settings say; they count only if the workspace is trusted.
    pub workspace: Option<StoreScope>,
    /// What the user's settings say.
    pub account: Option<StoreScope>,
}

impl ScopePreference {
    /// Resolves the store for a change: the requested, the configured, or the nearest one.
    pub fn resolve(self, registry: &Registry, asked: Option<StoreScope>) -> Result<StoreScope> {
        let trusted = matches!(registry.workspace(), Some((_, Trusted::Yes)));
        let configured = self.workspace.filter(|_| trusted).or(self.account);
        let nearest = if trusted {
            StoreScope::Workspace
        } else {
            StoreScope::Account
        };
        let scope = asked.or(configured).unwrap_or(nearest);
        if scope == StoreScope::Workspace {
            match registry.workspace() {
                Some((_, Trusted::Yes)) => {}
                Some((path, Trusted::No)) => {
                    return Err(RegistryError::Untrusted(path.to_owned()).into());
                }
                None => return Err(RegistryError::NoWorkspace.into()),
            }
        }
        Ok(scope)
    }

    /// Resolves the store for a change of a skill, whose name may say it.
    pub fn resolve_for_skill(
        self,
        registry: &Registry,
        skill: &QualifiedSkillId,
        asked: Option<StoreScope>,
    ) -> Result<StoreScope> {
        self.resolve(registry, named_scope(skill, asked)?)
    }

    /// Resolves the store whose history is meant: the named one, or the first that has the skill. An
    /// untrusted workspace can be read, but it is asked last.
    pub fn resolve_history(
        self,
        registry: &Registry,
        skill: &QualifiedSkillId,
        asked: Option<StoreScope>,
    ) -> Result<StoreScope> {
        match named_scope(skill, asked)? {
            Some(StoreScope::Workspace) if registry.workspace().is_some() => {
                return Ok(StoreScope::Workspace);
            }
            Some(scope) => return self.resolve(registry, Some(scope)),
            None => {}
        }
        let first = self.resolve(registry, None)?;
        let order = [first, StoreScope::Account, StoreScope::Workspace];
        // A store that has the skill now comes before one that only remembers it.
        for scope in order {
            let Ok(store) = registry.store(scope) else {
                continue;
            };
            if store.skill_metadata(&skill.id)?.is_some() {
                return Ok(scope);
            }
        }
        for scope in order {
            let known = registry.store(scope).is_ok();
            if known && !registry.history(scope, &skill.id)?.is_empty() {
                return Ok(scope);
            }
        }
        Ok(first)
    }
}

/// Returns the scope that a name says; fails if that origin has no store, or if another scope was
/// asked for.
fn named_scope(skill: &QualifiedSkillId, asked: Option<StoreScope>) -> Result<Option<StoreScope>> {
    let named = match &skill.origin {
        None => return Ok(asked),
        Some(Origin::Workspace) => StoreScope::Workspace,
        Some(Origin::Account) => StoreScope::Account,
        Some(_) => return Err(Error::NoStore(skill.to_string())),
    };
    if asked.is_some_and(|asked| asked != named) {
        return Err(Error::ContradictingScope(skill.to_string()));
    }
    Ok(Some(named))
}

/// Fails if a skill is not in the store of a scope.
pub fn require_in_scope(
    registry: &Registry,
    scope: StoreScope,
    skill: &QualifiedSkillId,
) -> Result<()> {
    let id = &skill.id;
    let snapshot = registry.snapshot();
    let stored = QualifiedSkillId {
        origin: Some(Origin::from_scope(scope)),
        id: id.clone(),
    };
    if snapshot.find_skill(&stored).is_some() {
        return Ok(());
    }
    Err(match snapshot.get(id) {
        // A name with its origin means exactly that one.
        Some(entry) if skill.origin.is_none() => Error::NotInStore {
            skill: id.to_string(),
            origin: entry.origin.clone(),
            scope,
        },
        _ => not_found("skill", skill.to_string()).into(),
    })
}

/// Returns the reference of a skill that is not a folder. An unknown id is returned as it is, because
/// a store may still have its history.
pub fn resolve_skill(registry: &Registry, skill: &SkillQuery) -> Result<QualifiedSkillId> {
    if let SkillQuery::Id(id) = skill {
        let is_stored = |scope: StoreScope| {
            let history = registry.history(scope, &id.id);
            history.is_ok_and(|history| !history.is_empty())
        };
        // A removed skill keeps its id: no other one may take its place here.
        if registry.snapshot().find_skill(id).is_some()
            || is_stored(StoreScope::Workspace)
            || is_stored(StoreScope::Account)
        {
            return Ok(id.clone());
        }
    }
    match (find_skill(registry, skill), skill) {
        (Ok(entry), _) => Ok(QualifiedSkillId {
            origin: Some(entry.origin.clone()),
            id: entry.id.clone(),
        }),
        (Err(Error::Registry(RegistryError::NotFound { .. })), SkillQuery::Id(id)) => {
            Ok(id.clone())
        }
        (Err(error), _) => Err(error),
    }
}

/// Returns a folder that the user named as a source. It is as trusted as the workspace it is in; a
/// link counts where it stands and where it leads to.
///
/// This is the gate for everything that is named by its path: what an untrusted workspace brings can
/// be read, and is neither run nor paid for, however it is named (T45).
pub fn folder_source(folder: &Path, account: &Path) -> Result<SourceLocation> {
    let mut requested_by = RequestedBy::User;
    for place in [canonical_path(folder)?, absolute_path(folder)?] {
        let Some(workspace) = find_workspace(&place, account) else {
            continue;
        };
        // Without an account nothing was ever trusted, and looking creates none.
        let trusted = if Account::is_missing(account) {
            Trusted::No
        } else {
            let opened = Account::open(account).or_else(|_| Account::open_read_only(account))?;
            opened.local.workspace_trust(&workspace)?
        };
        if trusted == Trusted::No {
            requested_by = RequestedBy::UntrustedWorkspace;
        }
    }
    Ok(SourceLocation {
        path: folder.to_owned(),
        pattern: None,
        requested_by,
    })
}

/// Returns the skill that a folder is, if the folder is the first source. Its id is the name of the
/// folder.
pub fn folder_skill(registry: &Registry, folder: &Path) -> Result<QualifiedSkillId> {
    let folder = canonical_path(folder)?;
    let snapshot = registry.snapshot();
    let first = Origin::Files(1);
    let mut entries = snapshot.all_skills().map(|(entry, _)| entry);
    let found = entries
        .find(|entry| entry.origin == first && entry.path().as_deref() == Some(folder.as_path()));
    if let Some(entry) = found {
        return Ok(QualifiedSkillId {
            origin: Some(first),
            id: entry.id.clone(),
        });
    }
    let is_within = |notice: &Notice| notice.path.starts_with(&folder);
    let notice = registry.notices().into_iter().find(is_within);
    let missing = || not_found("skill in", folder.display().to_string());
    Err(notice.map_or_else(missing, RegistryError::from).into())
}

/// Decides whether the name of a skill is that of a folder; a name that is both is an error.
pub fn resolve_folder<E: From<Error>>(
    query: &SkillQuery,
    registry: impl FnOnce() -> Result<Arc<Registry>, E>,
) -> Result<SkillQuery, E> {
    if let SkillQuery::Folder(path) = query {
        require_folder(path)?;
        return Ok(query.clone());
    }
    let path = PathBuf::from(query.to_string());
    if !path.is_dir() {
        return Ok(query.clone());
    }
    match find_skill(&*registry()?, query) {
        Ok(entry) => Err(E::from(Error::SkillAndFolder {
            name: query.to_string(),
            skill: format!("{}:{}", entry.origin, entry.id),
        })),
        Err(_) => Ok(SkillQuery::Folder(path)),
    }
}

/// Fails if a path does not exist, is not a folder, or cannot be read.
pub fn require_folder(path: &Path) -> Result<()> {
    match path.metadata() {
        // What cannot be read must not look like an empty folder.
        Ok(about) if about.is_dir() => path.read_dir().map(drop).map_err(io_error_at(path)),
        Ok(_) => Err(Error::NotAFolder(path.to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(io_error_at(path)(error))
        }
        Err(_) if path.symlink_metadata().is_ok() => Err(Error::NotAFolder(path.to_owned())),
        Err(_) => Err(not_found("folder", path.display().to_string()).into()),
    }
}

/// Fails if a path does not exist.
pub(crate) fn require_file(path: &Path) -> Result<()> {
    match path.symlink_metadata() {
        Ok(_) => Ok(()),
        Err(_) => Err(not_found("file", path.display().to_string()).into()),
    }
}

fn not_found(what: &'static str, name: String) -> RegistryError {
    RegistryError::NotFound { what, name }
}

fn canonical_path(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(io_error_at(path))
}

fn absolute_path(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(io_error_at(path))
}
