//! Reading JSON, whoever wrote it.
//!
//! To `serde_json`, an object with one reserved key is JSON within a string, which it reads with a
//! depth limit of its own. Packed into each other, some hundred kilobytes nest deep enough to use up
//! any stack, and that ends the process. Where a crate among the dependencies needs that key, all of
//! them have it, so that it is looked for before anything is read.
//!
//! **Invariant:** no text with that key is parsed, however its letters are written.

use memchr::{memchr, memchr2, memmem};
use serde::{Deserialize, de::Error as _};

/// What no key is called.
pub const RESERVED: &str = "$serde_json::private::RawValue";

/// Refuses a text with the reserved key. It costs a look at each byte at the most.
///
/// ```
/// use repertoire_core::json::check;
///
/// assert!(check(br#"{"name": "tea"}"#).is_ok());
/// assert!(check(br#"{"$serde_json::private::RawValue": "[]"}"#).is_err());
/// assert!(check(br#"{"\u0024serde_json::private::RawValue": "[]"}"#).is_err());
/// ```
pub fn check(text: &[u8]) -> serde_json::Result<()> {
    // Letters of it can be written as they are, or by their number, which begins like this.
    let is_plain =
        memmem::find(text, RESERVED.as_bytes()).is_none() && memmem::find(text, br"\u00").is_none();
    if is_plain || !strings(text).any(is_reserved) {
        return Ok(());
    }
    let why = format!("`{RESERVED}` is reserved and cannot be a key or a value");
    Err(serde_json::Error::custom(why))
}

/// Reads a text.
///
/// ```
/// let numbers: Vec<u8> = repertoire_core::json::from_str("[1, 2]")?;
/// assert_eq!(numbers, [1, 2]);
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn from_str<'a, T: Deserialize<'a>>(text: &'a str) -> serde_json::Result<T> {
    check(text.as_bytes())?;
    serde_json::from_str(text)
}

/// Reads bytes.
///
/// ```
/// let numbers: Vec<u8> = repertoire_core::json::from_slice(b"[1, 2]")?;
/// assert_eq!(numbers, [1, 2]);
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn from_slice<'a, T: Deserialize<'a>>(text: &'a [u8]) -> serde_json::Result<T> {
    check(text)?;
    serde_json::from_slice(text)
}

/// What stands between quotes, as it is written, up to where the text stops being JSON.
fn strings(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let inside = rest.get(memchr(b'"', rest)? + 1..)?;
        let mut at = 0;
        loop {
            at += memchr2(b'"', b'\\', inside.get(at..)?)?;
            if inside.get(at) == Some(&b'"') {
                break;
            }
            // What is escaped ends nothing.
            at += 2;
        }
        rest = inside.get(at + 1..)?;
        inside.get(..at)
    })
}

fn is_reserved(written: &[u8]) -> bool {
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

    /// JSON in a string in JSON, and so on: what a parser without the guard does not survive.
    fn packed(times: usize) -> String {
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
        // Without the guard, one level is taken for what it holds …
        assert_eq!(
            serde_json::from_str::<Value>(&packed(1)).is_ok(),
            from_str::<Value>(&packed(1)).is_err()
        );
        // … and many end the process.
        let many = packed(200);
        assert!(many.len() < 1 << 20);
        assert!(from_str::<Value>(&many).is_err());
        assert!(from_slice::<Value>(format!("{{\"a\":[1,{many}").as_bytes()).is_err());
    }

    #[test]
    fn what_only_looks_like_it_is_read() {
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
        fn however_it_is_spelled(by_number in proptest::collection::vec(any::<bool>(), RESERVED.len()),
                                 before in ".{0,20}") {
            let spelled: String = RESERVED.chars().zip(by_number).map(|(c, by_number)| {
                if by_number { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }
            }).collect();
            let text = format!("{{{}: [{{\"{spelled}\": \"[]\"}}]}}", json!(before));
            prop_assert!(from_str::<Value>(&text).is_err());
        }

        #[test]
        fn everything_else_is_read(keys in proptest::collection::vec(".{0,12}", 0..8)) {
            let value: Value = keys.iter().map(|key| (key.clone(), json!([key]))).collect();
            let text = value.to_string();
            prop_assert_eq!(from_str::<Value>(&text).unwrap(), value);
        }
    }
}
