use proptest::prelude::*;
use serde_json::json;

use super::*;

fn sample_package() -> serde_json::Value {
    json!({
        "id": "2f5a1c5e-6d0a-4c1e-9d0a-0f6a1b2c3d4e",
        "name": "Tone Check",
        "description": "Checks the tone of a page.",
        "version": "1.2.0",
        "tags": ["writing"],
        "source": "user",
        "intent_patterns": ["check tone"],
        "artifacts": [
            {"kind": "description", "name": "Overview", "content": "Looks at tone."},
            {"kind": "prompt_template", "name": "Ask", "ordinal": 1, "content": "Is {{ text }} kind?"},
            {"kind": "prompt_template", "name": "Ask", "ordinal": 1, "content": "Kind? {{ text }}",
             "model_variant": "anthropic"},
            {"kind": "code_template", "name": "Scan", "ordinal": 2, "content": "print(1)\n"},
            {"kind": "dspy_module", "name": "Judge", "ordinal": 3,
             "content": "{\"template_id\": \"predict\"}", "state_blob": "e30=",
             "metadata": {"fallback_artifact": "Ask"}}
        ]
    })
}

fn code(change: impl FnOnce(&mut serde_json::Value)) -> &'static str {
    let mut value = sample_package();
    change(&mut value);
    Package::from_json(value.to_string().as_bytes())
        .unwrap_err()
        .code()
}

#[test]
fn the_folder_form_is_an_ordinary_skill() {
    let package = Package::from_json(sample_package().to_string().as_bytes()).unwrap();
    let folder = package.to_folder().unwrap();
    let paths: Vec<_> = folder.keys().map(RelPath::as_str).collect();
    assert_eq!(
        paths,
        [
            "SKILL.md",
            "artifacts/01-ask-anthropic.j2",
            "artifacts/01-ask.j2",
            "artifacts/02-scan.py",
            "artifacts/03-judge.json",
            "skill.json",
        ]
    );
    let document = std::str::from_utf8(&folder[&RelPath::document()]).unwrap();
    assert_eq!(
        document,
        "---\nname: tone-check\ndescription: \"Checks the tone of a page.\"\n---\nLooks at tone."
    );
}

#[test]
fn t37_bad_packages_are_refused_whole() {
    assert_eq!(
        code(|v| v["artifacts"][1]["kind"] = json!("magic")),
        "unknown_kind"
    );
    assert_eq!(
        code(|v| v["artifacts"][4]["state_blob"] = json!("<not base64>")),
        "invalid_package"
    );
    assert_eq!(
        code(|v| v["artifacts"][0]["model_variant"] = json!("a/../b")),
        "invalid_package"
    );
    assert_eq!(code(|v| v["surprise"] = json!(1)), "invalid_package");
    assert_eq!(code(|v| v["name"] = json!(" ")), "invalid_package");
    assert_eq!(code(|v| v["description"] = json!("")), "invalid_package");
    assert_eq!(code(|v| v["source"] = json!("root")), "invalid_package");
    assert_eq!(code(|v| v["id"] = json!("7")), "invalid_package");
    assert_eq!(
        code(|v| v["artifacts"][2]["model_variant"] = json!(null)),
        "duplicate_artifact"
    );
    assert_eq!(
        code(|v| {
            let id = json!("2f5a1c5e-6d0a-4c1e-9d0a-0f6a1b2c3d4e");
            v["artifacts"][0]["id"] = id.clone();
            v["artifacts"][1]["id"] = id;
        }),
        "invalid_package"
    );
    assert_eq!(
        code(|v| v["artifacts"][4]["metadata"] = json!({"fallback_artifact": "Missing"})),
        "invalid_package"
    );
    assert_eq!(
        code(|v| v["files"] = json!([{"path": "../x", "content": ""}])),
        "invalid_package"
    );
    assert_eq!(
        code(|v| v["files"] = json!([{"path": "Skill.md", "content": ""}])),
        "colliding_paths"
    );
    assert_eq!(
        code(|v| v["artifacts"] = json!(vec![json!({"kind": "example", "name": "x"}); 300])),
        "invalid_package"
    );
    assert_eq!(
        Package::from_json(b"[").unwrap_err().code(),
        "invalid_package"
    );
    assert_eq!(
        Package::from_json(&vec![b' '; MAX_JSON + 1])
            .unwrap_err()
            .code(),
        "too_large"
    );
}

#[test]
fn package_names_become_skill_ids() {
    let id = |name: &str| {
        let mut value = sample_package();
        value["name"] = json!(name);
        let package: Package = serde_json::from_value(value).unwrap();
        package.skill_id().unwrap().to_string()
    };
    assert_eq!(id("Consistency Checker"), "consistency-checker");
    assert_eq!(id("acme/billing/refunds"), "acme/billing/refunds");
    assert_eq!(id("my_skill"), "my-skill");
    assert!(id("一致性").starts_with("skill-"));
    assert_ne!(id("一致性"), id("校验"));
}

#[test]
fn an_authored_folder_round_trips_byte_for_byte() {
    let manifest = Package {
        artifacts: vec![Artifact {
            file: Some("prompts/ask.txt".parse().unwrap()),
            content: String::new(),
            ..Package::from_json(sample_package().to_string().as_bytes())
                .unwrap()
                .artifacts[1]
                .clone()
        }],
        ..Package::from_json(sample_package().to_string().as_bytes()).unwrap()
    };
    let document = "---\nname: tone-check\ndescription: Mine.\nlicense: MIT\n---\n\n# Mine\n";
    let folder: std::collections::BTreeMap<RelPath, Bytes> = [
        ("SKILL.md", Bytes::from(document)),
        ("skill.json", manifest.to_json().into()),
        ("prompts/ask.txt", Bytes::from("Is it kind?")),
        ("assets/logo.png", Bytes::from_static(&[0x89, 0, 255])),
    ]
    .into_iter()
    .map(|(path, bytes)| (path.parse().unwrap(), bytes))
    .collect();
    let package = Package::from_folder(folder.clone()).unwrap();
    assert_eq!(package.document.as_deref(), Some(document));
    let again = Package::from_json(&package.to_json()).unwrap();
    assert_eq!(again.to_folder().unwrap(), folder);
}

#[test]
fn an_ordinary_skill_round_trips_unchanged() {
    let folder: std::collections::BTreeMap<RelPath, Bytes> = [
        (
            "SKILL.md",
            "---\nname: pdf\ndescription: Fills forms.\n---\n# PDF\n",
        ),
        ("references/a.md", "a"),
        ("skill.json", "{\"of\": \"another tool\"}"),
    ]
    .into_iter()
    .map(|(path, text)| (path.parse().unwrap(), Bytes::from(text)))
    .collect();
    let package = Package::from_folder(folder.clone()).unwrap();
    assert!(package.is_plain());
    let again = Package::from_json(&package.to_json()).unwrap();
    assert_eq!(again.to_folder().unwrap(), folder);
}

/// A name that differs from the one in the frontmatter needs the package file.
#[test]
fn names_outside_the_frontmatter_are_kept_in_the_package_file() {
    let document = "---\nname: pdf-forms\ndescription: Fills forms.\n---\n# PDF\n";
    for name in ["pdf-forms", "PDF Forms", " pdf-forms", "acme/pdf-forms"] {
        let json = json!({"name": name, "description": "Fills forms.", "document": document});
        let package = Package::from_json(json.to_string().as_bytes()).unwrap();
        assert_eq!(package.is_plain(), name == "pdf-forms", "{name:?}");
        let back = Package::from_folder(package.to_folder().unwrap()).unwrap();
        assert_eq!(back, package);
    }
}

#[test]
fn a_supporting_file_that_imitates_the_package_file_is_refused() {
    let json = json!({
        "name": "pdf", "description": "d", "document": "---\nname: pdf\ndescription: d\n---\n",
        "files": [{"path": "skill.json", "content": "{\"artifacts\": []}"}],
    });
    let refused = Package::from_json(json.to_string().as_bytes()).unwrap_err();
    assert_eq!(refused.code(), "duplicate_path");
}

/// Numbers survive reading and writing unchanged.
#[test]
fn long_numbers_round_trip_exactly() {
    let long = format!("4{}19", "2".repeat(97));
    let mut value = sample_package();
    value["artifacts"][1]["metadata"] = json!({"min": "LONG"});
    let text = value.to_string().replace("\"LONG\"", &long);
    let package = Package::from_json(text.as_bytes()).unwrap();
    let back = Package::from_folder(package.to_folder().unwrap()).unwrap();
    assert_eq!(back.to_json(), package.to_json());
    let number = &back.artifacts[1].metadata.as_ref().unwrap()["min"];
    assert_eq!(number.as_f64(), long.parse().ok());
}

#[test]
fn files_are_sorted_by_path() {
    let mut value = sample_package();
    value["files"] = json!([{"path": "b.md", "content": "b"}, {"path": "a.md", "content": "a"}]);
    let package = Package::from_json(value.to_string().as_bytes()).unwrap();
    let back = Package::from_folder(package.to_folder().unwrap()).unwrap();
    assert_eq!(back.to_json(), package.to_json());
}

prop_compose! {
    fn artifact(index: usize)(
        kind in 0..6usize,
        name in "[A-Za-z é/._-]{1,12}",
        ordinal in -3i64..12,
        content in "[^\u{0}]{0,80}",
        variant in prop::option::of("[a-z.]{1,6}"),
        file in prop::option::of("[a-z]{1,4}\\.(txt|md)"),
        state in prop::option::of(prop::collection::vec(any::<u8>(), 0..9)),
        metadata in prop::option::of(Just(json!({"a": [1, 2.5, null, "x"]}))),
    ) -> Artifact {
        let kind = ArtifactKind::ALL[kind];
        Artifact {
            id: None,
            kind,
            name: format!("{name}{index}"),
            ordinal,
            content,
            file: file.map(|f| format!("own/{index}{f}").parse().unwrap()),
            model_variant: variant,
            metadata: metadata.and_then(|m| m.as_object().cloned()),
            state_blob: state.filter(|_| kind == ArtifactKind::DspyModule),
            created_at: None,
            updated_at: None,
        }
    }
}

prop_compose! {
    fn package()(
        name in "[A-Za-z 一é-]{1,20}",
        description in "[^\u{0}]{1,60}",
        written in any::<bool>(),
        tags in prop::collection::vec("[a-z]{1,5}", 0..3),
        artifacts in (0usize..5).prop_flat_map(|n| (0..n).map(artifact).collect::<Vec<_>>()),
        files in prop::collection::btree_map("f[a-z]{0,5}\\.bin", prop::collection::vec(any::<u8>(), 0..20), 0..3),
    ) -> Package {
        Package {
            tags,
            artifacts,
            files: files.into_iter()
                .map(|(p, b)| PackageFile { path: p.parse().unwrap(), bytes: b.into() })
                .collect(),
            ..with_custom_document(Package::new(name, description, None), written)
        }
    }
}

/// Adds a custom document: the generated one with a longer body.
fn with_custom_document(package: Package, written: bool) -> Package {
    let document = package.skill_document().ok().filter(|_| written);
    Package {
        document: document.map(|text| text + "More.\n"),
        ..package
    }
}

proptest! {
    #[test]
    fn json_to_folder_to_json_is_lossless(package in package()) {
        prop_assume!(package.check_package().is_ok());
        let json = package.to_json();
        let parsed = Package::from_json(&json).unwrap();
        prop_assert_eq!(&parsed, &package);
        let folder = parsed.to_folder().unwrap();
        let back = Package::from_folder(folder.clone()).unwrap();
        prop_assert_eq!(String::from_utf8(back.to_json()).unwrap(), String::from_utf8(json).unwrap());
        prop_assert_eq!(back.to_folder().unwrap(), folder);
    }

    #[test]
    fn parsing_any_bytes_never_panics(text in any::<Vec<u8>>()) {
        let _ = Package::from_json(&text);
    }
}
