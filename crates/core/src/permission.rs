//! What a caller may do.

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};

use crate::{error::Error, id::SkillId};

/// One thing that a caller may be allowed to do. They are independent: none includes another, but
/// [`Permission::Admin`] includes all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Permission {
    /// List and read skills and prompts.
    Read,
    /// Call models and functions, which may cost money or have effects elsewhere.
    Run,
    /// Change what is registered.
    Write,
    /// Everything, including tokens, trust, approvals and backups.
    Admin,
}

impl Permission {
    /// Every permission.
    pub const ALL: [Self; 4] = [Self::Read, Self::Run, Self::Write, Self::Admin];

    /// The name, as users write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Run => "run",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Permission {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|one| one.as_str() == text);
        found.ok_or_else(|| Error::Field {
            field: "permission".to_owned(),
            rule: format!("{text:?} is not one of read, run, write, admin"),
        })
    }
}

/// A set of permissions.
///
/// ```
/// use repertoire_core::permission::{Permission, PermissionSet};
///
/// let set: PermissionSet = "read,write".parse()?;
/// assert!(set.allows(Permission::Write) && !set.allows(Permission::Run));
/// assert!(PermissionSet::from(Permission::Admin).allows(Permission::Run));
/// # Ok::<(), repertoire_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PermissionSet(u8);

impl PermissionSet {
    /// Every permission.
    pub const ALL: Self = Self(0b1111);

    /// Adds a permission.
    #[must_use]
    pub fn with(self, permission: Permission) -> Self {
        Self(self.0 | bit(permission))
    }

    /// Whether the set has a permission, or [`Permission::Admin`].
    pub fn allows(self, permission: Permission) -> bool {
        self.0 & (bit(permission) | bit(Permission::Admin)) != 0
    }

    /// Whether the set has no permission.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

fn bit(permission: Permission) -> u8 {
    1 << permission as u8
}

impl From<Permission> for PermissionSet {
    fn from(permission: Permission) -> Self {
        Self(bit(permission))
    }
}

impl FromIterator<Permission> for PermissionSet {
    fn from_iter<I: IntoIterator<Item = Permission>>(all: I) -> Self {
        all.into_iter().fold(Self::default(), Self::with)
    }
}

impl FromStr for PermissionSet {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        text.split(',').map(|one| one.trim().parse()).collect()
    }
}

impl fmt::Display for PermissionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for permission in Permission::ALL {
            if self.0 & bit(permission) != 0 {
                write!(f, "{separator}{permission}")?;
                separator = ",";
            }
        }
        Ok(())
    }
}

impl Serialize for PermissionSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(
            Permission::ALL
                .into_iter()
                .filter(|one| self.0 & bit(*one) != 0)
                .map(Permission::as_str),
        )
    }
}

/// The skills below a path: `acme/**` has `acme` and everything below it.
///
/// ```
/// use repertoire_core::permission::IdPrefix;
///
/// let prefix: IdPrefix = "acme/**".parse()?;
/// assert!(prefix.contains(&"acme/billing/refunds".parse()?));
/// assert!(prefix.contains(&"acme".parse()?));
/// assert!(!prefix.contains(&"acme-labs/notes".parse()?));
/// # Ok::<(), repertoire_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdPrefix(SkillId);

impl IdPrefix {
    /// The path.
    pub fn path(&self) -> &SkillId {
        &self.0
    }

    /// Whether an id is the path itself or below it.
    pub fn contains(&self, id: &SkillId) -> bool {
        self.contains_str(id.as_str())
    }

    /// Like [`contains`](Self::contains), for the text of an id or of a name that may be one.
    pub fn contains_str(&self, id: &str) -> bool {
        match id.strip_prefix(self.0.as_str()) {
            Some(rest) => rest.is_empty() || rest.starts_with('/'),
            None => false,
        }
    }
}

impl FromStr for IdPrefix {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        text.strip_suffix("/**").unwrap_or(text).parse().map(Self)
    }
}

impl fmt::Display for IdPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/**", self.0)
    }
}

impl Serialize for IdPrefix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
