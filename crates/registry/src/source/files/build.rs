//! Builds skills and prompts from index records, or the reason why they are refused.

use std::sync::Arc;

use repertoire_core::{DOCUMENT, FileEntry, Manifest, Prompt, RelPath, SkillId};

use super::{
    ContentLocation, FileSource, FoundItem, MAX_BODY_BYTES, Notice, ScanOutcome, SourcePlan,
    file_name,
};
use crate::{
    error::{Error, Result, display_path},
    skill_metadata::{DocumentMetadata, SkillMetadata, parse_utf8},
    source::{
        names::find_document,
        record::{FileNote, RefusalReason, UNREADABLE_NAME},
        root::{join_path, now_nanos},
    },
};

impl FileSource {
    /// Builds the skill at a folder, if the folder has a document.
    pub(super) fn build_skill(&self, folder: &str) -> Option<ScanOutcome> {
        let record = self.index.folders.get(folder)?;
        let top = folder.split('/').next().unwrap_or(folder);
        if self.copies.contains(top) {
            return None;
        }
        if !record.has_document() {
            let is_blocking = |name: &str| name == DOCUMENT || name == UNREADABLE_NAME;
            let refused = record.refused.iter().find(|(name, _)| is_blocking(name));
            let in_skill = self.index.enclosing_skills(folder).next().is_some();
            return match refused {
                Some((name, why)) => {
                    let at = join_path(folder, name);
                    Some(Err(self.make_notice(at.trim_end_matches('/'), why.clone())))
                }
                None if record.has_misnamed_document() && !in_skill => Some(Err(self.make_notice(
                    &join_path(folder, "skill.md"),
                    RefusalReason {
                        code: "missing_document",
                        message: format!(
                            "{}: hosts look for SKILL.md: rename it",
                            display_path(&self.root.full_path(&join_path(folder, "skill.md")))
                        ),
                    },
                ))),
                None => None,
            };
        }
        let outcome = self
            .folder_skill_id(folder)
            .map_err(|error| Error::InvalidAt {
                path: self.root.full_path(folder),
                error,
            })
            .and_then(|id| {
                let head = self.build_metadata(folder, &id)?;
                let location = ContentLocation::Folder(self.root.clone(), folder.into());
                Ok(FoundItem::Skill(id, Arc::new(head), location))
            });
        Some(outcome.map_err(|error| self.make_notice(folder, RefusalReason::from(&error))))
    }

    /// Returns the id of a folder: its path, with the name of the document as the last part if that
    /// is a valid name that no folder beside it claims.
    fn folder_skill_id(&self, folder: &str) -> repertoire_core::Result<SkillId> {
        let name = match folder {
            "" if !self.has_path_name => {
                self.document(folder).and_then(DocumentMetadata::valid_name)
            }
            _ => None,
        };
        if let Some(name) = name {
            return name.parse();
        }
        match self.name_claims.granted_path(folder, &self.index) {
            Some(path) => self.below_link(path),
            None => self.path_id(folder),
        }
    }

    /// Returns the id that a folder has by its path alone.
    pub(super) fn path_id(&self, folder: &str) -> repertoire_core::Result<SkillId> {
        match folder {
            "" => {
                let name = self.root.path().file_name().unwrap_or_default();
                let name = name.to_string_lossy();
                SkillId::from_path(self.link_name.as_deref().unwrap_or(&name))
            }
            _ => self.below_link(folder),
        }
    }

    /// Returns the id of a path: below the name of the link, if one leads to this root.
    fn below_link(&self, path: &str) -> repertoire_core::Result<SkillId> {
        match &self.link_name {
            Some(link) => SkillId::from_path(&join_path(link, path)),
            None => SkillId::from_path(path),
        }
    }

    /// Returns the metadata of the document of a folder.
    fn document(&self, folder: &str) -> Option<&DocumentMetadata> {
        find_document(&self.index, folder)
    }

    fn build_metadata(&self, folder: &str, id: &SkillId) -> Result<SkillMetadata> {
        let at = |error| Error::InvalidAt {
            path: self.root.full_path(folder),
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
                let path = self.root.full_path(&here);
                return Err(Error::Skipped {
                    code: "unreadable",
                    message: format!("{}: could not be read", display_path(&path)),
                });
            };
            if let Some((name, why)) = record.refused.first() {
                return Err(self.refusal_error(&join_path(&here, name), why));
            }
            for file in &record.files {
                let path = join_path(&here, &file.name);
                let (Some(stamp), Some(digest)) = (file.stamp, file.digest) else {
                    // Files are not read if the skill exceeds its limits.
                    self.index.check_limits(folder).map_err(at)?;
                    return Err(match self.index.read_errors.get(&path) {
                        Some(why) => self.refusal_error(&path, why),
                        None => Error::from_io(
                            self.root.full_path(&path),
                            std::io::ErrorKind::NotFound.into(),
                        ),
                    });
                };
                files.push(FileEntry {
                    path: path[prefix..].parse::<RelPath>().map_err(at)?,
                    size: stamp.size,
                    digest,
                });
            }
            open.extend(record.folders.iter().map(|f| join_path(&here, f)));
        }
        let manifest = Manifest::new(files).map_err(at)?;
        let record = self.index.folders.get(folder);
        let note = |name| {
            record
                .and_then(|r| r.find_file(name))
                .and_then(|f| f.note.as_ref())
        };
        let Some(FileNote::Document(document)) = note(DOCUMENT) else {
            return Err(at(repertoire_core::Error::NoDocument));
        };
        let package = match note(repertoire_core::package::PACKAGE_FILE) {
            Some(FileNote::Package(package)) => Some(package.clone()),
            _ => None,
        };
        Ok(SkillMetadata::new(id, document, manifest, package))
    }

    /// Rebuilds the error of an earlier refusal.
    fn refusal_error(&self, path: &str, why: &RefusalReason) -> Error {
        let path = self.root.full_path(path);
        match why.code {
            "escapes_root" => Error::EscapesRoot(path),
            "not_regular" => Error::NotRegular(path),
            _ => Error::Skipped {
                code: why.code,
                message: why.message.clone(),
            },
        }
    }

    pub(super) fn make_notice(&self, relative: &str, why: RefusalReason) -> Notice {
        Notice {
            path: self.root.full_path(relative),
            code: why.code,
            message: why.message,
        }
    }

    /// Recomputes the items of one folder that match the pattern.
    pub(super) fn rebuild_loose(&mut self, folder: &str) {
        let Some(record) = self.index.folders.get(folder) else {
            return;
        };
        let (pattern, prompts) = match &self.plan {
            SourcePlan::Skills(pattern) => (pattern, false),
            SourcePlan::Prompts(pattern) => (pattern, true),
            SourcePlan::Folders => return,
        };
        let is_skill = |f: &str| !prompts && pattern.is_match(&join_path(f, DOCUMENT));
        if is_skill(folder) && record.has_document() {
            let outcome = self.build_skill(folder);
            let inside: Vec<String> = record
                .files
                .iter()
                .map(|f| join_path(folder, &f.name))
                .collect();
            self.set_outcome(folder, outcome);
            for path in inside {
                self.set_outcome(&path, None);
            }
            return;
        }
        let belongs = self.index.enclosing_skills(folder).any(is_skill);
        let names: Vec<String> = record
            .files
            .iter()
            .map(|f| join_path(folder, &f.name))
            .collect();
        let matched: Vec<String> = names.into_iter().filter(|n| pattern.is_match(n)).collect();
        let refused: Vec<(String, RefusalReason)> = record
            .refused
            .iter()
            .map(|(name, why)| (join_path(folder, name), why.clone()))
            .filter(|(path, _)| pattern.is_match(path) || path.ends_with('/'))
            .collect();
        self.set_outcome(folder, None);
        for (path, why) in refused {
            let notice = self.make_notice(path.trim_end_matches('/'), why);
            self.set_outcome(&path, Some(Err(notice)));
        }
        for path in matched {
            if belongs {
                self.set_outcome(&path, None);
                continue;
            }
            let stamp = self.root.file_stamp(&path);
            if stamp.is_some() && stamp == self.loose_stamps.get(&path).copied() {
                continue;
            }
            let outcome = self.build_loose_file(&path, prompts);
            let settled = stamp.filter(|s| !s.is_fresh(now_nanos()));
            let outcome =
                outcome.map_err(|error| self.make_notice(&path, RefusalReason::from(&error)));
            self.set_outcome(&path, Some(outcome));
            match settled {
                Some(stamp) => self.loose_stamps.insert(path, stamp),
                None => self.loose_stamps.remove(&path),
            };
        }
    }

    fn build_loose_file(&self, path: &str, prompts: bool) -> Result<FoundItem> {
        let at = |error| Error::InvalidAt {
            path: self.root.full_path(path),
            error,
        };
        let stem = path.strip_suffix(".md").unwrap_or(path);
        let bytes = self.root.read_file(path, MAX_BODY_BYTES)?.0;
        let text = parse_utf8(&display_path(&self.root.full_path(path)), &bytes)?;
        let location = ContentLocation::LooseFile(self.root.clone(), path.into());
        if prompts {
            let (prompt, _) = Prompt::from_markdown(file_name(stem), text).map_err(at)?;
            return Ok(FoundItem::Prompt(Arc::new(prompt), location));
        }
        let id: SkillId = stem.parse().map_err(at)?;
        if text.trim().is_empty() {
            return Err(at(repertoire_core::Error::EmptyField("body")));
        }
        let head = SkillMetadata::from_markdown(&id, text);
        Ok(FoundItem::Skill(id, Arc::new(head), location))
    }
}
