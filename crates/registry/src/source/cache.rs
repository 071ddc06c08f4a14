//! The index of a root, kept between runs.
//!
//! The cache is a convenience: whatever is wrong with it, the root is read anew. It lives in the
//! user's private cache folder, never beneath a root, and holds stamps, digests and heads; a file
//! whose stamp differs is read again.

use std::path::{Path, PathBuf};

use rayon::prelude::*;
use repertoire_core::Digest;
use serde::{Deserialize, Serialize};

use super::index::{FolderRecord, Index, Map};
use crate::store::create_private_dir;

/// Changes whenever the meaning of a record does.
const FORMAT: u32 = 2;
/// Smaller roots are read faster than a cache is written.
const WORTH_IT: usize = 64;

/// Parts that are read side by side.
const PARTS: usize = 16;

#[derive(Serialize, Deserialize)]
struct Saved<'a> {
    format: u32,
    version: &'a str,
    root: &'a str,
    #[serde(borrow)]
    parts: Vec<&'a [u8]>,
}

fn file(folder: &Path, root: &Path) -> PathBuf {
    let name = Digest::of(root.to_string_lossy().as_bytes()).hex();
    folder.join(format!("index-{}.bin", &name[..24]))
}

/// What was known of a root at the last run.
pub(crate) fn load(folder: &Path, root: &Path) -> Index {
    let read = || {
        let bytes = std::fs::read(file(folder, root)).ok()?;
        let (digest, body) = bytes.split_at_checked(32)?;
        if Digest::of(body).as_bytes() != digest {
            return None;
        }
        let saved: Saved<'_> = postcard::from_bytes(body).ok()?;
        let same = saved.format == FORMAT
            && saved.version == env!("CARGO_PKG_VERSION")
            && saved.root == root.to_string_lossy();
        if !same {
            return None;
        }
        let parts: Vec<Vec<(Box<str>, FolderRecord)>> = saved
            .parts
            .par_iter()
            .map(|part| postcard::from_bytes(part).ok())
            .collect::<Option<_>>()?;
        let folders: Map<Box<str>, FolderRecord> = parts.into_iter().flatten().collect();
        Some(folders)
    };
    Index {
        folders: read().unwrap_or_default(),
        ..Index::default()
    }
}

/// Keeps what is known of a root, if reading it again would cost more.
pub(crate) fn save(folder: &Path, root: &Path, index: &mut Index) {
    if index.read == 0 || index.folders.len() < WORTH_IT {
        return;
    }
    index.read = 0;
    let records: Vec<_> = index.folders.iter().collect();
    let parts: Option<Vec<Vec<u8>>> = records
        .par_chunks(records.len().div_ceil(PARTS).max(1))
        .map(|part| postcard::to_stdvec(part).ok())
        .collect();
    let Some(parts) = parts else { return };
    let saved = Saved {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION"),
        root: &root.to_string_lossy(),
        parts: parts.iter().map(Vec::as_slice).collect(),
    };
    let body = postcard::to_stdvec(&saved);
    let write = || -> Option<()> {
        let body = body.ok()?;
        create_private_dir(folder).ok()?;
        let target = file(folder, root);
        let partial = target.with_extension(format!("{}.tmp", std::process::id()));
        let mut bytes = Digest::of(&body).as_bytes().to_vec();
        bytes.extend_from_slice(&body);
        std::fs::write(&partial, bytes).ok()?;
        std::fs::rename(&partial, &target).ok()
    };
    if write().is_none() {
        tracing::debug!(root = %root.display(), "the index could not be cached");
    }
}
