//! The settings file of the `skills` worker.
//!
//! A file that is missing or wrong never keeps the worker from starting: it says so, and goes on
//! with what it would do without one.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use repertoire_core::{Frontmatter, Guard};
use repertoire_registry::{AskedBy, Place, Settings, StateFrom};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::functions::FunctionOptions;

/// The most bytes of a settings file.
const MAX_BYTES: u64 = 64 * 1024;

/// What a settings file can say. Keys that mean nothing here are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerConfig {
    /// The scopes of the state that hold skills and prompts.
    pub scopes: Scopes,
    /// How long state and functions behind content may take.
    pub state_timeout_ms: u64,
    /// Patterns of markdown files that are skills.
    pub skills: Vec<String>,
    /// Patterns of markdown files that are prompts.
    pub prompts: Vec<String>,
    /// Further functions that content and prompts never reach, by prefix.
    pub guard: Vec<String>,
}

/// The scopes of the state that hold skills and prompts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Scopes {
    /// Where skills are.
    pub skills: String,
    /// Where prompts are.
    pub prompts: String,
}

impl Default for Scopes {
    fn default() -> Self {
        Self {
            skills: "skills".to_owned(),
            prompts: "prompts".to_owned(),
        }
    }
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            scopes: Scopes::default(),
            state_timeout_ms: 10_000,
            skills: Vec::new(),
            prompts: Vec::new(),
            guard: Vec::new(),
        }
    }
}

impl WorkerConfig {
    /// Reads a settings file; gives the default, and why, if there is none that can be used.
    pub fn load(path: &Path) -> (Self, Option<String>) {
        match Self::read(path) {
            Ok((config, problems)) if problems.is_empty() => (config, None),
            Ok((config, problems)) => {
                let problems = problems.join("; ");
                let text = format!("{}: {problems}: going on without it", path.display());
                (config, Some(text))
            }
            Err(reason) => {
                let text = format!("{}: {reason}: going on without it", path.display());
                (Self::default(), Some(text))
            }
        }
    }

    fn read(path: &Path) -> Result<(Self, Vec<String>), String> {
        let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
        if !metadata.is_file() || metadata.len() > MAX_BYTES {
            return Err(format!("no file of at most {MAX_BYTES} bytes"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        let text = text.trim_start_matches('\u{feff}');
        let body = text
            .lines()
            .map(|line| line.split('#').next().unwrap_or_default());
        if body.clone().all(|line| line.trim().is_empty()) {
            return Ok((Self::default(), Vec::new()));
        }
        let front = Frontmatter::parse(text, 1).map_err(|error| error.to_string())?;
        let mut object = front.to_json();
        // What is written without a value is as good as not written.
        object.retain(|_, value| !value.is_null());
        if let Some(Value::Object(scopes)) = object.get_mut("scopes") {
            scopes.retain(|_, value| !value.is_null());
        }
        Ok(Self::of(object))
    }

    /// Takes each field that can be used; one that cannot takes no other with it.
    fn of(mut object: Map<String, Value>) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let mut config = Self::default();
        let mut take = |key: &str, set: &mut dyn FnMut(Value) -> Result<(), String>| {
            if let Some(value) = object.remove(key)
                && let Err(reason) = set(value)
            {
                problems.push(format!("`{key}` {reason}"));
            }
        };
        take("scopes", &mut |value| {
            let scopes: Scopes = read(value)?;
            if scopes.skills.is_empty() || scopes.prompts.is_empty() {
                return Err("must be non-empty".to_owned());
            }
            if scopes.skills == scopes.prompts {
                return Err("must be two different ones".to_owned());
            }
            config.scopes = scopes;
            Ok(())
        });
        take("state_timeout_ms", &mut |value| {
            let millis = read(value)?;
            if millis == 0 {
                return Err("must be at least 1".to_owned());
            }
            config.state_timeout_ms = millis;
            Ok(())
        });
        for (key, list) in [
            ("skills", &mut config.skills),
            ("prompts", &mut config.prompts),
            ("guard", &mut config.guard),
        ] {
            take(key, &mut |value| {
                *list = read(value)?;
                Ok(())
            });
        }
        (config, problems)
    }

    /// How the functions behave by it.
    pub fn functions(&self) -> FunctionOptions {
        FunctionOptions {
            skills: self.scopes.skills.clone(),
            prompts: self.scopes.prompts.clone(),
            deadline: Duration::from_millis(self.state_timeout_ms.max(1)),
            guard: Guard::new(self.guard.iter().cloned()),
        }
    }

    /// The files it names, relative to a folder, beside what a bus keeps.
    pub fn sources(&self, base: &Path) -> Settings {
        let place = |pattern: &String| Place {
            path: base.to_owned(),
            pattern: Some(pattern.clone()),
            asked_by: AskedBy::User,
        };
        // A pattern that is none is told of, and does not keep the others from counting.
        let usable = |pattern: &&String| match repertoire_registry::check_pattern(base, pattern) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!("{error}: going on without it");
                false
            }
        };
        Settings {
            skills: self.skills.iter().filter(usable).map(place).collect(),
            prompts: self.prompts.iter().filter(usable).map(place).collect(),
            state: StateFrom::Bus,
            ..Settings::default()
        }
    }
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("cannot be used: {error}"))
}

/// The folder that relative patterns start from.
///
/// An engine hands a worker a copy of its settings in a temporary folder, and says where the
/// original is.
pub fn base_of(config: &Path, original: Option<&Path>) -> PathBuf {
    let file = original.unwrap_or(config);
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// What the worker says about itself when it is asked.
pub fn manifest() -> Value {
    json!({
        "name": "skills",
        "version": env!("CARGO_PKG_VERSION"),
        "description": "Skills and prompts for agents: a registry on the iii bus, and the iii:// \
                        resolver that MCP bridges serve.",
        "default_config": {
            "scopes": {"skills": "skills", "prompts": "prompts"},
            "state_timeout_ms": 10_000,
        },
        "supported_targets": [
            "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu",
            "x86_64-apple-darwin", "aarch64-apple-darwin",
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> (WorkerConfig, Option<String>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        std::fs::write(&path, text).unwrap();
        WorkerConfig::load(&path)
    }

    #[test]
    fn a_file_says_what_differs() {
        let (config, problem) = load(
            "# ours\nscopes:\n  skills: team\nstate_timeout_ms: 500\nskills:\n  - docs/**/*.md\n\
             prompts:\nunknown: {a: 1}\n",
        );
        assert_eq!(problem, None);
        assert_eq!(config.scopes.skills, "team");
        assert_eq!(config.scopes.prompts, "prompts");
        assert_eq!(config.skills, ["docs/**/*.md"]);
        assert_eq!(config.functions().deadline, Duration::from_millis(500));
        for empty in ["", "# nothing\n", "\n\n"] {
            assert_eq!(load(empty), (WorkerConfig::default(), None));
        }
    }

    #[test]
    fn a_file_that_is_wrong_never_stops_the_worker() {
        for wrong in [
            "skills: [",
            "- a\n- b\n",
            "skills: 5\n",
            "state_timeout_ms: soon\n",
            "scopes: {skills: x, prompts: x}\n",
            "scopes: {skills: ''}\n",
        ] {
            let (config, problem) = load(wrong);
            assert_eq!(config, WorkerConfig::default(), "{wrong}");
            assert!(problem.unwrap().contains("config.yaml"), "{wrong}");
        }
        // What is wrong takes nothing else with it, least of all what guards.
        let (config, problem) = load("guard: ['ops::']\nstate_timeout_ms: 10s\nskills: docs\n");
        assert_eq!(config.guard, ["ops::"]);
        let problem = problem.unwrap();
        assert!(
            problem.contains("state_timeout_ms") && problem.contains("skills"),
            "{problem}"
        );
        let (_, problem) = WorkerConfig::load(Path::new("/nowhere/config.yaml"));
        assert!(problem.is_some());
    }

    #[test]
    fn patterns_start_where_the_original_is() {
        let original = Path::new("/srv/project/config.yaml");
        let copy = Path::new("/tmp/x/config.yaml");
        assert_eq!(base_of(copy, Some(original)), Path::new("/srv/project"));
        assert_eq!(base_of(copy, None), Path::new("/tmp/x"));
        assert_eq!(base_of(Path::new("config.yaml"), None), Path::new("."));
    }
}
