//! Adopts skills that other tools installed, with what their locks say.

use std::path::{Path, PathBuf};

use repertoire_core::SkillId;
use repertoire_registry::{RequestedBy, store::WriteMode};
use repertoire_remote::Pin;
use serde::Serialize;

use super::{
    fetch::{FetchRequest, NamedBy, files_digest},
    foreign_locks::{ForeignSkill, read_foreign_locks},
    installer::{InstallTarget, Installer},
    lock::LockedSkill,
    project::{WantedSkill, read_source},
};
use crate::{
    SkillFiles,
    error::{Error, Result},
    folder_source,
};

/// A skill of another tool, and what became of it.
#[derive(Debug, Serialize)]
pub struct MigratedSkill {
    /// Its name.
    pub name: String,
    /// The tool that installed it.
    pub tool: &'static str,
    /// Its source as it is written here.
    pub source: String,
    /// Whether its files are the ones of its lock; `None` if the lock does not tell.
    pub is_verified: Option<bool>,
    /// What was pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<String>,
    /// Why it was not adopted, or what to know about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Whether it was adopted.
    pub is_adopted: bool,
}

/// What a migration did.
#[derive(Debug, Default, Serialize)]
pub struct MigrationReport {
    /// The locks that were read.
    pub locks: Vec<PathBuf>,
    /// The skills of them.
    pub skills: Vec<MigratedSkill>,
}

impl Installer {
    /// Adopts the skills that other tools installed in a folder. Their files and locks stay as they are.
    pub fn migrate(
        &mut self,
        folder: &std::path::Path,
        mode: WriteMode,
    ) -> Result<MigrationReport> {
        // The locks of an untrusted project are a stranger's.
        if folder_source(folder, &self.account)?.requested_by == RequestedBy::UntrustedWorkspace {
            return Err(repertoire_registry::Error::Untrusted(folder.to_owned()).into());
        }
        let (locks, found) = read_foreign_locks(folder)?;
        let mut report = MigrationReport {
            locks,
            skills: Vec::new(),
        };
        let mut targets: Vec<(WantedSkill, InstallTarget)> = Vec::new();
        for foreign in found {
            let mut row = MigratedSkill {
                name: foreign.name.clone(),
                tool: foreign.tool,
                source: foreign.source.clone(),
                is_verified: None,
                pin: None,
                note: None,
                is_adopted: false,
            };
            match self.adopt(folder, &foreign, &mut row) {
                Ok((wanted, target)) => {
                    row.is_adopted = true;
                    row.pin = Some(target.locked.pin.to_string());
                    targets.push((wanted, target));
                }
                Err(error) => row.note = Some(error.to_string()),
            }
            report.skills.push(row);
        }
        if mode == WriteMode::Commit {
            self.begin_changes()?;
        }
        let installs: Vec<InstallTarget> =
            targets.iter().map(|(_, target)| target.clone()).collect();
        let plan = self.plan(&installs)?;
        if mode == WriteMode::DryRun || targets.is_empty() {
            return Ok(report);
        }
        for (wanted, target) in targets {
            self.project.put(wanted)?;
            self.lock.put(target.locked);
        }
        self.project.write()?;
        self.lock.write(self.project.folder())?;
        self.registry.write_skills(self.scope, plan.writes, mode)?;
        Ok(report)
    }

    fn adopt(
        &self,
        folder: &Path,
        foreign: &ForeignSkill,
        row: &mut MigratedSkill,
    ) -> Result<(WantedSkill, InstallTarget)> {
        let id: SkillId = foreign.name.parse()?;
        let wanted = WantedSkill {
            id: id.clone(),
            source: foreign.source.clone(),
            skill: foreign.skill.clone(),
        };
        // What has no source that others reach is not adopted.
        read_source(self.project.folder(), &wanted)?;
        if self.project.get(&id).is_some() {
            return Err(Error::AlreadyWanted(id));
        }
        if self.store()?.skill_metadata(&id)?.is_some() {
            return Err(Error::OwnSkill {
                id,
                wanted: foreign.source.clone(),
            });
        }
        let place = foreign
            .folders
            .iter()
            .find(|place| place.join("SKILL.md").is_file());
        let Some(place) = place else {
            return Err(Error::NotOnDisk(foreign.name.clone()));
        };
        // Tools link folders of hosts to one place; the files are read where they are.
        let place = place
            .canonicalize()
            .map_err(crate::error::io_error_at(place))?;
        let root = folder
            .canonicalize()
            .map_err(crate::error::io_error_at(folder))?;
        if !place.starts_with(&root) {
            return Err(repertoire_registry::Error::EscapesRoot(place).into());
        }
        let mut files: SkillFiles = repertoire_registry::folder::read_folder(&place)?;
        files.retain(|path, _| !path.as_str().starts_with(".clawhub/"));
        row.is_verified = foreign.check.matches(&files);
        if row.is_verified == Some(false) {
            row.note = Some("its files changed since it was installed".to_owned());
        }
        let digest = files_digest(&files)?;
        let mut locked = LockedSkill {
            skill: wanted.skill.clone(),
            version: foreign.version.clone(),
            ..LockedSkill::new(
                id.clone(),
                wanted.source.clone(),
                foreign.source.clone(),
                Pin::Files(digest),
                digest,
            )
        };
        let upstream = self.pin_from_source(&wanted, foreign, &mut locked, row)?;
        let (files, edited) = match upstream {
            // What the user changed stays a change of the user's.
            Some(upstream) => (upstream, Some(files)),
            None => (files, None),
        };
        self.cache
            .put(&locked.digest, &files, locked.signer.as_ref());
        let target = InstallTarget {
            locked,
            files,
            edited,
            choices: std::collections::BTreeMap::new(),
        };
        Ok((wanted, target))
    }

    /// Asks the source whether it still has exactly these files, which makes them pinned. If the user
    /// changed them, what the source has is pinned instead, and returned.
    fn pin_from_source(
        &self,
        wanted: &WantedSkill,
        foreign: &ForeignSkill,
        locked: &mut LockedSkill,
        row: &mut MigratedSkill,
    ) -> Result<Option<SkillFiles>> {
        if self.options.offline {
            row.note
                .get_or_insert("its source was not asked".to_owned());
            return Ok(None);
        }
        let mut source = read_source(self.project.folder(), wanted)?;
        if let Some(version) = &foreign.version
            && let Ok(versioned) = source.clone().with_reference(version)
        {
            source = versioned;
        }
        let request = FetchRequest {
            id: wanted.id.clone(),
            source,
            // What the other lock pins, as far as the source agrees.
            pin: foreign.pin.clone(),
            digest: None,
            signer: None,
            version: None,
        };
        let fetched = self.reader().fetch(&[request], NamedBy::Project);
        match fetched.into_values().next() {
            Some(Ok(fetched)) => {
                let is_same = fetched.skill.digest == locked.digest;
                if !is_same && row.is_verified == Some(true) {
                    let note =
                        "its source has other files now, so other machines cannot install these";
                    row.note.get_or_insert(note.to_owned());
                    return Ok(None);
                }
                locked.pin = fetched.skill.pin;
                locked.digest = fetched.skill.digest;
                locked.resolved = fetched.resolved;
                locked.signer = fetched.skill.signer;
                Ok((!is_same).then_some(fetched.skill.files))
            }
            Some(Err(error)) => {
                row.note
                    .get_or_insert(format!("pinned by its files only: {error}"));
                Ok(None)
            }
            None => Ok(None),
        }
    }
}
