//! A folder whose files can be opened, and nothing outside of it.
//!
//! Invariant: every open resolves beneath the root in the kernel where it can (`openat2` on
//! Linux) and step by step elsewhere, so a link that leads out fails, also when it is swapped in
//! while we look. Only regular files are read; a FIFO or a device is recognised without waiting.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use cap_std::{
    ambient_authority,
    fs::{Dir, FileType, Metadata, OpenOptions},
};
use repertoire_core::{Digest, FileEntry};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What tells one state of a file from another without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    pub(crate) size: u64,
    modified: i64,
    changed: i64,
    inode: u64,
}

impl Stamp {
    /// Whether the file could change once more without the stamp telling.
    ///
    /// Clocks of file systems tick in milliseconds, on some in seconds; those show no fraction.
    pub(crate) fn is_fresh(&self, now: i64) -> bool {
        let newest = self.modified.max(self.changed);
        let tick = if self.modified % 1_000_000_000 == 0 {
            2_000_000_000
        } else {
            50_000_000
        };
        newest > now - tick
    }

    /// A stamp that keeps the size and equals no stamp of a real file.
    pub(crate) fn unproven(self) -> Self {
        Self {
            modified: i64::MIN,
            ..self
        }
    }
}

/// What an entry of a folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Folder,
    Other,
}

/// A folder that is never left.
#[derive(Debug)]
pub(crate) struct Root {
    dir: Dir,
    path: PathBuf,
}

impl Root {
    /// Opens a folder the user named; it may itself stand behind a link.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let real = path.canonicalize().map_err(|e| Error::io(path, e))?;
        let dir =
            Dir::open_ambient_dir(&real, ambient_authority()).map_err(|e| Error::io(path, e))?;
        Ok(Self { dir, path: real })
    }

    /// The folder's own path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still leads to this folder.
    pub(crate) fn is_in_place(&self) -> bool {
        let identity = |dir: &Dir| dir.dir_metadata().ok().map(|m| stamp_of(&m).inode);
        self.again()
            .is_some_and(|here| identity(&here.dir) == identity(&self.dir))
    }

    /// The folder that stands at the path now; `None` if there is none, or a link to elsewhere.
    pub(crate) fn again(&self) -> Option<Self> {
        let same = self.path.canonicalize().is_ok_and(|real| real == self.path);
        same.then(|| Self::open(&self.path).ok()).flatten()
    }

    /// The full path of something beneath, for messages.
    pub(crate) fn join(&self, relative: &str) -> PathBuf {
        if relative.is_empty() {
            self.path.clone()
        } else {
            self.path.join(relative)
        }
    }

    fn error(&self, relative: &str, error: std::io::Error) -> Error {
        let escapes =
            error.kind() == std::io::ErrorKind::PermissionDenied && error.raw_os_error().is_none();
        // `openat2` answers EXDEV when a link leads out.
        let crosses = error.kind() == std::io::ErrorKind::CrossesDevices;
        let path = self.join(relative);
        if escapes || crosses {
            Error::EscapesRoot(path)
        } else {
            Error::io(path, error)
        }
    }

    /// The names in a folder with what they are; links are followed if they stay beneath.
    pub(crate) fn list(&self, folder: &str) -> Result<Vec<(String, Result<Kind>)>> {
        let at = if folder.is_empty() { "." } else { folder };
        let entries = self.dir.read_dir(at).map_err(|e| self.error(folder, e))?;
        let mut out = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| self.error(folder, e))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let relative = join(folder, &name);
            let kind = match entry.file_type() {
                Ok(kind) if kind.is_symlink() => self.link(&relative),
                Ok(kind) => Ok(kind_of(kind)),
                Err(error) => Err(self.error(&relative, error)),
            };
            out.push((name, kind));
        }
        out.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(out)
    }

    /// A link to a file beneath is that file; linked folders are not walked into.
    fn link(&self, relative: &str) -> Result<Kind> {
        let metadata = self
            .dir
            .metadata(relative)
            .map_err(|e| self.error(relative, e))?;
        Ok(match kind_of(metadata.file_type()) {
            Kind::File => Kind::File,
            Kind::Folder | Kind::Other => Kind::Other,
        })
    }

    /// The stamp of a file or folder, if there is one. Used to compare, never to decide access.
    #[cfg(unix)]
    pub(crate) fn stamp(&self, relative: &str) -> Option<Stamp> {
        use rustix::fs::{AtFlags, statat};
        let at = if relative.is_empty() { "." } else { relative };
        let stat = statat(&self.dir, at, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink() {
            // What a link shows can change without the link changing.
            return self.dir.metadata(at).ok().map(|m| stamp_of(&m));
        }
        let nanos = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000) + nanos;
        #[allow(
            clippy::unnecessary_cast,
            clippy::cast_possible_wrap,
            clippy::cast_sign_loss,
            reason = "the types differ between platforms, the values are small"
        )]
        Some(Stamp {
            size: stat.st_size as u64,
            modified: nanos(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: nanos(stat.st_ctime as i64, stat.st_ctime_nsec as i64),
            inode: stat.st_ino as u64,
        })
    }

    /// The stamp of a file or folder, if there is one. Used to compare, never to decide access.
    #[cfg(not(unix))]
    pub(crate) fn stamp(&self, relative: &str) -> Option<Stamp> {
        let at = if relative.is_empty() { "." } else { relative };
        self.dir.metadata(at).ok().map(|m| stamp_of(&m))
    }

    fn open_file(&self, relative: &str) -> Result<cap_std::fs::File> {
        let opened = self.dir.open_with(relative, &careful());
        opened.map_err(|e| self.error(relative, e))
    }

    /// Reads a file whose size and digest are known, if it still has them.
    ///
    /// Bytes that have the digest are the right ones, whatever they were read from, so nothing
    /// else needs to be asked about the file.
    pub(crate) fn read_known(&self, relative: &str, known: &FileEntry) -> Option<Bytes> {
        let size = usize::try_from(known.size).ok()?;
        let mut bytes = vec![0; size + 1];
        let mut file = self.open_file(relative).ok()?;
        // The byte more tells a file that has grown; a shorter read is one that has shrunk.
        if file.read(&mut bytes).ok()? != size {
            return None;
        }
        bytes.truncate(size);
        (Digest::of(&bytes) == known.digest).then(|| bytes.into())
    }

    /// Reads a regular file of at most `max` bytes, whole, with the stamp of what was read.
    pub(crate) fn read(&self, relative: &str, max: u64) -> Result<(Bytes, Stamp)> {
        let mut file = self.open_file(relative)?;
        let metadata = file.metadata().map_err(|e| self.error(relative, e))?;
        if !metadata.is_file() {
            return Err(Error::NotRegular(self.join(relative)));
        }
        let stamp = stamp_of(&metadata);
        let too_large = |size| Error::InvalidAt {
            path: self.join(relative),
            error: repertoire_core::Error::TooLarge {
                what: "the file".to_owned(),
                size,
                max,
            },
        };
        if stamp.size > max {
            return Err(too_large(stamp.size));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(stamp.size).unwrap_or(0) + 1);
        (&mut file)
            .take(max + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| self.error(relative, e))?;
        if bytes.len() as u64 > max {
            return Err(too_large(bytes.len() as u64));
        }
        Ok((bytes.into(), stamp))
    }
}

/// Opens nothing that could keep the caller waiting.
fn careful() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use cap_std::fs::OpenOptionsExt;
        // A FIFO without a writer would block the open itself.
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        options.custom_flags(flags.bits().cast_signed());
    }
    options
}

fn kind_of(kind: FileType) -> Kind {
    if kind.is_file() {
        Kind::File
    } else if kind.is_dir() {
        Kind::Folder
    } else {
        Kind::Other
    }
}

#[cfg(unix)]
fn stamp_of(metadata: &Metadata) -> Stamp {
    use cap_std::fs::MetadataExt;
    let nanos = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000) + nanos;
    Stamp {
        size: metadata.len(),
        modified: nanos(metadata.mtime(), metadata.mtime_nsec()),
        changed: nanos(metadata.ctime(), metadata.ctime_nsec()),
        inode: metadata.ino(),
    }
}

#[cfg(not(unix))]
fn stamp_of(metadata: &Metadata) -> Stamp {
    let modified = metadata
        .modified()
        .ok()
        .and_then(|t| t.into_std().duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX));
    Stamp {
        size: metadata.len(),
        modified,
        changed: modified,
        inode: 0,
    }
}

/// Joins relative paths; the root is the empty path.
pub(crate) fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() {
        return name.to_owned();
    }
    let mut path = String::with_capacity(folder.len() + 1 + name.len());
    path.push_str(folder);
    path.push('/');
    path.push_str(name);
    path
}

/// The folder above; the root for names in it.
pub(crate) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The time now in nanoseconds, to compare with stamps.
pub(crate) fn now_nanos() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}
