//! SDKs and frameworks on skills as people write them, in both directions.

use std::process::Command;

use anyhow::Result;

use crate::{
    commands::{CheckCount, build_program, project_dir, run_checked},
    install,
    interop::{InteropServer, NodeTools, count_steps, fresh_home, scratch_dir},
};

/// Serves `corpus/irregular` to the TypeScript SDK, `FastMCP`, agent-framework and the Python SDK, and
/// reads skills that `FastMCP` serves.
pub(crate) fn test_frameworks() -> Result<CheckCount> {
    let node = NodeTools::install()?;
    let python = install::install_python("interop/requirements.txt", "interop/python")?;
    let program = build_program()?;
    let folder = fresh_home("irregular")?;
    let home = fresh_home("irregular-home")?;
    let expected = home.join("expected.json");
    let project = project_dir();
    run_checked(
        Command::new(&python)
            .arg(project.join("interop/corpus.py"))
            .arg(project.join("corpus/irregular/cases.toml"))
            .args([&folder, &expected]),
    )?;
    let serving = InteropServer::start_server(&program, &home, Some(&folder))?;
    let script = install::copy_script("interop/irregular.mjs", &scratch_dir().join("node"))?;
    let mut typescript = node.node_command(&script);
    typescript.arg(&serving.url).arg(&expected);
    let frameworks = project.join("interop/frameworks.py");
    let mut clients = Command::new(&python);
    clients.arg("-Wignore").arg(&frameworks).arg("client");
    clients.arg(&serving.url).arg(&expected);
    let mut count = CheckCount::default();
    for mut command in [typescript, clients] {
        count.add(count_steps(&mut command)?);
    }
    count.add(CheckCount::from_result(
        "our client reads what FastMCP serves",
        read_fastmcp(&program, &python, &frameworks),
    ));
    Ok(count)
}

/// Adds a `FastMCP` server and reads a file of one of its skills.
fn read_fastmcp(
    program: &std::path::Path,
    python: &std::path::Path,
    script: &std::path::Path,
) -> Result<()> {
    let home = fresh_home("fastmcp-home")?;
    let skills = home.join("skills");
    std::fs::create_dir_all(skills.join("stamps/references"))?;
    let document = "---\nname: stamps\ndescription: Sells stamps.\n---\n# Stamps\n";
    std::fs::write(skills.join("stamps/SKILL.md"), document)?;
    std::fs::write(skills.join("stamps/references/prices.md"), "One penny.\n")?;
    let run = |args: &[&str]| -> Result<String> {
        let output = Command::new(program)
            .args(args)
            .current_dir(&home)
            .env("REPERTOIRE_HOME", &home)
            .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
            .output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "{args:?}: {errors}");
        Ok(String::from_utf8(output.stdout)?)
    };
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let (python, script, folder) = (text(python), text(script), text(&skills));
    // The older form has resources and manifests instead of `skills/list`.
    for form in ["final", "old"] {
        run(&[
            "add", "mcp", form, "--", &python, "-Wignore", &script, "provider", form, &folder,
        ])?;
        for (path, written) in [
            ("SKILL.md", document),
            ("references/prices.md", "One penny.\n"),
        ] {
            let read = run(&["cat", &format!("skill://{form}/stamps/{path}")])?;
            anyhow::ensure!(read == written, "{form}: {path} differs: {read}");
        }
    }
    Ok(())
}

/// Hosts whose own programs list the servers in their settings: id, program, arguments.
const HOST_PROGRAMS: [(&str, &str, &[&str]); 3] = [
    ("codex", "codex", &["mcp", "list", "--json"]),
    ("gemini-cli", "gemini", &["mcp", "list"]),
    ("opencode", "opencode", &["mcp", "list"]),
];

/// Connects hosts and lets their own programs read the result.
pub(crate) fn test_host_programs() -> Result<CheckCount> {
    let program = build_program()?;
    let (folder, _) = install::install_npm("interop/hosts", "interop/hosts")?;
    let mut count = CheckCount::default();
    for (host, name, args) in HOST_PROGRAMS {
        let home = fresh_home(&format!("host-{host}"))?;
        let run = |command: &mut Command| -> Result<String> {
            let output = command.current_dir(&home).env("HOME", &home).output()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok(text + &String::from_utf8_lossy(&output.stderr))
        };
        let check = || -> Result<()> {
            run(Command::new(&program).args(["connect", host, "--user"]))?;
            let bin = folder.join("node_modules/.bin").join(name);
            let listed = run(Command::new(&bin).args(args))?;
            let is_there = listed.contains("repertoire") && listed.contains("mcp");
            anyhow::ensure!(is_there, "{name} does not list it: {listed}");
            run(Command::new(&program).args(["disconnect", host, "--user"]))?;
            let rest = run(Command::new(&bin).args(args))?;
            let path = program.to_string_lossy();
            anyhow::ensure!(!rest.contains(&*path), "{name} still lists it: {rest}");
            Ok(())
        };
        println!("-- {name} reads what `connect {host}` writes");
        count.add(CheckCount::from_result(host, check()));
    }
    Ok(count)
}
