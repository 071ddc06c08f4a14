//! Which functions may be read as content over MCP.
//!
//! A function is code of a worker: reading `iii://fn/a/b` calls it. Over MCP that is allowed only for
//! functions that a trusted skill links to by exactly that URI, that the owner of the server allows,
//! or that their worker declares as content (T41). On the bus itself every worker may call anyway.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use repertoire_core::{SkillId, Uri};
use repertoire_registry::{ItemKind, Registry, SkillEntry, Snapshot, Trusted};
use tokio::sync::Mutex;

use crate::service::SkillService;

/// The functions that trusted skills link to, kept from the events of the catalogue.
#[derive(Debug, Default)]
pub(crate) struct FunctionLinks {
    links: Mutex<LinkTable>,
}

#[derive(Debug, Default)]
struct LinkTable {
    /// The number of the last event that was applied; `None` before the first look.
    seq: Option<u64>,
    by_skill: HashMap<SkillId, BTreeSet<String>>,
}

impl SkillService {
    /// Whether a trusted skill of a snapshot links to a function.
    pub(crate) async fn is_function_linked(
        &self,
        registry: &Registry,
        snapshot: &Snapshot,
        uri: &str,
    ) -> bool {
        let mut table = self.function_links.links.lock().await;
        self.update_links(&mut table, registry).await;
        let mut skills = table.by_skill.iter();
        skills.any(|(id, links)| {
            let is_trusted = |entry: &SkillEntry| entry.trusted == Trusted::Yes;
            links.contains(uri) && snapshot.get(id).is_some_and(|entry| is_trusted(entry))
        })
    }

    /// Reads what changed since the last look; at the first one, everything.
    async fn update_links(&self, table: &mut LinkTable, registry: &Registry) {
        let snapshot = registry.snapshot();
        if table.seq == Some(snapshot.seq()) {
            return;
        }
        let events = table
            .seq
            .map(|seq| registry.wait_events(seq, Duration::ZERO));
        let changed: Vec<SkillId> = if let Some(Ok(events)) = events {
            events
                .iter()
                .filter(|event| event.kind == ItemKind::Skill)
                .filter_map(|event| event.id.parse().ok())
                .collect()
        } else {
            // The first look, or too many changes to follow.
            table.by_skill.clear();
            snapshot.skills().map(|entry| entry.id.clone()).collect()
        };
        for id in changed {
            let entry = snapshot.get(&id);
            let entry = entry.filter(|entry| entry.trusted == Trusted::Yes && !entry.is_remote());
            let links = match entry {
                Some(entry) => self.function_links_of(registry, entry).await,
                None => BTreeSet::new(),
            };
            if links.is_empty() {
                table.by_skill.remove(&id);
            } else {
                table.by_skill.insert(id, links);
            }
        }
        table.seq = Some(snapshot.seq());
    }

    async fn function_links_of(&self, registry: &Registry, entry: &SkillEntry) -> BTreeSet<String> {
        let body = if entry.is_on_bus() {
            self.registered_body(entry).await.ok()
        } else {
            let bytes = registry.read_body(entry).ok();
            bytes.and_then(|bytes| String::from_utf8(bytes.into()).ok())
        };
        function_uris(body.as_deref().unwrap_or_default()).collect()
    }
}

/// Returns the URIs of functions in a text, in links or not.
fn function_uris(text: &str) -> impl Iterator<Item = String> + '_ {
    const PREFIX: &str = "iii://fn/";
    let is_end = |c: char| c.is_whitespace() || "()<>[]{}\"'`|,;".contains(c);
    text.match_indices(PREFIX).filter_map(move |(at, _)| {
        let uri = &text[at..];
        let uri = &uri[..uri.find(is_end).unwrap_or(uri.len())];
        // The end of a sentence is not part of the URI.
        let uri = uri.trim_end_matches(['.', ':', '!', '?']);
        matches!(uri.parse(), Ok(Uri::Function(_))).then(|| uri.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_of_functions_are_found_in_links_and_in_text() {
        let text = "See [more](iii://fn/demo/guide), `iii://fn/demo/b` and iii://fn/demo/c.\n\
                    iii://demo/plain is no function.";
        let found: Vec<String> = function_uris(text).collect();
        assert_eq!(
            found,
            ["iii://fn/demo/guide", "iii://fn/demo/b", "iii://fn/demo/c"]
        );
    }
}
