//! Hostile git repositories and servers: no checkout, no hook, no link, no end of data.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::{
    http::{RawServer, answer},
    places::Repository,
    user::{User, document},
};

#[test]
fn t52_links_submodules_and_hooks_have_no_effect() {
    let repository = Repository::with_skills(&["pdf", "good"]);
    let touched = tempfile::tempdir().unwrap();
    let mark = touched.path().join("hook-ran");
    // Hooks and filters, in every place where git would look for them in a clone.
    let hook = format!("#!/bin/sh\ntouch {}\n", mark.display());
    for name in [
        "post-checkout",
        "post-merge",
        "fsmonitor-watchman",
        "reference-transaction",
    ] {
        repository.write(&format!(".git/hooks/{name}"), &hook);
        repository.write(&format!("hooks/{name}"), &hook);
    }
    repository.write(".gitattributes", "* filter=evil diff=evil\n");
    repository.write(".lfsconfig", "[lfs]\n\turl = http://127.0.0.1:1/\n");
    repository.git(&[
        "config",
        "filter.evil.smudge",
        &format!("touch {}", mark.display()),
    ]);
    #[cfg(unix)]
    std::os::unix::fs::symlink("/etc/passwd", repository.path().join("skills/pdf/secrets"))
        .unwrap();
    repository.git(&["add", "--all"]);
    repository.git(&[
        "update-index",
        "--add",
        "--cacheinfo",
        &format!("160000,{},skills/sub/module", "1".repeat(40)),
    ]);
    repository.write(
        ".gitmodules",
        "[submodule \"m\"]\n\tpath = skills/sub/module\n\turl = ext::sh\n",
    );
    repository.write("skills/sub/SKILL.md", document("sub", ""));
    repository.git(&["add", ".gitmodules", "skills/sub/SKILL.md"]);
    repository.git(&["commit", "--quiet", "-m", "evil"]);
    let url = repository.file_url();
    let user = User::new();
    user.run(&["add", &url, "--skill", "pdf"])
        .refused("refused_content", "is a link");
    user.run(&["add", &url, "--skill", "sub"])
        .refused("refused_content", "is a submodule");
    user.run(&["add", &url, "--all"])
        .refused("refused_content", "");
    user.has_nothing(&user.path("home"));
    user.run(&["add", &url, "--skill", "good"]).ok();
    assert!(!mark.exists(), "something of the repository was run");
}

#[test]
fn t52_settings_of_the_user_cannot_be_turned_against_them() {
    let repository = Repository::with_skills(&["pdf"]);
    let user = User::new();
    let mark = user.path("ran");
    // What a stranger could have brought the user to set, and what the environment may hold.
    let config = format!(
        "[core]\n\thooksPath = {0}\n\tfsmonitor = touch {1}\n[protocol]\n\tallow = always\n",
        user.path("hooks").display(),
        mark.display()
    );
    fs::write(user.path("home").join(".gitconfig"), config).unwrap();
    let answer = user
        .command(&user.path("home"))
        .args(["add", &repository.file_url(), "--json"])
        .env("GIT_DIR", "/nonexistent")
        .env("GIT_EXTERNAL_DIFF", "false")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "core.hooksPath")
        .env("GIT_CONFIG_VALUE_0", user.path("hooks"))
        .output()
        .unwrap();
    assert!(answer.status.success(), "{answer:?}");
    assert!(!mark.exists());
}

#[test]
fn t52_options_in_the_place_of_names_are_refused() {
    let repository = Repository::with_skills(&["pdf"]);
    let user = User::new();
    let mark = user.path("ran");
    let command = format!("touch {}", mark.display());
    for source in [
        format!("--upload-pack={command}"),
        format!("{}#--upload-pack={command}", repository.file_url()),
        format!("git+ext::sh -c {}", command.replace(' ', "% ")),
        format!("ssh://-oProxyCommand={}/x", command.replace(' ', "%20")),
        format!("git@-oProxyCommand={command}:x"),
        "https://example.com/r.git#-x".to_owned(),
        "https://token:secret@example.com/r.git".to_owned(),
    ] {
        let answer = user.see(&user.path("home"), &["--json", "add", "--", &source]);
        assert_ne!(answer.code, 0, "{source}: {answer:?}");
        assert!(
            answer.err.contains("invalid_source"),
            "{source}: {answer:?}"
        );
    }
    assert!(!mark.exists(), "a source was run");
    user.has_nothing(&user.path("home"));
}

/// Writes a tree object of entries and returns its id.
fn make_tree(repository: &Repository, entries: &str) -> String {
    let mut mktree = Command::new("git")
        .args(["mktree", "--missing"])
        .current_dir(repository.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    mktree
        .stdin
        .take()
        .unwrap()
        .write_all(entries.as_bytes())
        .unwrap();
    let output = mktree.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn t52_trees_with_millions_of_files_are_given_up() {
    let repository = Repository::with_skills(&["pdf"]);
    let blob = repository.git(&["rev-parse", "HEAD:skills/pdf/SKILL.md"]);
    // Six levels of ten folders each: a million files from seven small objects.
    let mut inner = format!("100644 blob {blob}\tfile\n");
    for level in 0..7 {
        let tree = make_tree(&repository, &inner);
        if level == 6 {
            let commit = repository.git(&["commit-tree", &tree, "-m", "bomb"]);
            repository.git(&["update-ref", "refs/heads/main", &commit]);
            break;
        }
        let lines: Vec<String> = (0..10)
            .map(|n| format!("040000 tree {tree}\td{n}\n"))
            .collect();
        inner = lines.concat();
    }
    let user = User::new();
    user.run(&["add", &repository.file_url()])
        .refused("refused_content", "has more than");
    user.has_nothing(&user.path("home"));
}

#[test]
fn t7_repositories_and_files_that_are_too_large_are_given_up() {
    let repository = Repository::with_skills(&["pdf"]);
    // Bytes that do not compress, so that the pack is as large as they are.
    let mut state = 1_u64;
    let mut noise = Vec::with_capacity(40 * 1024 * 1024);
    while noise.len() < 40 * 1024 * 1024 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend_from_slice(&state.to_le_bytes());
    }
    repository.write("skills/pdf/large.bin", &noise);
    repository.commit("large");
    let user = User::new();
    let refused = user.run(&["add", &repository.file_url()]);
    assert_ne!(refused.code, 0);
    assert!(refused.err.contains("refused"), "{refused:?}");
    user.has_nothing(&user.path("home"));
}

#[test]
fn t52_servers_that_send_no_repository_are_refused() {
    let user = User::new();
    for body in [
        &b"<html>Welcome</html>"[..],
        b"001e# service=git-upload-pack\n0000ffffgarbage",
        b"",
    ] {
        let server = RawServer::start(move |_, stream| {
            let kind = [(
                "Content-Type",
                "application/x-git-upload-pack-advertisement",
            )];
            answer(stream, "200 OK", &kind, body)
        });
        let answer = user.run(&["add", &format!("{}/r.git", server.url)]);
        assert_ne!(answer.code, 0, "{answer:?}");
        assert!(answer.err.contains(server.host()), "{answer:?}");
    }
    // A redirect to another place on a private network takes git nowhere else than the rules allow.
    let server = RawServer::start(|_, stream| {
        let to = [(
            "Location",
            "http://169.254.169.254/latest/info/refs?service=git-upload-pack",
        )];
        answer(stream, "301 Moved Permanently", &to, b"")
    });
    user.run(&["add", &format!("{}/r.git", server.url)])
        .refused("refused_content", "internal");
    user.has_nothing(&user.path("home"));
}

#[cfg(unix)]
#[test]
fn t48_git_ends_with_the_process_that_started_it() {
    use std::time::{Duration, Instant};
    // A server that accepts and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let user = User::new();
    let mut child = user
        .command(&user.path("home"))
        .args([
            "add",
            &format!("ssh://git@127.0.0.1:{}/r.git", address.port()),
        ])
        .env(
            "GIT_SSH_COMMAND",
            "sh -c 'exec sleep 300 # repertoire-test-silent' --",
        )
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let scratch = user.account().join("cache/fetch");
    let is_running = || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let lines = all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        let mine = scratch.to_str().unwrap().as_bytes().to_vec();
        lines
            .into_iter()
            .any(|line| line.windows(mine.len()).any(|part| part == mine))
    };
    let wait_for = |what: &str, condition: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !condition() {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "timed out: {what}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait_for("git to start", &is_running);
    // It was started here, so it is ended here, in the hardest way.
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("git to end", &|| !is_running());
}

#[test]
fn t52_a_git_server_that_never_ends_is_given_up() {
    // A pack of one file without end: stored blocks of zeros, which cost the server nothing.
    let commit = "1".repeat(40);
    let packet = |text: &[u8]| [format!("{:04x}", text.len() + 4).as_bytes(), text].concat();
    let asked = AtomicUsize::new(0);
    let server = RawServer::start(move |request, stream| {
        if request.path.contains("/info/refs") {
            let line = format!("{commit} HEAD\0side-band-64k shallow agent=x\n");
            let body = [
                packet(b"# service=git-upload-pack\n"),
                b"0000".to_vec(),
                packet(line.as_bytes()),
                b"0000".to_vec(),
            ];
            let kind = [(
                "Content-Type",
                "application/x-git-upload-pack-advertisement",
            )];
            return answer(stream, "200 OK", &kind, &body.concat());
        }
        stream.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-result\r\nConnection: \
              close\r\n\r\n",
        )?;
        stream.write_all(&packet(format!("shallow {commit}").as_bytes()))?;
        stream.write_all(b"0000")?;
        if asked.fetch_add(1, Ordering::SeqCst) == 0 {
            // The first answer only says how deep the history is.
            return Ok(());
        }
        stream.write_all(&packet(b"NAK\n"))?;
        // A blob of 2^40 bytes.
        let mut head = b"\x01PACK\0\0\0\x02\0\0\0\x01".to_vec();
        head.extend([0xb0, 0x80, 0x80, 0x80, 0x80, 0x40, 0x78, 0x01]);
        stream.write_all(&packet(&head))?;
        let zeros = vec![0; 60_000];
        let block = [
            &[1, 0][..],
            &60_000_u16.to_le_bytes(),
            &(!60_000_u16).to_le_bytes(),
            &zeros,
        ];
        let block = packet(&block.concat());
        // Far more than any limit; the client has to leave.
        for _ in 0..40_000 {
            stream.write_all(&block)?;
        }
        Ok(())
    });
    let user = User::new();
    // Either bound may end it first: that of the file that git writes, or that of its folder.
    user.run(&["add", &format!("{}/r.git", server.url)])
        .refused("refused_content", "refused");
    user.has_nothing(&user.path("home"));
    let scratch = user.account().join("cache/fetch");
    assert!(
        scratch
            .read_dir()
            .map_or(true, |mut all| all.next().is_none())
    );
}
