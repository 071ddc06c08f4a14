//! A cache of computed embedding vectors.

use repertoire_core::Digest;
use rusqlite::{OptionalExtension, params};

use super::LocalStore;
use crate::error::Result;

impl LocalStore {
    /// Returns the stored vector of each digest.
    pub fn vectors(&self, digests: &[Digest]) -> Result<Vec<Option<Vec<u8>>>> {
        self.with_reader(|c| {
            let mut statement = c.prepare_cached("SELECT vector FROM vectors WHERE digest = ?1")?;
            let rows = digests.iter().map(|digest| {
                let row = statement.query_row([digest.as_bytes()], |row| row.get(0));
                Ok(row.optional()?)
            });
            rows.collect()
        })
    }

    /// Stores vectors. They cause no events, because other processes can recompute them.
    pub fn put_vectors(&self, vectors: Vec<(Digest, Vec<u8>)>) -> Result<()> {
        self.write_durable(move |c| {
            let sql = "INSERT OR REPLACE INTO vectors VALUES (?1, ?2)";
            let mut statement = c.prepare_cached(sql)?;
            for (digest, vector) in &vectors {
                statement.execute(params![digest.as_bytes(), vector])?;
            }
            Ok(())
        })
    }
}
