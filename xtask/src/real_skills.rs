//! Serves folders of published skills and counts what becomes of them.
//!
//! The official clients then list and verify everything that is in `skills/list`, and read the rest:
//! one entry that they refuse would break the whole listing.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    commands::{build_program, project_dir},
    install,
    interop::{InteropServer, NodeTools, count_steps, fresh_home, scratch_dir},
};

/// Counts the skills of a folder by what they are served as, and lets the clients read them.
pub(crate) fn measure(folder: &Path) -> Result<()> {
    let program = build_program()?;
    let home = fresh_home("real-skills-home")?;
    let folder = folder.canonicalize().context("no such folder")?;
    let run = |args: &[&str]| -> Result<String> {
        let output = Command::new(&program)
            .args(args)
            .arg(&folder)
            .current_dir(&home)
            .env("REPERTOIRE_HOME", &home)
            .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
            .output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{args:?}: {errors}");
        Ok(String::from_utf8(output.stdout)?)
    };
    let listed: Value = serde_json::from_str(&run(&["list", "--all", "--json"])?)?;
    let none = Vec::new();
    let skills = listed["skills"].as_array().unwrap_or(&none);
    let skipped = listed["skipped"].as_array().unwrap_or(&none);
    let mut documents = Vec::new();
    find_documents(&folder, &mut documents)?;
    let mut unlisted = BTreeMap::<&str, usize>::new();
    for skill in skills {
        if let Some(code) = skill["unlisted"]["code"].as_str() {
            *unlisted.entry(code).or_default() += 1;
        }
    }
    let mut refused = BTreeMap::<&str, usize>::new();
    for one in skipped {
        let code = one["code"].as_str().unwrap_or("other");
        *refused.entry(code).or_default() += 1;
    }
    let not_listed: usize = unlisted.values().sum();
    #[allow(clippy::cast_precision_loss, reason = "a share for people")]
    let share = 100.0 * skills.len() as f64 / documents.len().max(1) as f64;
    println!("| documents | served | in skills/list | served, not listed | skipped |");
    println!("|---|---|---|---|---|");
    println!(
        "| {} | {} ({share:.1} %) | {} | {not_listed}: {unlisted:?} | {}: {refused:?} |",
        documents.len(),
        skills.len(),
        skills.len() - not_listed,
        skipped.len(),
    );
    for one in skipped {
        println!("- skipped {one}");
    }
    read_with_clients(&program, &folder, &home, skills)
}

/// Finds the documents below a folder, in every spelling of their name.
fn find_documents(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find_documents(&path, found)?;
        } else if path
            .file_name()
            .is_some_and(|name| name.eq_ignore_ascii_case("SKILL.md"))
        {
            found.push(path);
        }
    }
    Ok(())
}

fn read_with_clients(program: &Path, folder: &Path, home: &Path, skills: &[Value]) -> Result<()> {
    let serving = InteropServer::start_server(program, home, Some(folder))?;
    let expected: Vec<Value> = skills
        .iter()
        .map(|skill| {
            let id = skill["id"].as_str().unwrap_or_default();
            let is_listed = skill["unlisted"].is_null();
            json!({"uri": format!("skill://{id}/SKILL.md"), "listed": is_listed, "document": null})
        })
        .collect();
    let file = home.join("expected.json");
    std::fs::write(&file, json!(expected).to_string())?;
    let node = NodeTools::install()?;
    let python = install::install_python("interop/requirements.txt", "interop/python")?;
    let script = install::copy_script("interop/irregular.mjs", &scratch_dir().join("node"))?;
    let mut typescript = node.node_command(&script);
    typescript.arg(&serving.url).arg(&file);
    let mut clients = Command::new(&python);
    clients
        .arg("-Wignore")
        .arg(project_dir().join("interop/frameworks.py"))
        .arg("client")
        .arg(&serving.url)
        .arg(&file);
    for mut command in [typescript, clients] {
        let count = count_steps(&mut command)?;
        ensure!(count.failed == 0, "a client refuses the listing");
    }
    Ok(())
}
