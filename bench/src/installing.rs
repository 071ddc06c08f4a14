//! Installing from a local repository against the `skills` command, and verifying against `sha256sum`.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::measure::{median, print_comparison};

/// How many skills are installed at once.
const FEW: usize = 20;
/// How many installed skills are verified.
const MANY: usize = 10_000;
/// How often each side takes its turn.
const ROUNDS: usize = 7;

/// Writes a repository with skills of a document of 4 KiB and a reference of 2 KiB.
fn make_repository(folder: &Path, count: usize) -> Result<()> {
    for number in 0..count {
        let skill = folder.join(format!("skills/skill-{number}"));
        fs::create_dir_all(skill.join("references"))?;
        let line = format!("Line of skill {number}, which says what to do in which case.\n");
        let text = format!(
            "---\nname: skill-{number}\ndescription: Does thing {number}. Use when {number} is \
             wanted.\n---\n# Skill {number}\n\n{}",
            line.repeat(4096 / line.len())
        );
        fs::write(skill.join("SKILL.md"), text)?;
        fs::write(
            skill.join("references/notes.md"),
            line.repeat(2048 / line.len()),
        )?;
    }
    for args in [
        &["init", "--quiet"][..],
        &["add", "--all"],
        &[
            "-c",
            "user.name=b",
            "-c",
            "user.email=b@example.com",
            "commit",
            "--quiet",
            "-m",
            "x",
        ],
    ] {
        let done = Command::new("git")
            .args(args)
            .current_dir(folder)
            .status()?;
        ensure!(done.success(), "git failed");
    }
    Ok(())
}

/// Runs a command to its end and returns how long that took.
fn time(command: &mut Command) -> Result<Duration> {
    let begun = Instant::now();
    let output = command.stdin(Stdio::null()).output()?;
    let taken = begun.elapsed();
    ensure!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(taken)
}

fn ours(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("REPERTOIRE_HOME", home.join(".repertoire"))
        .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
        .env("HOME", home)
        .current_dir(home);
    command
}

pub(crate) fn run(program: &Path, node: &Path, skills: &Path) -> Result<()> {
    let few = tempfile::tempdir()?;
    make_repository(few.path(), FEW)?;
    let address = format!("file://{}", few.path().display());
    let (mut own, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let home = tempfile::tempdir()?;
        own.push(time(
            ours(program, home.path()).args(["add", &address, "--all"]),
        )?);
        let project = tempfile::tempdir()?;
        theirs.push(time(
            Command::new(node)
                .arg(skills)
                .args(["add", &address, "--skill", "*", "-a", "claude-code", "-y"])
                .env("DISABLE_TELEMETRY", "1")
                .env("HOME", project.path())
                .current_dir(project.path()),
        )?);
        let installed = project.path().join(".claude/skills/skill-0/SKILL.md");
        ensure!(installed.is_file(), "the peer installed nothing");
    }
    println!("| what | ours | peer | theirs | ratio | goal |\n|---|---|---|---|---|---|");
    print_comparison(
        "install 20 skills from a local git repository",
        median(own),
        "`skills add` 1.7.4",
        median(theirs),
        Some(0.2),
    );
    let many = tempfile::tempdir()?;
    make_repository(many.path(), MANY)?;
    let home = tempfile::tempdir()?;
    let address = format!("file://{}", many.path().display());
    let installing = time(ours(program, home.path()).args(["add", &address, "--all"]))?;
    let (mut own, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        own.push(time(ours(program, home.path()).arg("verify"))?);
        let folder = many.path().join("skills");
        theirs.push(time(
            Command::new("sh")
                .args([
                    "-c",
                    "find . -type f -print0 | xargs -0 sha256sum > /dev/null",
                ])
                .current_dir(folder),
        )?);
    }
    let what = "verify 10 000 installed skills (20 000 files)";
    let peer = "sha256sum over the same files";
    print_comparison(what, median(own), peer, median(theirs), Some(1.5));
    let size = fs::metadata(home.path().join(".repertoire/agents.db")).context("no store")?;
    println!(
        "\ninstalling the {MANY} took {:.1} s; the store has {} MiB",
        installing.as_secs_f64(),
        size.len() / 1024 / 1024
    );
    Ok(())
}
