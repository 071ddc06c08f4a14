//! Links at the top of a skills folder, as `npx skills` makes them.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::{fs, os::unix::fs::symlink};

use common::TestWorkspace;

/// The ids and the codes of what was skipped.
fn listing(place: &TestWorkspace, args: &[&str]) -> (Vec<String>, Vec<String>) {
    let answer = place.run_json(&[&["list", "--all", "--json"], args].concat());
    let texts = |list: &str, key: &str| {
        let rows = answer[list].as_array().unwrap().iter();
        rows.map(|row| row[key].as_str().unwrap().to_owned())
            .collect()
    };
    (texts("skills", "id"), texts("skipped", "code"))
}

#[test]
fn a_link_to_the_agents_folder_beside_it_is_followed() {
    let place = TestWorkspace::new();
    place.write_skill(".agents/skills/pdf", "# Pdf\n");
    fs::create_dir_all(place.work_dir().join(".claude/skills")).unwrap();
    symlink(
        "../../.agents/skills/pdf",
        place.work_dir().join(".claude/skills/pdf"),
    )
    .unwrap();
    let (ids, skipped) = listing(&place, &[".claude/skills"]);
    assert_eq!((ids, skipped), (vec!["pdf".to_owned()], vec![]));
    let shown = place.run_ok(&["--from", ".claude/skills", "show", "pdf"]);
    assert!(shown.contains(".agents/skills/pdf"), "{shown}");
    let text = place.run_ok(&["--from", ".claude/skills", "cat", "skill://pdf/SKILL.md"]);
    assert!(text.contains("# Pdf"), "{text}");

    // Changes of the target and of the link are seen.
    fs::remove_file(place.work_dir().join(".claude/skills/pdf")).unwrap();
    place.write_skill(".agents/skills/docx", "# Docx\n");
    symlink(
        "../../.agents/skills/docx",
        place.work_dir().join(".claude/skills/word"),
    )
    .unwrap();
    let (ids, _) = listing(&place, &[".claude/skills"]);
    assert_eq!(ids, ["docx"]);
}

#[test]
fn t2_a_link_out_of_the_project_needs_a_confirmation() {
    let place = TestWorkspace::new();
    let outside = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        let folder = outside.path().join(name);
        fs::create_dir(&folder).unwrap();
        let text = format!("---\nname: {name}\ndescription: Is private.\n---\n# {name}\n");
        fs::write(folder.join("SKILL.md"), text).unwrap();
    }
    // Nothing in a skill leads out, confirmed or not.
    fs::write(outside.path().join("secret"), "secret").unwrap();
    fs::create_dir_all(place.work_dir().join("skills")).unwrap();
    let link = place.work_dir().join("skills/link");
    symlink(outside.path().join("one"), &link).unwrap();
    let (ids, skipped) = listing(&place, &["skills"]);
    assert_eq!((ids, skipped), (vec![], vec!["link_outside".to_owned()]));

    place.run_ok(&["trust", "--link", "skills/link"]);
    // Named folders are used without the account, which has the confirmations.
    place.run_ok(&["init"]);
    fs::write(
        place.work_dir().join(".repertoire/config.toml"),
        "folders = [\"skills\"]\n",
    )
    .unwrap();
    let (ids, skipped) = listing(&place, &[]);
    assert_eq!((ids, skipped), (vec!["one".to_owned()], vec![]));

    // The confirmation is for that target.
    fs::remove_file(&link).unwrap();
    symlink(outside.path().join("two"), &link).unwrap();
    let (ids, skipped) = listing(&place, &[]);
    assert_eq!((ids, skipped), (vec![], vec!["link_outside".to_owned()]));

    place.run_ok(&["trust", "--link", "skills/link"]);
    symlink("../secret", outside.path().join("two/file.md")).unwrap();
    let (ids, skipped) = listing(&place, &[]);
    assert_eq!((ids, skipped), (vec![], vec!["escapes_root".to_owned()]));
    fs::remove_file(outside.path().join("two/file.md")).unwrap();

    place.run_ok(&["trust", "--link", "skills/link", "--revoke"]);
    let (ids, _) = listing(&place, &[]);
    assert_eq!(ids, [""; 0]);
}

#[test]
fn t2_an_untrusted_workspace_has_no_links() {
    let place = TestWorkspace::new();
    place.write_skill(".agents/skills/pdf", "# Pdf\n");
    place.write_file(
        ".repertoire/config.toml",
        "folders = [\".claude/skills\"]\n",
    );
    fs::create_dir_all(place.work_dir().join(".claude/skills")).unwrap();
    symlink(
        "../../.agents/skills/pdf",
        place.work_dir().join(".claude/skills/pdf"),
    )
    .unwrap();
    let (ids, skipped) = listing(&place, &[]);
    assert_eq!(ids, [""; 0]);
    assert_eq!(skipped, ["link_untrusted"]);
    place.run_ok(&["trust"]);
    let (ids, skipped) = listing(&place, &[]);
    assert_eq!((ids, skipped), (vec!["pdf".to_owned()], vec![]));
}

#[test]
fn a_link_below_the_top_says_where_links_are_followed() {
    let place = TestWorkspace::new();
    place.write_skill("all/agents/skills/pdf", "# Pdf\n");
    fs::create_dir_all(place.work_dir().join("all/host/skills")).unwrap();
    let link = place.work_dir().join("all/host/skills/pdf");
    symlink("../../agents/skills/pdf", link).unwrap();
    let listed = place.run_json(&["list", "all", "--all", "--json"]);
    let message = listed["skipped"][0]["message"].as_str().unwrap();
    assert!(message.contains("only at the top of a folder"), "{message}");
}

#[test]
fn t16_a_link_never_takes_the_id_of_a_skill_beside_it() {
    let place = TestWorkspace::new();
    fs::create_dir(place.work_dir().join(".git")).unwrap();
    place.write_skill("sk/alpha", "# Ours\n");
    place.write_file(
        "target/x/SKILL.md",
        "---\nname: alpha\ndescription: Another.\n---\n# Theirs\n",
    );
    symlink("../target/x", place.work_dir().join("sk/aaa")).unwrap();
    let (ids, _) = listing(&place, &["sk"]);
    assert_eq!(ids, ["aaa", "alpha"]);
    let text = place.run_ok(&["--from", "sk", "cat", "skill://alpha/SKILL.md"]);
    assert!(text.contains("# Ours"), "{text}");
    // What is beneath the target of a link is below the name of the link.
    place.write_skill("target/x/alpha", "# Nested\n");
    let (ids, _) = listing(&place, &["sk"]);
    assert_eq!(ids, ["aaa", "aaa/alpha", "alpha"]);
    // Of two links with one name the first has it.
    place.write_skill("target/y/tool", "# Y\n");
    place.write_skill("target/z/tool", "# Z\n");
    symlink("../target/y/tool", place.work_dir().join("sk/l1")).unwrap();
    symlink("../target/z/tool", place.work_dir().join("sk/l2")).unwrap();
    let (ids, skipped) = listing(&place, &["sk"]);
    assert_eq!(ids, ["aaa", "aaa/alpha", "alpha", "tool"]);
    assert_eq!(skipped, ["duplicate"]);
}

#[test]
fn t2_a_home_folder_under_version_control_is_no_project() {
    let place = TestWorkspace::new();
    let home = place.work_dir().join("user");
    fs::create_dir_all(home.join(".git")).unwrap();
    place.write_skill("user/notes", "# Private\n");
    fs::create_dir_all(home.join("zip/skills")).unwrap();
    symlink("../../notes", home.join("zip/skills/n")).unwrap();
    let mut command = place.command(&["list", "--all", "--json", "user/zip/skills"]);
    let output = command.env("HOME", &home).output().unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["skills"].as_array().unwrap().len(), 0, "{answer}");
}

#[test]
fn t2_a_folder_of_a_trusted_workspace_that_leads_elsewhere_needs_a_confirmation() {
    let place = TestWorkspace::new();
    let outside = tempfile::tempdir().unwrap();
    let private = outside.path().join("skills/secret");
    fs::create_dir_all(&private).unwrap();
    let text = "---\nname: secret\ndescription: Is private.\n---\n# Secret\n";
    fs::write(private.join("SKILL.md"), text).unwrap();
    place.run_ok(&["init"]);
    place.write_skill(".agents/skills/ok", "# Ok\n");
    place.write_file(
        ".repertoire/config.toml",
        "folders = [\".agents/skills\"]\n",
    );
    assert_eq!(listing(&place, &[]).0, ["ok"]);
    // A pull makes a link of the folder above.
    fs::remove_dir_all(place.work_dir().join(".agents")).unwrap();
    symlink(outside.path(), place.work_dir().join(".agents")).unwrap();
    let (ids, skipped) = listing(&place, &[]);
    assert_eq!((ids, skipped), (vec![], vec!["link_outside".to_owned()]));
    place.run_ok(&["trust", "--link", ".agents/skills"]);
    assert_eq!(listing(&place, &[]).0, ["secret"]);
}

#[test]
fn t7_a_folder_has_a_bound_for_links_and_none_around_itself() {
    let place = TestWorkspace::new();
    fs::create_dir(place.work_dir().join(".git")).unwrap();
    fs::create_dir(place.work_dir().join("sk")).unwrap();
    for n in 0..260 {
        place.write_skill(&format!("target/s{n:03}"), "# S\n");
        let link = place.work_dir().join(format!("sk/s{n:03}"));
        symlink(format!("../target/s{n:03}"), link).unwrap();
    }
    let (ids, skipped) = listing(&place, &["sk"]);
    assert_eq!((ids.len(), skipped.len()), (256, 4));
    assert_eq!(skipped[0], "too_many_links");
    // The folder around this one is a skill, too.
    place.write_skill("around", "# A\n");
    place.write_skill("around/sk/one", "# One\n");
    symlink("..", place.work_dir().join("around/sk/up")).unwrap();
    assert_eq!(listing(&place, &["around/sk"]).0, ["one"]);
}
