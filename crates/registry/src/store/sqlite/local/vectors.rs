//! A cache of computed embedding vectors.

use repertoire_core::Digest;
use rusqlite::{OptionalExtension, params};

use super::LocalStore;
use crate::{
    error::Result,
    store::sqlite::maintenance::{delete_old_vectors, today},
};

/// After how many days the day of the last use is written again.
const USE_DAYS: i64 = 30;

impl LocalStore {
    /// Returns the stored vector of each digest. Vectors that are not used for long are deleted.
    pub fn vectors(&self, digests: &[Digest]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut stale = Vec::new();
        let today = today();
        let found = self.with_reader(|c| {
            let sql = "SELECT vector, used_day FROM vectors WHERE digest = ?1";
            let mut statement = c.prepare_cached(sql)?;
            let rows = digests.iter().map(|digest| {
                let row = statement.query_row([digest.as_bytes()], |row| {
                    Ok((row.get(0)?, row.get::<_, i64>(1)?))
                });
                let row = row.optional()?;
                if row.as_ref().is_some_and(|(_, day)| *day < today - USE_DAYS) {
                    stale.push(*digest);
                }
                Ok(row.map(|(vector, _)| vector))
            });
            rows.collect()
        })?;
        if !stale.is_empty() && self.is_writable() {
            self.write_durable(move |c| {
                let sql = "UPDATE vectors SET used_day = ?1 WHERE digest = ?2";
                let mut statement = c.prepare_cached(sql)?;
                for digest in &stale {
                    statement.execute(params![today, digest.as_bytes()])?;
                }
                Ok(())
            })?;
        }
        Ok(found)
    }

    /// Stores vectors. They cause no events, because other processes can recompute them.
    pub fn put_vectors(&self, vectors: Vec<(Digest, Vec<u8>)>) -> Result<()> {
        self.write_durable(move |c| {
            delete_old_vectors(c)?;
            let sql = "INSERT OR REPLACE INTO vectors VALUES (?1, ?2, ?3)";
            let mut statement = c.prepare_cached(sql)?;
            for (digest, vector) in &vectors {
                statement.execute(params![digest.as_bytes(), vector, today()])?;
            }
            Ok(())
        })
    }
}
