//! `connect`, `disconnect` and `link`, for every host.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::{collections::BTreeMap, fs, path::Path};

use common::{CommandOutput, TestWorkspace, wait_for};
use repertoire_app::{HOSTS, Host, HostScope};

/// Runs a command with a home folder of its own.
fn run(place: &TestWorkspace, args: &[&str]) -> CommandOutput {
    let mut command = place.command(args);
    command.env("HOME", user_dir(place));
    CommandOutput(command.output().unwrap())
}

fn run_ok(place: &TestWorkspace, args: &[&str]) -> String {
    let run = run(place, args);
    assert_eq!(run.exit_code(), 0, "{args:?}: {}", run.stderr());
    run.stdout()
}

fn user_dir(place: &TestWorkspace) -> std::path::PathBuf {
    let folder = place.work_dir().join("../user");
    fs::create_dir_all(&folder).unwrap();
    folder.canonicalize().unwrap()
}

/// The files of a host's settings, with the option that selects them.
fn config_files(host: &Host, place: &TestWorkspace) -> Vec<(&'static str, std::path::PathBuf)> {
    let project = host.config_file(HostScope::Project, &place.work_dir());
    let user = host.config_file(HostScope::User, &user_dir(place));
    let project = project.map(|file| ("--project", file));
    project
        .into_iter()
        .chain(user.map(|file| ("--user", file)))
        .collect()
}

/// Settings that a user has already, in the form of the file.
fn own_settings(file: &Path) -> &'static str {
    match file.extension().unwrap().to_str().unwrap() {
        "toml" => "# mine\nmodel = \"m\"\n\n[mcp_servers.other]\ncommand = \"x\"\n",
        "yaml" => {
            "# mine\nGOOSE_MODE: auto\nextensions:\n  other:\n    cmd: x\n    enabled: true\n"
        }
        _ => "{\n  \"theme\": \"dark\",\n  \"mine\": { \"other\": [1, 2] }\n}\n",
    }
}

#[test]
fn every_host_is_connected_once_and_disconnected_without_a_trace() {
    let mut count = 0;
    for host in HOSTS {
        let place = TestWorkspace::new();
        for (scope, file) in config_files(host, &place) {
            count += 1;
            // A file that was not there.
            run_ok(&place, &["connect", host.id, scope]);
            let new = fs::read_to_string(&file).unwrap();
            assert!(
                new.contains("repertoire") && new.contains("mcp"),
                "{}: {new}",
                host.id
            );
            assert_eq!(run_ok(&place, &["connect", host.id, scope, "--print"]), new);
            // A project's file has no path of this machine.
            let is_absolute = new.contains(env!("CARGO_BIN_EXE_repertoire"));
            assert_eq!(is_absolute, scope == "--user", "{}: {new}", host.id);

            // A file with settings.
            let before = own_settings(&file);
            fs::write(&file, before).unwrap();
            run_ok(&place, &["connect", host.id, scope]);
            let after = fs::read_to_string(&file).unwrap();
            for line in before.lines().filter(|line| line.len() > 1) {
                let line = line.trim_end_matches(',').trim_end();
                assert!(after.contains(line), "{}: {line:?} in {after}", host.id);
            }
            let name = file.file_name().unwrap().to_string_lossy();
            let backup = file.with_file_name(format!("{name}.repertoire-backup"));
            assert_eq!(fs::read_to_string(backup).unwrap(), before);
            let again = run_ok(&place, &["connect", host.id, scope]);
            assert!(again.contains("already"), "{again}");
            assert_eq!(fs::read_to_string(&file).unwrap(), after);

            // An address takes the place of the program.
            run_ok(
                &place,
                &["connect", host.id, scope, "--url", "http://127.0.0.1:7/mcp"],
            );
            let changed = fs::read_to_string(&file).unwrap();
            assert!(
                changed.contains("http://127.0.0.1:7/mcp"),
                "{}: {changed}",
                host.id
            );

            run_ok(&place, &["disconnect", host.id, scope]);
            let rest = fs::read_to_string(&file).unwrap();
            assert!(!rest.contains("repertoire"), "{}: {rest}", host.id);
            assert!(
                rest.contains("mine") && rest.contains("other"),
                "{}: {rest}",
                host.id
            );
            let gone = run_ok(&place, &["disconnect", host.id, scope]);
            assert!(gone.contains("was not connected"), "{gone}");
        }
    }
    assert!(count >= 28, "{count} files of settings");
}

#[test]
fn settings_that_are_not_understood_stay_as_they_are() {
    let place = TestWorkspace::new();
    for (host, file, text) in [
        ("claude-code", ".mcp.json", "{ broken"),
        (
            "claude-code",
            ".mcp.json",
            "{\"mcpServers\": {\"repertoire\": {\"command\": \"mine\"}}}",
        ),
        ("codex", ".codex/config.toml", "broken ="),
    ] {
        place.write_file(file, text);
        let refused = run(&place, &["connect", host, "--project", "--json"]);
        assert_eq!(refused.exit_code(), 4, "{}", refused.stderr());
        assert!(
            refused.stderr().contains("host_config"),
            "{}",
            refused.stderr()
        );
        assert_eq!(
            fs::read_to_string(place.work_dir().join(file)).unwrap(),
            text
        );
    }
    let unknown = run(&place, &["connect", "nothing"]);
    assert_eq!(unknown.exit_code(), 2);
    assert!(
        unknown.stderr().contains("claude-code"),
        "{}",
        unknown.stderr()
    );
    let no_file = run(&place, &["connect", "goose", "--project"]);
    assert_eq!(no_file.exit_code(), 2, "{}", no_file.stderr());
    let folder_only = run(&place, &["connect", "amp"]);
    assert!(
        folder_only.stderr().contains("repertoire link amp"),
        "{}",
        folder_only.stderr()
    );
}

/// Every file below a folder with its text, without records.
fn tree(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(here) = open.pop() {
        for entry in fs::read_dir(here).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                let name = path.strip_prefix(folder).unwrap();
                found.insert(name.to_string_lossy().into_owned(), text);
            }
        }
    }
    found.retain(|name, _| name != ".repertoire-copies.json");
    found
}

#[test]
fn every_host_gets_copies_of_trusted_skills_and_keeps_its_own() {
    for host in HOSTS {
        for (option, scope) in [
            ("--project", HostScope::Project),
            ("--user", HostScope::User),
        ] {
            let place = TestWorkspace::new();
            let base = match scope {
                HostScope::Project => place.work_dir(),
                HostScope::User => user_dir(&place),
            };
            let Some(folder) = host.skills_folder(scope, &base) else {
                continue;
            };
            place.write_skill("src/acme/refunds", "# Refunds\n");
            place.write_file("src/acme/refunds/references/a.md", "A.\n");
            run_ok(&place, &["add", "src", "--scope", "account"]);
            // What is there already is not ours.
            fs::create_dir_all(folder.join("mine")).unwrap();
            fs::write(folder.join("mine/SKILL.md"), "mine").unwrap();
            run_ok(&place, &["link", host.id, option]);
            let copies = tree(&folder);
            assert_eq!(copies["refunds/references/a.md"], "A.\n", "{}", host.id);
            assert_eq!(copies.len(), 3, "{}: {copies:?}", host.id);
            let again = run_ok(&place, &["link", host.id, option]);
            assert_eq!(again, "", "{}", host.id);

            run_ok(&place, &["link", host.id, option, "--remove"]);
            let rest = tree(&folder);
            assert_eq!(
                rest.keys().collect::<Vec<_>>(),
                ["mine/SKILL.md"],
                "{}",
                host.id
            );
        }
    }
}

#[test]
fn copies_follow_their_skills_and_changed_ones_are_left_alone() {
    let place = TestWorkspace::new();
    for name in ["one", "two", "three"] {
        place.write_skill(&format!("src/{name}"), "# First\n");
    }
    place.run_ok(&["add", "src", "--scope", "account"]);
    place.run_ok(&["link", "./out"]);
    let out = place.work_dir().join("out");
    let read = |path: &str| fs::read_to_string(out.join(path)).unwrap_or_default();
    assert!(read("one/SKILL.md").contains("# First"));

    // One is updated, one removed, one was changed by hand.
    place.write_skill("src/one", "# Second\n");
    place.run_ok(&["add", "src/one", "--scope", "account"]);
    place.run_ok(&["remove", "two"]);
    fs::write(out.join("three/SKILL.md"), "by hand").unwrap();
    let run = place.run(&["link", "./out"]);
    assert_eq!(run.stdout(), "~ one\n- two\n", "{}", run.stderr());
    assert!(
        run.stderr().contains("three: left alone"),
        "{}",
        run.stderr()
    );
    assert!(read("one/SKILL.md").contains("# Second"));
    assert!(!out.join("two").exists());
    assert_eq!(read("three/SKILL.md"), "by hand");

    // A folder of the same name is never replaced, and copies are not read as sources.
    place.write_skill("src/four", "# Four\n");
    place.run_ok(&["add", "src/four", "--scope", "account"]);
    fs::create_dir(out.join("four")).unwrap();
    fs::write(out.join("four/SKILL.md"), "# Theirs\n").unwrap();
    let run = place.run(&["link", "./out"]);
    assert!(
        run.stderr().contains("four: left alone"),
        "{}",
        run.stderr()
    );
    assert_eq!(read("four/SKILL.md"), "# Theirs\n");
    let listed = place.run_json(&["list", "./out", "--json"]);
    let ids: Vec<_> = listed["skills"].as_array().unwrap().iter().collect();
    assert_eq!(ids.len(), 1, "{listed}");
    assert_eq!(ids[0]["id"], "four");

    // Only some of them.
    place.run_ok(&["link", "./some", "--only", "one"]);
    assert!(place.work_dir().join("some/one/SKILL.md").exists());
    assert!(!place.work_dir().join("some/four").exists());
}

#[test]
fn t45_an_untrusted_skill_is_not_copied() {
    let place = TestWorkspace::new();
    place.write_file(".repertoire/config.toml", "folders = [\"skills\"]\n");
    place.write_skill("skills/evil", "# Evil\n");
    place.run_ok(&["link", "./out"]);
    assert!(!place.work_dir().join("out/evil").exists());
}

#[test]
fn watching_follows_changes() {
    let place = TestWorkspace::new();
    place.write_skill("src/one", "# First\n");
    let mut child = place
        .command(&["--from", "src", "link", "./out", "--watch", "--quiet"])
        .spawn()
        .unwrap();
    let copy = place.work_dir().join("out/one/SKILL.md");
    let has = |text: &str| fs::read_to_string(&copy).is_ok_and(|copy| copy.contains(text));
    wait_for("the first copy", || has("# First"));
    place.write_skill("src/one", "# Second\n");
    wait_for("the second copy", || has("# Second"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[cfg(unix)]
#[test]
fn t2_links_of_a_cloned_project_are_not_written_through() {
    use std::os::unix::fs::symlink;
    let place = TestWorkspace::new();
    fs::create_dir_all(place.work_dir().join("project/.git")).unwrap();
    let outside = place.work_dir().join("outside");
    fs::write(&outside, "mine").unwrap();
    let connect = |host: &str| {
        let mut command = place.command(&["connect", host, "--project"]);
        command.current_dir(place.work_dir().join("project"));
        CommandOutput(command.output().unwrap())
    };
    // The name of the backup is a link.
    place.write_file("project/.mcp.json", "{\"evil\": \"text\"}");
    let backup = place.work_dir().join("project/.mcp.json.repertoire-backup");
    symlink(&outside, &backup).unwrap();
    assert_eq!(connect("claude-code").exit_code(), 0);
    assert_eq!(fs::read_to_string(&outside).unwrap(), "mine");
    assert!(backup.is_symlink());
    let backup = backup.with_extension("repertoire-backup-2");
    assert_eq!(fs::read_to_string(&backup).unwrap(), "{\"evil\": \"text\"}");
    // The file itself, or its folder, is a link out of the project.
    fs::write(&outside, "{}").unwrap();
    symlink(&outside, place.work_dir().join("project/opencode.json")).unwrap();
    symlink(place.work_dir(), place.work_dir().join("project/.cursor")).unwrap();
    symlink(place.work_dir(), place.work_dir().join("project/.claude")).unwrap();
    let mut link = place.command(&["link", "claude-code", "--project"]);
    let link = link.current_dir(place.work_dir().join("project"));
    assert_eq!(CommandOutput(link.output().unwrap()).exit_code(), 4);
    assert!(!place.work_dir().join("skills").exists());
    for host in ["opencode", "cursor"] {
        let refused = connect(host);
        assert_eq!(refused.exit_code(), 4, "{}", refused.stderr());
        assert!(
            refused.stderr().contains("leads out"),
            "{}",
            refused.stderr()
        );
    }
    assert_eq!(fs::read_to_string(&outside).unwrap(), "{}");
    assert!(!place.work_dir().join("mcp.json").exists());
}

#[test]
fn a_copy_with_files_of_the_user_is_left_alone() {
    let place = TestWorkspace::new();
    place.write_skill("src/pdf", "# Pdf\n");
    place.run_ok(&["--from", "src", "link", "./out"]);
    // These are no part of a skill, and yet the user's.
    place.write_file("out/pdf/.git/work", "mine");
    place.write_file("out/pdf/notes~", "mine");
    place.write_skill("src/pdf", "# Changed\n");
    for args in [&["link", "./out"][..], &["link", "./out", "--remove"]] {
        let run = place.run(&[&["--from", "src"], args].concat());
        assert!(run.stderr().contains("pdf: left alone"), "{}", run.stderr());
    }
    let kept = fs::read_to_string(place.work_dir().join("out/pdf/.git/work"));
    assert_eq!(kept.unwrap(), "mine");
}

#[test]
fn t45_a_record_that_this_account_did_not_write_removes_nothing() {
    let place = TestWorkspace::new();
    place.write_skill("src/one", "# One\n");
    run_ok(&place, &["add", "src", "--scope", "account"]);
    let skills = place.work_dir().join(".claude/skills");
    place.write_skill(".claude/skills/mine", "# Mine\n");
    // A colleague's record, or a forged one, with the right digest.
    let shown = place.run_json(&["--from", ".claude/skills", "show", "mine", "--json"]);
    let digest = shown["digest"].as_str().unwrap();
    for signature in ["", "00"] {
        let record = format!(
            "{{\"signature\": {signature:?}, \"skills\": {{\"mine\": {{\"id\": \"mine\", \"digest\": {digest:?}}}}}}}"
        );
        place.write_file(".claude/skills/.repertoire-copies.json", &record);
        for args in [
            &["link", "claude-code", "--project"][..],
            &["link", "claude-code", "--project", "--remove"],
        ] {
            let refused = run(&place, args);
            assert_ne!(refused.exit_code(), 0);
            let errors = refused.stderr();
            assert!(errors.contains("not written by this account"), "{errors}");
            assert!(skills.join("mine/SKILL.md").is_file());
        }
    }
    // Neither is it read through a link, for as long as that goes on.
    #[cfg(unix)]
    {
        let record = skills.join(".repertoire-copies.json");
        fs::remove_file(&record).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &record).unwrap();
        assert_ne!(
            run(&place, &["link", "claude-code", "--project"]).exit_code(),
            0
        );
        fs::remove_file(&record).unwrap();
    }
    run_ok(&place, &["link", "claude-code", "--project"]);
    assert!(skills.join("one/SKILL.md").is_file() && skills.join("mine/SKILL.md").is_file());
}

#[cfg(unix)]
#[test]
fn copies_of_scripts_stay_executable() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = TestWorkspace::new();
    place.write_skill("src/one", "# One\n");
    place.write_file("src/one/scripts/run.sh", "#!/bin/sh\n");
    place.write_file("src/one/notes.md", "Notes.\n");
    let script = place.work_dir().join("src/one/scripts/run.sh");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(place.home_dir()).unwrap();
    let settings = format!(
        "folders = [{:?}]\n",
        place.work_dir().join("src").display().to_string()
    );
    fs::write(place.home_dir().join("config.toml"), settings).unwrap();
    run_ok(&place, &["link", "goose", "--project"]);
    let mode = |path: &str| {
        let copy = place.work_dir().join(".goose/skills/one").join(path);
        copy.metadata().unwrap().permissions().mode() & 0o111
    };
    assert_ne!(mode("scripts/run.sh"), 0);
    assert_eq!(mode("notes.md"), 0);
}

#[test]
fn addresses_hold_no_secret_and_are_connected_once() {
    let place = TestWorkspace::new();
    for url in [
        "http://user:pw@127.0.0.1:8321/mcp",
        "https://a.example/mcp?token=pw",
        "https://a.example/mcp#pw",
    ] {
        let refused = run(
            &place,
            &["connect", "claude-code", "--project", "--url", url],
        );
        assert_eq!(refused.exit_code(), 2, "{url}");
        assert!(!refused.stderr().contains("pw"), "{}", refused.stderr());
    }
    let file = place.work_dir().join(".mcp.json");
    assert!(!file.exists());
    let connect = |url: &str| {
        run_ok(
            &place,
            &["connect", "claude-code", "--project", "--url", url],
        )
    };
    connect("http://192.168.1.5:3888/mcp");
    assert!(connect("http://192.168.1.5:3888/mcp").contains("already"));
    connect("https://skills.example.com/mcp");
    assert!(
        fs::read_to_string(&file)
            .unwrap()
            .contains("skills.example.com")
    );
    run_ok(&place, &["disconnect", "claude-code", "--project"]);
    assert!(
        !fs::read_to_string(&file)
            .unwrap_or_default()
            .contains("skills.example.com")
    );
    // Which of two is used depends on the host.
    let twice =
        r#"{"mcpServers": {"repertoire": {"command": "x"}, "repertoire": {"command": "y"}}}"#;
    fs::write(&file, twice).unwrap();
    let refused = run(&place, &["connect", "claude-code", "--project"]);
    assert_ne!(refused.exit_code(), 0);
    assert_eq!(fs::read_to_string(&file).unwrap(), twice);
}

#[test]
fn folders_are_named_from_where_the_host_starts() {
    let place = TestWorkspace::new();
    fs::create_dir_all(place.work_dir().join(".git")).unwrap();
    place.write_skill("sub/dir/sk/one", "# One\n");
    let mut command = place.command(&["connect", "vscode", "--project", "sk"]);
    command.current_dir(place.work_dir().join("sub/dir"));
    command.env("HOME", user_dir(&place));
    let connected = CommandOutput(command.output().unwrap());
    assert_eq!(connected.exit_code(), 0, "{}", connected.stderr());
    let file = place.work_dir().join(".vscode/mcp.json");
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains("\"sub/dir/sk\""), "{text}");
}

#[test]
fn t45_servers_of_others_are_neither_replaced_nor_removed() {
    let place = TestWorkspace::new();
    let theirs =
        r#"{"mcpServers": {"linear": {"type": "http", "url": "https://linear.test/mcp"}}}"#;
    place.write_file(".mcp.json", theirs);
    let file = place.work_dir().join(".mcp.json");
    let named = ["claude-code", "--project", "--name", "linear"];
    for command in ["connect", "disconnect"] {
        let refused = run(&place, &[&[command], &named[..]].concat());
        assert_eq!(refused.exit_code(), 4, "{}", refused.stderr());
        assert_eq!(fs::read_to_string(&file).unwrap(), theirs);
    }
    // One that was connected from here is ours, and what it replaces is kept.
    let url = ["--url", "https://linear.test/other/mcp"];
    run_ok(
        &place,
        &[&["connect", "claude-code", "--project"], &url[..]].concat(),
    );
    run_ok(&place, &["connect", "claude-code", "--project"]);
    let backups = fs::read_dir(place.work_dir()).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().contains(".repertoire-backup")
    });
    assert_eq!(backups.count(), 2);
    run_ok(&place, &["disconnect", "claude-code", "--project"]);
    assert!(
        fs::read_to_string(&file)
            .unwrap()
            .contains("linear.test/mcp")
    );
}

#[cfg(unix)]
#[test]
fn settings_that_are_links_to_nothing_are_refused() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let place = TestWorkspace::new();
    let file = place.work_dir().join(".mcp.json");
    symlink("missing.json", &file).unwrap();
    let refused = run(&place, &["connect", "claude-code", "--project"]);
    assert_eq!(refused.exit_code(), 4, "{}", refused.stderr());
    assert!(
        refused.stderr().contains("missing.json"),
        "{}",
        refused.stderr()
    );
    assert!(file.is_symlink());
    // A new file of a project is for others, too.
    fs::remove_file(&file).unwrap();
    run_ok(&place, &["connect", "claude-code", "--project"]);
    let mode = file.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o044, 0o044, "{mode:o}");
}

#[cfg(unix)]
#[test]
fn what_the_user_put_in_the_place_of_a_copy_stays() {
    use std::os::unix::fs::symlink;
    let place = TestWorkspace::new();
    for name in ["one", "two", "three"] {
        place.write_skill(&format!("src/{name}"), "# First\n");
    }
    place.run_ok(&["add", "src", "--scope", "account"]);
    place.run_ok(&["link", "./out"]);
    let out = place.work_dir().join("out");
    fs::remove_dir_all(out.join("one")).unwrap();
    symlink("../src/one", out.join("one")).unwrap();
    fs::remove_dir_all(out.join("two")).unwrap();
    fs::write(out.join("two"), "my only notes").unwrap();
    let run = place.run(&["link", "./out", "--only", "three"]);
    assert_eq!(run.exit_code(), 0, "{}", run.stderr());
    assert!(out.join("one").is_symlink());
    assert_eq!(
        fs::read_to_string(out.join("two")).unwrap(),
        "my only notes"
    );
    assert!(out.join("three/SKILL.md").is_file());
    // Without the skill that was meant, nothing is removed.
    let refused = place.run(&["link", "./out", "--only", "thre"]);
    assert_eq!(refused.exit_code(), 3, "{}", refused.stderr());
    assert!(out.join("three/SKILL.md").is_file());
}

#[test]
fn copies_stay_while_another_host_reads_them() {
    let place = TestWorkspace::new();
    place.write_skill("src/one", "# First\n");
    place.run_ok(&["add", "src", "--scope", "account"]);
    for host in ["cursor", "codex"] {
        run_ok(&place, &["link", host, "--project"]);
    }
    let copy = place.work_dir().join(".agents/skills/one/SKILL.md");
    let first = run(&place, &["link", "codex", "--project", "--remove"]);
    assert!(first.stderr().contains("cursor"), "{}", first.stderr());
    assert!(copy.is_file());
    run_ok(&place, &["link", "cursor", "--project", "--remove"]);
    assert!(!copy.exists());
}

#[test]
fn copies_are_not_read_back_through_a_folder_around_them() {
    let place = TestWorkspace::new();
    place.write_skill("src/one", "# First\n");
    place.run_ok(&["add", "src", "--scope", "account"]);
    place.run_ok(&["link", "./all/host/skills"]);
    place.write_skill("all/own", "# Own\n");
    let listed = place.run_json(&["list", "./all", "--json"]);
    let skills = listed["skills"].as_array().unwrap();
    assert_eq!(skills.len(), 1, "{listed}");
    assert_eq!(skills[0]["id"], "own");
}

#[cfg(unix)]
#[test]
fn scripts_from_a_store_are_executable_in_copies() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = TestWorkspace::new();
    place.write_skill("src/one", "# First\n");
    place.write_file("src/one/run.sh", "#!/bin/sh\necho hi\n");
    place.write_file("src/one/data.txt", "hi\n");
    place.run_ok(&["add", "src", "--scope", "account"]);
    place.run_ok(&["link", "./out"]);
    let mode = |file: &str| {
        let file = place.work_dir().join(file);
        file.metadata().unwrap().permissions().mode() & 0o100
    };
    assert_eq!(
        (mode("out/one/run.sh"), mode("out/one/data.txt")),
        (0o100, 0)
    );
}
