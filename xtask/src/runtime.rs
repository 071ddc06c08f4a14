//! Installs the sandbox and the sidecar for tests, as a user installs them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::{
    commands::{CheckCount, build_program, format_command, project_dir, run_checked},
    install,
};

/// The installed sandbox and sidecar.
pub(crate) struct RuntimeParts {
    home: PathBuf,
}

impl RuntimeParts {
    /// Installs them with the program under test, unless they are installed; they are kept, so
    /// that the next run needs no network.
    pub(crate) fn install() -> Result<Self> {
        Self::install_with(&build_program()?)
    }

    pub(crate) fn install_with(program: &Path) -> Result<Self> {
        let home = project_dir().join("target/xtask/runtime");
        fs::create_dir_all(&home)?;
        for part in ["sandbox", "sidecar"] {
            println!("setting up the {part} in target/xtask/runtime, unless it is there");
            let mut setup = Command::new(program);
            setup.arg("--home").arg(&home).args(["setup", part]);
            run_checked(&mut setup)?;
        }
        Ok(Self { home })
    }

    pub(crate) fn sandbox_dir(&self) -> PathBuf {
        self.home.join("sandbox")
    }

    fn sidecar_dir(&self) -> PathBuf {
        self.home.join("sidecar")
    }

    /// Sets the environment variables through which tests find them.
    pub(crate) fn set_test_env(&self, command: &mut Command) {
        command
            .env("REPERTOIRE_TEST_SANDBOX", self.sandbox_dir())
            .env("REPERTOIRE_TEST_SIDECAR", self.sidecar_dir());
    }
}

/// Runs the sidecar's own tests in the environment that users install.
pub(crate) fn test_sidecar() -> Result<CheckCount> {
    let parts = RuntimeParts::install()?;
    let mut command = Command::new(parts.sidecar_dir().join("python/bin/python"));
    command
        .args(["-m", "unittest", "discover", "--start-directory", "tests"])
        .current_dir(project_dir().join("sidecar"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let name = format_command(&command);
    println!("$ {name}");
    let done = command.output().with_context(|| name.clone())?;
    let stderr = String::from_utf8_lossy(&done.stderr);
    print!("{stderr}");
    // `Ran 11 tests in 15.2s`, then `OK` or `FAILED (failures=1, errors=2)`.
    let ran = stderr.lines().rev().find_map(|line| {
        let rest = line.strip_prefix("Ran ")?;
        rest.split(' ').next()?.parse::<usize>().ok()
    });
    let ran = ran.with_context(|| format!("`{name}` ran no test"))?;
    ensure!(ran > 0, "`{name}` ran no test");
    let failed = if done.status.success() {
        0
    } else {
        let last = stderr.lines().rfind(|line| !line.is_empty());
        let numbers = last
            .unwrap_or_default()
            .split(|c: char| !c.is_ascii_digit());
        let sum: usize = numbers
            .filter_map(|number| number.parse::<usize>().ok())
            .sum();
        sum.max(1)
    };
    Ok(CheckCount {
        passed: ran.saturating_sub(failed),
        failed,
    })
}

/// Builds the sidecar into one file that needs no Python.
pub(crate) fn build_bundle() -> Result<()> {
    let python = install::install_python("sidecar/requirements-bundle.txt", "bundle")?;
    let folder = project_dir().join("target/sidecar-bundle");
    let _ = fs::remove_dir_all(&folder);
    let mut build = Command::new(python);
    build
        .args([
            "-m",
            "PyInstaller",
            "--onefile",
            "--noconfirm",
            "--log-level",
            "WARN",
        ])
        .args(["--name", "repertoire-sidecar", "--paths", "."])
        .args(["--collect-all", "dspy", "--collect-data", "litellm"])
        .args(["--copy-metadata", "dspy", "--copy-metadata", "litellm"])
        .args(["--hidden-import", "tiktoken_ext.openai_public"])
        .arg("--distpath")
        .arg(&folder)
        .arg("--workpath")
        .arg(folder.join("work"))
        .arg("--specpath")
        .arg(&folder)
        .arg("main.py")
        .current_dir(project_dir().join("sidecar"));
    run_checked(&mut build)?;
    let file = folder.join("repertoire-sidecar");
    let size = fs::metadata(&file)?.len() >> 20;
    println!(
        "built target/sidecar-bundle/repertoire-sidecar ({size} MiB): `repertoire setup sidecar \
         --from` installs it"
    );
    Ok(())
}
