//! SDKs and frameworks on skills as people write them, in both directions.

use std::{path::Path, process::Command};

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

/// A host whose own program lists the servers in its settings.
struct HostProgram {
    host: &'static str,
    scope: &'static str,
    program: &'static str,
    args: &'static [&'static str],
    /// What keeps it from calling home, and makes it read the settings of a project.
    env: &'static [(&'static str, &'static str)],
    /// What it prints of our server; `None` for the path of the program.
    shows: Option<&'static str>,
}

const KILO_OFFLINE: &[(&str, &str)] = &[
    ("KILO_DISABLE_AUTOUPDATE", "1"),
    ("KILO_DISABLE_MODELS_FETCH", "1"),
    ("KILO_DISABLE_DEFAULT_PLUGINS", "1"),
    ("KILO_DISABLE_SESSION_INGEST", "1"),
    ("KILO_TELEMETRY_LEVEL", "off"),
];
const CLAUDE_OFFLINE: &[(&str, &str)] = &[
    ("DISABLE_AUTOUPDATER", "1"),
    ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
];
const COPILOT_OFFLINE: &[(&str, &str)] = &[
    ("COPILOT_AUTO_UPDATE", "false"),
    ("COPILOT_OFFLINE", "true"),
    ("COPILOT_ALLOW_ALL", "true"),
];

const HOST_PROGRAMS: [HostProgram; 9] = [
    host_program("codex", "--user", "codex", &["mcp", "list", "--json"], &[]),
    host_program("gemini-cli", "--user", "gemini", &["mcp", "list"], &[]),
    host_program("opencode", "--user", "opencode", &["mcp", "list"], &[]),
    host_program(
        "claude-code",
        "--user",
        "claude",
        &["mcp", "list"],
        CLAUDE_OFFLINE,
    ),
    HostProgram {
        // A project's servers are shown without their commands until they are approved.
        shows: Some("Scope: Project config"),
        ..host_program(
            "claude-code",
            "--project",
            "claude",
            &["mcp", "get", "repertoire"],
            CLAUDE_OFFLINE,
        )
    },
    host_program(
        "copilot-cli",
        "--user",
        "copilot",
        &["mcp", "get", "repertoire"],
        COPILOT_OFFLINE,
    ),
    HostProgram {
        shows: Some("Command: repertoire"),
        ..host_program(
            "copilot-cli",
            "--project",
            "copilot",
            &["mcp", "get", "repertoire"],
            COPILOT_OFFLINE,
        )
    },
    host_program("kilo", "--user", "kilo", &["mcp", "list"], KILO_OFFLINE),
    HostProgram {
        shows: Some("repertoire [stdio]"),
        ..host_program(
            "cline-cli",
            "--user",
            "cline",
            &["config", "mcp"],
            &[("CLINE_NO_AUTO_UPDATE", "1")],
        )
    },
];

const fn host_program(
    host: &'static str,
    scope: &'static str,
    program: &'static str,
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
) -> HostProgram {
    HostProgram {
        host,
        scope,
        program,
        args,
        env,
        shows: None,
    }
}

/// Connects hosts and lets their own programs read the result.
pub(crate) fn test_host_programs() -> Result<CheckCount> {
    let program = build_program()?;
    let node = NodeTools::install()?;
    let (folder, _) = install::install_npm("interop/hosts", "interop/hosts")?;
    let mut count = CheckCount::default();
    for host in &HOST_PROGRAMS {
        let name = format!("{} {}", host.host, host.scope);
        println!("-- {} reads what `connect {name}` writes", host.program);
        let checked = check_host_program(&program, &node, &folder, host);
        count.add(CheckCount::from_result(&name, checked));
    }
    Ok(count)
}

fn check_host_program(
    program: &Path,
    node: &NodeTools,
    folder: &Path,
    host: &HostProgram,
) -> Result<()> {
    let home = fresh_home(&format!("host-{}{}", host.host, host.scope))?;
    let cache = scratch_dir().join("copilot-cache");
    let run = |command: &mut Command| -> Result<String> {
        let output = command
            .current_dir(&home)
            .env("PATH", node.search_path())
            .env("HOME", &home)
            .env("COPILOT_CACHE_HOME", &cache)
            .envs(host.env.iter().copied())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text + &String::from_utf8_lossy(&output.stderr))
    };
    // Projects are found by their repository.
    run(Command::new("git").args(["init", "--quiet"]))?;
    let path = program.to_string_lossy();
    let shows = host.shows.unwrap_or(&path);
    run(Command::new(program).args(["connect", host.host, host.scope]))?;
    let bin = folder.join("node_modules/.bin").join(host.program);
    let listed = run(Command::new(&bin).args(host.args))?;
    anyhow::ensure!(
        listed.contains("repertoire") && listed.contains(shows),
        "{} does not list it: {listed}",
        host.program
    );
    run(Command::new(program).args(["disconnect", host.host, host.scope]))?;
    let rest = run(Command::new(&bin).args(host.args))?;
    anyhow::ensure!(
        !rest.contains(shows),
        "{} still lists it: {rest}",
        host.program
    );
    Ok(())
}
