//! One file of a skill, before the whole catalogue has been read.
//!
//! Reading ten thousand folders takes a second; reading one takes milliseconds. Invariant: what is
//! found here is what the whole catalogue would find. Where that is not certain, nothing is found, and
//! the caller waits for the catalogue.

use std::{path::Path, sync::Arc};

use repertoire_core::{DOCUMENT, SkillUri, path::is_ignored};

use super::Registry;
use crate::{
    origin::{Origin, Trusted},
    settings::RegistrySettings,
    source::COPIES_FILE,
};

impl Registry {
    /// Opens a registry of the stores and one folder, if these are certain to decide what a URI leads to.
    ///
    /// It has no other skills and is only good for reading this file.
    pub fn open_for_file(settings: &RegistrySettings, uri: &SkillUri) -> Option<Arc<Self>> {
        let first = settings.folders.first()?;
        let folder = skill_folder(&first.path, uri)?;
        let rest = uri.as_str().strip_prefix(&folder)?.strip_prefix('/')?;
        // A longer id could be found in another source.
        let is_only_source = settings.folders.len() == 1 && settings.skills.is_empty();
        if !is_only_source && rest != DOCUMENT {
            return None;
        }
        let narrow = RegistrySettings {
            folders: vec![first.clone()],
            only_folder: Some(folder.clone()),
            skills: Vec::new(),
            prompts: Vec::new(),
            system_skills: false,
            cache: None,
            ..settings.clone()
        };
        let registry = Self::open(narrow).ok()?;
        let (entry, path) = registry.snapshot().locate_file(uri)?;
        // A store may replace it, one with another name in its document has another id, and an
        // untrusted one ranks after those of trusted folders.
        let is_certain = entry.origin == Origin::Files(1)
            && (is_only_source || entry.trusted == Trusted::Yes)
            && entry.id.as_str() == folder
            && path.as_str() == rest
            && entry.metadata.unlisted.is_none();
        is_certain.then_some(registry)
    }
}

/// Returns the folder of the only skill on the way to a file, if no link is on the way.
fn skill_folder(root: &Path, uri: &SkillUri) -> Option<String> {
    // Copies of skills of the registry are not read.
    if root.join(COPIES_FILE).symlink_metadata().is_ok() {
        return None;
    }
    let has_document = |folder: &Path| {
        let document = folder.join(DOCUMENT).symlink_metadata();
        document.is_ok_and(|file| file.is_file())
    };
    if has_document(root) {
        return None;
    }
    let mut folder = root.to_owned();
    let mut found = None;
    let mut segments: Vec<&str> = uri.as_str().split('/').collect();
    segments.pop();
    for (depth, segment) in segments.iter().enumerate() {
        folder.push(segment);
        if is_ignored(segment) || !folder.symlink_metadata().ok()?.is_dir() {
            return None;
        }
        if has_document(&folder) {
            if found.is_some() {
                return None;
            }
            found = Some(segments[..=depth].join("/"));
        }
    }
    found
}
