//! `diff` between revisions, origins, folders.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::TestWorkspace;

#[test]
fn revisions_folders_and_origins_are_compared() {
    let place = TestWorkspace::new();
    place.write_skill("src/one", "# First\n");
    place.run_ok(&["add", "src/one", "--scope", "account"]);
    let only = place.run(&["diff", "one"]);
    assert_eq!(only.exit_code(), 2, "{}", only.stderr());
    place.write_skill("src/one", "# Second\n");
    place.write_file("src/one/notes.md", "new\n");

    // A folder and the store.
    let shown = place.run_ok(&["diff", "./src/one"]);
    assert!(shown.contains("-# First\n+# Second\n"), "{shown}");
    assert!(shown.contains("+++ notes.md"), "{shown}");
    place.run_ok(&["add", "src/one", "--scope", "account"]);
    assert_eq!(place.run_ok(&["diff", "./src/one"]), "");

    // Two revisions.
    assert_eq!(place.run_ok(&["diff", "one"]), shown);
    assert_eq!(place.run_ok(&["diff", "one@1", "one@2"]), shown);
    let back = place.run_json(&["diff", "one@2", "one@1", "--json"]);
    assert_eq!(back["equal"], false);
    assert_eq!(back["files"][1]["change"], "removed", "{back}");
    assert_eq!(place.run(&["diff", "one@7"]).exit_code(), 3);

    // Two folders.
    place.write_skill("other/one", "# Third\n");
    let folders = place.run_ok(&["diff", "./src/one", "./other/one"]);
    assert!(folders.contains("-# Second\n+# Third\n"), "{folders}");

    // Two origins.
    place.run_ok(&["init", "--trust"]);
    place.run_ok(&["add", "other/one", "--scope", "workspace"]);
    let origins = place.run_ok(&["diff", "account:one", "workspace:one"]);
    assert!(origins.contains("-# Second\n+# Third\n"), "{origins}");
}

#[test]
fn adding_another_skill_of_the_same_id_says_so() {
    let place = TestWorkspace::new();
    place.write_skill("a/one", "# Ours\n");
    place.write_file(
        "b/one/SKILL.md",
        "---\nname: one\ndescription: Theirs.\nmetadata:\n  author: them\n---\n# Theirs\n",
    );
    place.run_ok(&["add", "a/one", "--scope", "account"]);
    let again = place.run(&["add", "b/one", "--scope", "account"]);
    assert_eq!(again.exit_code(), 0);
    assert!(again.stderr().contains("replaces"), "{}", again.stderr());
    assert!(
        again.stderr().contains("repertoire diff one"),
        "{}",
        again.stderr()
    );
}
