//! Where an entry comes from, and which entry wins when ids meet.

use std::{fmt, str::FromStr, sync::Arc};

use repertoire_core::SkillId;

use crate::error::{Error, Result};

/// Which of the two stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The workspace's store; it overrides the account's.
    Workspace,
    /// The user's own store.
    Account,
}

impl Scope {
    /// The word shown to people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Workspace => "workspace",
            Self::Account => "account",
        }
    }
}

/// Where an entry comes from. Identity is (origin, id); a name alone is never enough.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// Registered at run time.
    State,
    /// A package in the workspace's store.
    Workspace,
    /// Brought by the program itself.
    Embedded,
    /// The folder or pattern with this number, from 1.
    Files(u16),
    /// A package in the account's store.
    Account,
    /// Another server, by the label the user gave it.
    Remote(Arc<str>),
}

impl Origin {
    /// The origin of packages in a scope.
    pub fn of_scope(scope: Scope) -> Self {
        match scope {
            Scope::Workspace => Self::Workspace,
            Scope::Account => Self::Account,
        }
    }

    /// The place in the order of precedence; the lowest wins.
    ///
    /// What an untrusted workspace brings is shown after everything else and overrides nothing.
    pub fn rank(&self, trusted: Trusted) -> u32 {
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
    /// The user's own, or approved by the user.
    Yes,
    /// Came with a workspace, or from another server, and nobody approved it.
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
                    return Err(Error::Origin(text.to_owned()));
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
/// use repertoire_registry::{Origin, Reference};
///
/// let plain: Reference = "acme/refunds".parse()?;
/// assert_eq!(plain.origin, None);
/// let qualified: Reference = "account:acme/refunds".parse()?;
/// assert_eq!(qualified.origin, Some(Origin::Account));
/// # Ok::<(), repertoire_registry::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The origin, if one was named.
    pub origin: Option<Origin>,
    /// The id.
    pub id: SkillId,
}

impl FromStr for Reference {
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

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}:")?;
        }
        write!(f, "{}", self.id)
    }
}
