//! Finding skills for messages.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test"
)]

use std::{path::Path, sync::Arc};

use repertoire_core::{Package, SkillId};
use repertoire_registry::{
    History, Registry, Scope, Settings,
    search::{Embedder, Finder, MEANING_THRESHOLD, THRESHOLD, Why},
    store::NewSkill,
};
use serde_json::json;

fn id(text: &str) -> SkillId {
    text.parse().unwrap()
}

#[test]
fn a_message_that_names_a_skill_finds_it_first_always() {
    let skills = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus/activation/skills");
    let registry = Registry::open(Settings::of_folders([skills])).unwrap();
    let snapshot = registry.snapshot();
    let finder = Finder::new(&registry, &snapshot).unwrap();
    assert!(finder.len() >= 200, "{}", finder.len());
    for entry in snapshot.skills() {
        let name = entry.id.as_str();
        for message in [
            format!("please use {name} on the report about money and databases"),
            format!("/{name}"),
            format!("Can you {} for me, today?", name.replace('-', " ")),
        ] {
            let found = finder.find(&message, 3).unwrap();
            assert_eq!(
                (&found[0].id, &found[0].why),
                (&entry.id, &Why::Named),
                "{message}"
            );
        }
    }
}

fn store() -> (tempfile::TempDir, Arc<Registry>) {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        account: Some(folder.path().into()),
        ..Settings::default()
    };
    let registry = Registry::open(settings).unwrap();
    (folder, registry)
}

fn put(registry: &Registry, name: &str, about: &str, phrases: &[&str]) {
    let json = json!({
        "name": name, "description": about, "trigger_phrases": phrases,
        "artifacts": [{"kind": "description", "name": "Overview", "content": "Text.\n"}],
    });
    let package = Package::from_json(json.to_string().as_bytes()).unwrap();
    let new = NewSkill::from_package(&package).unwrap();
    registry.add(Scope::Account, vec![new]).unwrap();
}

#[test]
fn phrases_are_heard_and_nothing_is_an_answer() {
    let (_folder, registry) = store();
    put(
        &registry,
        "Consistency Checker",
        "Finds statements that contradict each other.",
        &["are there any contradictions", "check for inconsistencies"],
    );
    put(
        &registry,
        "Tide Tables",
        "Reads the tides of a harbour from a table.",
        &[],
    );
    let finder = Finder::new(&registry, &registry.snapshot()).unwrap();
    let found = finder.find("Hm, are there any contradictions?", 5).unwrap();
    assert_eq!(found[0].id, id("consistency-checker"));
    assert_eq!(
        found[0].why,
        Why::Phrase("are there any contradictions".into())
    );
    let found = finder.find("when is high tide in the harbour", 5).unwrap();
    assert_eq!(
        (&found[0].id, &found[0].why),
        (&id("tide-tables"), &Why::Words)
    );
    assert!(found[0].score >= THRESHOLD, "{found:?}");
    for message in [
        "tell me a joke about penguins",
        "",
        "???",
        "the and of",
        "é漢🦀",
    ] {
        let found = finder.find(message, 5).unwrap();
        let best = found.first().map_or(0.0, |one| one.score);
        assert!(best < THRESHOLD, "{message}: {found:?}");
    }
    assert!(finder.find("tide", 0).unwrap().is_empty());
    assert!(finder.find(&"tide ".repeat(100_000), 5).unwrap()[0].score <= 1.0);
}

#[test]
fn a_change_is_seen_by_the_next_query_and_found_as_if_it_had_always_been() {
    let (_folder, registry) = store();
    for n in 0..50 {
        put(
            &registry,
            &format!("Filler {n}"),
            &format!("Speaks of number {n} and nothing."),
            &[],
        );
    }
    let mut finder = Finder::new(&registry, &registry.snapshot()).unwrap();
    put(
        &registry,
        "Kite Making",
        "Builds kites of paper and bamboo.",
        &["fly a kite"],
    );
    finder
        .update(&registry, &registry.snapshot(), &id("kite-making"))
        .unwrap();
    let first =
        |finder: &Finder, message: &str| finder.find(message, 3).unwrap().into_iter().next();
    assert_eq!(
        first(&finder, "bamboo and paper").unwrap().id,
        id("kite-making")
    );
    let anew = Finder::new(&registry, &registry.snapshot()).unwrap();
    for message in [
        "bamboo and paper",
        "number 7",
        "kite making",
        "fly a kite now",
    ] {
        assert_eq!(
            finder.find(message, 5).unwrap(),
            anew.find(message, 5).unwrap(),
            "{message}"
        );
    }
    // Changed, it is no longer what it was; gone, it is nowhere.
    put(&registry, "Kite Making", "Sews sails.", &[]);
    finder
        .update(&registry, &registry.snapshot(), &id("kite-making"))
        .unwrap();
    assert_eq!(first(&finder, "bamboo and paper"), None);
    assert_eq!(first(&finder, "sails").unwrap().id, id("kite-making"));
    registry
        .remove(Scope::Account, &id("kite-making"), History::Keep)
        .unwrap();
    finder
        .update(&registry, &registry.snapshot(), &id("kite-making"))
        .unwrap();
    assert_eq!(first(&finder, "sails"), None);
    assert_eq!(first(&finder, "use kite-making"), None);
    assert_eq!(finder.len(), 50);
}

/// The model, where the test command has installed it.
fn embedder(registry: &Registry) -> Option<Arc<Embedder>> {
    let Some(folder) = std::env::var_os("REPERTOIRE_TEST_MODEL") else {
        eprintln!("REPERTOIRE_TEST_MODEL does not name a folder with a model: skipped");
        return None;
    };
    let store = registry.store(Scope::Account).unwrap().clone();
    Some(Arc::new(
        Embedder::open(Path::new(&folder), Some(store)).unwrap(),
    ))
}

fn read_all(finder: &mut Finder, registry: &Registry) -> usize {
    let mut read = 0;
    while let Some(lesson) = finder.lesson(registry, &registry.snapshot(), 8) {
        read += finder.learn(&lesson.read().unwrap());
    }
    read
}

#[test]
fn skills_are_found_by_what_a_message_means() {
    let (_folder, registry) = store();
    let Some(embedder) = embedder(&registry) else {
        return;
    };
    put(
        &registry,
        "Tide Tables",
        "Tells when the sea is high in a harbour.",
        &[],
    );
    put(
        &registry,
        "Invoice Chaser",
        "Reminds customers of unpaid bills.",
        &[],
    );
    let with = |registry: &Registry| {
        Finder::with(registry, &registry.snapshot(), Some(embedder.clone())).unwrap()
    };
    let mut finder = with(&registry);
    assert_eq!((finder.wanting(), read_all(&mut finder, &registry)), (2, 2));
    // Not one word in common.
    let message = "somebody owes us money since March";
    assert!(finder.find_by_words(message, 5).unwrap().is_empty());
    let found = finder.find(message, 5).unwrap();
    assert_eq!(
        (found[0].id.as_str(), &found[0].why, found[0].fits),
        ("invoice-chaser", &Why::Meaning, true)
    );
    assert!(
        found[0].cosine.unwrap() >= MEANING_THRESHOLD && !found[1].fits,
        "{found:?}"
    );
    assert!(!finder.find("a joke about penguins", 5).unwrap()[0].fits);
    let named = finder
        .find("tide tables for unpaid bills and money", 5)
        .unwrap();
    assert_eq!(
        (named[0].id.as_str(), &named[0].why),
        ("tide-tables", &Why::Named)
    );

    // What was read once is kept, for whoever comes next.
    let mut again = with(&registry);
    assert_eq!(again.wanting(), 0);
    assert_eq!(again.find(message, 5).unwrap(), found);
    // What changes is read anew, and what goes is gone.
    put(&registry, "Tide Tables", "Paints fences.", &[]);
    again
        .update(&registry, &registry.snapshot(), &id("tide-tables"))
        .unwrap();
    assert_eq!(again.missing(9), [id("tide-tables")]);
    assert_eq!(read_all(&mut again, &registry), 1);
    let paint = again.find("which colour for the garden gate", 5).unwrap();
    assert_eq!(paint[0].id, id("tide-tables"));
    registry
        .remove(Scope::Account, &id("tide-tables"), History::Keep)
        .unwrap();
    again
        .update(&registry, &registry.snapshot(), &id("tide-tables"))
        .unwrap();
    let left = again.find("which colour for the garden gate", 5).unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_lesson_about_what_has_changed_meanwhile_is_not_learned() {
    let (_folder, registry) = store();
    let Some(embedder) = embedder(&registry) else {
        return;
    };
    put(&registry, "Tide Tables", "Tells when the sea is high.", &[]);
    let before = registry.snapshot();
    let mut finder = Finder::with(&registry, &before, Some(embedder)).unwrap();
    let lesson = finder.lesson(&registry, &before, 8).unwrap();
    put(&registry, "Tide Tables", "Paints fences.", &[]);
    finder
        .update(&registry, &registry.snapshot(), &id("tide-tables"))
        .unwrap();
    finder.learn(&lesson.read().unwrap());
    assert_eq!(finder.wanting(), 1);
}

#[test]
fn what_was_removed_stays_removed_and_hides_nobody() {
    let (_folder, registry) = store();
    let about = |n: usize| format!("Writes invoices of sort {n} for invoices and invoices.");
    for n in 0..12 {
        put(&registry, &format!("Invoice {n}"), &about(n), &[]);
    }
    let rest = "Keeps books of everything a small company does in a year, and an invoice.";
    put(&registry, "Bookkeeping", rest, &[]);
    let mut finder = Finder::new(&registry, &registry.snapshot()).unwrap();
    let update = |finder: &mut Finder, name: &str| {
        finder
            .update(&registry, &registry.snapshot(), &id(name))
            .unwrap();
    };
    for n in 0..12 {
        let name = format!("invoice-{n}");
        registry
            .remove(Scope::Account, &id(&name), History::Keep)
            .unwrap();
        update(&mut finder, &name);
    }
    let found = finder.find("which invoice", 3).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].id, id("bookkeeping"));
    // One that came and went is not brought back by the next change.
    for (name, about) in [("Kite Making", "Builds kites."), ("Tea", "Brews tea.")] {
        put(&registry, name, about, &[]);
        update(&mut finder, &name.to_lowercase().replace(' ', "-"));
        if name == "Kite Making" {
            registry
                .remove(Scope::Account, &id("kite-making"), History::Keep)
                .unwrap();
            update(&mut finder, "kite-making");
        }
    }
    assert!(finder.find("builds kites", 3).unwrap().is_empty());
    assert_eq!(finder.find("brews tea", 3).unwrap()[0].id, id("tea"));
}

#[test]
fn many_changes_are_found_as_if_they_had_always_been() {
    let (_folder, registry) = store();
    let mut finder = Finder::new(&registry, &registry.snapshot()).unwrap();
    for n in 0..300 {
        let name = format!("Thing {n}");
        put(
            &registry,
            &name,
            &format!("Speaks of topic{} and topic{}.", n % 7, n),
            &[],
        );
        let changed = id(&format!("thing-{n}"));
        finder
            .update(&registry, &registry.snapshot(), &changed)
            .unwrap();
        if n % 5 == 0 {
            registry
                .remove(Scope::Account, &changed, History::Keep)
                .unwrap();
            finder
                .update(&registry, &registry.snapshot(), &changed)
                .unwrap();
        }
    }
    let anew = Finder::new(&registry, &registry.snapshot()).unwrap();
    assert_eq!(finder.len(), anew.len());
    for n in [1, 44, 128, 254, 299] {
        let message = format!("topic{n}");
        let (got, want) = (
            finder.find(&message, 1).unwrap(),
            anew.find(&message, 1).unwrap(),
        );
        assert_eq!(got[0].id, want[0].id, "{message}");
    }
    assert!(finder.find("topic250", 1).unwrap().is_empty(), "it is gone");
}

#[test]
fn nothing_of_an_artifact_is_read_to_find_a_skill() {
    let (_folder, registry) = store();
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
    registry.add(Scope::Account, vec![new]).unwrap();
    let finder = Finder::new(&registry, &registry.snapshot()).unwrap();
    assert_eq!(finder.find("aquariums", 3).unwrap().len(), 1);
    for word in ["zebrafish", "axolotl", "pelican"] {
        assert_eq!(finder.find(word, 3).unwrap(), [], "{word}");
    }
}
