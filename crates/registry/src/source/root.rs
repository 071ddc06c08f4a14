//! A folder whose files can be opened without access to anything outside it.
//!
//! Invariant: every open resolves beneath the root in the kernel where it can (`openat2` on
//! Linux) and step by step elsewhere, so a link that leads outside fails, even if it is swapped in
//! during the open. Only regular files are read; FIFOs and devices are detected without blocking.

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

/// File metadata that detects a changed file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileStamp {
    pub(crate) size: u64,
    modified: i64,
    changed: i64,
    inode: u64,
}

impl FileStamp {
    /// Whether the file could change again without changing the stamp.
    ///
    /// File system clocks tick in milliseconds, some in seconds; the latter show no fraction.
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
    pub(crate) fn as_unverified(self) -> Self {
        Self {
            modified: i64::MIN,
            ..self
        }
    }
}

/// The type of a folder entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DirEntryKind {
    File,
    Folder,
    Other,
}

/// A folder that cannot be escaped.
#[derive(Debug)]
pub(crate) struct RootDir {
    dir: Dir,
    path: PathBuf,
    /// Whether a link leads here.
    pub(crate) is_linked: bool,
}

impl RootDir {
    /// Opens a folder that the user named; the folder itself may be a link.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let real = path.canonicalize().map_err(|e| Error::from_io(path, e))?;
        let dir = Dir::open_ambient_dir(&real, ambient_authority())
            .map_err(|e| Error::from_io(path, e))?;
        Ok(Self {
            dir,
            path: real,
            is_linked: false,
        })
    }

    /// The folder's own path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still leads to this folder.
    pub(crate) fn is_in_place(&self) -> bool {
        let identity = |dir: &Dir| {
            dir.dir_metadata()
                .ok()
                .map(|m| stamp_from_metadata(&m).inode)
        };
        self.reopen()
            .is_some_and(|here| identity(&here.dir) == identity(&self.dir))
    }

    /// Opens the folder that is now at the path; `None` if it is missing or a link to elsewhere.
    pub(crate) fn reopen(&self) -> Option<Self> {
        let same = self.path.canonicalize().is_ok_and(|real| real == self.path);
        same.then(|| Self::open(&self.path).ok()).flatten()
    }

    /// Whether it has a regular file of that name.
    pub(crate) fn has_file(&self, name: &str) -> bool {
        self.dir.metadata(name).is_ok_and(|file| file.is_file())
    }

    /// Returns the full path of a relative path, for messages.
    pub(crate) fn full_path(&self, relative: &str) -> PathBuf {
        if relative.is_empty() {
            self.path.clone()
        } else {
            self.path.join(relative)
        }
    }

    fn map_io_error(&self, relative: &str, error: std::io::Error) -> Error {
        let escapes =
            error.kind() == std::io::ErrorKind::PermissionDenied && error.raw_os_error().is_none();
        // `openat2` returns EXDEV when a link leads outside.
        let crosses = error.kind() == std::io::ErrorKind::CrossesDevices;
        let path = self.full_path(relative);
        if escapes || crosses {
            Error::EscapesRoot(path)
        } else {
            Error::from_io(path, error)
        }
    }

    /// Lists the names in a folder with their types; links are followed if they stay beneath.
    pub(crate) fn list_folder(&self, folder: &str) -> Result<Vec<(String, Result<DirEntryKind>)>> {
        let at = if folder.is_empty() { "." } else { folder };
        let entries = self
            .dir
            .read_dir(at)
            .map_err(|e| self.map_io_error(folder, e))?;
        let mut out = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| self.map_io_error(folder, e))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let relative = join_path(folder, &name);
            let kind = match entry.file_type() {
                Ok(kind) if kind.is_symlink() => self.link_kind(&relative),
                Ok(kind) => Ok(entry_kind(kind)),
                Err(error) => Err(self.map_io_error(&relative, error)),
            };
            out.push((name, kind));
        }
        out.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(out)
    }

    /// Returns the type of a link target. Linked folders are not scanned.
    fn link_kind(&self, relative: &str) -> Result<DirEntryKind> {
        let metadata = self
            .dir
            .metadata(relative)
            .map_err(|e| self.map_io_error(relative, e))?;
        Ok(match entry_kind(metadata.file_type()) {
            DirEntryKind::File => DirEntryKind::File,
            DirEntryKind::Folder | DirEntryKind::Other => DirEntryKind::Other,
        })
    }

    /// Returns the stamp of a file or folder. Used for comparison, never to decide access.
    #[cfg(unix)]
    pub(crate) fn file_stamp(&self, relative: &str) -> Option<FileStamp> {
        use rustix::fs::{AtFlags, fstat, statat};
        let stat = if relative.is_empty() {
            // Unlike a look at `.`, this needs no permission to enter the folder.
            fstat(&self.dir).ok()?
        } else {
            statat(&self.dir, relative, AtFlags::SYMLINK_NOFOLLOW).ok()?
        };
        if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink() {
            // The target of a link can change without the link changing.
            let target = self.dir.metadata(relative).ok()?;
            return Some(stamp_from_metadata(&target));
        }
        let nanos = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000) + nanos;
        #[allow(
            clippy::unnecessary_cast,
            clippy::cast_possible_wrap,
            clippy::cast_sign_loss,
            reason = "the types differ between platforms, the values are small"
        )]
        Some(FileStamp {
            size: stat.st_size as u64,
            modified: nanos(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: nanos(stat.st_ctime as i64, stat.st_ctime_nsec as i64),
            inode: stat.st_ino as u64,
        })
    }

    /// Returns the stamp of a file or folder. Used for comparison, never to decide access.
    #[cfg(not(unix))]
    pub(crate) fn file_stamp(&self, relative: &str) -> Option<FileStamp> {
        let at = if relative.is_empty() { "." } else { relative };
        self.dir.metadata(at).ok().map(|m| stamp_from_metadata(&m))
    }

    fn open_file(&self, relative: &str) -> Result<cap_std::fs::File> {
        let opened = self.dir.open_with(relative, &nonblocking_options());
        opened.map_err(|e| self.map_io_error(relative, e))
    }

    /// Reads a file whose size and digest are known, if both still match.
    ///
    /// Bytes with the right digest are correct, wherever they were read from, so no other check
    /// of the file is needed.
    pub(crate) fn read_if_unchanged(&self, relative: &str, known: &FileEntry) -> Option<Bytes> {
        let size = usize::try_from(known.size).ok()?;
        let mut bytes = vec![0; size + 1];
        let mut file = self.open_file(relative).ok()?;
        // The extra byte detects a file that has grown; a short read is one that has shrunk.
        if file.read(&mut bytes).ok()? != size {
            return None;
        }
        bytes.truncate(size);
        (Digest::hash_bytes(&bytes) == known.digest).then(|| bytes.into())
    }

    /// Reads a whole regular file of at most `max` bytes, with its stamp.
    pub(crate) fn read_file(&self, relative: &str, max: u64) -> Result<(Bytes, FileStamp)> {
        let mut file = self.open_file(relative)?;
        let metadata = file
            .metadata()
            .map_err(|e| self.map_io_error(relative, e))?;
        if !metadata.is_file() {
            return Err(Error::NotRegular(self.full_path(relative)));
        }
        let stamp = stamp_from_metadata(&metadata);
        let too_large = |size| Error::InvalidAt {
            path: self.full_path(relative),
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
            .map_err(|e| self.map_io_error(relative, e))?;
        if bytes.len() as u64 > max {
            return Err(too_large(bytes.len() as u64));
        }
        Ok((bytes.into(), stamp))
    }
}

/// Returns open options that never block.
fn nonblocking_options() -> OpenOptions {
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

fn entry_kind(kind: FileType) -> DirEntryKind {
    if kind.is_file() {
        DirEntryKind::File
    } else if kind.is_dir() {
        DirEntryKind::Folder
    } else {
        DirEntryKind::Other
    }
}

#[cfg(unix)]
fn stamp_from_metadata(metadata: &Metadata) -> FileStamp {
    use cap_std::fs::MetadataExt;
    let nanos = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000) + nanos;
    FileStamp {
        size: metadata.len(),
        modified: nanos(metadata.mtime(), metadata.mtime_nsec()),
        changed: nanos(metadata.ctime(), metadata.ctime_nsec()),
        inode: metadata.ino(),
    }
}

#[cfg(not(unix))]
fn stamp_from_metadata(metadata: &Metadata) -> FileStamp {
    let modified = metadata
        .modified()
        .ok()
        .and_then(|t| t.into_std().duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX));
    FileStamp {
        size: metadata.len(),
        modified,
        changed: modified,
        inode: 0,
    }
}

/// Joins relative paths; the root is the empty path.
pub(crate) fn join_path(folder: &str, name: &str) -> String {
    if folder.is_empty() {
        return name.to_owned();
    }
    let mut path = String::with_capacity(folder.len() + 1 + name.len());
    path.push_str(folder);
    path.push('/');
    path.push_str(name);
    path
}

/// Returns the parent folder; the root is the empty path.
pub(crate) fn parent_path(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Returns the current time in nanoseconds, for comparison with stamps.
pub(crate) fn now_nanos() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}
