//! Tests the server and the client with the official MCP conformance suite, the official
//! inspector, and the official TypeScript and Python SDKs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    commands::{CheckCount, build_program, project_dir, run_checked},
    install,
};

const PROTOCOL_VERSIONS: [&str; 2] = ["2025-11-25", "2026-07-28"];
/// How many generated skills the SDKs page through, besides two fixed ones.
const SKILL_COUNT: usize = 5000;

/// Scenarios that must pass completely, each at the revisions it is made for.
const REQUIRED_SCENARIOS: [(&str, &[&str]); 12] = [
    ("sep-2640-skills-enumeration", &PROTOCOL_VERSIONS),
    ("sep-2640-skills-manifest", &PROTOCOL_VERSIONS),
    ("sep-2640-skills-directory", &PROTOCOL_VERSIONS),
    ("server-initialize", &["2025-11-25"]),
    ("ping", &["2025-11-25"]),
    ("resources-list", &PROTOCOL_VERSIONS),
    ("prompts-list", &PROTOCOL_VERSIONS),
    ("sep-2164-resource-not-found", &["2026-07-28"]),
    ("caching", &["2026-07-28"]),
    ("dns-rebinding-protection", &PROTOCOL_VERSIONS),
    ("http-header-validation", &["2026-07-28"]),
    ("tools-list", &PROTOCOL_VERSIONS),
];

/// Scenarios of extensions, which the suite runs only one by one.
const EXTENSION_SCENARIOS: [&str; 13] = [
    "sep-2640-skills-enumeration",
    "sep-2640-skills-manifest",
    "sep-2640-skills-directory",
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-status-notifications",
    "tasks-required-task-error",
    "tasks-mrtr-composition",
];

const CLIENT_SCENARIOS: [(&str, &str); 4] = [
    ("sep-2640-client-no-prefetch", "sep-2640-host-no-prefetch"),
    (
        "sep-2640-client-verify-digest",
        "sep-2640-host-verify-digest",
    ),
    (
        "sep-2640-client-verify-size",
        "sep-2640-host-size-mismatch-failure",
    ),
    (
        "sep-2640-client-verify-frontmatter",
        "sep-2640-host-frontmatter-comparison",
    ),
];

/// Returns the folder for the files of this run.
pub(crate) fn scratch_dir() -> PathBuf {
    project_dir().join("target/xtask/interop")
}

/// A server over HTTP; dropping it ends the process.
pub(crate) struct InteropServer {
    child: Child,
    pub(crate) url: String,
}

impl InteropServer {
    pub(crate) fn start_server(program: &Path, home: &Path, folder: Option<&Path>) -> Result<Self> {
        let mut child = Command::new(program)
            .args(["serve", "--hub", "off", "--port", "0", "--json", "--quiet"])
            .args(folder)
            .env("REPERTOIRE_HOME", home)
            .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
            .current_dir(home)
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().context("no stdout")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        let addresses: Value = serde_json::from_str(&line).context("the server did not start")?;
        let url = addresses["url"].as_str().context("no url")?.to_owned();
        Ok(Self { child, url })
    }
}

impl Drop for InteropServer {
    fn drop(&mut self) {
        // It was started here, so it is ended here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates an empty account folder for a test.
pub(crate) fn fresh_home(name: &str) -> Result<PathBuf> {
    let home = scratch_dir().join(name);
    let _ = fs::remove_dir_all(&home);
    fs::create_dir_all(&home)?;
    Ok(home)
}

/// Node and the packages of `interop/package.json`, installed once.
pub(crate) struct NodeTools {
    bin: PathBuf,
    modules: PathBuf,
}

impl NodeTools {
    pub(crate) fn install() -> Result<Self> {
        let (place, new) = install::install_npm("interop", "interop/node")?;
        let node = Self {
            bin: place.join("node_modules/node/bin"),
            modules: place.join("node_modules"),
        };
        if new && !node.bin.join("node").exists() {
            // Newer npm does not run install scripts of packages by default.
            run_checked(
                Command::new("node")
                    .arg("installArchSpecificPackage.js")
                    .current_dir(node.modules.join("node")),
            )?;
        }
        Ok(node)
    }

    /// Node 24 with a script of a package.
    pub(crate) fn node_command(&self, script: &Path) -> Command {
        let mut command = Command::new(self.bin.join("node"));
        command.env("PATH", self.search_path()).arg(script);
        command
    }

    /// The folder of the installed packages.
    pub(crate) fn modules_dir(&self) -> &Path {
        &self.modules
    }

    /// The search path with Node 24 in front.
    pub(crate) fn search_path(&self) -> std::ffi::OsString {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(self.bin.clone()).chain(std::env::split_paths(&path));
        std::env::join_paths(paths).unwrap_or_default()
    }

    fn conformance_command(&self) -> Command {
        let script = "@modelcontextprotocol/conformance/dist/index.js";
        self.node_command(&self.modules.join(script))
    }

    fn inspector_command(&self, home: &Path) -> Command {
        let script = "@modelcontextprotocol/inspector/clients/launcher/build/index.js";
        let mut command = self.node_command(&self.modules.join(script));
        command
            .arg("--cli")
            .env("HOME", home)
            .current_dir(project_dir());
        command
    }
}

/// One entry of the list of known failures.
#[derive(Deserialize)]
struct AllowedFailure {
    reason: String,
    scenarios: Vec<String>,
    check: String,
}

#[derive(Deserialize)]
struct AllowList {
    allow: Vec<AllowedFailure>,
}

/// The id and status of each check, by scenario.
type ScenarioChecks = BTreeMap<String, Vec<(String, String)>>;

/// Reads the results of the suite: scenario → (check, status).
fn read_results(folder: &Path) -> Result<ScenarioChecks> {
    let mut found = ScenarioChecks::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // `server-<scenario>-<time>`, without `server-` for clients; the time has 24 characters.
        let name = name.strip_prefix("server-").unwrap_or(&name);
        let scenario = name.len().checked_sub(25).map_or(name, |end| &name[..end]);
        let checks = fs::read_to_string(entry.path().join("checks.json"))?;
        let checks: Vec<Value> = serde_json::from_str(&checks)?;
        let list = found.entry(scenario.to_owned()).or_default();
        for check in checks {
            let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
            list.push((text("id"), text("status")));
        }
    }
    Ok(found)
}

pub(crate) fn test_conformance() -> Result<CheckCount> {
    let node = NodeTools::install()?;
    let program = build_program()?;
    let home = fresh_home("conformance-home")?;
    let skills = project_dir().join("examples/skills");
    let prompts = project_dir().join("interop/prompts/*.md");
    let config = format!(
        "folders = ['{}']\nprompts = ['{}']\n",
        skills.display(),
        prompts.display()
    );
    fs::write(home.join("config.toml"), config)?;
    let serving = InteropServer::start_server(&program, &home, None)?;
    let out = fresh_home("conformance")?;
    let mut all: BTreeMap<&str, ScenarioChecks> = BTreeMap::new();
    for era in PROTOCOL_VERSIONS {
        let place = out.join(era);
        fs::create_dir_all(&place)?;
        let suite = ["--suite", "all", "--spec-version", era];
        run_suite(&node, &serving.url, &suite, &place)?;
        for scenario in EXTENSION_SCENARIOS {
            let one = ["--scenario", scenario, "--spec-version", era, "--force"];
            run_suite(&node, &serving.url, &one, &place)?;
        }
        all.insert(era, read_results(&place)?);
    }
    let mut count = compare_with_allowed(&all)?;
    count.add(run_client_scenarios(&node, &program)?);
    Ok(count)
}

fn run_suite(node: &NodeTools, url: &str, args: &[&str], out: &Path) -> Result<()> {
    // Its exit code only reports that a check failed; allowed failures are decided later.
    let ran = node
        .conformance_command()
        .args(["server", "--url", url])
        .args(args)
        .arg("-o")
        .arg(out)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    ensure!(ran.code().is_some(), "the conformance suite was killed");
    Ok(())
}

/// Compares the failures with the allowed failures, in both directions.
fn compare_with_allowed(all: &BTreeMap<&str, ScenarioChecks>) -> Result<CheckCount> {
    let list = fs::read_to_string(project_dir().join("interop/conformance.toml"))?;
    let list: AllowList = toml::from_str(&list)?;
    let allowed = |scenario: &str, check: &str| {
        list.allow.iter().position(|allow| {
            (allow.check == "*" || allow.check == check)
                && allow.scenarios.iter().any(|s| s == scenario)
        })
    };
    let mut count = CheckCount::default();
    let mut used: BTreeSet<(usize, String)> = BTreeSet::new();
    let mut fail = |message: String| {
        eprintln!("{message}");
        count.failed += 1;
    };
    let (mut passed, mut known) = (0, 0);
    for (era, scenarios) in all {
        for (scenario, checks) in scenarios {
            for (check, status) in checks {
                match (status.as_str(), allowed(scenario, check)) {
                    ("SUCCESS", _) => passed += 1,
                    ("FAILURE", Some(entry)) => {
                        known += 1;
                        used.insert((entry, scenario.clone()));
                    }
                    ("FAILURE", None) => fail(format!("{era} {scenario}: {check} failed")),
                    ("WARNING", None) => println!("{era} {scenario}: {check} is a warning"),
                    _ => {}
                }
            }
        }
    }
    for (entry, allow) in list.allow.iter().enumerate() {
        for scenario in &allow.scenarios {
            if !used.contains(&(entry, scenario.clone())) {
                fail(format!(
                    "interop/conformance.toml allows {scenario} to fail ({}), and it does not",
                    allow.reason
                ));
            }
            if REQUIRED_SCENARIOS.iter().any(|(must, _)| must == scenario) {
                fail(format!(
                    "{scenario} must pass and may not be allowed to fail"
                ));
            }
        }
    }
    for (scenario, eras) in REQUIRED_SCENARIOS {
        for era in eras {
            let checks = all.get(era).and_then(|found| found.get(scenario));
            let succeeded = checks.is_some_and(|checks| checks.iter().any(|c| c.1 == "SUCCESS"));
            if !succeeded {
                fail(format!("{era} {scenario}: was not run"));
            }
        }
    }
    println!("conformance: {passed} checks passed, {known} known not to");
    count.passed += passed;
    Ok(count)
}

fn run_client_scenarios(node: &NodeTools, program: &Path) -> Result<CheckCount> {
    let mut count = CheckCount::default();
    for era in PROTOCOL_VERSIONS {
        let out = fresh_home(&format!("conformance-client-{era}"))?;
        for (scenario, check) in CLIENT_SCENARIOS {
            let this = std::env::current_exe()?;
            let command = format!(
                "{} conformance-client {}",
                this.display(),
                program.display()
            );
            let ran = node
                .conformance_command()
                .args(["client", "--scenario", scenario, "--spec-version", era])
                .args(["--force", "--timeout", "60000", "--command", &command, "-o"])
                .arg(&out)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()?;
            ensure!(ran.code().is_some(), "the conformance suite was killed");
            let found = read_results(&out)?;
            let status = found.get(scenario).and_then(|checks| {
                let mut ours = checks.iter().filter(|(id, _)| id == check);
                ours.next_back().map(|(_, status)| status.clone())
            });
            if status.as_deref() == Some("SUCCESS") {
                count.passed += 1;
            } else {
                eprintln!("{era} {scenario}: {check} is {status:?}");
                count.failed += 1;
            }
        }
    }
    Ok(count)
}

/// The client that the suite starts: runs `repertoire` commands as a user would.
pub(crate) fn conformance_client(program: &str, url: &str) -> Result<()> {
    let scenario = std::env::var("MCP_CONFORMANCE_SCENARIO")?;
    let home = fresh_home(&format!("client-home-{}", std::process::id()))?;
    let run = |args: &[&str]| {
        let mut command = Command::new(program);
        command
            .args(args)
            .env("REPERTOIRE_HOME", &home)
            .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
            .current_dir(&home);
        run_checked(&mut command)
    };
    run(&["add", "mcp", "suite", url])?;
    run(&["list"])?;
    if scenario == "sep-2640-client-no-prefetch" {
        return run(&["remote", "refresh"]);
    }
    run(&["cat", "skill://suite/pdf-processing/SKILL.md"])?;
    // Reached only if the document matched its listing.
    run(&["cat", "skill://suite/pdf-processing/references/FORMS.md"])
}

pub(crate) fn test_inspector() -> Result<CheckCount> {
    let node = NodeTools::install()?;
    let program = build_program()?;
    let home = fresh_home("inspector-home")?;
    let skills = project_dir().join("examples/skills");
    let serving = InteropServer::start_server(&program, &home, Some(&skills))?;
    let mut count = CheckCount::default();
    count.add(CheckCount::from_result(
        "the documented inspector command",
        run_documented_inspector(&node, &program, &home),
    ));
    for era in ["legacy", "modern"] {
        let ask = [
            "--method",
            "skills/list",
            "--verify",
            "--protocol-era",
            era,
            "-q",
        ];
        let mut stdio = node.inspector_command(&home);
        stdio
            .args(ask)
            .args(["-e", &format!("REPERTOIRE_HOME={}", home.display())])
            .args(["-e", "REPERTOIRE_NO_SYSTEM_SKILLS=1", "--"])
            .arg(&program)
            .arg("mcp")
            .arg(&skills);
        let mut http = node.inspector_command(&home);
        http.arg(&serving.url).args(ask);
        for (name, mut command) in [("stdio", stdio), ("http", http)] {
            let output = command.output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            let verified = text
                .lines()
                .filter(|line| line.contains("\"ok\":true"))
                .count();
            println!(
                "inspector {name} {era}: {verified} skills verified, {}",
                output.status
            );
            if output.status.success() && verified == 6 {
                count.passed += 1;
            } else {
                eprintln!("{text}{}", String::from_utf8_lossy(&output.stderr));
                count.failed += 1;
            }
        }
        let mut directory = node.inspector_command(&home);
        directory.arg(&serving.url).args([
            "--method",
            "resources/directory/read",
            "--uri",
            "skill://code-mode",
            "--protocol-era",
            era,
            "-q",
        ]);
        let output = directory.output()?;
        let refused = String::from_utf8_lossy(&output.stdout).into_owned();
        let shown = output.status.success().then_some(());
        let shown = shown.with_context(|| format!("the inspector refuses it: {refused}"));
        count.add(CheckCount::from_result("directory", shown));
    }
    Ok(count)
}

/// Runs the inspector with the arguments that the documentation shows.
fn run_documented_inspector(node: &NodeTools, program: &Path, home: &Path) -> Result<()> {
    let text = fs::read_to_string(project_dir().join("docs/hosts.md"))?;
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("$ npx @modelcontextprotocol/inspector@"));
    let (_, args) = line
        .and_then(|line| line.split_once(" --cli repertoire "))
        .context("the inspector is not documented")?;
    let mut command = node.inspector_command(home);
    command.arg(program).args(args.split(' '));
    command.env("REPERTOIRE_HOME", home);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    anyhow::ensure!(
        output.status.success() && text.contains("\"ok\":true"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Writes a folder with thousands of skills, one with a picture, and one to edit.
fn write_many_skills() -> Result<PathBuf> {
    let folder = fresh_home("skills")?;
    let write = |id: &str, more: &str| -> Result<()> {
        let place = folder.join(id);
        fs::create_dir_all(&place)?;
        let name = id.rsplit('/').next().unwrap_or(id);
        let text = format!(
            "---\nname: {name}\ndescription: Stands for {id}. Use when {id} is asked for.\n---\n\
             # {id}\n\n{more}\n"
        );
        Ok(fs::write(place.join("SKILL.md"), text)?)
    };
    for number in 0..SKILL_COUNT {
        write(
            &format!("team-{}/skill-{number}", number % 7),
            "Nothing to do.",
        )?;
    }
    write("live", "This one is edited.")?;
    write(
        "picture",
        "See [the dot](assets/dot.png) and [notes](notes.md).",
    )?;
    fs::create_dir_all(folder.join("picture/assets"))?;
    let pixels: Vec<u8> = (0..=255).chain([0, 159, 146, 150]).collect();
    fs::write(folder.join("picture/assets/dot.png"), pixels)?;
    fs::write(folder.join("picture/notes.md"), "A dot, drawn once.\n")?;
    Ok(folder)
}

pub(crate) fn test_mcp_sdks() -> Result<CheckCount> {
    let node = NodeTools::install()?;
    let python = install::install_python("interop/requirements.txt", "interop/python")?;
    let program = build_program()?;
    let folder = write_many_skills()?;
    let home = fresh_home("sdk-home")?;
    let made = Command::new(&program)
        .args(["token", "create", "interop"])
        .env("REPERTOIRE_HOME", &home)
        .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
        .output()?;
    let token = String::from_utf8(made.stdout)?.trim().to_owned();
    let serving = InteropServer::start_server(&program, &home, Some(&folder))?;
    // Node finds packages only beside the script.
    let script = install::copy_script("interop/ts_client.mjs", &scratch_dir().join("node"))?;
    let expected = (SKILL_COUNT + 2).to_string();
    let mut count = CheckCount::default();
    for era in PROTOCOL_VERSIONS {
        for transport in ["stdio", "http"] {
            let mut target: Vec<&std::ffi::OsStr> = Vec::new();
            if transport == "stdio" {
                target.extend([program.as_os_str(), "mcp".as_ref(), folder.as_os_str()]);
            } else {
                target.push(serving.url.as_ref());
            }
            let typescript = node.node_command(&script);
            let mut py = Command::new(&python);
            py.arg(project_dir().join("interop/py_client.py"));
            for (name, mut command) in [("TypeScript", typescript), ("Python", py)] {
                command
                    .args([transport, era, &expected])
                    .arg(&folder)
                    .args(&target)
                    .env("REPERTOIRE_HOME", &home)
                    .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
                    .env("INTEROP_TOKEN", &token);
                println!("-- {name} SDK, {transport}, {era}");
                count.add(count_steps(&mut command)?);
            }
        }
    }
    Ok(count)
}

/// Runs a client and counts the successful steps.
pub(crate) fn count_steps(command: &mut Command) -> Result<CheckCount> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let out = child.stdout.take().context("no stdout")?;
    let mut count = CheckCount::default();
    for line in BufReader::new(out).lines() {
        let line = line?;
        println!("{line}");
        count.passed += usize::from(line.starts_with("ok "));
    }
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            if !status.success() {
                count.failed += 1;
            }
            return Ok(count);
        }
        if start.elapsed() > Duration::from_mins(1) {
            child.kill()?;
            bail!("a client closed its output and did not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
