//! What a registry is opened with.

use std::path::PathBuf;

use repertoire_core::Skills;

/// A folder or a pattern, and who asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The folder of a folder source; the base of a pattern.
    pub path: PathBuf,
    /// The pattern, relative to the base.
    pub pattern: Option<String>,
    /// Who asked for it.
    pub asked_by: AskedBy,
}

/// Who asked for a place to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskedBy {
    /// The user: a flag, the environment, the account's settings.
    User,
    /// The workspace's settings; believed only as far as the workspace is trusted.
    Workspace,
}

/// What a registry is opened with. The default is an empty registry that keeps nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// The account's folder, with its store. None: no stores at all.
    pub account: Option<PathBuf>,
    /// The workspace, the folder that holds `.repertoire`.
    pub workspace: Option<PathBuf>,
    /// Folders of skills, the first one winning.
    pub folders: Vec<Place>,
    /// Patterns of loose markdown skills.
    pub skills: Vec<Place>,
    /// Patterns of prompts.
    pub prompts: Vec<Place>,
    /// Skills the program itself brings.
    pub embedded: Skills,
    /// What of the stores is in the catalogue.
    pub stores: StoreUse,
    /// Where registered content is kept.
    pub state: StateFrom,
    /// Whether the skills of the product are kept in the account's store, and up to date.
    pub system: bool,
    /// Where indexes of folders, and files of other servers, are kept between runs.
    pub cache: Option<PathBuf>,
}

/// What of the stores is in the catalogue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StoreUse {
    /// Packages, registered content, and skills of other servers.
    #[default]
    Everything,
    /// Registered content only.
    Registered,
}

/// Where registered content is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StateFrom {
    /// In the stores.
    #[default]
    Stores,
    /// On a bus that this process is a worker of; it tells the registry what is there.
    Bus,
}

impl Settings {
    /// A registry over these folders and nothing else.
    pub fn of_folders(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        Self {
            folders: folders
                .into_iter()
                .map(|path| Place {
                    path,
                    pattern: None,
                    asked_by: AskedBy::User,
                })
                .collect(),
            ..Self::default()
        }
    }
}
