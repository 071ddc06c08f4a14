//! The contract suite of [`Store`], run on each implementation.
//!
//! Another implementation adds a factory and one line at the end of this file.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod common;
mod contract;

use std::sync::Arc;

use repertoire_registry::store::{SqliteStore, Store, StoreOpenMode};

/// Opens one SQLite file again and again.
struct SqliteFactory(tempfile::TempDir);

impl contract::StoreFactory for SqliteFactory {
    fn create() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self) -> Arc<dyn Store> {
        SqliteStore::open(&self.0.path().join("agents.db"), StoreOpenMode::Own).unwrap()
    }
}

contract::store_contract!(sqlite, crate::SqliteFactory);
