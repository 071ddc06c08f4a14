//! Pages of listings.
//!
//! Without a limit everything is returned if the answer is small enough for every client; a
//! longer answer is split into pages, each with the cursor of the next one.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{BusResult, CallError};
use crate::mcp::cursor::Cursor;

/// The most bytes of a listing.
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// The most entries that one call may request.
const MAX_LIMIT: usize = 10_000;

/// The requested part of a listing.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(title = "ListInput")]
pub(super) struct ListInput {
    /// The most entries to return.
    #[serde(default)]
    limit: Option<u64>,
    /// Where the last page ended.
    #[serde(default)]
    cursor: Option<String>,
}

impl ListInput {
    /// Returns the key of the last entry of the previous page.
    pub(super) fn after_key<K>(&self, kind: char) -> Result<Option<K>, CallError>
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

    fn page_limit(&self) -> Result<usize, CallError> {
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
    pub(super) fn write_page<'a>(
        &self,
        key: &str,
        kind: char,
        first: Option<String>,
        entries: impl Iterator<Item = (&'a str, BusResult)>,
    ) -> BusResult {
        let limit = self.page_limit()?;
        let mut out = format!("{{\"{key}\":[");
        let mut written = 0;
        // The fixed first entry belongs to the first page, and does not count against its limit.
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
                let last = last.map(|id: &str| Cursor::new(kind, id).encode());
                let cursor = last.unwrap_or_default();
                // Under our name and that of MCP.
                out.push_str("],\"next_cursor\":\"");
                out.push_str(&cursor);
                out.push_str("\",\"nextCursor\":\"");
                out.push_str(&cursor);
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
