//! Finds skills that are kept in a store, and so can be changed.

use std::sync::Arc;

use repertoire_registry::{
    Registry, SkillEntry, StoreScope,
    store::{SkillKey, SkillSummary, Store},
};

use crate::error::{Error, Result};

/// Returns the store of a scope and a skill in it.
pub fn find_stored_skill<'a>(
    registry: &'a Registry,
    scope: StoreScope,
    entry: &SkillEntry,
) -> Result<(&'a Arc<dyn Store>, SkillSummary)> {
    let store = registry.store(scope)?;
    match store.find_skill(SkillKey::Id(&entry.id))? {
        Some(summary) => Ok((store, summary)),
        None => Err(Error::NotInStore {
            skill: entry.id.to_string(),
            origin: entry.origin.clone(),
            scope,
        }),
    }
}
