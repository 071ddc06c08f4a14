//! Which installed skills their sources have in a newer state.

use repertoire_core::SkillId;
use serde::Serialize;

use super::{fetch::NamedBy, installer::Installer};
use crate::error::{Error, Result};

/// An installed skill and what its source has.
#[derive(Debug, Serialize)]
pub struct OutdatedSkill {
    /// The skill.
    pub id: SkillId,
    /// The source.
    pub source: String,
    /// What is installed: a version, or a pin.
    pub installed: String,
    /// What the source has: a version, or a pin.
    pub available: Option<String>,
    /// Whether they differ.
    pub is_outdated: bool,
    /// Why the source could not be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Installer {
    /// Asks the sources of installed skills what they have. Each place is asked once.
    pub fn outdated(&self) -> Result<Vec<OutdatedSkill>> {
        let mut asked: std::collections::BTreeMap<String, Result<Answer, String>> =
            std::collections::BTreeMap::new();
        let mut rows = Vec::new();
        for wanted in self.project.wanted() {
            let Some(locked) = self.lock.get(&wanted.id) else {
                continue;
            };
            let source = self.request(wanted, None)?.source;
            let key = format!(
                "{} {}",
                source.location(),
                wanted.skill.as_deref().unwrap_or_default()
            );
            let place = asked.entry(key).or_insert_with(|| {
                self.ask(&source, wanted.id.name())
                    .map_err(|error| error.to_string())
            });
            let pin = locked.pin.to_string();
            let installed = locked.version.clone().unwrap_or_else(|| pin.clone());
            let row = |available: Option<String>, is_outdated, error| OutdatedSkill {
                id: wanted.id.clone(),
                source: wanted.source.clone(),
                installed: installed.clone(),
                available,
                is_outdated,
                error,
            };
            rows.push(match place {
                Err(error) => row(None, false, Some(error.clone())),
                Ok(Answer::Pin(found)) => row(Some(found.clone()), *found != pin, None),
                Ok(Answer::Version(version)) => {
                    let is_outdated = locked.version.as_ref() != Some(version);
                    row(Some(version.clone()), is_outdated, None)
                }
                Ok(Answer::Digest(digest)) => row(
                    Some(digest.clone()),
                    *digest != locked.digest.to_string(),
                    None,
                ),
            });
        }
        Ok(rows)
    }

    fn ask(&self, source: &repertoire_remote::SkillSource, name: &str) -> Result<Answer> {
        let reader = self.reader();
        if self.options.offline {
            return Err(Error::Offline(source.location()));
        }
        if let Some(pin) = reader.look_up(source)? {
            return Ok(Answer::Pin(pin.to_string()));
        }
        if let Some(version) = reader.newest_version(source)? {
            return Ok(Answer::Version(version));
        }
        // Nothing but the content tells.
        let mut offer = reader.open(source, NamedBy::Project, None)?;
        let index = super::fetch::choose(&offer, source.skill(), name)?;
        let read = reader.read(&mut offer, &[index])?.into_iter().next();
        match read {
            Some(skill) => Ok(Answer::Digest(skill?.digest.to_string())),
            None => Err(Error::Offline(source.location())),
        }
    }
}

enum Answer {
    Pin(String),
    Version(String),
    Digest(String),
}
