//! Which name a skill folder is served under.
//!
//! Hosts require that a skill's name is the last part of its path. Many folders are named
//! differently, so a skill takes the name of its document where that is unambiguous.

use std::collections::BTreeSet;

use super::{
    index::FolderIndex,
    record::{FileNote, FolderRecord, SeededMap},
    root::{join_path, parent_path},
};
use crate::skill_metadata::DocumentMetadata;

/// Folders whose documents name them differently, by the paths that they claim.
#[derive(Debug, Default)]
pub(crate) struct NameClaims {
    claimed: SeededMap<String, String>,
    claimants: SeededMap<String, BTreeSet<String>>,
}

impl NameClaims {
    /// Returns the path that a folder claims, if no other folder claims it or is there.
    pub(crate) fn granted_path(&self, folder: &str, index: &FolderIndex) -> Option<&str> {
        let path = self.claimed.get(folder)?;
        let is_alone = self.claimants.get(path).is_some_and(|all| all.len() == 1);
        let is_taken = index
            .folders
            .get(path.as_str())
            .is_some_and(FolderRecord::has_document);
        (is_alone && !is_taken).then_some(path)
    }

    /// Brings the claim of a folder up to date; adds the other folders that this affects.
    pub(crate) fn update(
        &mut self,
        folder: &str,
        index: &FolderIndex,
        affected: &mut BTreeSet<String>,
    ) {
        let path = claimed_path(folder, index);
        // The folder itself may have come or gone.
        if let Some(all) = self.claimants.get(folder) {
            affected.extend(all.iter().cloned());
        }
        if self.claimed.get(folder) == path.as_ref() {
            return;
        }
        if let Some(old) = self.claimed.remove(folder)
            && let Some(all) = self.claimants.get_mut(&old)
        {
            all.remove(folder);
            affected.extend(all.iter().cloned());
            if all.is_empty() {
                self.claimants.remove(&old);
            }
        }
        if let Some(path) = path {
            let all = self.claimants.entry(path.clone()).or_default();
            affected.extend(all.iter().cloned());
            all.insert(folder.to_owned());
            self.claimed.insert(folder.to_owned(), path);
        }
    }
}

/// Returns the path that a folder would have if it were named as its document says.
fn claimed_path(folder: &str, index: &FolderIndex) -> Option<String> {
    if folder.is_empty() {
        return None;
    }
    let name = find_document(index, folder)?.valid_name()?;
    let path = join_path(parent_path(folder), name);
    (path != folder).then_some(path)
}

/// Returns the metadata of the document of a folder.
pub(crate) fn find_document<'a>(
    index: &'a FolderIndex,
    folder: &str,
) -> Option<&'a DocumentMetadata> {
    let record = index.folders.get(folder)?;
    match &record.find_file(repertoire_core::DOCUMENT)?.note {
        Some(FileNote::Document(document)) => Some(document),
        _ => None,
    }
}
