//! Bearer tokens of HTTP clients. Only hashes are stored.

use repertoire_core::Digest;
use rusqlite::{Connection, params};

use super::{QueryResult, StoredToken, now_rfc3339};
use crate::{error::Error, store::TokenAccess};

pub(super) fn add_token(c: &Connection, token: &StoredToken) -> QueryResult<()> {
    // The name of an expired token can be reused.
    c.execute(
        "DELETE FROM tokens WHERE name = ?1 AND expires_at <= ?2",
        params![token.name, now_rfc3339()],
    )?;
    let added = c.execute(
        "INSERT OR IGNORE INTO tokens VALUES (?1, ?2, ?3, ?4, ?5)",
        params![
            token.name,
            token.hash.as_bytes(),
            token.access.as_str(),
            token.created_at,
            token.expires_at
        ],
    )?;
    if added == 0 {
        let (what, name) = ("token", token.name.clone());
        return Err(Error::AlreadyExists { what, name }.into());
    }
    Ok(())
}

pub(super) fn tokens(c: &Connection) -> QueryResult<Vec<StoredToken>> {
    let mut statement = c.prepare_cached(
        "SELECT name, hash, access, created_at, expires_at FROM tokens ORDER BY name",
    )?;
    let rows = statement.query_map([], |row| {
        let hash: [u8; 32] = row.get(1)?;
        let access: String = row.get(2)?;
        Ok(StoredToken {
            name: row.get(0)?,
            hash: Digest::from_bytes(hash),
            // Any value other than `write` grants read access only.
            access: match access.as_str() {
                "write" => TokenAccess::Write,
                _ => TokenAccess::Read,
            },
            created_at: row.get(3)?,
            expires_at: row.get(4)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}
