//! Verifies Sigstore bundles: who signed what was fetched.
//!
//! A bundle holds the signature, the signer's short-lived certificate and the proof that both are in
//! a public log. All of it is checked offline against a trust root. A signature informs about the
//! signer; whether the content is the promised one is decided by digests alone.

use std::{fmt, sync::Arc};

use repertoire_core::Signer;
use sigstore_verify::{
    VerificationPolicy, Verifier, trust_root::SigstoreInstance, trust_root::TrustedRoot,
    types::Bundle,
};

use crate::{
    error::{Error, Result},
    sigstore_crypto::install_provider,
};

/// The most bytes of a bundle.
pub(crate) const MAX_BUNDLE_BYTES: u64 = 1024 * 1024;
/// The media type of a bundle in an OCI registry.
pub(crate) const BUNDLE_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";

/// The authorities and logs that signatures are checked against.
#[derive(Clone)]
pub struct TrustRoot(Arc<Verifier>);

impl fmt::Debug for TrustRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrustRoot")
    }
}

impl TrustRoot {
    /// The root of the public Sigstore instance, as it was when this program was built.
    pub fn public() -> Result<Self> {
        let root = SigstoreInstance::PublicGood.embedded_trusted_root();
        Self::from_root(root.map_err(|error| error.to_string()))
    }

    /// A root from a `trusted_root.json`.
    pub fn from_json(text: &str) -> Result<Self> {
        Self::from_root(TrustedRoot::from_json(text).map_err(|error| error.to_string()))
    }

    fn from_root(root: Result<TrustedRoot, String>) -> Result<Self> {
        install_provider();
        let verifier = root.and_then(|root| Verifier::new(&root).map_err(|e| e.to_string()));
        let verifier = verifier.map_err(|reason| Error::Signature {
            address: "the trust root".to_owned(),
            reason,
        })?;
        Ok(Self(Arc::new(verifier)))
    }

    /// Verifies a bundle over an artifact and returns who signed it.
    pub fn verify(&self, address: &str, artifact: &[u8], bundle: &[u8]) -> Result<Signer> {
        let refuse = |reason: String| Error::Signature {
            address: address.to_owned(),
            reason,
        };
        let text = std::str::from_utf8(bundle).map_err(|error| refuse(error.to_string()))?;
        // The parser of the library has no bound on nesting.
        repertoire_core::json::from_str::<serde_json::Value>(text)
            .map_err(|error| refuse(error.to_string()))?;
        let bundle = Bundle::from_json(text).map_err(|error| refuse(error.to_string()))?;
        let policy = VerificationPolicy::any_identity();
        let result = self.0.verify(artifact, &bundle, &policy);
        let result = result.map_err(|error| refuse(error.to_string()))?;
        match (result.identity(), result.issuer()) {
            (Some(identity), Some(issuer))
                if result.certificate_verified() && result.tlog_verified() =>
            {
                Ok(Signer {
                    identity: identity.to_string(),
                    issuer: issuer.to_owned(),
                })
            }
            _ => Err(refuse("it does not prove who signed".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_root_is_usable_and_refuses_what_is_no_bundle() {
        let root = TrustRoot::public().unwrap();
        for bundle in ["", "{}", "[]", "{\"mediaType\": \"x\"}"] {
            let refused = root.verify("x", b"content", bundle.as_bytes()).unwrap_err();
            assert_eq!(refused.code(), "invalid_signature");
        }
    }
}
