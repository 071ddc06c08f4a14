//! Settings for opening a registry.

use std::path::PathBuf;

use repertoire_core::{Skills, permission::IdPrefix};

/// A folder or a pattern, and which configuration requested it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLocation {
    /// The folder of a folder source, or the base of a pattern.
    pub path: PathBuf,
    /// The pattern, relative to the base.
    pub pattern: Option<String>,
    /// Which configuration requested it.
    pub requested_by: RequestedBy,
}

/// Which configuration requested a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedBy {
    /// The user, for a folder in a workspace that is not trusted: it can be read.
    UntrustedWorkspace,
    /// The user: a flag, the environment, the account's settings.
    User,
    /// The workspace's settings, which apply only as far as the workspace is trusted.
    Workspace,
}

/// Settings for opening a registry. The default is an empty registry without stores.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistrySettings {
    /// The account's folder, which holds its store. None: no stores are opened.
    pub account: Option<PathBuf>,
    /// The workspace, the folder that holds `.repertoire`.
    pub workspace: Option<PathBuf>,
    /// Folders of skills; earlier ones take precedence.
    pub folders: Vec<SourceLocation>,
    /// Patterns of loose markdown skills.
    pub skills: Vec<SourceLocation>,
    /// Patterns of prompts.
    pub prompts: Vec<SourceLocation>,
    /// Skills embedded in the program.
    pub embedded: Skills,
    /// Which contents of the stores are in the catalogue.
    pub stores: CatalogueContent,
    /// Where registered content is kept.
    pub state: RegisteredContent,
    /// Whether the system skills are installed in the account's store and kept up to date.
    pub system_skills: bool,
    /// The folder that caches folder indexes and files of other servers between runs.
    pub cache: Option<PathBuf>,
    /// The account's folder where no store is opened: for the traces of runs, and for the skills that
    /// the user disabled.
    pub traces: Option<PathBuf>,
    /// Only this folder beneath each folder of skills is read.
    pub only_folder: Option<String>,
    /// Only skills below these paths are served; all if there are none.
    pub only: Vec<IdPrefix>,
    /// The most bytes of the index; a longer one is summarised. None: 1 MiB.
    pub max_index_bytes: Option<usize>,
}

/// Which contents of the stores are in the catalogue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CatalogueContent {
    /// Packages, registered content, and skills of other servers.
    #[default]
    Everything,
    /// Registered content only.
    Registered,
}

/// Where registered content is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RegisteredContent {
    /// In the stores.
    #[default]
    Stores,
    /// On a bus that this process is a worker of; the bus reports the values to the registry.
    Bus,
}

impl RegistrySettings {
    /// Creates settings for a registry over these folders and no other source.
    pub fn from_folders(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        Self {
            folders: folders
                .into_iter()
                .map(|path| SourceLocation {
                    path,
                    pattern: None,
                    requested_by: RequestedBy::User,
                })
                .collect(),
            ..Self::default()
        }
    }
}
