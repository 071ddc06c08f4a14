//! Leaves the files of hidden nested skills out of the skills around them.
//!
//! A skill has the files of the skills in its folder. What is hidden there must not come back through
//! its listing, its prompt or its copies, so the metadata that every surface reads is trimmed where a
//! skill enters the catalogue and where visibility changes.

use std::sync::Arc;

use repertoire_core::{DOCUMENT, SkillId};

use super::{SkillEntry, Snapshot};
use crate::skill_metadata::SkillMetadata;

impl SkillEntry {
    /// Its metadata with the files of all nested skills, also those that are hidden: for what copies or
    /// changes the skill itself, not for what is served.
    pub fn complete_metadata(&self) -> &Arc<SkillMetadata> {
        self.complete.as_ref().unwrap_or(&self.metadata)
    }
}

impl Snapshot {
    /// Trims every skill, after visibility changed.
    pub(super) fn trim_all(&mut self) {
        let ids: Vec<SkillId> = self.skills.keys().cloned().collect();
        for id in &ids {
            self.trim_entries(id);
        }
    }

    /// Trims the skills that were changed, and those around them.
    pub(super) fn trim_around(&mut self, changed: &[(SkillId, Option<SkillId>)]) {
        if !self.visibility.hides_some() {
            return;
        }
        for (id, alias) in changed {
            for one in std::iter::once(id).chain(alias) {
                let mut around = Some(one.clone());
                while let Some(id) = around {
                    self.trim_entries(&id);
                    around = id.parent();
                }
            }
        }
    }

    fn trim_entries(&mut self, id: &SkillId) {
        let id = self.aliases.get(id).unwrap_or(id).clone();
        let Some(slot) = self.skills.get(&id) else {
            return;
        };
        let trimmed: Vec<_> = slot.iter().map(|entry| self.trim_entry(entry)).collect();
        if trimmed.iter().any(Option::is_some) {
            let entries = slot.iter().zip(trimmed);
            let entries = entries.map(|(old, new)| new.map_or_else(|| old.clone(), Arc::new));
            let slot = entries.collect();
            self.skills.insert_mut(id, slot);
        }
    }

    /// Returns an entry without the files of hidden nested skills, if that is a change.
    fn trim_entry(&self, entry: &SkillEntry) -> Option<SkillEntry> {
        let complete = entry.complete_metadata();
        let hidden: Vec<&str> = complete
            .files
            .iter()
            .filter_map(|file| {
                let folder = file.path.as_str().strip_suffix(DOCUMENT)?;
                let path = folder.strip_suffix('/')?;
                self.is_nested_hidden(entry, path).then_some(folder)
            })
            .collect();
        if hidden.is_empty() {
            let complete = entry.complete.clone()?;
            return Some(SkillEntry {
                metadata: complete,
                complete: None,
                ..entry.clone()
            });
        }
        let files = complete.files.iter().filter(|file| {
            let path = file.path.as_str();
            !hidden.iter().any(|folder| path.starts_with(folder))
        });
        let metadata = SkillMetadata {
            files: files.cloned().collect(),
            ..(**complete).clone()
        };
        if metadata == *entry.metadata {
            return None;
        }
        Some(SkillEntry {
            metadata: Arc::new(metadata),
            complete: Some(complete.clone()),
            ..entry.clone()
        })
    }

    /// Whether the skill in a folder of another one is hidden, by its own id or by that of its folder.
    fn is_nested_hidden(&self, around: &SkillEntry, path: &str) -> bool {
        let outer = std::iter::once(&around.id).chain(&around.alias);
        let ids = outer.filter_map(|outer| format!("{outer}/{path}").parse::<SkillId>().ok());
        let mut ids = ids.flat_map(|id| {
            let other = self.aliases.get(&id).cloned();
            std::iter::once(id).chain(other)
        });
        ids.any(|id| {
            let is_known = self.skills.contains_key(&id) || self.visibility.disabled.contains(&id);
            is_known && self.visibility.hides(&id)
        })
    }
}
