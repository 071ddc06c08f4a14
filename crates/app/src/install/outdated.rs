//! Which installed skills their sources have in a newer state.

use std::collections::BTreeMap;

use repertoire_core::SkillId;
use repertoire_remote::{Pin, SkillSource};
use serde::Serialize;

use super::{
    fetch::{NamedBy, SourceOffer, choose},
    installer::Installer,
    lock::LockedSkill,
    project::WantedSkill,
};
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
    /// Asks the sources of installed skills what they have. Each place is asked once, and its content
    /// is fetched only if something there changed.
    pub fn outdated(&self) -> Result<Vec<OutdatedSkill>> {
        if self.options.offline {
            return Err(Error::Offline("what sources have now".to_owned()));
        }
        let mut asked: BTreeMap<String, Result<Answer, String>> = BTreeMap::new();
        let mut rows = Vec::new();
        for wanted in self.project.wanted() {
            let Some(locked) = self.lock.get(&wanted.id) else {
                continue;
            };
            let source = self.request(wanted, None)?.source;
            let place = asked
                .entry(source.location())
                .or_insert_with(|| self.ask(&source).map_err(|error| error.to_string()));
            let answer = match place {
                Ok(answer) => self.compare_with(answer, wanted, locked, &source),
                Err(error) => Err(error.clone()),
            };
            let pin = locked.pin.to_string();
            let (available, is_outdated, error) = match answer {
                Ok((available, is_outdated)) => (Some(available), is_outdated, None),
                Err(error) => (None, false, Some(error)),
            };
            rows.push(OutdatedSkill {
                id: wanted.id.clone(),
                source: wanted.source.clone(),
                installed: locked.version.clone().unwrap_or(pin),
                available,
                is_outdated,
                error,
            });
        }
        Ok(rows)
    }

    /// Returns what a source has of a skill, and whether that differs from what is locked.
    fn compare_with(
        &self,
        answer: &mut Answer,
        wanted: &WantedSkill,
        locked: &LockedSkill,
        source: &SkillSource,
    ) -> Result<(String, bool), String> {
        if let Answer::Pin(pin) = answer {
            if *pin == locked.pin {
                return Ok((
                    locked.version.clone().unwrap_or_else(|| pin.to_string()),
                    false,
                ));
            }
            // Something of the place changed, which need not be this skill.
            let opened = self.reader().open(source, NamedBy::Project, None);
            *answer = Answer::Content(Box::new(opened.map_err(|error| error.to_string())?));
        }
        match answer {
            Answer::Pin(pin) => Ok((pin.to_string(), true)),
            Answer::Version(version) => {
                Ok((version.clone(), locked.version.as_ref() != Some(version)))
            }
            Answer::Content(offer) => {
                let index = choose(offer, source.skill(), wanted.id.name())
                    .map_err(|error| format!("its source no longer has it: {error}"))?;
                let reader = self.reader();
                let read = reader
                    .read(offer, &[index])
                    .map_err(|error| error.to_string())?;
                match read.into_iter().next() {
                    Some(Ok(skill)) => {
                        let available = skill.version.unwrap_or_else(|| skill.pin.to_string());
                        Ok((available, skill.digest != locked.digest))
                    }
                    Some(Err(error)) => Err(error.to_string()),
                    None => Err("its source no longer has it".to_owned()),
                }
            }
        }
    }

    fn ask(&self, source: &SkillSource) -> Result<Answer> {
        let reader = self.reader();
        if let Some(pin) = reader.look_up(source)? {
            return Ok(Answer::Pin(pin));
        }
        if let Some(version) = reader.newest_version(source)? {
            return Ok(Answer::Version(version));
        }
        // Nothing but the content tells.
        let offer = reader.open(source, NamedBy::Project, None)?;
        Ok(Answer::Content(Box::new(offer)))
    }
}

/// What is known of a source.
enum Answer {
    Pin(Pin),
    Version(String),
    Content(Box<SourceOffer>),
}
