//! What is at the top of a root and is not simply a skill: links to skills elsewhere, and copies of
//! skills of the registry.

use std::collections::{BTreeMap, BTreeSet};

use super::{FileSource, FoundItem, Notice, SourcePlan};
use crate::{
    catalogue::CatalogueChange,
    error::display_path,
    source::{join_path, record::RefusalReason, root::RootDir},
};

/// The record of copies of skills in a folder. They come from the registry and are not read back.
pub const COPIES_FILE: &str = ".repertoire-copies.json";
/// The code of the notice that copies are not read.
pub(super) const COPIES_CODE: &str = "copies";
/// A larger record is not read.
const MAX_RECORD_BYTES: u64 = 16 * 1024 * 1024;
/// The most links to skills of one folder; each keeps a folder open.
const MAX_LINKS: usize = 256;

/// Reads which folders in a folder are copies of skills of the registry.
pub(crate) fn read_copy_names(root: &RootDir, folder: &str) -> BTreeSet<String> {
    #[derive(Default, serde::Deserialize)]
    struct CopyNames {
        skills: serde_json::Map<String, serde_json::Value>,
    }
    let read = root.read_file(&join_path(folder, COPIES_FILE), MAX_RECORD_BYTES);
    let names: CopyNames = read
        .ok()
        .and_then(|(bytes, _)| repertoire_core::json::from_slice(&bytes).ok())
        .unwrap_or_default();
    names.skills.into_iter().map(|(name, _)| name).collect()
}

impl FileSource {
    /// Reads which folders at the top are copies of skills of the registry.
    pub(super) fn read_copies(&mut self) {
        self.copies = read_copy_names(&self.root, "");
    }

    /// Says of links to skills why they are not followed: in a trusted workspace they might be.
    fn explain_untrusted_links(&mut self) {
        if self.trusted == crate::origin::Trusted::Yes {
            return;
        }
        let refused = self.index.folders.get("").map(|record| &record.refused);
        let names = refused
            .into_iter()
            .flatten()
            .map(|(name, _)| name.to_string());
        for name in names.collect::<Vec<_>>() {
            let link = self.root.full_path(&name);
            if link.is_symlink() && link.join(repertoire_core::DOCUMENT).is_file() {
                let why = RefusalReason {
                    code: "link_untrusted",
                    message: format!(
                        "{}: is a link, and links are followed in trusted workspaces only",
                        display_path(&link)
                    ),
                };
                let notice = self.make_notice(&name, why);
                self.outcomes.insert(name, Err(notice));
            }
        }
    }

    /// Opens the skills that links at the top lead to, and forgets those whose links are gone.
    pub(crate) fn refresh_links(&mut self) {
        let Some(policy) = &self.link_policy else {
            self.explain_untrusted_links();
            return;
        };
        let refused = self.index.folders.get("").map(|record| &record.refused);
        let mut found = BTreeMap::new();
        for (name, _) in refused.into_iter().flatten() {
            let Some(opened) = policy.open_target(&self.root, name) else {
                continue;
            };
            let is_full = found.len() >= MAX_LINKS;
            let opened = opened.and_then(|target| {
                let too_many = || RefusalReason {
                    code: "too_many_links",
                    message: format!("a folder has at most {MAX_LINKS} links to skills"),
                };
                (!is_full).then_some(target).ok_or_else(too_many)
            });
            found.insert(name.to_string(), opened);
        }
        self.links.retain(|name, link| {
            matches!(found.get(name), Some(Ok(target)) if target.path() == link.root_path())
        });
        for (name, opened) in found {
            let target = match opened {
                Ok(target) => target,
                Err(why) => {
                    let notice = self.make_notice(&name, why);
                    self.outcomes.insert(name, Err(notice));
                    continue;
                }
            };
            // The link itself is no longer refused.
            self.outcomes.remove(&name);
            if !self.links.contains_key(&name) {
                let link = self.open_link(&name, target);
                self.links.insert(name, link);
            }
        }
    }

    fn open_link(&self, name: &str, mut target: RootDir) -> Self {
        target.is_linked = true;
        let (origin, trusted) = (self.origin.clone(), self.trusted);
        let mut link = Self::from_root(target, SourcePlan::Folders, origin, trusted, None);
        link.link_name = Some(name.to_owned());
        link.rebuild_all();
        link
    }

    /// Adds the changes of the skills that links lead to. What is in this folder itself comes first,
    /// then the links in the order of their names; one that has nothing left has a notice.
    pub(super) fn publish_links(&mut self, changes: &mut Vec<CatalogueChange>) {
        if self.links.is_empty() && self.published_links.is_empty() {
            return;
        }
        let mut links = std::mem::take(&mut self.links);
        let mut published = BTreeSet::new();
        self.link_conflicts.clear();
        for (name, link) in &mut links {
            // Under the name of its document, unless that is taken: then under its own.
            let is_taken = |found: &FoundItem| self.owns_key(&found.catalogue_key());
            let root = link.outcomes.get("").and_then(|found| found.as_ref().ok());
            if !link.has_path_name && root.is_some_and(is_taken) {
                link.has_path_name = true;
                link.rebuild_all();
            }
            link.pending_changes.clear();
            for found in link
                .outcomes
                .values()
                .filter_map(|found| found.as_ref().ok())
            {
                let key = found.catalogue_key();
                let FoundItem::Skill(id, ..) = found else {
                    continue;
                };
                if self.owns_key(&key) || !published.insert(id.clone()) {
                    let why = RefusalReason {
                        code: "duplicate",
                        message: format!("{key:?} is already found beside this link"),
                    };
                    self.link_conflicts.push(self.make_notice(name, why));
                    continue;
                }
                changes.push(link.put_change(found.clone()));
            }
        }
        for gone in self.published_links.difference(&published) {
            if !self.owns_key(gone.as_str()) {
                let change = CatalogueChange::RemoveSkill(gone.clone(), self.origin.clone());
                changes.insert(0, change);
            }
        }
        self.published_links = published;
        self.links = links;
    }

    /// Whether a skill of this folder itself has a key.
    fn owns_key(&self, key: &str) -> bool {
        let at_path = self.outcomes.get(key);
        let is_plain = matches!(at_path, Some(Ok(found)) if found.catalogue_key() == key);
        is_plain || self.key_owners.contains_key(key)
    }

    /// Says that copies are not read, so that a record cannot hide them unseen.
    pub(super) fn copies_notice(&self) -> Option<Notice> {
        let is_there = |name: &&String| self.index.folders.contains_key(name.as_str());
        let count = self.copies.iter().filter(is_there).count();
        let message = format!(
            "{}: says that {count} of the folders beside it are copies of skills of the registry, which \
             are not read",
            display_path(&self.root.full_path(COPIES_FILE))
        );
        let why = RefusalReason {
            code: COPIES_CODE,
            message,
        };
        (count > 0).then(|| self.make_notice(COPIES_FILE, why))
    }
}
