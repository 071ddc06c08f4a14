//! What running skills needs: the sandbox and the sidecar, installed as a user installs them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::{
    install,
    run::{Count, checked, program, project, shown},
};

/// Where they are.
pub(crate) struct Parts {
    home: PathBuf,
}

impl Parts {
    /// Installs them with the command under test, unless they are; what is installed is kept, so
    /// that no network is needed the next time.
    pub(crate) fn install() -> Result<Self> {
        Self::with(&program()?)
    }

    pub(crate) fn with(program: &Path) -> Result<Self> {
        let home = project().join("target/xtask/runtime");
        fs::create_dir_all(&home)?;
        for part in ["sandbox", "sidecar"] {
            println!("setting up the {part} in target/xtask/runtime, unless it is there");
            let mut setup = Command::new(program);
            setup.arg("--home").arg(&home).args(["setup", part]);
            checked(&mut setup)?;
        }
        Ok(Self { home })
    }

    pub(crate) fn sandbox(&self) -> PathBuf {
        self.home.join("sandbox")
    }

    fn sidecar(&self) -> PathBuf {
        self.home.join("sidecar")
    }

    /// Tells tests where they are.
    pub(crate) fn tell(&self, command: &mut Command) {
        command
            .env("REPERTOIRE_TEST_SANDBOX", self.sandbox())
            .env("REPERTOIRE_TEST_SIDECAR", self.sidecar());
    }
}

/// The sidecar's own tests, in the environment its users have.
pub(crate) fn sidecar() -> Result<Count> {
    let parts = Parts::install()?;
    let mut command = Command::new(parts.sidecar().join("python/bin/python"));
    command
        .args(["-m", "unittest", "discover", "--start-directory", "tests"])
        .current_dir(project().join("sidecar"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let name = shown(&command);
    println!("$ {name}");
    let done = command.output().with_context(|| name.clone())?;
    let said = String::from_utf8_lossy(&done.stderr);
    print!("{said}");
    // `Ran 11 tests in 15.2s`, then `OK` or `FAILED (failures=1, errors=2)`.
    let ran = said.lines().rev().find_map(|line| {
        let rest = line.strip_prefix("Ran ")?;
        rest.split(' ').next()?.parse::<usize>().ok()
    });
    let ran = ran.with_context(|| format!("`{name}` ran no test"))?;
    ensure!(ran > 0, "`{name}` ran no test");
    let failed = if done.status.success() {
        0
    } else {
        let last = said.lines().rfind(|line| !line.is_empty());
        let numbers = last
            .unwrap_or_default()
            .split(|c: char| !c.is_ascii_digit());
        let sum: usize = numbers
            .filter_map(|number| number.parse::<usize>().ok())
            .sum();
        sum.max(1)
    };
    Ok(Count {
        passed: ran.saturating_sub(failed),
        failed,
    })
}

/// Builds the sidecar into one file that needs no Python.
pub(crate) fn bundle() -> Result<()> {
    let python = install::python("sidecar/requirements-bundle.txt", "bundle")?;
    let folder = project().join("target/sidecar-bundle");
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
        .current_dir(project().join("sidecar"));
    checked(&mut build)?;
    let file = folder.join("repertoire-sidecar");
    let size = fs::metadata(&file)?.len() >> 20;
    println!(
        "built target/sidecar-bundle/repertoire-sidecar ({size} MiB): `repertoire setup sidecar \
         --from` installs it"
    );
    Ok(())
}
