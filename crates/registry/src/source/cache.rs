//! The index of a root, kept between runs.
//!
//! The cache is a convenience: whatever is wrong with it, the root is read anew. It lives in the
//! user's private cache folder, never beneath a root, and holds stamps, digests and heads; a file
//! whose stamp differs is read again.

use std::{
    hash::BuildHasher,
    num::NonZero,
    path::{Path, PathBuf},
    sync::{Mutex, mpsc},
};

use repertoire_core::Digest;
use serde::{Deserialize, Serialize};

use super::{index::Index, record::FolderRecord, root::Root};
use crate::store::create_private_dir;

/// Changes whenever the meaning of a record does.
const FORMAT: u32 = 6;
/// Smaller roots are read faster than a cache is written.
const WORTH_IT: usize = 64;

#[derive(Serialize, Deserialize)]
struct Saved<'a> {
    format: u32,
    version: &'a str,
    root: &'a str,
    /// The folder that was not looked into, if any.
    cut: Option<String>,
    count: usize,
    records: &'a [u8],
}

fn file(folder: &Path, root: &Path) -> PathBuf {
    let name = Digest::of(root.to_string_lossy().as_bytes()).hex();
    folder.join(format!("index-{}.bin", &name[..24]))
}

/// Records that travel together from the reader to whoever compares them with the disk.
const BATCH: usize = 256;

type Batch = Vec<(Box<str>, FolderRecord)>;

/// What was known of a root at the last run, compared with the disk as it is now.
///
/// Reading the records and comparing their stamps are two halves of a warm start; they run side
/// by side.
pub(crate) fn load(folder: &Path, root: &Root) -> Index {
    std::fs::read(file(folder, root.path()))
        .ok()
        .and_then(|bytes| read(&bytes, root))
        .unwrap_or_default()
}

fn read(bytes: &[u8], root: &Root) -> Option<Index> {
    let (sum, body) = bytes.split_at_checked(8)?;
    if checksum(body) != sum {
        return None;
    }
    let saved: Saved<'_> = postcard::from_bytes(body).ok()?;
    let same = saved.format == FORMAT
        && saved.version == env!("CARGO_PKG_VERSION")
        && saved.root == root.path().to_string_lossy();
    if !same {
        return None;
    }
    let (send, receive) = mpsc::channel::<Batch>();
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
        let whole = decode(&saved, &send);
        drop(send);
        let mut compared = compare();
        for helper in helpers {
            compared.extend(helper.join().ok()?);
        }
        whole?;
        let mut index = Index {
            cut: saved.cut.clone(),
            ..Index::default()
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

/// Tells a damaged file from a whole one. Nobody else can write it, so nothing stronger is needed.
fn checksum(body: &[u8]) -> [u8; 8] {
    foldhash::quality::FixedState::default()
        .hash_one(body)
        .to_le_bytes()
}

/// Reads all records, batch by batch.
fn decode(saved: &Saved<'_>, send: &mpsc::Sender<Batch>) -> Option<()> {
    let mut rest = saved.records;
    let mut left = saved.count;
    while left > 0 {
        let size = left.min(BATCH);
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

/// Keeps what is known of a root, if reading it again would cost more.
pub(crate) fn save(folder: &Path, root: &Path, index: &mut Index) {
    if index.read == 0 || index.folders.len() < WORTH_IT {
        return;
    }
    index.read = 0;
    let mut records = Vec::new();
    for record in &index.folders {
        match postcard::to_extend(&record, records) {
            Ok(more) => records = more,
            Err(_) => return,
        }
    }
    let saved = Saved {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION"),
        root: &root.to_string_lossy(),
        cut: index.cut.clone(),
        count: index.folders.len(),
        records: &records,
    };
    let body = postcard::to_stdvec(&saved);
    let write = || -> Option<()> {
        let body = body.ok()?;
        create_private_dir(folder).ok()?;
        let target = file(folder, root);
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
