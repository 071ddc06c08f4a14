//! Parses untrusted JSON safely.
//!
//! `serde_json` treats an object with one reserved key as JSON within a string, and parses that
//! string with a depth limit of its own. Nested this way, a few hundred kilobytes exhaust any stack
//! and abort the process. Cargo enables this feature for all crates once one dependency needs it,
//! so the key is refused before anything is parsed.
//!
//! **Invariant:** no text with that key is parsed, whatever escapes it is written with.

use memchr::{memchr, memchr2, memmem};
use serde::{Deserialize, de::Error as _};

/// The reserved key.
pub const RESERVED: &str = "$serde_json::private::RawValue";

/// Refuses a text that contains the reserved key, in linear time.
///
/// ```
/// use repertoire_core::json::check_reserved_key;
///
/// assert!(check_reserved_key(br#"{"name": "tea"}"#).is_ok());
/// assert!(check_reserved_key(br#"{"$serde_json::private::RawValue": "[]"}"#).is_err());
/// assert!(check_reserved_key(br#"{"\u0024serde_json::private::RawValue": "[]"}"#).is_err());
/// ```
pub fn check_reserved_key(text: &[u8]) -> serde_json::Result<()> {
    // The key can be written plainly or with escapes, all of which begin with `\u00`.
    let is_plain =
        memmem::find(text, RESERVED.as_bytes()).is_none() && memmem::find(text, br"\u00").is_none();
    if is_plain || !string_literals(text).any(is_reserved_key) {
        return Ok(());
    }
    let why = format!("`{RESERVED}` is reserved and cannot be a key or a value");
    Err(serde_json::Error::custom(why))
}

/// Parses JSON text after checking it for the reserved key.
///
/// ```
/// let numbers: Vec<u8> = repertoire_core::json::from_str("[1, 2]")?;
/// assert_eq!(numbers, [1, 2]);
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn from_str<'a, T: Deserialize<'a>>(text: &'a str) -> serde_json::Result<T> {
    check_reserved_key(text.as_bytes())?;
    serde_json::from_str(text)
}

/// Parses JSON bytes after checking them for the reserved key.
///
/// ```
/// let numbers: Vec<u8> = repertoire_core::json::from_slice(b"[1, 2]")?;
/// assert_eq!(numbers, [1, 2]);
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn from_slice<'a, T: Deserialize<'a>>(text: &'a [u8]) -> serde_json::Result<T> {
    check_reserved_key(text)?;
    serde_json::from_slice(text)
}

/// Iterates over the string literals, still escaped, up to where the text stops being JSON.
fn string_literals(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let inside = rest.get(memchr(b'"', rest)? + 1..)?;
        let mut at = 0;
        loop {
            at += memchr2(b'"', b'\\', inside.get(at..)?)?;
            if inside.get(at) == Some(&b'"') {
                break;
            }
            // An escaped character does not end the string.
            at += 2;
        }
        rest = inside.get(at + 1..)?;
        inside.get(..at)
    })
}

fn is_reserved_key(written: &[u8]) -> bool {
    let mut rest = written;
    for &wanted in RESERVED.as_bytes() {
        let digit = |c: u8| char::from(c).to_digit(16);
        rest = match rest {
            [b'\\', b'u', b'0', b'0', a, b, rest @ ..]
                if digit(*a).zip(digit(*b)).map(|(a, b)| a * 16 + b) == Some(wanted.into()) =>
            {
                rest
            }
            [c, rest @ ..] if *c == wanted => rest,
            _ => return false,
        };
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// JSON nested in strings, level by level: parsing it without the check overflows the stack.
    fn nested_json(times: usize) -> String {
        let mut text = "[]".to_owned();
        for _ in 0..times {
            let inner = text.replace('\\', "\\u005c").replace('"', "\\u0022");
            let (open, close) = ("[".repeat(100), "]".repeat(100));
            text = format!("{open}{{\"{RESERVED}\":\"{inner}\"}}{close}");
        }
        text
    }

    #[test]
    fn t7_json_packed_into_json_is_refused_before_it_is_unpacked() {
        // Without the check, one level is parsed as its content …
        assert_eq!(
            serde_json::from_str::<Value>(&nested_json(1)).is_ok(),
            from_str::<Value>(&nested_json(1)).is_err()
        );
        // … and many levels abort the process.
        let many = nested_json(200);
        assert!(many.len() < 1 << 20);
        assert!(from_str::<Value>(&many).is_err());
        assert!(from_slice::<Value>(format!("{{\"a\":[1,{many}").as_bytes()).is_err());
    }

    #[test]
    fn similar_keys_are_accepted() {
        for text in [
            r#"{"$serde_json::private::RawValues": 1}"#,
            r#"{"x $serde_json::private::RawValue": "\u00e9"}"#,
            r#"{"a": "\\\"$serde_json::private::RawValue\\"}"#,
            r#"{"a": "$serde_json::private::RawValu\u00e9"}"#,
        ] {
            let read: Value = from_str(text).unwrap();
            assert_eq!(read, serde_json::from_str::<Value>(text).unwrap());
        }
        assert!(from_str::<Value>("{\"a\": \"\\").is_err());
        assert!(from_str::<Value>("\"").is_err());
    }

    proptest! {
        #[test]
        fn the_reserved_key_is_refused_in_every_escaping(by_number in proptest::collection::vec(any::<bool>(), RESERVED.len()),
                                 before in ".{0,20}") {
            let spelled: String = RESERVED.chars().zip(by_number).map(|(c, by_number)| {
                if by_number { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }
            }).collect();
            let text = format!("{{{}: [{{\"{spelled}\": \"[]\"}}]}}", json!(before));
            prop_assert!(from_str::<Value>(&text).is_err());
        }

        #[test]
        fn other_keys_are_accepted(keys in proptest::collection::vec(".{0,12}", 0..8)) {
            let value: Value = keys.iter().map(|key| (key.clone(), json!([key]))).collect();
            let text = value.to_string();
            prop_assert_eq!(from_str::<Value>(&text).unwrap(), value);
        }
    }
}
