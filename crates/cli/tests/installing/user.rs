//! A user with an account of their own, who types commands.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const BIN: &str = env!("CARGO_BIN_EXE_repertoire");

/// A user, with a folder for files.
pub(crate) struct User {
    folder: TempDir,
}

/// What a command printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Answer {
    fn new(output: &Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Fails unless the command succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:#?}");
        self
    }

    /// Fails unless the command was refused for this reason.
    #[track_caller]
    pub(crate) fn refused(self, code: &str, words: &str) -> Self {
        let error: Value = serde_json::from_str(self.err.lines().last().unwrap_or_default())
            .unwrap_or_else(|_| panic!("{self:#?}"));
        assert_ne!(self.code, 0, "{self:#?}");
        assert_eq!(error["error"]["code"], code, "{self:#?}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{words:?} is not in {message:?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|_| panic!("{self:#?}"))
    }
}

impl User {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("home")).unwrap();
        Self { folder }
    }

    pub(crate) fn account(&self) -> PathBuf {
        self.folder.path().join(".repertoire")
    }

    /// A folder of the user's.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn command(&self, place: &Path) -> Command {
        let mut command = Command::new(BIN);
        command
            .env("REPERTOIRE_HOME", self.account())
            .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
            .env("HOME", self.path("home"))
            .env("DOCKER_CONFIG", self.path("home"))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .stdin(Stdio::null())
            .current_dir(place);
        command
    }

    /// Runs a command in the user's folder, with `--json`.
    pub(crate) fn run(&self, args: &[&str]) -> Answer {
        self.run_in(self.folder.path(), args)
    }

    /// Runs a command in a folder, with `--json`.
    pub(crate) fn run_in(&self, place: &Path, args: &[&str]) -> Answer {
        let output = self
            .command(place)
            .args(args)
            .arg("--json")
            .output()
            .unwrap();
        Answer::new(&output)
    }

    /// Runs a command as a person sees it.
    pub(crate) fn see(&self, place: &Path, args: &[&str]) -> Answer {
        Answer::new(&self.command(place).args(args).output().unwrap())
    }

    /// Makes a trusted project.
    pub(crate) fn project(&self, name: &str) -> PathBuf {
        let folder = self.path(name);
        fs::create_dir_all(&folder).unwrap();
        self.run_in(&folder, &["init"]).ok();
        folder
    }

    /// The ids of all skills that are served.
    pub(crate) fn skills(&self, place: &Path) -> Vec<String> {
        let listed = self.run_in(place, &["list"]).ok().json();
        let skills = listed["skills"].as_array().unwrap().iter();
        skills
            .map(|skill| skill["id"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The bytes of a file of a skill.
    pub(crate) fn cat(&self, place: &Path, uri: &str) -> String {
        self.see(place, &["cat", uri]).ok().out
    }

    /// Fails if anything was stored or recorded.
    #[track_caller]
    pub(crate) fn has_nothing(&self, place: &Path) {
        assert_eq!(self.skills(place), Vec::<String>::new());
        for folder in [place.to_owned(), self.account()] {
            for file in ["repertoire.toml", "repertoire.lock"] {
                assert!(!folder.join(file).exists(), "{file} was written");
            }
        }
        let cache = self.account().join("cache/skills");
        let kept = cache.read_dir().map_or(0, Iterator::count);
        assert_eq!(kept, 0, "something was kept in the cache");
    }
}

/// Writes a file and creates its parent folders.
pub(crate) fn write_file(path: &Path, text: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// The text of a document.
pub(crate) fn document(name: &str, body: &str) -> String {
    format!(
        "---\nname: {name}\ndescription: Does {name}. Use when {name} is asked for.\n---\n{body}"
    )
}
