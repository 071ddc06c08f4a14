//! SHA-256 digests in the form every manifest uses.

use std::{fmt, str::FromStr};

use sha2::Digest as _;

use crate::error::{Error, Result, input_excerpt};

/// A SHA-256 digest, written `sha256:<64 lowercase hex>`.
///
/// ```
/// use repertoire_core::Digest;
///
/// let digest = Digest::hash_bytes(b"abc");
/// assert!(digest.to_string().starts_with("sha256:ba7816bf"));
/// assert_eq!(digest.to_string().parse::<Digest>()?, digest);
/// # Ok::<(), repertoire_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Computes the digest of `bytes`.
    pub fn hash_bytes(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// The 32 raw bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A digest from its 32 raw bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 64 hexadecimal digits without the prefix.
    pub fn hex_digits(&self) -> String {
        let mut out = String::with_capacity(64);
        self.push_hex(&mut out);
        out
    }

    /// Appends the 64 hexadecimal digits to `out`.
    pub fn push_hex(&self, out: &mut String) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 64];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        // Digits are ASCII.
        out.push_str(std::str::from_utf8(&text).unwrap_or_default());
    }
}

/// Computes a digest incrementally.
///
/// ```
/// use repertoire_core::{Digest, Hasher};
///
/// let mut hasher = Hasher::default();
/// hasher.update(b"a");
/// hasher.update(b"bc");
/// assert_eq!(hasher.finish(), Digest::hash_bytes(b"abc"));
/// ```
#[derive(Debug, Default, Clone)]
pub struct Hasher(sha2::Sha256);

impl Hasher {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes added.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex_digits())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = || Error::Digest(input_excerpt(text));
        let hex = text.strip_prefix("sha256:").ok_or_else(refuse)?.as_bytes();
        if hex.len() != 64 {
            return Err(refuse());
        }
        let nibble = |b: u8| match b {
            b'0'..=b'9' => Some(b - b'0'),
            b'a'..=b'f' => Some(b - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
            let (high, low) = nibble(pair[0]).zip(nibble(pair[1])).ok_or_else(refuse)?;
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

impl serde::Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() {
            s.collect_str(self)
        } else {
            self.0.serialize(s)
        }
    }
}

impl<'de> serde::Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        if !d.is_human_readable() {
            return <[u8; 32]>::deserialize(d).map(Self);
        }
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lowercase_sha256_digests_parse() {
        let good = Digest::hash_bytes(b"").to_string();
        assert!(good.parse::<Digest>().is_ok());
        for bad in [
            "",
            "sha256:",
            &good[..70],
            &good.to_uppercase(),
            &good.replace("sha256", "sha512"),
            &format!("{good}0"),
        ] {
            assert_eq!(
                bad.parse::<Digest>().unwrap_err().code(),
                "invalid_digest",
                "{bad}"
            );
        }
    }
}
