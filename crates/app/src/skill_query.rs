//! Finds a skill by any of the names that a user has for it.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc};

use repertoire_registry::{
    Error as RegistryError, Origin, QualifiedSkillId, Registry, SkillEntry, Trusted,
};

use crate::error::{Error, Result};

/// A skill as a user names it.
///
/// ```
/// use repertoire_app::SkillQuery;
///
/// assert!(matches!("account:acme/refunds".parse(), Ok(SkillQuery::Id(_))));
/// assert!(matches!("Consistency Checker".parse(), Ok(SkillQuery::Name { .. })));
/// assert!(matches!("./refunds".parse(), Ok(SkillQuery::Folder(_))));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkillQuery {
    /// An id, with or without its origin. An id that does not exist may be the name of a package.
    Id(QualifiedSkillId),
    /// The name of a package, with or without its origin.
    Name {
        /// The origin, if one was named.
        origin: Option<Origin>,
        /// The name.
        name: String,
    },
    /// A folder on disk.
    Folder(PathBuf),
}

impl FromStr for SkillQuery {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, RegistryError> {
        if text.starts_with(['.', '/', '~']) || text.ends_with('/') {
            return Ok(Self::Folder(text.into()));
        }
        match text.parse() {
            Ok(id) => Ok(Self::Id(id)),
            // Names have spaces or capitals, which ids never have.
            Err(_) if is_name(text) => Ok(Self::Name {
                origin: None,
                name: text.to_owned(),
            }),
            // Paths may have characters that ids never have.
            Err(_) if text.contains('/') && !text.contains(':') => Ok(Self::Folder(text.into())),
            Err(error) => match text.split_once(':') {
                Some((origin, name)) if is_name(name) => Ok(Self::Name {
                    origin: Some(origin.parse()?),
                    name: name.to_owned(),
                }),
                _ => Err(error),
            },
        }
    }
}

fn is_name(text: &str) -> bool {
    let has_letters = text.chars().any(char::is_alphanumeric);
    let is_odd = |c: char| c.is_control() || matches!(c, '/' | ':' | '\\');
    has_letters && text.trim() == text && !text.chars().any(is_odd)
}

impl fmt::Display for SkillQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name { origin: None, name } => f.write_str(name),
            Self::Name {
                origin: Some(origin),
                name,
            } => write!(f, "{origin}:{name}"),
            Self::Folder(path) => path.display().fmt(f),
        }
    }
}

/// Finds the skill of an id or a name. Trusted origins are asked first; a name that several skills
/// have is an error that lists them.
pub fn find_skill(registry: &Registry, query: &SkillQuery) -> Result<Arc<SkillEntry>> {
    let snapshot = registry.snapshot();
    let missing = || RegistryError::NotFound {
        what: "skill",
        name: query.to_string(),
    };
    let (origin, name) = match query {
        SkillQuery::Id(id) => {
            if let Some(entry) = snapshot.find_skill(id) {
                return Ok(entry.clone());
            }
            match id.origin {
                None => (None, id.id.as_str()),
                Some(_) => return Err(missing().into()),
            }
        }
        SkillQuery::Name { origin, name } => (origin.as_ref(), name.as_str()),
        SkillQuery::Folder(_) => return Err(missing().into()),
    };
    let is_named = |entry: &&Arc<SkillEntry>| {
        let package = entry.metadata.package.as_ref();
        package.is_some_and(|package| package.name.eq_ignore_ascii_case(name))
    };
    // With its origin a shadowed skill can be named too.
    let found: Vec<&Arc<SkillEntry>> = match origin {
        None => snapshot.skills().filter(is_named).collect(),
        Some(origin) => {
            let all = snapshot.all_skills().map(|(entry, _)| entry);
            all.filter(|entry| entry.origin == *origin)
                .filter(is_named)
                .collect()
        }
    };
    let (trusted, others): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|entry| entry.trusted == Trusted::Yes);
    let candidates = if trusted.is_empty() { others } else { trusted };
    match candidates.as_slice() {
        [] => Err(missing().into()),
        [one] => Ok((*one).clone()),
        several => Err(Error::AmbiguousSkill {
            name: name.to_owned(),
            candidates: several
                .iter()
                .map(|entry| format!("{}:{}", entry.origin, entry.id))
                .collect(),
        }),
    }
}
