//! Page cursors: the key of the last entry of a page. The next page starts after that key, even
//! if entries were added or removed in between.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rmcp::ErrorData;

use crate::error::{invalid_params, shorten_text};

/// A position in a listing of several kinds of entries, one kind after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The kind of the entry.
    pub(crate) kind: char,
    /// The key of the last entry of the page.
    pub(crate) key: String,
}

impl Cursor {
    pub(crate) fn new(kind: char, key: impl Into<String>) -> Self {
        Self {
            kind,
            key: key.into(),
        }
    }

    /// Encodes the cursor as text for a peer.
    pub(crate) fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(format!("{}{}", self.kind, self.key))
    }

    /// Decodes a cursor from a peer, if it has one of these kinds.
    pub(crate) fn decode(text: &str, kinds: &str) -> Result<Self, ErrorData> {
        let refuse = || invalid_params(format!("invalid cursor {:?}", shorten_text(text)));
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| refuse())?;
        let plain = String::from_utf8(bytes).map_err(|_| refuse())?;
        let kind = plain.chars().next().filter(|kind| kinds.contains(*kind));
        let kind = kind.ok_or_else(refuse)?;
        Ok(Self::new(kind, &plain[kind.len_utf8()..]))
    }
}

/// The entries of one page, and where the next one starts.
#[derive(Debug)]
pub(super) struct CursorPage<T> {
    pub(super) items: Vec<T>,
    pub(super) next: Option<String>,
}

/// The approximate maximum size of a page; some clients have a buffer limit.
const MAX_PAGE_BYTES: usize = 512 * 1024;

/// Collects one page from entries with their positions and estimated sizes.
pub(super) fn take_page<T>(
    entries: impl Iterator<Item = (Cursor, usize, T)>,
    size: usize,
) -> CursorPage<T> {
    let mut items = Vec::new();
    let mut last = None;
    let mut bytes = 0usize;
    for (cursor, weight, item) in entries {
        bytes = bytes.saturating_add(weight);
        // An entry is never split, and a page has at least one.
        if items.len() >= size || (bytes > MAX_PAGE_BYTES && !items.is_empty()) {
            return CursorPage {
                items,
                next: last.map(|cursor: Cursor| cursor.encode()),
            };
        }
        items.push(item);
        last = Some(cursor);
    }
    CursorPage { items, next: None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn encoded_cursors_decode_to_the_same_value(key in ".{0,200}") {
            let cursor = Cursor::new('s', key);
            prop_assert_eq!(Cursor::decode(&cursor.encode(), "ps").unwrap(), cursor.clone());
            prop_assert!(Cursor::decode(&cursor.encode(), "p").is_err());
        }

        #[test]
        fn untrusted_cursors_are_refused_or_decoded_without_panic(text in ".{0,64}") {
            if let Err(error) = Cursor::decode(&text, "s") {
                prop_assert_eq!(error.code.0, -32602);
            }
        }
    }

    #[test]
    fn oversized_entry_gets_a_page_of_its_own() {
        let entries =
            |from: usize| (from..4).map(|n| (Cursor::new('s', n.to_string()), 400 * 1024, n));
        let first = take_page(entries(0), 100);
        assert_eq!(first.items, [0]);
        let next = Cursor::decode(&first.next.unwrap(), "s").unwrap();
        assert_eq!(next.key, "0");
        assert_eq!(take_page(entries(3), 100).next, None);
        assert_eq!(
            take_page(std::iter::empty::<(Cursor, usize, u8)>(), 1).next,
            None
        );
    }
}
