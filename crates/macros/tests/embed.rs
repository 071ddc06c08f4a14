//! Builds a separate program with an embedded skill: it contains the files, is rebuilt when one
//! changes, and fails to compile when the skill is not valid.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const MAIN: &str = r#"
fn main() {
    let skill = repertoire_macros::embed!(repertoire_core "skills/tidy");
    print!("{}", skill.as_prompt_text());
    println!("\n{:?}", skill.references().iter().map(|r| (r.path(), r.body().len())).collect::<Vec<_>>());
}
"#;

fn write_program(folder: &Path) -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let manifest = format!(
        "[package]\nname = \"embed-user\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n\
         [dependencies]\nrepertoire-core = {{ path = {:?} }}\nrepertoire-macros = {{ path = {:?} }}\n",
        crates.join("core").to_str().unwrap(),
        crates.join("macros").to_str().unwrap()
    );
    fs::create_dir_all(folder.join("src")).unwrap();
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    fs::copy(crates.join("../Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    fs::write(folder.join("src/main.rs"), MAIN).unwrap();
    folder.join("skills/tidy")
}

fn cargo_run(folder: &Path) -> Output {
    Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--offline"])
        .current_dir(folder)
        // Shared by all runs of this test, so that its dependencies are built once.
        .env(
            "CARGO_TARGET_DIR",
            Path::new(env!("CARGO_TARGET_TMPDIR")).join("embed"),
        )
        .output()
        .unwrap()
}

fn to_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn an_embedded_skill_is_validated_and_rebuilt_on_change() {
    let place = tempfile::tempdir().unwrap();
    let skill = write_program(place.path());
    fs::create_dir_all(skill.join("references")).unwrap();
    let document = "---\nname: tidy\ndescription: Tidies up. Use when it is a mess.\n---\n# Tidy\n";
    fs::write(skill.join("SKILL.md"), document).unwrap();
    fs::write(skill.join("references/b.md"), "Second.\n").unwrap();
    fs::write(skill.join("references/a.md"), "First.\n").unwrap();
    fs::write(skill.join("dot.png"), [0xff, 0x00, 0x80]).unwrap();
    let first = cargo_run(place.path());
    assert!(first.status.success(), "{}", to_text(&first.stderr));
    let said = to_text(&first.stdout);
    let expected = format!(
        "{document}\n--- references/a.md ---\nFirst.\n\n--- references/b.md ---\nSecond.\n"
    );
    assert!(said.starts_with(&expected), "{said}");
    assert!(said.contains("(\"dot.png\", 3)"), "{said}");

    fs::write(skill.join("references/a.md"), "Changed.\n").unwrap();
    let second = cargo_run(place.path());
    assert!(
        to_text(&second.stdout).contains("Changed."),
        "{}",
        to_text(&second.stderr)
    );

    fs::write(skill.join("SKILL.md"), "---\nname: messy\n---\n# No\n").unwrap();
    let third = cargo_run(place.path());
    assert!(!third.status.success());
    let why = to_text(&third.stderr);
    assert!(why.contains("skills/tidy is not a valid skill"), "{why}");
    assert!(why.contains("description"), "{why}");
}
