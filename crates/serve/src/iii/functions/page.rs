//! Pages of listings.
//!
//! Without a limit everything is returned, as long as the answer stays small enough for every
//! client; past that it is a page like any other, and says where the next one starts.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Answer, CallError};
use crate::mcp::cursor::Cursor;

/// The most bytes of a listing.
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// The most entries somebody may ask for at a time.
const MAX_LIMIT: usize = 10_000;

/// Which part of a listing is wanted.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(title = "ListInput")]
pub(super) struct Paged {
    /// The most entries to return.
    #[serde(default)]
    limit: Option<u64>,
    /// Where the last page ended.
    #[serde(default)]
    cursor: Option<String>,
}

impl Paged {
    /// The key of the last entry of the page before.
    pub(super) fn after<K>(&self, kind: char) -> Result<Option<K>, CallError>
    where
        K: std::str::FromStr<Err = repertoire_core::Error>,
    {
        let Some(cursor) = self.cursor.as_deref().filter(|cursor| !cursor.is_empty()) else {
            return Ok(None);
        };
        let refuse = |reason: String| CallError::new("invalid_cursor", reason);
        let mut kinds = [0; 4];
        let cursor = Cursor::decode(cursor, kind.encode_utf8(&mut kinds));
        let cursor = cursor.map_err(|error| refuse(error.message.into_owned()))?;
        let key = cursor.key.parse();
        key.map(Some)
            .map_err(|error| refuse(format!("cursor is none of ours: {error}")))
    }

    fn limit(&self) -> Result<usize, CallError> {
        match self.limit.map(usize::try_from) {
            None => Ok(usize::MAX),
            Some(Ok(limit)) if (1..=MAX_LIMIT).contains(&limit) => Ok(limit),
            Some(_) => Err(CallError::new(
                "invalid_request",
                format!("limit must be between 1 and {MAX_LIMIT}"),
            )),
        }
    }

    /// Writes entries until the page is full.
    pub(super) fn write<'a>(
        &self,
        key: &str,
        kind: char,
        first: Option<String>,
        entries: impl Iterator<Item = (&'a str, Answer)>,
    ) -> Answer {
        let limit = self.limit()?;
        let mut out = format!("{{\"{key}\":[");
        let mut written = 0;
        // What comes before all entries belongs to the first page, and takes no place in it.
        if self.cursor.as_deref().unwrap_or_default().is_empty()
            && let Some(first) = first
        {
            out.push_str(&first);
            written += 1;
        }
        let (mut last, mut count) = (None, 0);
        for (id, entry) in entries {
            let entry = entry?;
            let full = count >= limit || out.len() + entry.len() > MAX_BYTES - 4096;
            if full && count > 0 {
                out.push_str("],\"next_cursor\":\"");
                let last = last.map(|id: &str| Cursor::new(kind, id).encode());
                out.push_str(&last.unwrap_or_default());
                out.push_str("\"}");
                return Ok(out);
            }
            if written > 0 {
                out.push(',');
            }
            out.push_str(&entry);
            written += 1;
            count += 1;
            last = Some(id);
        }
        out.push_str("]}");
        Ok(out)
    }
}
