//! Digests as registries and indexes write them.

use repertoire_core::Digest;

use crate::error::{Error, Result};

/// Checks bytes against a promised digest, `sha256:` and 64 hexadecimal digits.
pub(crate) fn check_digest(address: &str, bytes: &[u8], promised: &str) -> Result<Digest> {
    let expected: Digest = promised.parse().map_err(|_| {
        Error::refused(
            address,
            format!("its digest {promised:?} is not of the form sha256:<64 hexadecimal digits>"),
        )
    })?;
    let found = Digest::hash_bytes(bytes);
    if found == expected {
        return Ok(found);
    }
    Err(Error::DigestMismatch {
        address: address.to_owned(),
        expected: expected.to_string(),
        found: found.to_string(),
    })
}

/// Returns a version as it is recorded and shown: short, and without what would steer a terminal or a
/// file. `None` for anything else.
pub(crate) fn plain_version(text: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_graphic() || c == ' ';
    (!text.is_empty() && text.len() <= 64 && text.chars().all(is_plain)).then(|| text.to_owned())
}
