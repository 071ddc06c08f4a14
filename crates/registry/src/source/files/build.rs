//! From records of an index to skills and prompts, or to the reason why not.

use std::sync::Arc;

use repertoire_core::{DOCUMENT, FileEntry, Manifest, Prompt, RelPath, SkillId};

use super::{FileSource, Found, Location, MAX_BODY, Notice, Outcome, Plan, file_name};
use crate::{
    error::{Error, Result, show},
    head::{Head, utf8},
    source::{
        record::{Note, Refusal, UNREADABLE},
        root::{join, now_nanos},
    },
};

impl FileSource {
    /// The skill at a folder, if the folder has a document.
    pub(super) fn skill_folder(&self, folder: &str) -> Option<Outcome> {
        let record = self.index.folders.get(folder)?;
        if !record.has_document() {
            let telling = |name: &str| name == DOCUMENT || name == UNREADABLE;
            let refused = record.refused.iter().find(|(name, _)| telling(name));
            let in_skill = self.index.enclosing(folder).next().is_some();
            return match refused {
                Some((name, why)) => {
                    let at = join(folder, name);
                    Some(Err(self.notice(at.trim_end_matches('/'), why.clone())))
                }
                None if record.misnamed() && !in_skill => Some(Err(self.notice(
                    &join(folder, "skill.md"),
                    Refusal {
                        code: "missing_document",
                        message: format!(
                            "{}: hosts look for SKILL.md: rename it",
                            show(&self.root.join(&join(folder, "skill.md")))
                        ),
                    },
                ))),
                None => None,
            };
        }
        let outcome = self
            .skill_id(folder)
            .map_err(|error| Error::InvalidAt {
                path: self.root.join(folder),
                error,
            })
            .and_then(|id| {
                let head = self.skill_head(folder, &id)?;
                let location = Location::Folder(self.root.clone(), folder.into());
                Ok(Found::Skill(id, Arc::new(head), location))
            });
        Some(outcome.map_err(|error| self.notice(folder, Refusal::from(&error))))
    }

    /// A folder's path is its id; the root itself is known by its own name.
    fn skill_id(&self, folder: &str) -> repertoire_core::Result<SkillId> {
        if folder.is_empty() {
            let name = self.root.path().file_name().unwrap_or_default();
            return name.to_string_lossy().parse();
        }
        folder.parse()
    }

    fn skill_head(&self, folder: &str, id: &SkillId) -> Result<Head> {
        let at = |error| Error::InvalidAt {
            path: self.root.join(folder),
            error,
        };
        let prefix = if folder.is_empty() {
            0
        } else {
            folder.len() + 1
        };
        let mut files = Vec::new();
        let mut open = vec![folder.to_owned()];
        while let Some(here) = open.pop() {
            let Some(record) = self.index.folders.get(here.as_str()) else {
                let path = self.root.join(&here);
                return Err(Error::Skipped {
                    code: "unreadable",
                    message: format!("{}: could not be looked into", show(&path)),
                });
            };
            if let Some((name, why)) = record.refused.first() {
                return Err(self.refused(&join(&here, name), why));
            }
            for file in &record.files {
                let path = join(&here, &file.name);
                let (Some(stamp), Some(digest)) = (file.stamp, file.digest) else {
                    // Files are left unread where the skill is past its limits.
                    self.index.limits(folder).map_err(at)?;
                    return Err(match self.index.failed.get(&path) {
                        Some(why) => self.refused(&path, why),
                        None => {
                            Error::io(self.root.join(&path), std::io::ErrorKind::NotFound.into())
                        }
                    });
                };
                files.push(FileEntry {
                    path: path[prefix..].parse::<RelPath>().map_err(at)?,
                    size: stamp.size,
                    digest,
                });
            }
            open.extend(record.folders.iter().map(|f| join(&here, f)));
        }
        let manifest = Manifest::new(files).map_err(at)?;
        let record = self.index.folders.get(folder);
        let note = |name| {
            record
                .and_then(|r| r.file(name))
                .and_then(|f| f.note.as_ref())
        };
        let Some(Note::Document(document)) = note(DOCUMENT) else {
            return Err(at(repertoire_core::Error::NoDocument));
        };
        if *document.name != *id.name() {
            return Err(Error::NameMismatch {
                path: self.root.join(&join(folder, DOCUMENT)),
                name: document.name.to_string(),
                folder: id.name().to_owned(),
            });
        }
        let package = match note(repertoire_core::package::PACKAGE_FILE) {
            Some(Note::Package(package)) => Some(package.clone()),
            _ => None,
        };
        Ok(Head::new(document, manifest, package))
    }

    /// An error that was found earlier, told again.
    fn refused(&self, path: &str, why: &Refusal) -> Error {
        let path = self.root.join(path);
        match why.code {
            "escapes_root" => Error::EscapesRoot(path),
            "not_regular" => Error::NotRegular(path),
            _ => Error::Skipped {
                code: why.code,
                message: why.message.clone(),
            },
        }
    }

    pub(super) fn notice(&self, relative: &str, why: Refusal) -> Notice {
        Notice {
            path: self.root.join(relative),
            code: why.code,
            message: why.message,
        }
    }

    /// Decides anew what is in one folder by a pattern.
    pub(super) fn rebuild_loose(&mut self, folder: &str) {
        let Some(record) = self.index.folders.get(folder) else {
            return;
        };
        let (pattern, prompts) = match &self.plan {
            Plan::Skills(pattern) => (pattern, false),
            Plan::Prompts(pattern) => (pattern, true),
            Plan::Folders => return,
        };
        let is_skill = |f: &str| !prompts && pattern.matches(&join(f, DOCUMENT));
        if is_skill(folder) && record.has_document() {
            let outcome = self.skill_folder(folder);
            let inside: Vec<String> = record.files.iter().map(|f| join(folder, &f.name)).collect();
            self.set_place(folder, outcome);
            for path in inside {
                self.set_place(&path, None);
            }
            return;
        }
        let belongs = self.index.enclosing(folder).any(is_skill);
        let names: Vec<String> = record.files.iter().map(|f| join(folder, &f.name)).collect();
        let matched: Vec<String> = names.into_iter().filter(|n| pattern.matches(n)).collect();
        let refused: Vec<(String, Refusal)> = record
            .refused
            .iter()
            .map(|(name, why)| (join(folder, name), why.clone()))
            .filter(|(path, _)| pattern.matches(path) || path.ends_with('/'))
            .collect();
        self.set_place(folder, None);
        for (path, why) in refused {
            let notice = self.notice(path.trim_end_matches('/'), why);
            self.set_place(&path, Some(Err(notice)));
        }
        for path in matched {
            if belongs {
                self.set_place(&path, None);
                continue;
            }
            let stamp = self.root.stamp(&path);
            if stamp.is_some() && stamp == self.loose.get(&path).copied() {
                continue;
            }
            let outcome = self.loose_file(&path, prompts);
            let settled = stamp.filter(|s| !s.is_fresh(now_nanos()));
            let outcome = outcome.map_err(|error| self.notice(&path, Refusal::from(&error)));
            self.set_place(&path, Some(outcome));
            match settled {
                Some(stamp) => self.loose.insert(path, stamp),
                None => self.loose.remove(&path),
            };
        }
    }

    fn loose_file(&self, path: &str, prompts: bool) -> Result<Found> {
        let at = |error| Error::InvalidAt {
            path: self.root.join(path),
            error,
        };
        let stem = path.strip_suffix(".md").unwrap_or(path);
        let bytes = self.root.read(path, MAX_BODY)?.0;
        let text = utf8(&show(&self.root.join(path)), &bytes)?;
        let location = Location::Loose(self.root.clone(), path.into());
        if prompts {
            let (prompt, _) = Prompt::from_markdown(file_name(stem), text).map_err(at)?;
            return Ok(Found::Prompt(Arc::new(prompt), location));
        }
        let id: SkillId = stem.parse().map_err(at)?;
        if text.trim().is_empty() {
            return Err(at(repertoire_core::Error::Field {
                field: "body".to_owned(),
                rule: "must be non-empty".to_owned(),
            }));
        }
        let head = Head::of_markdown(&id, text);
        Ok(Found::Skill(id, Arc::new(head), location))
    }
}
