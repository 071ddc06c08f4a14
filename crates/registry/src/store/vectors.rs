//! Vectors that were computed once.

use repertoire_core::Digest;
use rusqlite::{OptionalExtension, params};

use super::Store;
use crate::error::Result;

impl Store {
    /// What is kept for each of these digests.
    pub fn vectors(&self, digests: &[Digest]) -> Result<Vec<Option<Vec<u8>>>> {
        self.read(|c| {
            let mut statement = c.prepare_cached("SELECT vector FROM vectors WHERE digest = ?1")?;
            let rows = digests.iter().map(|digest| {
                let row = statement.query_row([digest.as_bytes()], |row| row.get(0));
                Ok(row.optional()?)
            });
            rows.collect()
        })
    }

    /// Keeps vectors. They can be computed again, so that none is ever told of.
    pub fn put_vectors(&self, vectors: Vec<(Digest, Vec<u8>)>) -> Result<()> {
        self.write(move |c| {
            let sql = "INSERT OR REPLACE INTO vectors VALUES (?1, ?2)";
            let mut statement = c.prepare_cached(sql)?;
            for (digest, vector) in &vectors {
                statement.execute(params![digest.as_bytes(), vector])?;
            }
            Ok(())
        })
    }
}
