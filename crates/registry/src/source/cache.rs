//! A cache file of a root's index, kept between runs.
//!
//! The cache is optional: if it is missing or damaged, the root is read again. It lives in the
//! user's private cache folder, never beneath a root, and holds stamps, digests and metadata; a
//! file whose stamp differs is read again.

use std::{
    hash::BuildHasher,
    num::NonZero,
    path::{Path, PathBuf},
    sync::{Mutex, mpsc},
};

use repertoire_core::Digest;
use serde::{Deserialize, Serialize};

use super::{index::FolderIndex, record::FolderRecord, root::RootDir};
use crate::store::create_private_dir;

/// The format version; it changes whenever the meaning of a record changes.
const CACHE_FORMAT: u32 = 7;
/// Smaller roots are not cached, because reading them is faster than writing a cache.
const MIN_CACHED_FOLDERS: usize = 64;

#[derive(Serialize, Deserialize)]
struct CachedIndex<'a> {
    format: u32,
    version: &'a str,
    root: &'a str,
    /// The first folder that was skipped because of the limits, if any.
    cut: Option<String>,
    count: usize,
    records: &'a [u8],
}

fn cache_path(folder: &Path, root: &Path) -> PathBuf {
    let name = Digest::hash_bytes(root.to_string_lossy().as_bytes()).hex_digits();
    folder.join(format!("index-{}.bin", &name[..24]))
}

/// How many records the reader sends at once to the threads that compare them with the disk.
const BATCH_SIZE: usize = 256;

type RecordBatch = Vec<(Box<str>, FolderRecord)>;

/// Loads the index of the last run and compares it with the current files on disk.
///
/// Reading the records and comparing their stamps are the two halves of a warm start; they run
/// in parallel.
pub(crate) fn load_index(folder: &Path, root: &RootDir) -> FolderIndex {
    std::fs::read(cache_path(folder, root.path()))
        .ok()
        .and_then(|bytes| read_index(&bytes, root))
        .unwrap_or_default()
}

fn read_index(bytes: &[u8], root: &RootDir) -> Option<FolderIndex> {
    let (sum, body) = bytes.split_at_checked(8)?;
    if checksum(body) != sum {
        return None;
    }
    let saved: CachedIndex<'_> = postcard::from_bytes(body).ok()?;
    let same = saved.format == CACHE_FORMAT
        && saved.version == env!("CARGO_PKG_VERSION")
        && saved.root == root.path().to_string_lossy();
    if !same {
        return None;
    }
    let (send, receive) = mpsc::channel::<RecordBatch>();
    let receive = Mutex::new(receive);
    let compare = || {
        let mut done = Vec::new();
        loop {
            let next = receive.lock().ok().and_then(|queue| queue.recv().ok());
            let Some(batch) = next else { return done };
            let changed: Vec<usize> = (0..batch.len())
                .filter(|&at| !batch[at].1.is_current(root, &batch[at].0))
                .collect();
            done.push((batch, changed));
        }
    };
    let helpers = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        let compare = &compare;
        let helpers: Vec<_> = (1..helpers.max(2)).map(|_| scope.spawn(compare)).collect();
        let whole = decode_records(&saved, &send);
        drop(send);
        let mut compared = compare();
        for helper in helpers {
            compared.extend(helper.join().ok()?);
        }
        whole?;
        let mut index = FolderIndex {
            first_skipped: saved.cut.clone(),
            ..FolderIndex::default()
        };
        index.folders.reserve(saved.count);
        for (batch, changed) in compared {
            index
                .changed
                .extend(changed.iter().map(|&at| batch[at].0.to_string()));
            index.folders.extend(batch);
        }
        Some(index)
    })
}

/// Detects a damaged file. Only this user can write it, so no cryptographic hash is needed.
fn checksum(body: &[u8]) -> [u8; 8] {
    foldhash::quality::FixedState::default()
        .hash_one(body)
        .to_le_bytes()
}

/// Decodes all records and sends them in batches.
fn decode_records(saved: &CachedIndex<'_>, send: &mpsc::Sender<RecordBatch>) -> Option<()> {
    let mut rest = saved.records;
    let mut left = saved.count;
    while left > 0 {
        let size = left.min(BATCH_SIZE);
        let mut batch = Vec::with_capacity(size);
        for _ in 0..size {
            let (record, more) = postcard::take_from_bytes(rest).ok()?;
            batch.push(record);
            rest = more;
        }
        send.send(batch).ok()?;
        left -= size;
    }
    Some(())
}

/// Saves the index of a root if the root is large enough to be worth caching.
pub(crate) fn save_index(folder: &Path, root: &Path, index: &mut FolderIndex) {
    if index.files_read == 0 || index.folders.len() < MIN_CACHED_FOLDERS {
        return;
    }
    index.files_read = 0;
    let mut records = Vec::new();
    for record in &index.folders {
        match postcard::to_extend(&record, records) {
            Ok(more) => records = more,
            Err(_) => return,
        }
    }
    let saved = CachedIndex {
        format: CACHE_FORMAT,
        version: env!("CARGO_PKG_VERSION"),
        root: &root.to_string_lossy(),
        cut: index.first_skipped.clone(),
        count: index.folders.len(),
        records: &records,
    };
    let body = postcard::to_stdvec(&saved);
    let write = || -> Option<()> {
        let body = body.ok()?;
        create_private_dir(folder).ok()?;
        let target = cache_path(folder, root);
        let partial = target.with_extension(format!("{}.tmp", std::process::id()));
        let mut bytes = checksum(&body).to_vec();
        bytes.extend_from_slice(&body);
        std::fs::write(&partial, bytes).ok()?;
        std::fs::rename(&partial, &target).ok()
    };
    if write().is_none() {
        tracing::debug!(root = %root.display(), "the index could not be cached");
    }
}
