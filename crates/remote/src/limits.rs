//! How much is accepted from a place, and how long it may take.

use std::time::Duration;

/// The limits of one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchLimits {
    /// The most bytes of one downloaded file.
    pub file_bytes: u64,
    /// The most bytes of an index or another list.
    pub index_bytes: u64,
    /// The most bytes that an archive may unpack to, and that a repository may send.
    pub total_bytes: u64,
    /// The most entries of a tree, an archive or an index.
    pub entries: usize,
    /// The most skills of one source.
    pub skills: usize,
    /// The time of one request or one run of git.
    pub time: Duration,
    /// A download that brings less than [`STALL_BYTES`](Self::STALL_BYTES) in this time is ended.
    pub stall: Duration,
}

impl FetchLimits {
    /// How much has to come within [`stall`](Self::stall).
    pub const STALL_BYTES: u64 = 1024;
}

impl Default for FetchLimits {
    fn default() -> Self {
        Self {
            file_bytes: 64 * 1024 * 1024,
            index_bytes: 8 * 1024 * 1024,
            total_bytes: 256 * 1024 * 1024,
            entries: 100_000,
            skills: 10_000,
            time: Duration::from_mins(5),
            stall: Duration::from_secs(10),
        }
    }
}
