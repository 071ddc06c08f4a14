//! Optional components of an account that are too large to ship: the sentence model, the sandbox and
//! the sidecar.
//!
//! [`Components`] knows where they are, installs, checks and removes them. An installation either
//! replaces the previous one or leaves it as it was; two installations of one account wait for each
//! other.

mod embeddings;
mod python;
#[cfg(feature = "sandbox")]
mod sandbox;
mod sidecar;

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use repertoire_registry::{
    search::{ModelKind, SentenceEncoder},
    store::create_private_dir,
};
use repertoire_runtime::{
    ArtifactDispatcher, Limits,
    sidecar::{DspyHandler, Sidecar},
};

use crate::error::{Error, Result, io_error_at as at};

/// How often a busy lock is tried again.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A component that can be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComponentKind {
    /// The sentence model: skills are found by what a message means.
    Embeddings,
    /// The Python in which scripts of skills run.
    Sandbox,
    /// DSPy, for skills that are programs.
    Sidecar,
}

impl ComponentKind {
    /// The components that this build can use.
    pub const ALL: &[Self] = &[
        Self::Embeddings,
        #[cfg(feature = "sandbox")]
        Self::Sandbox,
        Self::Sidecar,
    ];

    /// The name in a sentence.
    pub fn title(self) -> &'static str {
        match self {
            Self::Embeddings => "sentence model",
            Self::Sandbox => "sandbox",
            Self::Sidecar => "sidecar",
        }
    }

    /// The name, as users know it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Embeddings => "embeddings",
            Self::Sandbox => "sandbox",
            Self::Sidecar => "sidecar",
        }
    }
}

/// Receives the progress of an installation.
pub trait InstallProgress {
    /// A step begins.
    fn begin_step(&self, text: &str);
    /// Part of a step is done: what is worked on, and how many per cent of the step are done.
    fn report_progress(&self, _what: &str, _percent: usize) {}
    /// Whether the installation should end; it then leaves everything as it was.
    fn is_cancelled(&self) -> bool;
}

/// What an installation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstallOutcome {
    /// It was there already.
    AlreadyInstalled,
    /// It is installed now.
    Installed,
}

/// How a component is installed.
#[derive(Debug, Clone, Copy, Default)]
pub struct InstallRequest<'a> {
    /// A file or folder to install from, instead of a download.
    pub from: Option<&'a Path>,
    /// Install it again if it is there.
    pub again: bool,
    /// Which sentence model; without one, the model that is used already.
    pub model: Option<ModelKind>,
}

/// The optional components of an account.
#[derive(Debug, Clone)]
pub struct Components {
    account: PathBuf,
    python: OsString,
}

/// One installation.
struct Installation<'a> {
    target: &'a Path,
    request: InstallRequest<'a>,
    /// The Python of this machine, to create environments with.
    python: &'a OsStr,
    progress: &'a dyn InstallProgress,
}

impl Components {
    /// The components of the account in this folder.
    pub fn of_account(account: &Path) -> Self {
        Self {
            account: account.to_owned(),
            python: "python3".into(),
        }
    }

    /// Creates Python environments with this program instead of `python3`.
    #[must_use]
    pub fn with_python(mut self, python: OsString) -> Self {
        self.python = python;
        self
    }

    /// Returns the folder of a component, installed or not.
    pub fn folder(&self, kind: ComponentKind) -> PathBuf {
        match kind {
            ComponentKind::Embeddings => self.model_folder(self.current_model()),
            ComponentKind::Sandbox | ComponentKind::Sidecar => self.account.join(kind.as_str()),
        }
    }

    /// Whether this version of a component is installed.
    pub fn is_installed(&self, kind: ComponentKind) -> bool {
        let folder = self.folder(kind);
        match kind {
            ComponentKind::Embeddings => embeddings::is_installed(&folder),
            #[cfg(feature = "sandbox")]
            ComponentKind::Sandbox => repertoire_runtime::sandbox::is_installed(&folder),
            #[cfg(not(feature = "sandbox"))]
            ComponentKind::Sandbox => false,
            ComponentKind::Sidecar => sidecar::is_installed(&folder),
        }
    }

    /// Tries an installed component and describes what it is.
    pub async fn check(&self, kind: ComponentKind) -> Result<String> {
        Ok(match kind {
            ComponentKind::Embeddings => {
                let model = self.current_model();
                SentenceEncoder::open(model, &self.folder(kind), None)?;
                model.published_name().to_owned()
            }
            #[cfg(feature = "sandbox")]
            ComponentKind::Sandbox => {
                repertoire_runtime::sandbox::check_installation(&self.folder(kind))?;
                "runs scripts".to_owned()
            }
            #[cfg(not(feature = "sandbox"))]
            ComponentKind::Sandbox => return Err(Error::NotInBuild(kind.as_str())),
            ComponentKind::Sidecar => format!("DSPy {}", self.sidecar().dspy_version().await?),
        })
    }

    /// Installs a component.
    pub fn install(
        &self,
        kind: ComponentKind,
        request: InstallRequest<'_>,
        progress: &dyn InstallProgress,
    ) -> Result<InstallOutcome> {
        if !ComponentKind::ALL.contains(&kind) {
            return Err(Error::NotInBuild(kind.as_str()));
        }
        let model = request.model.unwrap_or_else(|| self.current_model());
        let folder = match kind {
            ComponentKind::Embeddings => self.model_folder(model),
            _ => self.folder(kind),
        };
        let is_there = || match kind {
            ComponentKind::Embeddings => embeddings::is_installed(&folder),
            _ => self.is_installed(kind),
        };
        let is_done = || is_there() && request.from.is_none() && !request.again;
        if is_done() {
            if kind == ComponentKind::Embeddings && model != self.current_model() {
                self.use_model(model)?;
            }
            return Ok(InstallOutcome::AlreadyInstalled);
        }
        let _lock = self.lock_setup(progress)?;
        // Another process may have installed it in the meantime.
        if is_done() {
            return Ok(InstallOutcome::AlreadyInstalled);
        }
        let installation = Installation {
            target: &folder,
            request,
            python: &self.python,
            progress,
        };
        check_cancelled(progress)?;
        match kind {
            ComponentKind::Embeddings => {
                embeddings::install(&installation, model)?;
                self.use_model(model)?;
            }
            #[cfg(feature = "sandbox")]
            ComponentKind::Sandbox => sandbox::install(&installation)?,
            #[cfg(not(feature = "sandbox"))]
            ComponentKind::Sandbox => return Err(Error::NotInBuild(kind.as_str())),
            ComponentKind::Sidecar => sidecar::install(&installation)?,
        }
        Ok(InstallOutcome::Installed)
    }

    /// Two installations at once would overwrite each other's files.
    fn lock_setup(&self, progress: &dyn InstallProgress) -> Result<fs::File> {
        create_private_dir(&self.account)?;
        let path = self.account.join("setup.lock");
        let lock = fs::File::create(&path).map_err(at(&path))?;
        if lock.try_lock().is_err() {
            progress.begin_step("waiting for another setup to end");
            // Without blocking, because the wait can be cancelled.
            while lock.try_lock().is_err() {
                check_cancelled(progress)?;
                std::thread::sleep(LOCK_POLL_INTERVAL);
            }
        }
        Ok(lock)
    }

    /// Removes a component and returns whether there was one. Of the sentence models it removes this
    /// one, or the one that is used; the other is used then if it is there.
    pub fn remove(&self, kind: ComponentKind, model: Option<ModelKind>) -> Result<bool> {
        let model = model.unwrap_or_else(|| self.current_model());
        let folder = match kind {
            ComponentKind::Embeddings => self.model_folder(model),
            _ => self.folder(kind),
        };
        if kind == ComponentKind::Embeddings && model == self.current_model() {
            let mut others = ModelKind::ALL.iter().filter(|other| **other != model);
            let is_there = |kind: &&ModelKind| embeddings::is_installed(&self.model_folder(**kind));
            if let Some(other) = others.find(is_there) {
                self.use_model(*other)?;
            }
        }
        match fs::remove_dir_all(&folder) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(at(&folder)(error)),
        }
    }

    /// Returns the sidecar; it is started when it is first used.
    pub fn sidecar(&self) -> Sidecar {
        Sidecar::new(sidecar::sidecar_command(
            &self.folder(ComponentKind::Sidecar),
        ))
    }

    /// Builds the dispatcher with a handler for each kind of artifact.
    pub fn dispatcher(&self, limits: Limits) -> ArtifactDispatcher {
        let mut dispatcher = ArtifactDispatcher::default();
        #[cfg(feature = "sandbox")]
        dispatcher.add_handler(Arc::new(repertoire_runtime::sandbox::ScriptHandler::new(
            self.folder(ComponentKind::Sandbox),
            limits,
        )));
        let modules = DspyHandler::new(Arc::new(self.sidecar()), limits);
        dispatcher.add_handler(Arc::new(modules));
        dispatcher
    }
}

/// Ends an installation that was cancelled.
fn check_cancelled(progress: &dyn InstallProgress) -> Result<()> {
    if progress.is_cancelled() {
        return Err(Error::Cancelled);
    }
    Ok(())
}

/// Puts a folder in the place of another one, which is kept until the new one is there.
fn replace_folder(new: &Path, target: &Path) -> Result<()> {
    let old = target.with_extension("old");
    let _ = fs::remove_dir_all(&old);
    let had_one = match fs::rename(target, &old) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return Err(at(target)(error)),
    };
    if let Err(error) = fs::rename(new, target) {
        if had_one {
            let _ = fs::rename(&old, target);
        }
        return Err(at(target)(error));
    }
    let _ = fs::remove_dir_all(&old);
    Ok(())
}
