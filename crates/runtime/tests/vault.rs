//! Tests of a folder of pages as a workspace.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

use std::{fs, path::Path, process::Command, sync::Arc};

use repertoire_runtime::{TemplateEngine, Vault, Workspace};

fn example_vault() -> Vault {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/vault");
    Vault::open(&folder).unwrap()
}

#[test]
fn pages_are_found_by_words_names_types_and_tags() {
    let vault = example_vault();
    let found = vault.search_pages("who keeps the lighthouse", 2).unwrap();
    let slugs: Vec<&str> = found.iter().map(|hit| hit.slug.as_str()).collect();
    assert_eq!(slugs, ["people/tomas", "places/lighthouse"]);
    assert!(
        found[0].excerpt.contains("keeps the lighthouse"),
        "{found:?}"
    );
    assert!(vault.search_pages("xylophone", 5).unwrap().is_empty());
    for name in [
        "people/mira",
        "mira",
        "Mira Oskarsdottir",
        "MIRA",
        "people/mira.md",
    ] {
        let page = vault.find_page(name).unwrap().unwrap();
        assert_eq!(page.info.slug, "people/mira", "{name}");
        assert!(page.text.starts_with("# Mira"));
    }
    assert_eq!(vault.find_page("unknown").unwrap(), None);
    let people = vault.pages_by_type("Person").unwrap();
    assert_eq!(people.len(), 2);
    let tags = vault.tags().unwrap();
    assert_eq!((tags[0].name.as_str(), tags[0].pages), ("harbour", 4));
    assert!(
        tags.iter().any(|tag| tag.name == "fog"),
        "a tag in the text"
    );
    let both = vault
        .pages(&["mira".into(), "unknown".into(), "tomas".into()])
        .unwrap();
    assert_eq!(both.len(), 2);
}

#[test]
fn a_query_filters_by_type_and_tags() {
    let vault = example_vault();
    let slugs = |query: &str| -> Vec<String> {
        let found = vault.search_pages(query, 20).unwrap();
        found.into_iter().map(|hit| hit.slug).collect()
    };
    let mut people = slugs("type:person");
    people.sort();
    assert_eq!(people, ["people/mira", "people/tomas"]);
    assert_eq!(slugs("type:Person lighthouse"), ["people/tomas"]);
    assert_eq!(slugs("#harbour").len(), 4);
    assert_eq!(slugs("tag:harbour").len(), 4);
    assert_eq!(slugs("tag:fog tag:harbour xylophone"), [""; 0]);
    // The name of a type finds its pages without a filter, too.
    let found = slugs("person");
    assert!(found.contains(&"people/mira".to_owned()), "{found:?}");
    assert_eq!(slugs("type:"), slugs("type"));
}

#[test]
fn links_of_both_forms_are_references() {
    let vault = example_vault();
    let found = vault.references("Grey Harbour").unwrap();
    assert_eq!(found.links, ["places/lighthouse"]);
    assert_eq!(found.backlinks, ["people/mira", "people/tomas"]);
    let folder = tempfile::tempdir().unwrap();
    let page =
        "[[B|the other]] [[Missing#part]] ![[b]] [x](https://a.b) `[[code]]` [y](sub/C.md)\n";
    fs::write(folder.path().join("a.md"), page).unwrap();
    fs::write(folder.path().join("b.md"), "# B\n").unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    fs::write(folder.path().join("sub/C.md"), "up to [a](../a.md)\n").unwrap();
    let vault = Vault::open(folder.path()).unwrap();
    let found = vault.references("a").unwrap();
    assert_eq!(found.links, ["b", "sub/C"]);
    assert_eq!(found.missing, ["Missing"]);
    assert_eq!(found.backlinks, ["sub/C"]);
}

#[test]
fn templates_can_query_the_vault() {
    let engine = TemplateEngine::with_workspace(Arc::new(example_vault()));
    let template = "{% for page in search(who, 1) %}{{ page.title }}: {{ page.tags | join('+') }}\
                    {% endfor %} {{ page('tomas').type }}";
    let context = [("who".to_owned(), "pilot mira".into())].into();
    let text = engine.render_str(template, &context).unwrap();
    assert_eq!(text, "Mira Oskarsdottir: harbour+pilots person");
    let error = TemplateEngine::new()
        .render_str(template, &context)
        .unwrap_err();
    assert!(
        error.to_string().contains(repertoire_runtime::NO_PAGES),
        "{error}"
    );
}

fn run_git(folder: &Path, args: &[&str]) -> String {
    let done = Command::new("git")
        .args(["-c", "user.name=Ada", "-c", "user.email=ada@example.com"])
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

#[cfg(unix)]
#[test]
fn an_untrusted_repository_cannot_make_git_run_a_program() {
    let folder = tempfile::tempdir().unwrap();
    let git = |args: &[&str]| run_git(folder.path(), args);
    git(&["init", "-q"]);
    for text in ["# A\n", "# A\n\nMore.\n"] {
        fs::write(folder.path().join("a.md"), text).unwrap();
        git(&["add", "a.md"]);
        git(&["commit", "-qm", "Write"]);
    }
    // Remove an object, so that git would fetch it with the configured command.
    let tree = git(&["rev-parse", "HEAD~1^{tree}"]);
    let object = format!(".git/objects/{}/{}", &tree[..2], &tree[2..]);
    fs::remove_file(folder.path().join(object)).unwrap();
    let ran = folder.path().join("ran");
    for (name, value) in [
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", "ssh://untrusted.invalid/x"),
        (
            "core.sshCommand",
            &format!("touch '{}'; false", ran.display()),
        ),
    ] {
        git(&["config", name, value]);
    }
    let log = ["--no-pager", "log", "--follow", "--", "a.md"];
    let plain = Command::new("git")
        .args(log)
        .current_dir(folder.path())
        .output();
    assert!(!plain.unwrap().status.success());
    assert!(ran.is_file(), "the setup does not trigger the command");
    fs::remove_file(&ran).unwrap();
    let vault = Vault::open(folder.path()).unwrap();
    assert_eq!(vault.history("a", 5).unwrap(), []);
    assert!(!ran.exists());
}

#[test]
fn history_comes_from_git_and_symlinks_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret.md"), "# Secret\n").unwrap();
    fs::write(folder.path().join("a.md"), "# A\n").unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        symlink(
            outside.path().join("secret.md"),
            folder.path().join("linked.md"),
        )
        .unwrap();
        symlink(outside.path(), folder.path().join("folder")).unwrap();
    }
    let git = |args: &[&str]| drop(run_git(folder.path(), args));
    let vault = Vault::open(folder.path()).unwrap();
    assert!(
        vault.history("a", 5).unwrap().is_empty(),
        "a folder without a repository has no history"
    );
    git(&["init", "-q"]);
    git(&["add", "a.md"]);
    git(&["commit", "-qm", "Begin"]);
    fs::write(folder.path().join("a.md"), "# A\n\nMore.\n").unwrap();
    git(&["commit", "-qam", "Say more"]);
    let history = vault.history("a", 5).unwrap();
    let said: Vec<&str> = history
        .iter()
        .map(|revision| revision.summary.as_str())
        .collect();
    assert_eq!(said, ["Say more", "Begin"]);
    assert_eq!(history[0].author, "Ada");
    assert!(vault.search_pages("secret", 5).unwrap().is_empty());
    assert_eq!(vault.find_page("linked").unwrap(), None);
    assert_eq!(
        Vault::open(&folder.path().join("nowhere"))
            .unwrap_err()
            .code(),
        "workspace_error"
    );
}
