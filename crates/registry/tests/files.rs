//! Skills and prompts in files: what is found, what is refused, and that no file is ever reached
//! outside of its root.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use common::{document, file, skill};
use repertoire_core::Uri;
use repertoire_registry::{AskedBy, Notice, Place, Registry, Settings};

fn open(root: &Path) -> Arc<Registry> {
    Registry::open(Settings::of_folders([root.to_owned()])).unwrap()
}

fn ids(registry: &Registry) -> Vec<String> {
    registry
        .snapshot()
        .skills()
        .map(|e| e.id.to_string())
        .collect()
}

fn read(registry: &Registry, uri: &str) -> String {
    let content = registry.read(&uri.parse::<Uri>().unwrap()).unwrap();
    String::from_utf8(content.bytes.to_vec()).unwrap()
}

fn codes(registry: &Registry) -> Vec<&'static str> {
    let notices: Vec<Notice> = registry.notices();
    notices.iter().map(|n| n.code).collect()
}

fn patterns(base: &Path, skills: &[&str], prompts: &[&str]) -> Settings {
    let place = |pattern: &&str| Place {
        path: base.to_owned(),
        pattern: Some((*pattern).to_owned()),
        asked_by: AskedBy::User,
    };
    Settings {
        skills: skills.iter().map(place).collect(),
        prompts: prompts.iter().map(place).collect(),
        ..Settings::default()
    }
}

#[test]
fn folders_at_any_depth_are_skills_and_nested_ones_are_both() {
    let root = tempfile::tempdir().unwrap();
    skill(root.path(), "plain", "# Plain\n");
    skill(root.path(), "acme/billing/refunds", "# Refunds\n");
    skill(root.path(), "outer", "# Outer\n");
    skill(root.path(), "outer/parts/inner", "# Inner\n");
    file(root.path(), "outer/data.bin", [0u8, 159, 146, 150]);
    file(root.path(), "README.md", "not a skill");
    file(root.path(), "outer/.git/config", "not a file of it");

    let registry = open(root.path());
    assert_eq!(
        ids(&registry),
        [
            "acme/billing/refunds",
            "outer",
            "outer/parts/inner",
            "plain"
        ]
    );
    let snapshot = registry.snapshot();
    let outer = snapshot.get(&"outer".parse().unwrap()).unwrap();
    let paths: Vec<_> = outer.head.files.iter().map(|f| f.path.as_str()).collect();
    assert_eq!(paths, ["SKILL.md", "data.bin", "parts/inner/SKILL.md"]);
    let inner = "skill://outer/parts/inner/SKILL.md";
    assert_eq!(read(&registry, inner), document("inner", "# Inner\n"));
    let binary = registry
        .read(&"skill://outer/data.bin".parse().unwrap())
        .unwrap();
    assert_eq!(&binary.bytes[..], [0u8, 159, 146, 150]);
    assert_eq!(codes(&registry), [""; 0]);
}

#[test]
fn a_single_skill_folder_is_its_own_root() {
    let root = tempfile::tempdir().unwrap();
    skill(root.path(), "alone", "# Alone\n");
    assert_eq!(ids(&open(&root.path().join("alone"))), ["alone"]);
    // A folder of the same name within it would have the same id, and is not taken silently.
    skill(root.path(), "alone/alone", "# Inner\n");
    let registry = open(&root.path().join("alone"));
    assert_eq!(ids(&registry), ["alone"]);
    assert_eq!(codes(&registry), ["duplicate"]);
}

#[test]
fn what_cannot_be_served_is_skipped_with_a_reason() {
    let root = tempfile::tempdir().unwrap();
    skill(root.path(), "good", "# Good\n");
    file(root.path(), "Upper/SKILL.md", document("Upper", ""));
    file(root.path(), "mismatch/SKILL.md", document("other", ""));
    file(root.path(), "bare/SKILL.md", "# No frontmatter\n");
    file(
        root.path(),
        "latin/SKILL.md",
        b"---\nname: latin\ndescription: \xe9\n---\n",
    );
    file(
        root.path(),
        "bom/SKILL.md",
        format!("\u{feff}{}", document("bom", "")),
    );
    file(root.path(), "huge/SKILL.md", document("huge", ""));
    file(root.path(), "huge/big.bin", vec![0u8; 16 * 1024 * 1024]);
    skill(root.path(), "many", "");
    for n in 0..512 {
        file(root.path(), &format!("many/f{n}"), "x");
    }
    let registry = open(root.path());
    assert_eq!(ids(&registry), ["good"]);
    let mut found = codes(&registry);
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "invalid_id",
            "missing_frontmatter",
            "missing_frontmatter",
            "name_mismatch",
            "not_utf8",
            "too_large",
            "too_many_files"
        ]
    );
}

#[test]
fn t2_links_stay_beneath_the_root() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    let root = tempfile::tempdir().unwrap();
    skill(root.path(), "inside", "# Inside\n");
    file(root.path(), "shared/notes.md", "shared");
    symlink("../shared/notes.md", root.path().join("inside/notes.md")).unwrap();
    skill(root.path(), "absolute", "");
    symlink(
        outside.path().join("secret"),
        root.path().join("absolute/x"),
    )
    .unwrap();
    skill(root.path(), "relative", "");
    symlink(
        "../../../../../../../../etc/hostname",
        root.path().join("relative/x"),
    )
    .unwrap();
    skill(root.path(), "folder", "");
    symlink(outside.path(), root.path().join("folder/x")).unwrap();
    symlink(outside.path(), root.path().join("linked-folder")).unwrap();
    fs::create_dir(root.path().join("document")).unwrap();
    symlink(
        outside.path().join("secret"),
        root.path().join("document/SKILL.md"),
    )
    .unwrap();
    skill(root.path(), "dangling", "");
    symlink("nowhere", root.path().join("dangling/x")).unwrap();

    let registry = open(root.path());
    assert_eq!(ids(&registry), ["inside"]);
    assert_eq!(read(&registry, "skill://inside/notes.md"), "shared");
    let found = codes(&registry);
    assert_eq!(
        found.iter().filter(|c| **c == "escapes_root").count(),
        5,
        "{found:?}"
    );
    for id in ["absolute", "relative", "folder", "document"] {
        let uri: Uri = format!("skill://{id}/x").parse().unwrap();
        assert_eq!(registry.read(&uri).unwrap_err().code(), "not_found");
    }
}

#[test]
fn t2_a_link_swapped_in_while_reading_never_leads_out() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("x.md"), "SECRET").unwrap();
    let root = tempfile::tempdir().unwrap();
    skill(root.path(), "a", "# A\n");
    file(root.path(), "a/refs/x.md", "public");
    let registry = open(root.path());
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = {
        let (refs, aside, stop) = (
            root.path().join("a/refs"),
            root.path().join("aside"),
            stop.clone(),
        );
        let outside = outside.path().to_owned();
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                fs::rename(&refs, &aside).unwrap();
                symlink(&outside, &refs).unwrap();
                fs::remove_file(&refs).unwrap();
                fs::rename(&aside, &refs).unwrap();
            }
        })
    };
    let uri: Uri = "skill://a/refs/x.md".parse().unwrap();
    let mut served = 0;
    for _ in 0..3000 {
        if let Ok(content) = registry.read(&uri) {
            assert_eq!(content.bytes, "public");
            served += 1;
        }
        let scanned = repertoire_registry::folder::read(&root.path().join("a"));
        if let Ok(files) = scanned {
            assert!(files.values().all(|bytes| bytes != "SECRET"));
        }
    }
    stop.store(true, Ordering::Relaxed);
    swapper.join().unwrap();
    registry.rescan();
    assert_eq!(read(&registry, "skill://a/refs/x.md"), "public");
    assert!(served > 0, "the race was never won by the reader");
}

#[test]
fn t4_pipes_sockets_and_sparse_files_never_block() {
    let root = tempfile::tempdir().unwrap();
    let fifo = |path: &str| {
        let status = std::process::Command::new("mkfifo")
            .arg(root.path().join(path))
            .status();
        assert!(status.unwrap().success());
    };
    skill(root.path(), "pipe", "");
    fifo("pipe/x");
    fs::create_dir(root.path().join("pipedoc")).unwrap();
    fifo("pipedoc/SKILL.md");
    skill(root.path(), "socket", "");
    let _listener = std::os::unix::net::UnixListener::bind(root.path().join("socket/x")).unwrap();
    skill(root.path(), "sparse", "");
    fs::File::create(root.path().join("sparse/x"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let registry = open(root.path());
    assert!(registry.snapshot().is_empty());
    let mut found = codes(&registry);
    found.sort_unstable();
    assert_eq!(
        found,
        ["not_regular", "not_regular", "not_regular", "too_large"]
    );
    let error = repertoire_registry::folder::read(&root.path().join("pipe")).unwrap_err();
    assert_eq!(error.code(), "not_regular");
}

#[test]
fn t7_a_deep_tree_is_bounded() {
    let root = tempfile::tempdir().unwrap();
    let deep = vec!["d"; 60].join("/");
    skill(root.path(), &deep, "");
    skill(root.path(), "shallow", "");
    let registry = open(root.path());
    assert_eq!(ids(&registry), ["shallow"]);
    assert_eq!(codes(&registry), ["too_deep"]);
}

#[test]
fn patterns_derive_ids_as_written() {
    let base = tempfile::tempdir().unwrap();
    let body = "# Title\n\nFirst paragraph.\n";
    for path in [
        "my-skills/foo.md",
        "my-skills/foo/bar.md",
        "my-skills/foo/bar/baz.md",
        "my-skills/notes.txt",
        "my-skills/Upper.md",
        "my-skills/with space.md",
        "docs/team-a.md",
        "x/one/a.md",
        "x/two/b.md",
        "x/three/c.md",
        "top.md",
    ] {
        file(base.path(), path, body);
    }
    file(base.path(), "my-skills/empty.md", " \n");
    let settings = patterns(
        base.path(),
        &[
            "my-skills/**/*.md",
            "*.md",
            "docs/team-a.md",
            "x/{one,two}/*.md",
        ],
        &[],
    );
    let registry = Registry::open(settings).unwrap();
    assert_eq!(
        ids(&registry),
        [
            "foo",
            "foo/bar",
            "foo/bar/baz",
            "one/a",
            "team-a",
            "top",
            "two/b"
        ]
    );
    let mut found = codes(&registry);
    found.sort_unstable();
    assert_eq!(found, ["invalid_field", "invalid_id", "invalid_id"]);
    assert_eq!(read(&registry, "iii://foo/bar"), body);
    let index = read(&registry, "iii://skills");
    assert!(
        index.contains("## Custom skills\n\n- [`foo`](iii://foo) — Title — First paragraph.\n")
    );
    // Without frontmatter it is no skill to a host.
    let uri: Uri = "skill://foo/SKILL.md".parse().unwrap();
    assert_eq!(registry.read(&uri).unwrap_err().code(), "not_found");
}

#[test]
fn a_matched_document_makes_its_folder_one_skill() {
    let base = tempfile::tempdir().unwrap();
    skill(base.path(), "s/pdf", "# PDF\n");
    file(base.path(), "s/pdf/references/a.md", "# A\n\nx\n");
    file(base.path(), "s/pdf.md", "# Loose\n\nx\n");
    file(base.path(), "s/own.md", document("own", "# Own\n"));
    let registry = Registry::open(patterns(base.path(), &["s/**/*.md"], &[])).unwrap();
    assert_eq!(ids(&registry), ["own", "pdf"]);
    assert_eq!(codes(&registry), ["duplicate"]);
    assert_eq!(read(&registry, "skill://pdf/references/a.md"), "# A\n\nx\n");
    assert_eq!(
        read(&registry, "skill://own/SKILL.md"),
        document("own", "# Own\n")
    );
    // When the folder goes, the loose file gets its id.
    fs::remove_dir_all(base.path().join("s/pdf")).unwrap();
    registry.reconcile(&[base.path().canonicalize().unwrap().join("s/pdf")]);
    assert_eq!(read(&registry, "iii://pdf"), "# Loose\n\nx\n");
}

#[test]
fn prompts_need_frontmatter_and_shadow_by_name() {
    let base = tempfile::tempdir().unwrap();
    file(
        base.path(),
        "p/open-pr.md",
        "---\ndescription: Opens a PR.\n---\nDo {it}.\n",
    );
    file(
        base.path(),
        "p/z.md",
        "---\nname: named\ndescription: Named.\n---\nx\n",
    );
    file(base.path(), "p/bare.md", "no frontmatter\n");
    file(base.path(), "p/empty.md", "---\ndescription: ''\n---\nx\n");
    file(
        base.path(),
        "p/zz.md",
        "---\nname: open-pr\ndescription: Twice.\n---\nx\n",
    );
    let registry = Registry::open(patterns(base.path(), &[], &["p/*.md"])).unwrap();
    let snapshot = registry.snapshot();
    let names: Vec<_> = snapshot
        .prompts()
        .map(|p| p.prompt.name.to_string())
        .collect();
    assert_eq!(names, ["named", "open-pr"]);
    let entry = snapshot.prompt(&"open-pr".parse().unwrap()).unwrap();
    assert_eq!(
        registry.prompt_body(entry).unwrap().as_deref(),
        Some("Do {it}.\n")
    );
    let mut found = codes(&registry);
    found.sort_unstable();
    assert_eq!(found, ["duplicate", "invalid_field", "missing_frontmatter"]);
}

#[test]
fn the_cache_is_used_and_never_believed_over_the_disk() {
    let root = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    for n in 0..80 {
        skill(root.path(), &format!("s{n:02}"), "# One\n");
    }
    let settings = Settings {
        cache: Some(cache.path().to_owned()),
        ..Settings::of_folders([root.path().to_owned()])
    };
    let first = ids(&Registry::open(settings.clone()).unwrap());
    assert_eq!(first.len(), 80);
    let saved: Vec<_> = fs::read_dir(cache.path()).unwrap().flatten().collect();
    assert_eq!(saved.len(), 1);

    // Same size, and the old time put back: only the change time tells.
    let path = root.path().join("s07/SKILL.md");
    let times = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, document("s07", "# Two\n")).unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(times)
        .unwrap();
    fs::remove_dir_all(root.path().join("s08")).unwrap();
    skill(root.path(), "s99", "# New\n");
    let second = Registry::open(settings.clone()).unwrap();
    assert_eq!(read(&second, "iii://s07"), document("s07", "# Two\n"));
    let snapshot = second.snapshot();
    let title = &snapshot.get(&"s07".parse().unwrap()).unwrap().head.title;
    assert_eq!(title.as_deref(), Some("Two"));
    assert_eq!(snapshot.len(), 80);
    assert!(snapshot.get(&"s08".parse().unwrap()).is_none());

    // A damaged cache is thrown away.
    let mut bytes = fs::read(saved[0].path()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(saved[0].path(), bytes).unwrap();
    assert_eq!(ids(&Registry::open(settings).unwrap()).len(), 80);
}

#[test]
fn what_cannot_be_read_is_not_dropped_silently() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    skill(root.path(), "open", "# Open\n");
    skill(root.path(), "closed", "# Closed\n");
    file(root.path(), "lower/skill.md", document("lower", ""));
    let closed = root.path().join("closed");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    // Root reads whatever it likes; everybody else gets the notice.
    let readable = fs::read_dir(&closed).is_ok();
    let registry = open(root.path());
    let found = codes(&registry);
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    if readable {
        assert_eq!(found, ["missing_document"]);
    } else {
        assert_eq!(found, ["io_error", "missing_document"]);
        assert_eq!(ids(&registry), ["open"]);
    }
}

/// Opens a root twice with a cache; the second start is a warm one.
fn twice(root: &Path) -> (Arc<Registry>, Arc<Registry>) {
    for n in 0..70 {
        skill(root, &format!("filler/f{n}"), "# F\n");
    }
    let cache = tempfile::tempdir().unwrap();
    let settings = Settings {
        cache: Some(cache.path().to_owned()),
        ..Settings::of_folders([root.to_owned()])
    };
    let first = Registry::open(settings.clone()).unwrap();
    // Stamps within the clock's tick are not believed; wait until these are older.
    let written = std::time::Instant::now();
    while written.elapsed() < std::time::Duration::from_millis(80) {
        std::thread::yield_now();
    }
    let second = Registry::open(settings.clone()).unwrap();
    drop(second);
    (first, Registry::open(settings).unwrap())
}

#[test]
fn t2_what_was_refused_is_refused_on_a_warm_start_too() {
    let root = tempfile::tempdir().unwrap();
    skill(root.path(), "linked", "");
    symlink("/etc/hostname", root.path().join("linked/x")).unwrap();
    skill(root.path(), "piped", "");
    let pipe = root.path().join("piped/x");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(pipe)
            .status()
            .unwrap()
            .success()
    );
    let (cold, warm) = twice(root.path());
    assert_eq!(codes(&cold), ["escapes_root", "not_regular"]);
    assert_eq!(codes(&warm), codes(&cold));
    assert_eq!(ids(&warm), ids(&cold));
}

#[test]
fn a_rescan_notices_a_document_that_is_gone() {
    let root = tempfile::tempdir().unwrap();
    skill(root.path(), "a", "# A\n");
    file(root.path(), "a/notes.md", "n");
    let registry = open(root.path());
    fs::remove_file(root.path().join("a/SKILL.md")).unwrap();
    registry.rescan();
    assert!(registry.snapshot().is_empty());
}

#[test]
fn ignored_folders_stay_ignored_when_they_change() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    skill(&root, "a", "# A\n");
    let registry = open(&root);
    skill(&root, "node_modules/evil", "# Evil\n");
    registry.reconcile(&[root.join("node_modules/evil/SKILL.md")]);
    registry.rescan();
    assert_eq!(ids(&registry), ["a"]);
}

#[test]
fn a_read_of_an_edited_supporting_file_brings_the_listing_along() {
    let root = tempfile::tempdir().unwrap();
    skill(root.path(), "a", "# A\n");
    file(root.path(), "a/references/x.md", "one");
    let registry = open(root.path());
    file(root.path(), "a/references/x.md", "two, and longer");
    assert_eq!(
        read(&registry, "skill://a/references/x.md"),
        "two, and longer"
    );
    let snapshot = registry.snapshot();
    let entry = snapshot.get(&"a".parse().unwrap()).unwrap();
    let listed = entry
        .head
        .file(&"references/x.md".parse().unwrap())
        .unwrap();
    assert_eq!(
        listed.digest,
        repertoire_core::Digest::of(b"two, and longer")
    );
}

#[test]
fn a_folder_that_becomes_a_skill_takes_its_loose_files_along() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path().canonicalize().unwrap();
    file(&base, "docs/a/x.md", "# X\n\nx\n");
    let registry = Registry::open(patterns(&base, &["docs/**/*.md"], &[])).unwrap();
    assert_eq!(ids(&registry), ["a/x"]);
    skill(&base, "docs/a", "# A\n");
    registry.reconcile(&[base.join("docs/a/SKILL.md")]);
    assert_eq!(ids(&registry), ["a"]);
    fs::remove_file(base.join("docs/a/SKILL.md")).unwrap();
    registry.reconcile(&[base.join("docs/a/SKILL.md")]);
    assert_eq!(ids(&registry), ["a/x"]);
}

#[test]
fn a_skill_that_shrinks_below_its_limit_is_taken() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    skill(&root, "s", "# S\n");
    for n in 0..256 {
        file(&root, &format!("s/a/f{n}"), "x");
        file(&root, &format!("s/b/f{n}"), "x");
    }
    let registry = open(&root);
    assert_eq!(codes(&registry), ["too_many_files"]);
    fs::remove_file(root.join("s/a/f0")).unwrap();
    registry.reconcile(&[root.join("s/a/f0")]);
    assert_eq!(ids(&registry), ["s"]);
}

#[test]
fn t7_a_skill_of_thousands_of_folders_is_refused() {
    let root = tempfile::tempdir().unwrap();
    skill(root.path(), "s", "# S\n");
    for n in 0..5000 {
        file(root.path(), &format!("s/d{n}/f"), "x");
    }
    let started = std::time::Instant::now();
    let registry = open(root.path());
    assert_eq!(codes(&registry), ["too_many_files"]);
    assert!(started.elapsed() < std::time::Duration::from_secs(10));
}

#[test]
fn a_root_that_is_replaced_or_gone_leaves_nothing_behind() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path().canonicalize().unwrap();
    let root = home.join("skills");
    skill(&root, "a", "# A\n");
    skill(&home.join("new"), "a", "# A\n");
    skill(&home.join("new"), "b", "# B\n");
    let registry = open(&root);
    fs::rename(&root, home.join("old")).unwrap();
    fs::rename(home.join("new"), &root).unwrap();
    registry.rescan();
    fs::remove_dir_all(home.join("old")).unwrap();
    assert_eq!(ids(&registry), ["a", "b"]);
    assert_eq!(read(&registry, "iii://a"), document("a", "# A\n"));
    fs::rename(&root, home.join("away")).unwrap();
    registry.rescan();
    assert!(registry.snapshot().is_empty());
    // A link in its place leads elsewhere, which nobody asked for.
    symlink(home.join("away"), &root).unwrap();
    registry.rescan();
    assert!(registry.snapshot().is_empty());
    fs::remove_file(&root).unwrap();
    fs::rename(home.join("away"), &root).unwrap();
    registry.rescan();
    assert_eq!(ids(&registry), ["a", "b"]);
}

#[test]
fn linked_folders_are_passed_over_with_a_notice() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    skill(&root, "real/foo", "# Foo\n");
    symlink("real/foo", root.join("foo")).unwrap();
    let registry = open(&root);
    assert_eq!(ids(&registry), ["real/foo"]);
    assert_eq!(codes(&registry), ["not_regular"]);
    registry.rescan();
    assert_eq!(codes(&registry), ["not_regular"]);
    fs::remove_file(root.join("foo")).unwrap();
    registry.reconcile(&[root.join("foo")]);
    assert_eq!(codes(&registry), [""; 0]);
}

#[test]
fn a_skill_whose_own_folder_shrinks_is_taken() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    skill(&root, "big", "# Big\n");
    file(&root, "big/references/x.md", "x");
    file(&root, "big/blob.bin", vec![0; 17 << 20]);
    let registry = open(&root);
    assert_eq!(codes(&registry), ["too_large"]);
    fs::remove_file(root.join("big/blob.bin")).unwrap();
    registry.reconcile(&[root.join("big/blob.bin")]);
    assert_eq!(ids(&registry), ["big"]);
}

#[test]
fn t7_what_is_too_deep_is_said_on_a_warm_start_too() {
    let root = tempfile::tempdir().unwrap();
    skill(root.path(), &vec!["d"; 40].join("/"), "");
    let (cold, warm) = twice(root.path());
    assert_eq!(codes(&cold), ["too_deep"]);
    assert_eq!(codes(&warm), ["too_deep"]);
}

#[test]
fn many_claims_to_one_name_are_settled_at_once() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path().canonicalize().unwrap();
    for n in 0..1500 {
        let text = "---\nname: same\ndescription: One of many.\n---\nx\n";
        file(&base, &format!("p/f{n:04}.md"), text);
    }
    let registry = Registry::open(patterns(&base, &[], &["p/*.md"])).unwrap();
    assert_eq!(codes(&registry).len(), 1499);
    fs::remove_file(base.join("p/f0000.md")).unwrap();
    let started = std::time::Instant::now();
    registry.reconcile(&[base.join("p/f0000.md")]);
    assert_eq!(codes(&registry).len(), 1498);
    assert!(started.elapsed() < std::time::Duration::from_secs(5));
}

#[test]
fn the_uri_of_a_skill_leads_to_that_skill() {
    let root = tempfile::tempdir().unwrap();
    let home = tempfile::tempdir().unwrap();
    skill(root.path(), "outer", "# Outer\n");
    file(
        root.path(),
        "outer/template/SKILL.md",
        document("my-skill", "# A template\n"),
    );
    let registry = Registry::open(Settings {
        account: Some(home.path().to_owned()),
        ..Settings::of_folders([root.path().to_owned()])
    })
    .unwrap();
    let own = document("template", "# Stored\n");
    let files = [(repertoire_core::RelPath::document(), own.clone().into())].into();
    let stored =
        repertoire_registry::store::NewSkill::from_files("outer/template".parse().unwrap(), files);
    registry
        .add(repertoire_registry::Scope::Account, vec![stored.unwrap()])
        .unwrap();
    assert_eq!(read(&registry, "skill://outer/template/SKILL.md"), own);
    assert_eq!(read(&registry, "iii://outer/template"), own);
}

#[test]
fn a_change_told_only_of_a_folder_above_loses_what_is_gone_beneath() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().canonicalize().unwrap();
    skill(&root, "team/a", "# A\n");
    skill(&root, "team/b", "# B\n");
    file(&root, "team/loose/x.md", "# X\n");
    file(&root, "team/loose/y.md", "# Y\n");
    let registry = open(&root);
    let loose = Registry::open(patterns(&root, &["team/loose/*.md"], &[])).unwrap();
    assert_eq!(ids(&registry), ["team/a", "team/b"]);
    assert_eq!(loose.snapshot().len(), 2);
    fs::remove_dir_all(root.join("team/a")).unwrap();
    fs::remove_file(root.join("team/loose/x.md")).unwrap();
    registry.reconcile(&[root.join("team")]);
    loose.reconcile(&[root.join("team/loose")]);
    assert_eq!(ids(&registry), ["team/b"]);
    assert_eq!(loose.snapshot().len(), 1);
}
