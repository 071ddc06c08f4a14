//! The cryptography that signatures are verified with: `ring`, which is in the program for TLS anyway,
//! and `p256` for signatures over digests.
//!
//! Only verification is here; nothing is signed.

use p256::ecdsa::{Signature, VerifyingKey, signature::hazmat::PrehashVerifier as _};
use ring::{digest, signature};
use sigstore_verify::{
    crypto::{
        CryptoProvider, Error, Result, SigningScheme,
        provider::{HashContext, install_default_provider},
    },
    types::HashAlgorithm,
};

/// Verifies with `ring`.
#[derive(Debug)]
struct RingProvider;

static PROVIDER: RingProvider = RingProvider;

/// Makes this the provider of the process; an embedding program may have installed another one.
pub(crate) fn install_provider() {
    let _ = install_default_provider(&PROVIDER);
}

struct RingHash(digest::Context);

impl HashContext for RingHash {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn finalize(self: Box<Self>) -> Vec<u8> {
        self.0.finish().as_ref().to_vec()
    }
}

fn algorithm(scheme: SigningScheme) -> Option<&'static dyn signature::VerificationAlgorithm> {
    Some(match scheme {
        SigningScheme::EcdsaP256Sha256 => &signature::ECDSA_P256_SHA256_ASN1,
        SigningScheme::EcdsaP256Sha384 => &signature::ECDSA_P256_SHA384_ASN1,
        SigningScheme::EcdsaP384Sha256 => &signature::ECDSA_P384_SHA256_ASN1,
        SigningScheme::EcdsaP384Sha384 => &signature::ECDSA_P384_SHA384_ASN1,
        SigningScheme::Ed25519 => &signature::ED25519,
        SigningScheme::RsaPssSha256 => &signature::RSA_PSS_2048_8192_SHA256,
        SigningScheme::RsaPssSha384 => &signature::RSA_PSS_2048_8192_SHA384,
        SigningScheme::RsaPssSha512 => &signature::RSA_PSS_2048_8192_SHA512,
        SigningScheme::RsaPkcs1Sha256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        SigningScheme::RsaPkcs1Sha384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        SigningScheme::RsaPkcs1Sha512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        // Signatures that resist quantum computers are not in `ring` yet.
        _ => return None,
    })
}

impl CryptoProvider for RingProvider {
    fn hash(&self, algorithm: HashAlgorithm) -> Result<Box<dyn HashContext>> {
        let known = match algorithm {
            HashAlgorithm::Sha2256 => &digest::SHA256,
            HashAlgorithm::Sha2384 => &digest::SHA384,
            HashAlgorithm::Sha2512 => &digest::SHA512,
            other => {
                let reason = format!("{other} digests are not computed here");
                return Err(Error::UnsupportedAlgorithm(reason));
            }
        };
        Ok(Box::new(RingHash(digest::Context::new(known))))
    }

    fn verify_raw(
        &self,
        scheme: SigningScheme,
        spki_pubkey_bytes: &[u8],
        data: &[u8],
        signature: &[u8],
    ) -> Result<()> {
        let Some(known) = algorithm(scheme) else {
            return Err(Error::UnsupportedAlgorithm(scheme.name().to_owned()));
        };
        let key = signature::UnparsedPublicKey::new(known, spki_pubkey_bytes);
        let wrong = |_| Error::Verification(format!("{} signature invalid", scheme.name()));
        key.verify(data, signature).map_err(wrong)
    }

    fn verify_prehashed(
        &self,
        scheme: SigningScheme,
        spki_pubkey_bytes: &[u8],
        digest: &[u8],
        signature: &[u8],
    ) -> Result<()> {
        // `ring` verifies whole messages only. Short-lived certificates have keys of this kind.
        if scheme != SigningScheme::EcdsaP256Sha256 {
            let reason = format!("{} over a digest", scheme.name());
            return Err(Error::UnsupportedAlgorithm(reason));
        }
        let wrong = |_| Error::Verification(format!("{} signature invalid", scheme.name()));
        let key = VerifyingKey::from_sec1_bytes(spki_pubkey_bytes).map_err(wrong)?;
        let signature = Signature::from_der(signature).map_err(wrong)?;
        key.verify_prehash(digest, &signature).map_err(wrong)
    }
}
