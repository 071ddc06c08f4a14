//! Running the real command in a home and a folder of its own.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

/// A folder to work in and a home next to it, both gone afterwards.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        std::fs::create_dir(place.work()).unwrap();
        place
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// The command, ready to run in the folder.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_repertoire"));
        command
            .args(args)
            .current_dir(self.work())
            .env("REPERTOIRE_HOME", self.home())
            .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
            .env_remove("REPERTOIRE_WORKSPACE")
            .env_remove("REPERTOIRE_SCOPE")
            .env_remove("RUST_LOG")
            .env_remove("RUST_BACKTRACE")
            .env("NO_COLOR", "1");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Run {
        Run(self.command(args).output().unwrap())
    }

    /// Runs a command that has to work, and gives its stdout.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let run = self.run(args);
        assert_eq!(run.code(), 0, "{args:?}: {}", run.err());
        run.out()
    }

    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    pub(crate) fn write(&self, path: &str, bytes: impl AsRef<[u8]>) {
        let file = self.work().join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }

    pub(crate) fn skill(&self, path: &str, body: &str) {
        let name = path.rsplit('/').next().unwrap();
        let text = format!(
            "---\nname: {name}\ndescription: Does {name}. Use when {name} is asked for.\n---\n{body}"
        );
        self.write(&format!("{path}/SKILL.md"), text);
    }
}

/// What a command answered.
pub(crate) struct Run(pub(crate) Output);

impl Run {
    pub(crate) fn code(&self) -> i32 {
        self.0.status.code().unwrap_or(-1)
    }

    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }
}

/// The project's own folder.
pub(crate) fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Waits for something that comes soon or never.
pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{what} never came"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}
