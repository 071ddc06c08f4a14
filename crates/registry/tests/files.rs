//! Skills and prompts in files: which are found, which are refused, and that no file outside the
//! root is ever read.
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

use common::{document_text, write_file, write_skill};
use repertoire_core::Uri;
use repertoire_registry::{Notice, Registry, RegistrySettings, RequestedBy, SourceLocation};

fn open_registry(root: &Path) -> Arc<Registry> {
    Registry::open(RegistrySettings::from_folders([root.to_owned()])).unwrap()
}

fn skill_ids(registry: &Registry) -> Vec<String> {
    registry
        .snapshot()
        .skills()
        .map(|e| e.id.to_string())
        .collect()
}

fn read_text(registry: &Registry, uri: &str) -> String {
    let content = registry.read_uri(&uri.parse::<Uri>().unwrap()).unwrap();
    String::from_utf8(content.bytes.to_vec()).unwrap()
}

fn notice_codes(registry: &Registry) -> Vec<&'static str> {
    let notices: Vec<Notice> = registry.notices();
    notices.iter().map(|n| n.code).collect()
}

fn pattern_settings(base: &Path, skills: &[&str], prompts: &[&str]) -> RegistrySettings {
    let place = |pattern: &&str| SourceLocation {
        path: base.to_owned(),
        pattern: Some((*pattern).to_owned()),
        requested_by: RequestedBy::User,
    };
    RegistrySettings {
        skills: skills.iter().map(place).collect(),
        prompts: prompts.iter().map(place).collect(),
        ..RegistrySettings::default()
    }
}

#[test]
fn folders_at_any_depth_are_skills_and_nested_skills_stay_files_of_the_outer() {
    let root = tempfile::tempdir().unwrap();
    write_skill(root.path(), "plain", "# Plain\n");
    write_skill(root.path(), "acme/billing/refunds", "# Refunds\n");
    write_skill(root.path(), "outer", "# Outer\n");
    write_skill(root.path(), "outer/parts/inner", "# Inner\n");
    write_file(root.path(), "outer/data.bin", [0u8, 159, 146, 150]);
    write_file(root.path(), "README.md", "not a skill");
    write_file(root.path(), "outer/.git/config", "not a file of it");

    let registry = open_registry(root.path());
    assert_eq!(
        skill_ids(&registry),
        [
            "acme/billing/refunds",
            "outer",
            "outer/parts/inner",
            "plain"
        ]
    );
    let snapshot = registry.snapshot();
    let outer = snapshot.get(&"outer".parse().unwrap()).unwrap();
    let paths: Vec<_> = outer
        .metadata
        .files
        .iter()
        .map(|f| f.path.as_str())
        .collect();
    assert_eq!(paths, ["SKILL.md", "data.bin", "parts/inner/SKILL.md"]);
    let inner = "skill://outer/parts/inner/SKILL.md";
    assert_eq!(
        read_text(&registry, inner),
        document_text("inner", "# Inner\n")
    );
    let binary = registry
        .read_uri(&"skill://outer/data.bin".parse().unwrap())
        .unwrap();
    assert_eq!(&binary.bytes[..], [0u8, 159, 146, 150]);
    assert_eq!(notice_codes(&registry), [""; 0]);
}

#[test]
fn a_single_skill_folder_is_its_own_root() {
    let root = tempfile::tempdir().unwrap();
    write_skill(root.path(), "alone", "# Alone\n");
    assert_eq!(
        skill_ids(&open_registry(&root.path().join("alone"))),
        ["alone"]
    );
    // A subfolder of the same name would have the same id, so it is skipped with a notice.
    write_skill(root.path(), "alone/alone", "# Inner\n");
    let registry = open_registry(&root.path().join("alone"));
    assert_eq!(skill_ids(&registry), ["alone"]);
    assert_eq!(notice_codes(&registry), ["duplicate"]);
}

#[test]
fn skills_that_cannot_be_served_are_skipped_with_a_reason() {
    let root = tempfile::tempdir().unwrap();
    write_skill(root.path(), "good", "# Good\n");
    write_file(
        root.path(),
        "latin/SKILL.md",
        b"---\nname: latin\ndescription: \xe9\n---\n",
    );
    write_file(root.path(), "huge/SKILL.md", document_text("huge", ""));
    write_file(root.path(), "huge/big.bin", vec![0u8; 16 * 1024 * 1024]);
    write_file(
        root.path(),
        "日本/SKILL.md",
        "# No name that an id can have\n",
    );
    write_skill(root.path(), "many", "");
    for n in 0..512 {
        write_file(root.path(), &format!("many/f{n}"), "x");
    }
    let registry = open_registry(root.path());
    assert_eq!(skill_ids(&registry), ["good"]);
    let mut found = notice_codes(&registry);
    found.sort_unstable();
    assert_eq!(
        found,
        ["invalid_id", "not_utf8", "too_large", "too_many_files"]
    );
}

/// Why a skill is not in `skills/list`; empty if it is.
fn listing_code(registry: &Registry, id: &str) -> &'static str {
    let snapshot = registry.snapshot();
    let entry = snapshot.get(&id.parse().unwrap()).unwrap();
    let problem = entry.metadata.unlisted.as_ref();
    problem.map_or("", |problem| problem.rule.code())
}

#[test]
fn irregular_skills_are_served_and_say_why_they_are_not_listed() {
    let root = tempfile::tempdir().unwrap();
    for (folder, document, id, code) in [
        ("plain", document_text("plain", ""), "plain", ""),
        (
            "bom",
            format!("\u{feff}{}", document_text("bom", "")),
            "bom",
            "",
        ),
        ("My-Pdf", document_text("my-pdf", ""), "my-pdf", ""),
        (
            "pdf-forms-v2",
            document_text("pdf-forms", ""),
            "pdf-forms",
            "",
        ),
        ("Group A/One", document_text("one", ""), "group-a/one", ""),
        (
            "upper",
            document_text("Upper", ""),
            "upper",
            "invalid_field",
        ),
        (
            "bare",
            "# Bare\n\nText.\n".into(),
            "bare",
            "missing_frontmatter",
        ),
        (
            "colon",
            "---\nname: colon\ndescription: Use: this\n---\n".into(),
            "colon",
            "invalid_frontmatter",
        ),
        (
            "nameless",
            "---\ndescription: d\n---\n".into(),
            "nameless",
            "invalid_field",
        ),
        (
            "unclosed",
            "---\nname: unclosed\n\n# T\n".into(),
            "unclosed",
            "missing_frontmatter",
        ),
    ] {
        write_file(root.path(), &format!("{folder}/SKILL.md"), document);
        let registry = open_registry(root.path());
        assert_eq!(listing_code(&registry, id), code, "{folder}");
        assert_eq!(notice_codes(&registry), [""; 0], "{folder}");
    }
}

#[test]
fn a_name_belongs_to_the_folder_of_that_name_or_to_the_only_one_that_claims_it() {
    let root = tempfile::tempdir().unwrap();
    write_file(root.path(), "a/SKILL.md", document_text("pdf", ""));
    let registry = open_registry(root.path());
    assert_eq!(skill_ids(&registry), ["pdf"]);
    // The id it has by its folder finds it too.
    assert_eq!(listing_code(&registry, "a"), "");

    // A second claim: neither gets the name.
    write_file(root.path(), "b/SKILL.md", document_text("pdf", ""));
    registry.rescan_files();
    assert_eq!(skill_ids(&registry), ["a", "b"]);
    assert_eq!(listing_code(&registry, "a"), "name_mismatch");

    // The folder of that name has it.
    write_skill(root.path(), "pdf", "# Pdf\n");
    registry.rescan_files();
    assert_eq!(skill_ids(&registry), ["a", "b", "pdf"]);
    assert_eq!(listing_code(&registry, "pdf"), "");

    // Without the others the name is free again.
    fs::remove_dir_all(root.path().join("pdf")).unwrap();
    fs::remove_dir_all(root.path().join("b")).unwrap();
    registry.rescan_files();
    assert_eq!(skill_ids(&registry), ["pdf"]);
    assert_eq!(listing_code(&registry, "a"), "");
    assert_eq!(notice_codes(&registry), [""; 0]);
}

#[test]
fn t2_links_stay_beneath_the_root() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    let root = tempfile::tempdir().unwrap();
    write_skill(root.path(), "inside", "# Inside\n");
    write_file(root.path(), "shared/notes.md", "shared");
    symlink("../shared/notes.md", root.path().join("inside/notes.md")).unwrap();
    write_skill(root.path(), "absolute", "");
    symlink(
        outside.path().join("secret"),
        root.path().join("absolute/x"),
    )
    .unwrap();
    write_skill(root.path(), "relative", "");
    symlink(
        "../../../../../../../../etc/hostname",
        root.path().join("relative/x"),
    )
    .unwrap();
    write_skill(root.path(), "folder", "");
    symlink(outside.path(), root.path().join("folder/x")).unwrap();
    symlink(outside.path(), root.path().join("linked-folder")).unwrap();
    fs::create_dir(root.path().join("document")).unwrap();
    symlink(
        outside.path().join("secret"),
        root.path().join("document/SKILL.md"),
    )
    .unwrap();
    write_skill(root.path(), "dangling", "");
    symlink("nowhere", root.path().join("dangling/x")).unwrap();

    let registry = open_registry(root.path());
    assert_eq!(skill_ids(&registry), ["inside"]);
    assert_eq!(read_text(&registry, "skill://inside/notes.md"), "shared");
    let found = notice_codes(&registry);
    assert_eq!(
        found.iter().filter(|c| **c == "escapes_root").count(),
        5,
        "{found:?}"
    );
    for id in ["absolute", "relative", "folder", "document"] {
        let uri: Uri = format!("skill://{id}/x").parse().unwrap();
        assert_eq!(registry.read_uri(&uri).unwrap_err().code(), "not_found");
    }
}

#[test]
fn t2_a_link_swapped_in_while_reading_never_leads_out() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("x.md"), "SECRET").unwrap();
    let root = tempfile::tempdir().unwrap();
    write_skill(root.path(), "a", "# A\n");
    write_file(root.path(), "a/refs/x.md", "public");
    let registry = open_registry(root.path());
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
        if let Ok(content) = registry.read_uri(&uri) {
            assert_eq!(content.bytes, "public");
            served += 1;
        }
        let scanned = repertoire_registry::folder::read_folder(&root.path().join("a"));
        if let Ok(files) = scanned {
            assert!(files.values().all(|bytes| bytes != "SECRET"));
        }
    }
    stop.store(true, Ordering::Relaxed);
    swapper.join().unwrap();
    registry.rescan_files();
    assert_eq!(read_text(&registry, "skill://a/refs/x.md"), "public");
    assert!(served > 0, "the reader never won the race");
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
    write_skill(root.path(), "pipe", "");
    fifo("pipe/x");
    fs::create_dir(root.path().join("pipedoc")).unwrap();
    fifo("pipedoc/SKILL.md");
    write_skill(root.path(), "socket", "");
    let _listener = std::os::unix::net::UnixListener::bind(root.path().join("socket/x")).unwrap();
    write_skill(root.path(), "sparse", "");
    fs::File::create(root.path().join("sparse/x"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let registry = open_registry(root.path());
    assert!(registry.snapshot().is_empty());
    let mut found = notice_codes(&registry);
    found.sort_unstable();
    assert_eq!(
        found,
        ["not_regular", "not_regular", "not_regular", "too_large"]
    );
    let error = repertoire_registry::folder::read_folder(&root.path().join("pipe")).unwrap_err();
    assert_eq!(error.code(), "not_regular");
}

#[test]
fn t7_a_deep_tree_is_bounded() {
    let root = tempfile::tempdir().unwrap();
    let deep = vec!["d"; 60].join("/");
    write_skill(root.path(), &deep, "");
    write_skill(root.path(), "shallow", "");
    let registry = open_registry(root.path());
    assert_eq!(skill_ids(&registry), ["shallow"]);
    assert_eq!(notice_codes(&registry), ["too_deep"]);
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
        write_file(base.path(), path, body);
    }
    write_file(base.path(), "my-skills/empty.md", " \n");
    let settings = pattern_settings(
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
        skill_ids(&registry),
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
    let mut found = notice_codes(&registry);
    found.sort_unstable();
    assert_eq!(found, ["invalid_field", "invalid_id", "invalid_id"]);
    assert_eq!(read_text(&registry, "iii://foo/bar"), body);
    let index = read_text(&registry, "iii://skills");
    assert!(
        index.contains("## Custom skills\n\n- [`foo`](iii://foo) — Title — First paragraph.\n")
    );
    // Without frontmatter it is not a skill for hosts.
    let uri: Uri = "skill://foo/SKILL.md".parse().unwrap();
    assert_eq!(registry.read_uri(&uri).unwrap_err().code(), "not_found");
}

#[test]
fn a_matched_document_makes_its_folder_one_skill() {
    let base = tempfile::tempdir().unwrap();
    write_skill(base.path(), "s/pdf", "# PDF\n");
    write_file(base.path(), "s/pdf/references/a.md", "# A\n\nx\n");
    write_file(base.path(), "s/pdf.md", "# Loose\n\nx\n");
    write_file(base.path(), "s/own.md", document_text("own", "# Own\n"));
    let registry = Registry::open(pattern_settings(base.path(), &["s/**/*.md"], &[])).unwrap();
    assert_eq!(skill_ids(&registry), ["own", "pdf"]);
    assert_eq!(notice_codes(&registry), ["duplicate"]);
    assert_eq!(
        read_text(&registry, "skill://pdf/references/a.md"),
        "# A\n\nx\n"
    );
    assert_eq!(
        read_text(&registry, "skill://own/SKILL.md"),
        document_text("own", "# Own\n")
    );
    // When the folder is removed, the loose file gets its id.
    fs::remove_dir_all(base.path().join("s/pdf")).unwrap();
    registry.reconcile_paths(&[base.path().canonicalize().unwrap().join("s/pdf")]);
    assert_eq!(read_text(&registry, "iii://pdf"), "# Loose\n\nx\n");
}

#[test]
fn prompts_need_frontmatter_and_shadow_by_name() {
    let base = tempfile::tempdir().unwrap();
    write_file(
        base.path(),
        "p/open-pr.md",
        "---\ndescription: Opens a PR.\n---\nDo {it}.\n",
    );
    write_file(
        base.path(),
        "p/z.md",
        "---\nname: named\ndescription: Named.\n---\nx\n",
    );
    write_file(base.path(), "p/bare.md", "no frontmatter\n");
    write_file(base.path(), "p/empty.md", "---\ndescription: ''\n---\nx\n");
    write_file(
        base.path(),
        "p/zz.md",
        "---\nname: open-pr\ndescription: Twice.\n---\nx\n",
    );
    let registry = Registry::open(pattern_settings(base.path(), &[], &["p/*.md"])).unwrap();
    let snapshot = registry.snapshot();
    let names: Vec<_> = snapshot
        .prompts()
        .map(|p| p.prompt.name.to_string())
        .collect();
    assert_eq!(names, ["named", "open-pr"]);
    let entry = snapshot.find_prompt(&"open-pr".parse().unwrap()).unwrap();
    assert_eq!(
        registry.prompt_body(entry).unwrap().as_deref(),
        Some("Do {it}.\n")
    );
    let mut found = notice_codes(&registry);
    found.sort_unstable();
    assert_eq!(found, ["duplicate", "invalid_field", "missing_frontmatter"]);
}

#[test]
fn the_cache_is_used_unless_the_disk_differs() {
    let root = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    for n in 0..80 {
        write_skill(root.path(), &format!("s{n:02}"), "# One\n");
    }
    let settings = RegistrySettings {
        cache: Some(cache.path().to_owned()),
        ..RegistrySettings::from_folders([root.path().to_owned()])
    };
    let first = skill_ids(&Registry::open(settings.clone()).unwrap());
    assert_eq!(first.len(), 80);
    let saved: Vec<_> = fs::read_dir(cache.path()).unwrap().flatten().collect();
    assert_eq!(saved.len(), 1);

    // Same size and restored modification time: only the change time differs.
    let path = root.path().join("s07/SKILL.md");
    let times = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, document_text("s07", "# Two\n")).unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(times)
        .unwrap();
    fs::remove_dir_all(root.path().join("s08")).unwrap();
    write_skill(root.path(), "s99", "# New\n");
    let second = Registry::open(settings.clone()).unwrap();
    assert_eq!(
        read_text(&second, "iii://s07"),
        document_text("s07", "# Two\n")
    );
    let snapshot = second.snapshot();
    let title = &snapshot
        .get(&"s07".parse().unwrap())
        .unwrap()
        .metadata
        .title;
    assert_eq!(title.as_deref(), Some("Two"));
    assert_eq!(snapshot.len(), 80);
    assert!(snapshot.get(&"s08".parse().unwrap()).is_none());

    // A damaged cache is discarded.
    let mut bytes = fs::read(saved[0].path()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(saved[0].path(), bytes).unwrap();
    assert_eq!(skill_ids(&Registry::open(settings).unwrap()).len(), 80);
}

#[test]
fn unreadable_files_leave_a_notice() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    write_skill(root.path(), "open", "# Open\n");
    write_skill(root.path(), "closed", "# Closed\n");
    write_file(root.path(), "lower/skill.md", document_text("lower", ""));
    let closed = root.path().join("closed");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    // The root user can read every file; all other users get the notice.
    let readable = fs::read_dir(&closed).is_ok();
    let registry = open_registry(root.path());
    let found = notice_codes(&registry);
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    if readable {
        assert_eq!(found, ["missing_document"]);
    } else {
        assert_eq!(found, ["io_error", "missing_document"]);
        assert_eq!(skill_ids(&registry), ["open"]);
    }
}

/// Opens a root twice with a cache; the second open is a warm start.
fn open_twice(root: &Path) -> (Arc<Registry>, Arc<Registry>) {
    for n in 0..70 {
        write_skill(root, &format!("filler/f{n}"), "# F\n");
    }
    let cache = tempfile::tempdir().unwrap();
    let settings = RegistrySettings {
        cache: Some(cache.path().to_owned()),
        ..RegistrySettings::from_folders([root.to_owned()])
    };
    let first = Registry::open(settings.clone()).unwrap();
    // Stamps within one clock tick are not trusted; wait until these are older.
    let written = std::time::Instant::now();
    while written.elapsed() < std::time::Duration::from_millis(80) {
        std::thread::yield_now();
    }
    let second = Registry::open(settings.clone()).unwrap();
    drop(second);
    (first, Registry::open(settings).unwrap())
}

#[test]
fn t2_refused_files_are_refused_on_a_warm_start_too() {
    let root = tempfile::tempdir().unwrap();
    write_skill(root.path(), "linked", "");
    symlink("/etc/hostname", root.path().join("linked/x")).unwrap();
    write_skill(root.path(), "piped", "");
    let pipe = root.path().join("piped/x");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(pipe)
            .status()
            .unwrap()
            .success()
    );
    let (cold, warm) = open_twice(root.path());
    assert_eq!(notice_codes(&cold), ["escapes_root", "not_regular"]);
    assert_eq!(notice_codes(&warm), notice_codes(&cold));
    assert_eq!(skill_ids(&warm), skill_ids(&cold));
}

#[test]
fn a_rescan_notices_a_document_that_is_gone() {
    let root = tempfile::tempdir().unwrap();
    write_skill(root.path(), "a", "# A\n");
    write_file(root.path(), "a/notes.md", "n");
    let registry = open_registry(root.path());
    fs::remove_file(root.path().join("a/SKILL.md")).unwrap();
    registry.rescan_files();
    assert!(registry.snapshot().is_empty());
}

#[test]
fn ignored_folders_stay_ignored_when_they_change() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    write_skill(&root, "a", "# A\n");
    let registry = open_registry(&root);
    write_skill(&root, "node_modules/evil", "# Evil\n");
    registry.reconcile_paths(&[root.join("node_modules/evil/SKILL.md")]);
    registry.rescan_files();
    assert_eq!(skill_ids(&registry), ["a"]);
}

#[test]
fn reading_an_edited_supporting_file_updates_the_listing() {
    let root = tempfile::tempdir().unwrap();
    write_skill(root.path(), "a", "# A\n");
    write_file(root.path(), "a/references/x.md", "one");
    let registry = open_registry(root.path());
    write_file(root.path(), "a/references/x.md", "two, and longer");
    assert_eq!(
        read_text(&registry, "skill://a/references/x.md"),
        "two, and longer"
    );
    let snapshot = registry.snapshot();
    let entry = snapshot.get(&"a".parse().unwrap()).unwrap();
    let listed = entry
        .metadata
        .find_file(&"references/x.md".parse().unwrap())
        .unwrap();
    assert_eq!(
        listed.digest,
        repertoire_core::Digest::hash_bytes(b"two, and longer")
    );
}

#[test]
fn loose_files_belong_to_a_folder_that_becomes_a_skill() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path().canonicalize().unwrap();
    write_file(&base, "docs/a/x.md", "# X\n\nx\n");
    let registry = Registry::open(pattern_settings(&base, &["docs/**/*.md"], &[])).unwrap();
    assert_eq!(skill_ids(&registry), ["a/x"]);
    write_skill(&base, "docs/a", "# A\n");
    registry.reconcile_paths(&[base.join("docs/a/SKILL.md")]);
    assert_eq!(skill_ids(&registry), ["a"]);
    fs::remove_file(base.join("docs/a/SKILL.md")).unwrap();
    registry.reconcile_paths(&[base.join("docs/a/SKILL.md")]);
    assert_eq!(skill_ids(&registry), ["a/x"]);
}

#[test]
fn a_skill_that_shrinks_below_the_size_limit_is_listed() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    write_skill(&root, "s", "# S\n");
    for n in 0..256 {
        write_file(&root, &format!("s/a/f{n}"), "x");
        write_file(&root, &format!("s/b/f{n}"), "x");
    }
    let registry = open_registry(&root);
    assert_eq!(notice_codes(&registry), ["too_many_files"]);
    fs::remove_file(root.join("s/a/f0")).unwrap();
    registry.reconcile_paths(&[root.join("s/a/f0")]);
    assert_eq!(skill_ids(&registry), ["s"]);
}

#[test]
fn t7_a_skill_of_thousands_of_folders_is_refused() {
    let root = tempfile::tempdir().unwrap();
    write_skill(root.path(), "s", "# S\n");
    for n in 0..5000 {
        write_file(root.path(), &format!("s/d{n}/f"), "x");
    }
    let started = std::time::Instant::now();
    let registry = open_registry(root.path());
    assert_eq!(notice_codes(&registry), ["too_many_files"]);
    assert!(started.elapsed() < std::time::Duration::from_secs(10));
}

#[test]
fn a_root_that_is_replaced_or_gone_leaves_nothing_behind() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path().canonicalize().unwrap();
    let root = home.join("skills");
    write_skill(&root, "a", "# A\n");
    write_skill(&home.join("new"), "a", "# A\n");
    write_skill(&home.join("new"), "b", "# B\n");
    let registry = open_registry(&root);
    fs::rename(&root, home.join("old")).unwrap();
    fs::rename(home.join("new"), &root).unwrap();
    registry.rescan_files();
    fs::remove_dir_all(home.join("old")).unwrap();
    assert_eq!(skill_ids(&registry), ["a", "b"]);
    assert_eq!(read_text(&registry, "iii://a"), document_text("a", "# A\n"));
    fs::rename(&root, home.join("away")).unwrap();
    registry.rescan_files();
    assert!(registry.snapshot().is_empty());
    // A link in its place leads to another folder, which was not configured.
    symlink(home.join("away"), &root).unwrap();
    registry.rescan_files();
    assert!(registry.snapshot().is_empty());
    fs::remove_file(&root).unwrap();
    fs::rename(home.join("away"), &root).unwrap();
    registry.rescan_files();
    assert_eq!(skill_ids(&registry), ["a", "b"]);
}

#[test]
fn linked_folders_are_skipped_with_a_notice() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    write_skill(&root, "real/foo", "# Foo\n");
    symlink("real/foo", root.join("foo")).unwrap();
    let registry = open_registry(&root);
    assert_eq!(skill_ids(&registry), ["real/foo"]);
    assert_eq!(notice_codes(&registry), ["not_regular"]);
    registry.rescan_files();
    assert_eq!(notice_codes(&registry), ["not_regular"]);
    fs::remove_file(root.join("foo")).unwrap();
    registry.reconcile_paths(&[root.join("foo")]);
    assert_eq!(notice_codes(&registry), [""; 0]);
}

#[test]
fn a_skill_whose_top_folder_shrinks_is_listed() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    write_skill(&root, "big", "# Big\n");
    write_file(&root, "big/references/x.md", "x");
    write_file(&root, "big/blob.bin", vec![0; 17 << 20]);
    let registry = open_registry(&root);
    assert_eq!(notice_codes(&registry), ["too_large"]);
    fs::remove_file(root.join("big/blob.bin")).unwrap();
    registry.reconcile_paths(&[root.join("big/blob.bin")]);
    assert_eq!(skill_ids(&registry), ["big"]);
}

#[test]
fn t7_a_tree_too_deep_is_reported_on_a_warm_start_too() {
    let root = tempfile::tempdir().unwrap();
    write_skill(root.path(), &vec!["d"; 40].join("/"), "");
    let (cold, warm) = open_twice(root.path());
    assert_eq!(notice_codes(&cold), ["too_deep"]);
    assert_eq!(notice_codes(&warm), ["too_deep"]);
}

#[test]
fn many_claims_to_one_name_leave_one_owner() {
    let base = tempfile::tempdir().unwrap();
    let base = base.path().canonicalize().unwrap();
    for n in 0..1500 {
        let text = "---\nname: same\ndescription: One of many.\n---\nx\n";
        write_file(&base, &format!("p/f{n:04}.md"), text);
    }
    let registry = Registry::open(pattern_settings(&base, &[], &["p/*.md"])).unwrap();
    assert_eq!(notice_codes(&registry).len(), 1499);
    fs::remove_file(base.join("p/f0000.md")).unwrap();
    let started = std::time::Instant::now();
    registry.reconcile_paths(&[base.join("p/f0000.md")]);
    assert_eq!(notice_codes(&registry).len(), 1498);
    assert!(started.elapsed() < std::time::Duration::from_secs(5));
}

#[test]
fn a_nested_skill_uri_reads_the_nested_skill() {
    let root = tempfile::tempdir().unwrap();
    let home = tempfile::tempdir().unwrap();
    write_skill(root.path(), "outer", "# Outer\n");
    write_file(
        root.path(),
        "outer/template/SKILL.md",
        document_text("my-skill", "# A template\n"),
    );
    let registry = Registry::open(RegistrySettings {
        account: Some(home.path().to_owned()),
        ..RegistrySettings::from_folders([root.path().to_owned()])
    })
    .unwrap();
    let own = document_text("template", "# Stored\n");
    let files = [(repertoire_core::RelPath::document(), own.clone().into())].into();
    let stored =
        repertoire_registry::store::NewSkill::from_files("outer/template".parse().unwrap(), files);
    registry
        .add_skills(
            repertoire_registry::StoreScope::Account,
            vec![stored.unwrap()],
        )
        .unwrap();
    assert_eq!(read_text(&registry, "skill://outer/template/SKILL.md"), own);
    assert_eq!(read_text(&registry, "iii://outer/template"), own);
}

#[test]
fn a_change_reported_only_for_a_parent_folder_removes_deleted_files() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().canonicalize().unwrap();
    write_skill(&root, "team/a", "# A\n");
    write_skill(&root, "team/b", "# B\n");
    write_file(&root, "team/loose/x.md", "# X\n");
    write_file(&root, "team/loose/y.md", "# Y\n");
    let registry = open_registry(&root);
    let loose = Registry::open(pattern_settings(&root, &["team/loose/*.md"], &[])).unwrap();
    assert_eq!(skill_ids(&registry), ["team/a", "team/b"]);
    assert_eq!(loose.snapshot().len(), 2);
    fs::remove_dir_all(root.join("team/a")).unwrap();
    fs::remove_file(root.join("team/loose/x.md")).unwrap();
    registry.reconcile_paths(&[root.join("team")]);
    loose.reconcile_paths(&[root.join("team/loose")]);
    assert_eq!(skill_ids(&registry), ["team/b"]);
    assert_eq!(loose.snapshot().len(), 1);
}
