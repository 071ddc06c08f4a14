//! Origins of entries, and which entry wins when several have the same id.

use std::{fmt, str::FromStr, sync::Arc};

use repertoire_core::SkillId;

use crate::error::{Error, Result};

/// One of the two stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StoreScope {
    /// The workspace's store; it overrides the account's.
    Workspace,
    /// The user's own store.
    Account,
}

impl StoreScope {
    /// Returns the name shown to users.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Workspace => "workspace",
            Self::Account => "account",
        }
    }
}

/// The origin of an entry. An entry is identified by (origin, id), never by its name alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// Registered at run time.
    State,
    /// A package in the workspace's store.
    Workspace,
    /// Embedded in the program.
    Embedded,
    /// The folder or pattern with this number, starting at 1.
    Files(u16),
    /// A package in the account's store.
    Account,
    /// Another server, identified by the label the user chose.
    Remote(Arc<str>),
}

impl Origin {
    /// Returns the origin of packages in a scope.
    pub fn from_scope(scope: StoreScope) -> Self {
        match scope {
            StoreScope::Workspace => Self::Workspace,
            StoreScope::Account => Self::Account,
        }
    }

    /// Returns the rank in the order of precedence; the lowest wins.
    ///
    /// Entries of an untrusted workspace come after all others and override nothing.
    pub fn precedence_rank(&self, trusted: Trusted) -> u32 {
        let base = match self {
            Self::State => 0,
            Self::Workspace => 1,
            Self::Embedded => 2,
            Self::Files(number) => 3 + u32::from(*number),
            Self::Account => 1 << 20,
            Self::Remote(_) => 1 << 21,
        };
        match trusted {
            Trusted::Yes => base,
            Trusted::No => base + (1 << 24),
        }
    }
}

/// Whether an origin may override others and run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trusted {
    /// Owned or approved by the user.
    Yes,
    /// From a workspace or another server, and not approved.
    No,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State => f.write_str("state"),
            Self::Workspace => f.write_str("workspace"),
            Self::Account => f.write_str("account"),
            Self::Embedded => f.write_str("embedded"),
            Self::Remote(label) => write!(f, "mcp-{label}"),
            Self::Files(0 | 1) => f.write_str("files"),
            Self::Files(number) => write!(f, "files-{number}"),
        }
    }
}

impl FromStr for Origin {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "state" => Self::State,
            "workspace" => Self::Workspace,
            "account" => Self::Account,
            "files" => Self::Files(1),
            "embedded" => Self::Embedded,
            _ if text.starts_with("mcp-") => Self::Remote(text[4..].into()),
            _ => match text.strip_prefix("files-").map(str::parse::<u16>) {
                Some(Ok(number)) if number > 1 => Self::Files(number),
                _ => {
                    return Err(Error::UnknownOrigin(text.to_owned()));
                }
            },
        })
    }
}

impl serde::Serialize for Origin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A skill by id, or by origin and id: `refunds`, `account:acme/refunds`.
///
/// ```
/// use repertoire_registry::{Origin, QualifiedSkillId};
///
/// let plain: QualifiedSkillId = "acme/refunds".parse()?;
/// assert_eq!(plain.origin, None);
/// let qualified: QualifiedSkillId = "account:acme/refunds".parse()?;
/// assert_eq!(qualified.origin, Some(Origin::Account));
/// # Ok::<(), repertoire_registry::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QualifiedSkillId {
    /// The origin, if one was named.
    pub origin: Option<Origin>,
    /// The id.
    pub id: SkillId,
}

impl FromStr for QualifiedSkillId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text.split_once(':') {
            Some((origin, id)) => Self {
                origin: Some(origin.parse()?),
                id: id.parse()?,
            },
            None => Self {
                origin: None,
                id: text.parse()?,
            },
        })
    }
}

impl fmt::Display for QualifiedSkillId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}:")?;
        }
        write!(f, "{}", self.id)
    }
}
