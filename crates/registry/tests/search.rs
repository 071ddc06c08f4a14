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
    search::{
        MatchReason, ModelKind, Recommendation, SearchMethod, SearchRequest, SentenceEncoder,
        SkillIndex, SkillUse, USAGE_BOUND, text_digest,
    },
    store::{ExampleMessages, NewSkill},
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
        let mut messages = vec![
            format!("/{name} on the report about money and databases"),
            format!("please use `{name}` on it"),
        ];
        if name.contains('-') {
            messages.push(format!("Can you {} for me, today?", name.replace('-', " ")));
        }
        for message in messages {
            let found = finder.find_skills(&message, 3).skills;
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
        .skills;
    assert_eq!(found[0].id, skill_id("consistency-checker"));
    assert_eq!(
        found[0].why,
        MatchReason::Phrase("are there any contradictions".into())
    );
    let found = finder
        .find_skills("when is high tide in the harbour", 5)
        .skills;
    assert_eq!(
        (&found[0].id, &found[0].why),
        (&skill_id("tide-tables"), &MatchReason::Words)
    );
    assert!(
        !finder
            .find_skills("when is high tide in the harbour", 5)
            .fitting()
            .is_empty()
    );
    for message in [
        "tell me a joke about penguins",
        "",
        "???",
        "the and of",
        "é漢🦀",
    ] {
        let found = finder.find_skills(message, 5).skills;
        assert!(found.is_empty(), "{message}: {found:?}");
    }
    assert!(finder.find_skills("tide", 0).skills.is_empty());
    assert!(finder.find_skills(&"tide ".repeat(100_000), 5).skills[0].score <= 1.0);
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
        finder.find_skills(message, 3).skills.into_iter().next()
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
            finder.find_skills(message, 5).skills,
            anew.find_skills(message, 5).skills,
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
        SentenceEncoder::open(ModelKind::MiniLm, Path::new(&folder), Some(store)).unwrap(),
    ))
}

fn embed_all(finder: &mut SkillIndex, registry: &Registry) -> usize {
    let mut read = 0;
    while let Some(lesson) = finder.next_batch(registry, &registry.snapshot(), 8) {
        read += finder.insert_embeddings(lesson.compute_embeddings().unwrap());
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
    let by_words = SearchRequest::new(message, 5).by(SearchMethod::Words);
    assert!(finder.search(&by_words).skills.is_empty());
    let found = finder.find_skills(message, 5).skills;
    assert_eq!(
        (found[0].id.as_str(), &found[0].why),
        ("invoice-chaser", &MatchReason::Meaning)
    );
    assert!(!finder.find_skills(message, 5).fitting().is_empty());
    let joke = finder.find_skills("a joke about penguins", 5);
    assert!(joke.fitting().is_empty(), "{joke:?}");
    let named = finder
        .find_skills("tide tables for unpaid bills and money", 5)
        .skills;
    assert_eq!(
        (named[0].id.as_str(), &named[0].why),
        ("tide-tables", &MatchReason::Named)
    );

    // Computed embeddings are stored and reused by the next index.
    let mut again = with(&registry);
    assert_eq!(again.pending_count(), 0);
    assert_eq!(again.find_skills(message, 5).skills, found);
    // A changed skill is embedded again, and a removed one is not found.
    put_skill(&registry, "Tide Tables", "Paints fences.", &[]);
    again
        .update_skill(&registry, &registry.snapshot(), &skill_id("tide-tables"))
        .unwrap();
    assert_eq!(again.pending_skills(9), [skill_id("tide-tables")]);
    assert_eq!(embed_all(&mut again, &registry), 1);
    let paint = again
        .find_skills("which colour for the garden gate", 5)
        .skills;
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
        .skills;
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
    finder.insert_embeddings(lesson.compute_embeddings().unwrap());
    assert_eq!(finder.pending_count(), 1);
}

#[test]
fn t44_skills_that_are_not_wanted_take_no_place_from_others() {
    let (_folder, registry) = open_registry();
    for n in 0..150 {
        let about = format!(
            "Invoices, invoices: writes an invoice for alpha{n} beta{n} gamma{n} delta{n} epsilon{n}."
        );
        put_skill(&registry, &format!("Flood {n}"), &about, &[]);
    }
    let about = "Keeps books of everything a small company does in a year, and an invoice.";
    put_skill(&registry, "Bookkeeping", about, &[]);
    let finder = SkillIndex::new(&registry, &registry.snapshot()).unwrap();
    let mine = |id: &SkillId| id.as_str() == "bookkeeping";
    let all = finder.find_skills("write an invoice", 5).skills;
    assert!(
        !all.iter().any(|one| mine(&one.id)),
        "the flood ranks first"
    );
    let found = finder
        .search(&SearchRequest::new("write an invoice", 5).among(&mine))
        .skills;
    assert_eq!(found.len(), 1);
    assert!(mine(&found[0].id));
}

#[test]
fn near_duplicates_are_one_result_that_names_the_others() {
    let (_folder, registry) = open_registry();
    let about = "Writes an invoice for a customer with positions, taxes and the date of payment.";
    for n in 0..40 {
        put_skill(&registry, &format!("Invoice Copy {n}"), about, &[]);
    }
    put_skill(
        &registry,
        "Bookkeeping",
        "Keeps books of a company, and an invoice.",
        &[],
    );
    let finder = SkillIndex::new(&registry, &registry.snapshot()).unwrap();
    let found = finder.find_skills("write an invoice", 5).skills;
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(
        (found[0].also.len(), found[1].id.as_str()),
        (39, "bookkeeping")
    );
    // A copy that is named is an answer of its own.
    let named = finder.find_skills("use invoice-copy-7 for it", 5).skills;
    assert_eq!(
        (named[0].id.as_str(), &named[0].why),
        ("invoice-copy-7", &MatchReason::Named)
    );
}

#[test]
fn skills_that_say_nothing_and_untrusted_ones_lose() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, about: &str| {
        let place = folder.path().join(name);
        std::fs::create_dir(&place).unwrap();
        let text = format!("---\nname: {name}\ndescription: {about}\n---\n# {name}\n");
        std::fs::write(place.join("SKILL.md"), text).unwrap();
    };
    write("redis-commands", "Use when working with redis commands.");
    write(
        "cache-keys",
        "Chooses names, sizes and lifetimes of keys in redis and other stores.",
    );
    let registry = Registry::open(RegistrySettings::from_folders([folder.path().into()])).unwrap();
    let finder = SkillIndex::new(&registry, &registry.snapshot()).unwrap();
    let found = finder.find_skills("what helps with redis", 5).skills;
    let vague = found
        .iter()
        .find(|one| one.id == skill_id("redis-commands"));
    assert!(vague.unwrap().parts.loss < 0.0, "{found:?}");
    let other = found.iter().find(|one| one.id == skill_id("cache-keys"));
    assert!(other.unwrap().parts.loss.abs() < f64::EPSILON, "{found:?}");
}

fn parts_sum(one: &Recommendation) -> f64 {
    let parts = one.parts;
    parts.name + parts.phrase + parts.words + parts.meaning + parts.usage + parts.loss
}

#[test]
fn a_name_of_one_word_is_just_a_word_unless_it_is_marked() {
    let (_folder, registry) = open_registry();
    put_skill(
        &registry,
        "Keep",
        "Stores short notes on a server of a company.",
        &[],
    );
    put_skill(
        &registry,
        "Receipts",
        "Files receipts of a year for the tax office.",
        &[],
    );
    let finder = SkillIndex::new(&registry, &registry.snapshot()).unwrap();
    let found = finder
        .find_skills("where do I keep receipts for the tax office", 5)
        .skills;
    assert_eq!(found[0].id, skill_id("receipts"), "{found:?}");
    for message in [
        "/keep the receipts",
        "the keep skill, for receipts",
        "run `keep` on receipts",
    ] {
        let outcome = finder.find_skills(message, 5);
        let first = &outcome.skills[0];
        assert_eq!(
            (&first.id, &first.why),
            (&skill_id("keep"), &MatchReason::Named)
        );
        assert!(outcome.decision.is_open && (first.score - parts_sum(first)).abs() < 1e-9);
    }
}

/// With the rarity of words held fixed, other skills change no score.
#[test]
fn adding_skills_leaves_the_scores_of_others_identical() {
    let (_folder, registry) = open_registry();
    let encoder = open_encoder(&registry);
    let words = [
        "tide", "harbour", "invoice", "kite", "bamboo", "letter", "garden", "engine",
    ];
    let mut random = 7_usize;
    let mut next = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut about = |n: usize| {
        let some: Vec<&str> = (0..6).map(|_| words[next(words.len())]).collect();
        format!("Skill of sort {n}: {}.", some.join(" "))
    };
    for n in 0..20 {
        put_skill(
            &registry,
            &format!("First {n}"),
            &about(n),
            &["rig the kite"],
        );
    }
    let mut index =
        SkillIndex::with_encoder(&registry, &registry.snapshot(), encoder.clone()).unwrap();
    embed_all(&mut index, &registry);
    let messages = [
        "a kite of bamboo",
        "letter about an invoice",
        "first 3 in the garden",
        "rig the kite",
    ];
    let before: Vec<_> = messages
        .iter()
        .map(|message| {
            (
                index.statistics_for(message),
                index.find_skills(message, 100).skills,
            )
        })
        .collect();
    for n in 0..60 {
        put_skill(&registry, &format!("Later {n}"), &about(n), &[]);
        let id = skill_id(&format!("later-{n}"));
        index
            .update_skill(&registry, &registry.snapshot(), &id)
            .unwrap();
    }
    embed_all(&mut index, &registry);
    for (message, (statistics, before)) in messages.iter().zip(before) {
        let after = index.search(&SearchRequest {
            statistics: Some(&statistics),
            ..SearchRequest::new(message, 100)
        });
        let all: Vec<&Recommendation> = after.skills.iter().collect();
        for one in &before {
            // A skill may now be hidden behind one that says nearly the same.
            if let Some(same) = all.iter().find(|other| other.id == one.id) {
                assert_eq!(
                    (same.score, same.parts),
                    (one.score, one.parts),
                    "{message}"
                );
            }
        }
        assert!(
            all.iter().any(|one| one.id.as_str().starts_with("first")),
            "{message}"
        );
    }
}

/// For a caller who may see some skills, a search is what it would be without the others: in names,
/// rarity, decision and counts.
#[test]
fn t36_skills_that_a_caller_may_not_see_have_no_influence() {
    let (_mine_folder, mine) = open_registry();
    let (_all_folder, all) = open_registry();
    let own = [
        (
            "Roll Back",
            "Takes back a release that went wrong on the servers.",
        ),
        ("Tide Tables", "Tells when the sea is high in a harbour."),
        ("Kite Making", "Builds kites of paper and bamboo."),
    ];
    for (name, about) in own {
        put_skill(&mine, name, about, &[]);
        put_skill(&all, name, about, &[]);
    }
    let others = [
        (
            "Roll Back Payroll",
            "Takes back a payroll that went wrong in the harbour.",
        ),
        ("Use Roll Back", "Speaks of zanzibarium and of the sea."),
        ("Kite Making Two", "Builds kites of paper and bamboo."),
    ];
    for (name, about) in others {
        put_skill(&all, name, about, &["the sea is high"]);
    }
    let encoder = open_encoder(&mine);
    let index_of = |registry: &Registry| {
        let snapshot = registry.snapshot();
        let mut index = SkillIndex::with_encoder(registry, &snapshot, encoder.clone()).unwrap();
        embed_all(&mut index, registry);
        index
    };
    let (alone, together) = (index_of(&mine), index_of(&all));
    let names: Vec<SkillId> = own
        .iter()
        .map(|(name, _)| skill_id(&name.to_lowercase().replace(' ', "-")))
        .collect();
    let is_mine = |id: &SkillId| names.contains(id);
    for message in [
        "please roll back payroll today",
        "use roll back for it",
        "zanzibarium",
        "when the sea is high",
        "paper and bamboo",
    ] {
        let visible = together.search(&SearchRequest {
            is_visible: Some(&is_mine),
            ..SearchRequest::new(message, 5).among(&is_mine)
        });
        assert_eq!(visible, alone.find_skills(message, 5), "{message}");
    }
}

/// A hostile client repeats one choice; nothing moves by more than the bound.
#[test]
fn t36_use_moves_a_ranking_by_no_more_than_the_bound() {
    let (_folder, registry) = open_registry();
    let Some(encoder) = open_encoder(&registry) else {
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
    put_skill(
        &registry,
        "Kite Making",
        "Builds kites of paper and bamboo.",
        &[],
    );
    let snapshot = registry.snapshot();
    let mut index = SkillIndex::with_encoder(&registry, &snapshot, Some(encoder.clone())).unwrap();
    embed_all(&mut index, &registry);
    let messages = ["when is the sea high", "who has not paid", "wind and paper"];
    let hostile: Vec<SkillUse> = (0..2_000)
        .map(|n| SkillUse {
            skill: skill_id("kite-making"),
            message: encoder.encode_message(messages[n % messages.len()]),
        })
        .collect();
    for message in messages {
        let without = index.find_skills(message, 5);
        let with = index.search(&SearchRequest {
            uses: &hostile,
            ..SearchRequest::new(message, 5)
        });
        for one in &with.skills {
            let before = without
                .skills
                .iter()
                .find(|other| other.id == one.id)
                .unwrap();
            let moved = one.score - before.score;
            let most = if one.id == skill_id("kite-making") {
                USAGE_BOUND
            } else {
                0.0
            };
            assert!((-1e-9..=most + 1e-9).contains(&moved), "{message}: {moved}");
            assert!((one.score - parts_sum(one)).abs() < 1e-9);
        }
        assert_eq!(with.decision, without.decision, "use opens no gate");
        let kite = with
            .skills
            .iter()
            .find(|one| one.id == skill_id("kite-making"));
        assert!(kite.unwrap().parts.usage > 0.0, "{message}");
    }
}

#[test]
fn example_messages_find_a_skill_until_its_text_changes() {
    let (_folder, registry) = open_registry();
    put_skill(
        &registry,
        "Tide Tables",
        "Tells when the sea is high in a harbour.",
        &[],
    );
    put_skill(
        &registry,
        "Kite Making",
        "Builds kites of paper and bamboo.",
        &[],
    );
    let snapshot = registry.snapshot();
    let entry = snapshot.get(&skill_id("tide-tables")).unwrap();
    let digest = entry.metadata.total_size();
    let store = registry.local_store().unwrap();
    let examples = ExampleMessages {
        skill: "tide-tables".into(),
        model: "test".into(),
        messages: vec!["can my dinghy leave before lunch".into()],
        written_at: String::new(),
    };
    store
        .put_example_messages(vec![(text_digest(&registry, entry), examples)])
        .unwrap();
    let changes = store.example_message_changes().unwrap();
    let mut index = SkillIndex::new(&registry, &snapshot).unwrap();
    let found = index.find_skills("when may the dinghy leave", 5).skills;
    assert_eq!(found[0].id, skill_id("tide-tables"));
    assert_eq!(
        registry
            .snapshot()
            .get(&skill_id("tide-tables"))
            .unwrap()
            .metadata
            .total_size(),
        digest
    );
    // They belong to the text they were written from.
    put_skill(&registry, "Tide Tables", "Paints fences.", &[]);
    index
        .update_skill(&registry, &registry.snapshot(), &skill_id("tide-tables"))
        .unwrap();
    assert!(index.find_skills("dinghy", 5).skills.is_empty());
    assert_eq!(store.remove_example_messages(None).unwrap(), 1);
    assert!(store.example_message_changes().unwrap() > changes);
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
    let found = finder.find_skills("which invoice", 3).skills;
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
    assert!(finder.find_skills("builds kites", 3).skills.is_empty());
    assert_eq!(
        finder.find_skills("brews tea", 3).skills[0].id,
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
            finder.find_skills(&message, 1).skills,
            anew.find_skills(&message, 1).skills,
        );
        assert_eq!(got[0].id, want[0].id, "{message}");
    }
    assert!(
        finder.find_skills("topic250", 1).skills.is_empty(),
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
    assert_eq!(finder.find_skills("aquariums", 3).skills.len(), 1);
    for word in ["zebrafish", "axolotl", "pelican"] {
        assert_eq!(finder.find_skills(word, 3).skills, [], "{word}");
    }
}
