//! Helpers that run the real command in a temporary work folder and home folder.
#![allow(dead_code, reason = "each test binary uses only some helpers")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

/// A temporary work folder with a home folder next to it, both deleted on drop.
pub(crate) struct TestWorkspace {
    folder: tempfile::TempDir,
}

impl TestWorkspace {
    pub(crate) fn new() -> Self {
        let place = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        std::fs::create_dir(place.work_dir()).unwrap();
        place
    }

    pub(crate) fn work_dir(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    pub(crate) fn home_dir(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// Builds a command that runs in the work folder with the temporary home.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_repertoire"));
        command
            .args(args)
            .current_dir(self.work_dir())
            .env("REPERTOIRE_HOME", self.home_dir())
            .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
            .env_remove("REPERTOIRE_WORKSPACE")
            .env_remove("REPERTOIRE_SCOPE")
            .env_remove("RUST_LOG")
            .env_remove("RUST_BACKTRACE")
            .env("NO_COLOR", "1");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        CommandOutput(self.command(args).output().unwrap())
    }

    /// Runs a command, asserts exit code 0 and returns its stdout.
    pub(crate) fn run_ok(&self, args: &[&str]) -> String {
        let run = self.run(args);
        assert_eq!(run.exit_code(), 0, "{args:?}: {}", run.stderr());
        run.stdout()
    }

    pub(crate) fn run_json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.run_ok(args)).unwrap()
    }

    pub(crate) fn write_file(&self, path: &str, bytes: impl AsRef<[u8]>) {
        let file = self.work_dir().join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }

    pub(crate) fn write_skill(&self, path: &str, body: &str) {
        let name = path.rsplit('/').next().unwrap();
        let text = format!(
            "---\nname: {name}\ndescription: Does {name}. Use when {name} is asked for.\n---\n{body}"
        );
        self.write_file(&format!("{path}/SKILL.md"), text);
    }
}

/// The output of a finished command.
pub(crate) struct CommandOutput(pub(crate) Output);

impl CommandOutput {
    pub(crate) fn exit_code(&self) -> i32 {
        self.0.status.code().unwrap_or(-1)
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }
}

/// Returns the root folder of the project.
pub(crate) fn project_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Polls a condition until it holds; panics after 20 seconds.
pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "timed out waiting for {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Creates a workspace with the example skills in it.
pub(crate) fn example_workspace() -> TestWorkspace {
    let place = TestWorkspace::new();
    std::os::unix::fs::symlink(
        project_dir().join("examples/skills"),
        place.work_dir().join("examples"),
    )
    .unwrap();
    place
}
