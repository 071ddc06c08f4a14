//! Search for skills that fit a message.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test"
)]

#[path = "../../core/tests/support/part.rs"]
mod part;

use std::{path::Path, sync::Arc};

use repertoire_core::{Package, SkillId};
use repertoire_registry::{
    HistoryPolicy, Registry, RegistrySettings, StoreScope,
    search::{COSINE_THRESHOLD, LEXICAL_THRESHOLD, MatchReason, SentenceEncoder, SkillIndex},
    store::NewSkill,
};
use serde_json::json;

fn skill_id(text: &str) -> SkillId {
    text.parse().unwrap()
}

#[test]
fn a_message_that_names_a_skill_finds_it_first() {
    let skills = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus/activation/skills");
    let registry = Registry::open(RegistrySettings::from_folders([skills])).unwrap();
    let snapshot = registry.snapshot();
    let finder = SkillIndex::new(&registry, &snapshot).unwrap();
    assert!(finder.len() >= 200, "{}", finder.len());
    for entry in snapshot.skills() {
        let name = entry.id.as_str();
        for message in [
            format!("please use {name} on the report about money and databases"),
            format!("/{name}"),
            format!("Can you {} for me, today?", name.replace('-', " ")),
        ] {
            let found = finder.find_skills(&message, 3).unwrap();
            assert_eq!(
                (&found[0].id, &found[0].why),
                (&entry.id, &MatchReason::Named),
                "{message}"
            );
        }
    }
}

fn open_registry() -> (tempfile::TempDir, Arc<Registry>) {
    let folder = tempfile::tempdir().unwrap();
    let settings = RegistrySettings {
        account: Some(folder.path().into()),
        ..RegistrySettings::default()
    };
    let registry = Registry::open(settings).unwrap();
    (folder, registry)
}

fn put_skill(registry: &Registry, name: &str, about: &str, phrases: &[&str]) {
    let json = json!({
        "name": name, "description": about, "trigger_phrases": phrases,
        "artifacts": [{"kind": "description", "name": "Overview", "content": "Text.\n"}],
    });
    let package = Package::from_json(json.to_string().as_bytes()).unwrap();
    let new = NewSkill::from_package(&package).unwrap();
    registry.add_skills(StoreScope::Account, vec![new]).unwrap();
}

#[test]
fn trigger_phrases_match_and_unrelated_messages_match_nothing() {
    let (_folder, registry) = open_registry();
    put_skill(
        &registry,
        "Consistency Checker",
        "Finds statements that contradict each other.",
        &["are there any contradictions", "check for inconsistencies"],
    );
    put_skill(
        &registry,
        "Tide Tables",
        "Reads the tides of a harbour from a table.",
        &[],
    );
    let finder = SkillIndex::new(&registry, &registry.snapshot()).unwrap();
    let found = finder
        .find_skills("Hm, are there any contradictions?", 5)
        .unwrap();
    assert_eq!(found[0].id, skill_id("consistency-checker"));
    assert_eq!(
        found[0].why,
        MatchReason::Phrase("are there any contradictions".into())
    );
    let found = finder
        .find_skills("when is high tide in the harbour", 5)
        .unwrap();
    assert_eq!(
        (&found[0].id, &found[0].why),
        (&skill_id("tide-tables"), &MatchReason::Words)
    );
    assert!(found[0].score >= LEXICAL_THRESHOLD, "{found:?}");
    for message in [
        "tell me a joke about penguins",
        "",
        "???",
        "the and of",
        "é漢🦀",
    ] {
        let found = finder.find_skills(message, 5).unwrap();
        let best = found.first().map_or(0.0, |one| one.score);
        assert!(best < LEXICAL_THRESHOLD, "{message}: {found:?}");
    }
    assert!(finder.find_skills("tide", 0).unwrap().is_empty());
    assert!(finder.find_skills(&"tide ".repeat(100_000), 5).unwrap()[0].score <= 1.0);
}

#[test]
fn a_change_is_visible_to_the_next_query_with_the_same_score_as_a_rebuild() {
    let (_folder, registry) = open_registry();
    for n in 0..50 {
        put_skill(
            &registry,
            &format!("Filler {n}"),
            &format!("Speaks of number {n} and nothing."),
            &[],
        );
    }
    let mut finder = SkillIndex::new(&registry, &registry.snapshot()).unwrap();
    put_skill(
        &registry,
        "Kite Making",
        "Builds kites of paper and bamboo.",
        &["fly a kite"],
    );
    finder
        .update_skill(&registry, &registry.snapshot(), &skill_id("kite-making"))
        .unwrap();
    let first = |finder: &SkillIndex, message: &str| {
        finder.find_skills(message, 3).unwrap().into_iter().next()
    };
    assert_eq!(
        first(&finder, "bamboo and paper").unwrap().id,
        skill_id("kite-making")
    );
    let anew = SkillIndex::new(&registry, &registry.snapshot()).unwrap();
    for message in [
        "bamboo and paper",
        "number 7",
        "kite making",
        "fly a kite now",
    ] {
        assert_eq!(
            finder.find_skills(message, 5).unwrap(),
            anew.find_skills(message, 5).unwrap(),
            "{message}"
        );
    }
    // A changed skill no longer matches its old text; a removed one matches nothing.
    put_skill(&registry, "Kite Making", "Sews sails.", &[]);
    finder
        .update_skill(&registry, &registry.snapshot(), &skill_id("kite-making"))
        .unwrap();
    assert_eq!(first(&finder, "bamboo and paper"), None);
    assert_eq!(first(&finder, "sails").unwrap().id, skill_id("kite-making"));
    registry
        .remove_skill(
            StoreScope::Account,
            &skill_id("kite-making"),
            HistoryPolicy::Keep,
        )
        .unwrap();
    finder
        .update_skill(&registry, &registry.snapshot(), &skill_id("kite-making"))
        .unwrap();
    assert_eq!(first(&finder, "sails"), None);
    assert_eq!(first(&finder, "use kite-making"), None);
    assert_eq!(finder.len(), 50);
}

/// Opens the sentence encoder, if the test environment provides a model.
fn open_encoder(registry: &Registry) -> Option<Arc<SentenceEncoder>> {
    let folder = part::installed_part("REPERTOIRE_TEST_MODEL")?;
    let store = registry.local_store().unwrap().clone();
    Some(Arc::new(
        SentenceEncoder::open(Path::new(&folder), Some(store)).unwrap(),
    ))
}

fn embed_all(finder: &mut SkillIndex, registry: &Registry) -> usize {
    let mut read = 0;
    while let Some(lesson) = finder.next_batch(registry, &registry.snapshot(), 8) {
        read += finder.insert_embeddings(&lesson.compute_embeddings().unwrap());
    }
    read
}

#[test]
fn skills_are_found_by_embedding_similarity() {
    let (_folder, registry) = open_registry();
    let Some(embedder) = open_encoder(&registry) else {
        return;
    };
    put_skill(
        &registry,
        "Tide Tables",
        "Tells when the sea is high in a harbour.",
        &[],
    );
    put_skill(
        &registry,
        "Invoice Chaser",
        "Reminds customers of unpaid bills.",
        &[],
    );
    let with = |registry: &Registry| {
        SkillIndex::with_encoder(registry, &registry.snapshot(), Some(embedder.clone())).unwrap()
    };
    let mut finder = with(&registry);
    assert_eq!(
        (finder.pending_count(), embed_all(&mut finder, &registry)),
        (2, 2)
    );
    // The message and the description share no word.
    let message = "someone owes us money since March";
    assert!(finder.find_lexical(message, 5).unwrap().is_empty());
    let found = finder.find_skills(message, 5).unwrap();
    assert_eq!(
        (found[0].id.as_str(), &found[0].why, found[0].fits),
        ("invoice-chaser", &MatchReason::Meaning, true)
    );
    assert!(
        found[0].cosine.unwrap() >= COSINE_THRESHOLD && !found[1].fits,
        "{found:?}"
    );
    assert!(!finder.find_skills("a joke about penguins", 5).unwrap()[0].fits);
    let named = finder
        .find_skills("tide tables for unpaid bills and money", 5)
        .unwrap();
    assert_eq!(
        (named[0].id.as_str(), &named[0].why),
        ("tide-tables", &MatchReason::Named)
    );

    // Computed embeddings are stored and reused by the next index.
    let mut again = with(&registry);
    assert_eq!(again.pending_count(), 0);
    assert_eq!(again.find_skills(message, 5).unwrap(), found);
    // A changed skill is embedded again, and a removed one is not found.
    put_skill(&registry, "Tide Tables", "Paints fences.", &[]);
    again
        .update_skill(&registry, &registry.snapshot(), &skill_id("tide-tables"))
        .unwrap();
    assert_eq!(again.pending_skills(9), [skill_id("tide-tables")]);
    assert_eq!(embed_all(&mut again, &registry), 1);
    let paint = again
        .find_skills("which colour for the garden gate", 5)
        .unwrap();
    assert_eq!(paint[0].id, skill_id("tide-tables"));
    registry
        .remove_skill(
            StoreScope::Account,
            &skill_id("tide-tables"),
            HistoryPolicy::Keep,
        )
        .unwrap();
    again
        .update_skill(&registry, &registry.snapshot(), &skill_id("tide-tables"))
        .unwrap();
    let left = again
        .find_skills("which colour for the garden gate", 5)
        .unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn an_embedding_of_a_changed_skill_is_discarded() {
    let (_folder, registry) = open_registry();
    let Some(embedder) = open_encoder(&registry) else {
        return;
    };
    put_skill(&registry, "Tide Tables", "Tells when the sea is high.", &[]);
    let before = registry.snapshot();
    let mut finder = SkillIndex::with_encoder(&registry, &before, Some(embedder)).unwrap();
    let lesson = finder.next_batch(&registry, &before, 8).unwrap();
    put_skill(&registry, "Tide Tables", "Paints fences.", &[]);
    finder
        .update_skill(&registry, &registry.snapshot(), &skill_id("tide-tables"))
        .unwrap();
    finder.insert_embeddings(&lesson.compute_embeddings().unwrap());
    assert_eq!(finder.pending_count(), 1);
}

#[test]
fn t44_skills_that_are_not_wanted_take_no_place_from_others() {
    let (_folder, registry) = open_registry();
    for n in 0..150 {
        let about = "Invoices, invoices and invoices: writes an invoice for every invoice.";
        put_skill(&registry, &format!("Flood {n}"), about, &[]);
    }
    let about = "Keeps books of everything a small company does in a year, and an invoice.";
    put_skill(&registry, "Bookkeeping", about, &[]);
    let finder = SkillIndex::new(&registry, &registry.snapshot()).unwrap();
    let mine = |id: &SkillId| id.as_str() == "bookkeeping";
    let all = finder.find_skills("write an invoice", 5).unwrap();
    assert!(
        !all.iter().any(|one| mine(&one.id)),
        "the flood ranks first"
    );
    let found = finder
        .find_skills_among("write an invoice", 5, mine)
        .unwrap();
    assert_eq!(found.len(), 1);
    assert!(mine(&found[0].id));
}

#[test]
fn removed_skills_stay_removed_and_hide_no_other_skill() {
    let (_folder, registry) = open_registry();
    let about = |n: usize| format!("Writes invoices of sort {n} for invoices and invoices.");
    for n in 0..12 {
        put_skill(&registry, &format!("Invoice {n}"), &about(n), &[]);
    }
    let rest = "Keeps books of everything a small company does in a year, and an invoice.";
    put_skill(&registry, "Bookkeeping", rest, &[]);
    let mut finder = SkillIndex::new(&registry, &registry.snapshot()).unwrap();
    let update = |finder: &mut SkillIndex, name: &str| {
        finder
            .update_skill(&registry, &registry.snapshot(), &skill_id(name))
            .unwrap();
    };
    for n in 0..12 {
        let name = format!("invoice-{n}");
        registry
            .remove_skill(StoreScope::Account, &skill_id(&name), HistoryPolicy::Keep)
            .unwrap();
        update(&mut finder, &name);
    }
    let found = finder.find_skills("which invoice", 3).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].id, skill_id("bookkeeping"));
    // A skill that was added and removed is not restored by the next change.
    for (name, about) in [("Kite Making", "Builds kites."), ("Tea", "Brews tea.")] {
        put_skill(&registry, name, about, &[]);
        update(&mut finder, &name.to_lowercase().replace(' ', "-"));
        if name == "Kite Making" {
            registry
                .remove_skill(
                    StoreScope::Account,
                    &skill_id("kite-making"),
                    HistoryPolicy::Keep,
                )
                .unwrap();
            update(&mut finder, "kite-making");
        }
    }
    assert!(finder.find_skills("builds kites", 3).unwrap().is_empty());
    assert_eq!(
        finder.find_skills("brews tea", 3).unwrap()[0].id,
        skill_id("tea")
    );
}

#[test]
fn many_changes_score_the_same_as_a_rebuild() {
    let (_folder, registry) = open_registry();
    let mut finder = SkillIndex::new(&registry, &registry.snapshot()).unwrap();
    for n in 0..300 {
        let name = format!("Thing {n}");
        put_skill(
            &registry,
            &name,
            &format!("Speaks of topic{} and topic{}.", n % 7, n),
            &[],
        );
        let changed = skill_id(&format!("thing-{n}"));
        finder
            .update_skill(&registry, &registry.snapshot(), &changed)
            .unwrap();
        if n % 5 == 0 {
            registry
                .remove_skill(StoreScope::Account, &changed, HistoryPolicy::Keep)
                .unwrap();
            finder
                .update_skill(&registry, &registry.snapshot(), &changed)
                .unwrap();
        }
    }
    let anew = SkillIndex::new(&registry, &registry.snapshot()).unwrap();
    assert_eq!(finder.len(), anew.len());
    for n in [1, 44, 128, 254, 299] {
        let message = format!("topic{n}");
        let (got, want) = (
            finder.find_skills(&message, 1).unwrap(),
            anew.find_skills(&message, 1).unwrap(),
        );
        assert_eq!(got[0].id, want[0].id, "{message}");
    }
    assert!(
        finder.find_skills("topic250", 1).unwrap().is_empty(),
        "it was removed"
    );
}

#[test]
fn search_reads_no_artifact_content() {
    let (_folder, registry) = open_registry();
    let json = json!({
        "name": "Fish Keeper", "description": "Keeps fish.",
        "artifacts": [
            {"kind": "description", "name": "Overview", "content": "About aquariums.\n"},
            {"kind": "prompt_template", "name": "Ask", "ordinal": 1, "content": "Zebrafish?"},
            {"kind": "code_template", "name": "Code", "ordinal": 2, "content": "axolotl = 1"},
            {"kind": "approach", "name": "Manner", "ordinal": 3, "content": "Like a pelican."},
        ],
    });
    let package = Package::from_json(json.to_string().as_bytes()).unwrap();
    let new = NewSkill::from_package(&package).unwrap();
    registry.add_skills(StoreScope::Account, vec![new]).unwrap();
    let finder = SkillIndex::new(&registry, &registry.snapshot()).unwrap();
    assert_eq!(finder.find_skills("aquariums", 3).unwrap().len(), 1);
    for word in ["zebrafish", "axolotl", "pelican"] {
        assert_eq!(finder.find_skills(word, 3).unwrap(), [], "{word}");
    }
}
