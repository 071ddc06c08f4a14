//! The settings file of the `skills` worker.
//!
//! A missing or invalid file never prevents the worker from starting: the problem is reported, and
//! defaults are used instead.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use repertoire_core::{Frontmatter, FunctionGuard};
use repertoire_registry::{RegisteredContent, RegistrySettings, RequestedBy, SourceLocation};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::functions::{FunctionLimits, FunctionOptions, StateWriters};

/// The most bytes of a settings file.
const MAX_BYTES: u64 = 64 * 1024;

/// The settings in the file. Unknown keys are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerConfig {
    /// The scopes of the state that hold skills and prompts.
    pub scopes: StateScopes,
    /// The timeout for state and for functions that produce content.
    pub state_timeout_ms: u64,
    /// Patterns of markdown files that are skills.
    pub skills: Vec<String>,
    /// Patterns of markdown files that are prompts.
    pub prompts: Vec<String>,
    /// Prefixes of further functions that content and prompts may not call.
    pub guard: Vec<String>,
    /// How much the functions do for one call.
    pub limits: FunctionLimits,
    /// Whether other programs write the scopes directly, so that their changes are followed.
    pub follow_state: bool,
}

/// The scopes of the state that hold skills and prompts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StateScopes {
    /// The scope of skills.
    pub skills: String,
    /// The scope of prompts.
    pub prompts: String,
}

impl Default for StateScopes {
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
            scopes: StateScopes::default(),
            state_timeout_ms: 10_000,
            skills: Vec::new(),
            prompts: Vec::new(),
            guard: Vec::new(),
            limits: FunctionLimits::default(),
            follow_state: true,
        }
    }
}

impl WorkerConfig {
    /// Reads a settings file; returns the default and the reason if the file cannot be used.
    pub fn load_or_default(path: &Path) -> (Self, Option<String>) {
        match Self::read_file(path) {
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

    fn read_file(path: &Path) -> Result<(Self, Vec<String>), String> {
        let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
        if !metadata.is_file() || metadata.len() > MAX_BYTES {
            return Err(format!("not a regular file of at most {MAX_BYTES} bytes"));
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
        // A key without a value counts as absent.
        object.retain(|_, value| !value.is_null());
        if let Some(Value::Object(scopes)) = object.get_mut("scopes") {
            scopes.retain(|_, value| !value.is_null());
        }
        Ok(Self::from_object(object))
    }

    /// Reads each field on its own, so that an invalid field does not discard the others.
    fn from_object(mut object: Map<String, Value>) -> (Self, Vec<String>) {
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
            let scopes: StateScopes = parse_field(value)?;
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
            let millis = parse_field(value)?;
            if millis == 0 {
                return Err("must be at least 1".to_owned());
            }
            config.state_timeout_ms = millis;
            Ok(())
        });
        take("follow_state", &mut |value| {
            config.follow_state = parse_field(value)?;
            Ok(())
        });
        take("limits", &mut |value| {
            config.limits = parse_field::<FunctionLimits>(value)?.check()?;
            Ok(())
        });
        for (key, list) in [
            ("skills", &mut config.skills),
            ("prompts", &mut config.prompts),
            ("guard", &mut config.guard),
        ] {
            take(key, &mut |value| {
                *list = parse_field(value)?;
                Ok(())
            });
        }
        (config, problems)
    }

    /// Returns the options of the functions.
    pub fn function_options(&self) -> FunctionOptions {
        FunctionOptions {
            skills: self.scopes.skills.clone(),
            prompts: self.scopes.prompts.clone(),
            deadline: Duration::from_millis(self.state_timeout_ms.max(1)),
            guard: FunctionGuard::new(self.guard.iter().cloned()),
            limits: self.limits,
            state: if self.follow_state {
                StateWriters::Others
            } else {
                StateWriters::WorkersOnly
            },
            ..FunctionOptions::default()
        }
    }

    /// Returns registry settings with the configured files, relative to `base`, and bus state.
    pub fn registry_settings(&self, base: &Path) -> RegistrySettings {
        let place = |pattern: &String| SourceLocation {
            path: base.to_owned(),
            pattern: Some(pattern.clone()),
            requested_by: RequestedBy::User,
        };
        // An invalid pattern is logged and skipped; the others still apply.
        let usable = |pattern: &&String| match repertoire_registry::check_pattern(base, pattern) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!("{error}: going on without it");
                false
            }
        };
        RegistrySettings {
            skills: self.skills.iter().filter(usable).map(place).collect(),
            prompts: self.prompts.iter().filter(usable).map(place).collect(),
            state: RegisteredContent::Bus,
            max_index_bytes: Some(self.limits.index_bytes),
            ..RegistrySettings::default()
        }
    }
}

fn parse_field<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("cannot be used: {error}"))
}

/// Returns the folder that relative patterns start from.
///
/// An engine gives a worker a copy of its settings in a temporary folder, together with the path
/// of the original.
pub fn pattern_base(config: &Path, original: Option<&Path>) -> PathBuf {
    let file = original.unwrap_or(config);
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Returns the manifest of the worker.
pub fn worker_manifest() -> Value {
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

    fn load_text(text: &str) -> (WorkerConfig, Option<String>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        std::fs::write(&path, text).unwrap();
        WorkerConfig::load_or_default(&path)
    }

    #[test]
    fn keys_missing_from_the_file_keep_their_defaults() {
        let (config, problem) = load_text(
            "# ours\nscopes:\n  skills: team\nstate_timeout_ms: 500\nskills:\n  - docs/**/*.md\n\
             prompts:\nunknown: {a: 1}\n",
        );
        assert_eq!(problem, None);
        assert_eq!(config.scopes.skills, "team");
        assert_eq!(config.scopes.prompts, "prompts");
        assert_eq!(config.skills, ["docs/**/*.md"]);
        assert_eq!(
            config.function_options().deadline,
            Duration::from_millis(500)
        );
        for empty in ["", "# nothing\n", "\n\n"] {
            assert_eq!(load_text(empty), (WorkerConfig::default(), None));
        }
    }

    #[test]
    fn invalid_settings_are_reported_and_fall_back_to_defaults() {
        for wrong in [
            "skills: [",
            "- a\n- b\n",
            "skills: 5\n",
            "state_timeout_ms: soon\n",
            "scopes: {skills: x, prompts: x}\n",
            "scopes: {skills: ''}\n",
            "limits: {fetch_uris: 0}\n",
            "limits: {unknown: 1}\n",
        ] {
            let (config, problem) = load_text(wrong);
            assert_eq!(config, WorkerConfig::default(), "{wrong}");
            assert!(problem.unwrap().contains("config.yaml"), "{wrong}");
        }
        // An invalid field does not discard the others, in particular not `guard`.
        let (config, problem) =
            load_text("guard: ['ops::']\nstate_timeout_ms: 10s\nskills: docs\n");
        assert_eq!(config.guard, ["ops::"]);
        let problem = problem.unwrap();
        assert!(
            problem.contains("state_timeout_ms") && problem.contains("skills"),
            "{problem}"
        );
        let (_, problem) = WorkerConfig::load_or_default(Path::new("/nowhere/config.yaml"));
        assert!(problem.is_some());
    }

    #[test]
    fn relative_patterns_start_at_the_original_file() {
        let original = Path::new("/srv/project/config.yaml");
        let copy = Path::new("/tmp/x/config.yaml");
        assert_eq!(
            pattern_base(copy, Some(original)),
            Path::new("/srv/project")
        );
        assert_eq!(pattern_base(copy, None), Path::new("/tmp/x"));
        assert_eq!(pattern_base(Path::new("config.yaml"), None), Path::new("."));
    }
}
