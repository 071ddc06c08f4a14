//! Bearer tokens. Only hashes are stored.

use repertoire_core::{Digest, permission::PermissionSet};
use rusqlite::{Connection, params};

use super::{QueryResult, StoredToken, now_rfc3339};
use crate::error::Error;

pub(super) fn add_token(c: &Connection, token: &StoredToken) -> QueryResult<()> {
    // The name of an expired token can be reused.
    c.execute(
        "DELETE FROM tokens WHERE name = ?1 AND expires_at <= ?2",
        params![token.name, now_rfc3339()],
    )?;
    let prefixes: Vec<String> = token.prefixes.iter().map(ToString::to_string).collect();
    let added = c.execute(
        "INSERT OR IGNORE INTO tokens
         (name, hash, access, created_at, expires_at, prefixes, tools, lost_run)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            token.name,
            token.hash.as_bytes(),
            token.permissions.to_string(),
            token.created_at,
            token.expires_at,
            prefixes.join(" "),
            token.tools.join(" "),
            token.lost_run,
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
        "SELECT name, hash, access, created_at, expires_at, prefixes, tools, lost_run
         FROM tokens ORDER BY name",
    )?;
    let rows = statement.query_map([], |row| {
        let hash: [u8; 32] = row.get(1)?;
        let access: String = row.get(2)?;
        let prefixes: String = row.get(5)?;
        let tools: String = row.get(6)?;
        let parsed = prefixes.split_whitespace().map(str::parse);
        let parsed: Result<Vec<_>, _> = parsed.collect();
        Ok(StoredToken {
            name: row.get(0)?,
            hash: Digest::from_bytes(hash),
            // What cannot be understood grants nothing.
            permissions: match &parsed {
                Ok(_) => access.parse().unwrap_or_default(),
                Err(_) => PermissionSet::default(),
            },
            prefixes: parsed.unwrap_or_default(),
            tools: tools.split_whitespace().map(str::to_owned).collect(),
            lost_run: row.get(7)?,
            created_at: row.get(3)?,
            expires_at: row.get(4)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}
