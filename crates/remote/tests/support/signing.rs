//! A certificate authority, a certificate log and a signature log of our own, which sign as Sigstore's
//! do, so that signatures can be tested without them.
#![allow(clippy::unwrap_used, reason = "a helper of tests")]

use std::time::{SystemTime, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{
    CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData as _, SanType, SerialNumber,
};
use repertoire_core::Digest;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use serde_json::json;

/// What comes before the point of a P-256 key in its public form.
const SPKI_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const ISSUER: &str = "https://accounts.example.com";
const LOG: &str = "log.example.com";

/// A key that signs.
struct SigningKey {
    pair: EcdsaKeyPair,
    pkcs8: Vec<u8>,
}

impl SigningKey {
    fn generate() -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self {
            pair: EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap(),
            pkcs8: pkcs8.as_ref().to_vec(),
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        self.pair.sign(&random, message).unwrap().as_ref().to_vec()
    }

    /// The public key as certificates have it.
    fn public(&self) -> Vec<u8> {
        [&SPKI_PREFIX[..], self.pair.public_key().as_ref()].concat()
    }

    /// The id of a log with this key.
    fn id(&self) -> Vec<u8> {
        Digest::hash_bytes(&self.public()).as_bytes().to_vec()
    }

    fn for_certificates(&self) -> KeyPair {
        let der = self.pkcs8.as_slice().into();
        KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256).unwrap()
    }
}

/// Everything that a signature is checked against.
pub(crate) struct SigningAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate: Vec<u8>,
    issuer_key: Vec<u8>,
    certificate_log: SigningKey,
    signature_log: SigningKey,
}

fn base64(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// Writes a DER value with its tag and length.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match u8::try_from(content.len()) {
        Ok(length @ ..128) => out.push(length),
        Ok(length) => out.extend([0x81, length]),
        Err(_) => {
            out.push(0x82);
            out.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
        }
    }
    out.extend_from_slice(content);
    out
}

/// Returns the part of a certificate that is signed.
fn signed_part(certificate: &[u8]) -> &[u8] {
    let skip_header = |der: &[u8]| {
        if der[1] < 0x80 {
            2
        } else {
            2 + usize::from(der[1] & 0x7f)
        }
    };
    let inner = &certificate[skip_header(certificate)..];
    let header = skip_header(inner);
    let length = match inner[1] {
        short @ ..128 => usize::from(short),
        _ => inner[2..header]
            .iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
    };
    &inner[..header + length]
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

impl SigningAuthority {
    pub(crate) fn new() -> Self {
        let key = SigningKey::generate();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let pair = key.for_certificates();
        let certificate = params.self_signed(&pair).unwrap().der().to_vec();
        let issuer_key = pair.subject_public_key_info();
        Self {
            issuer: Issuer::new(params, pair),
            certificate,
            issuer_key,
            certificate_log: SigningKey::generate(),
            signature_log: SigningKey::generate(),
        }
    }

    /// The root of trust, as Sigstore writes it.
    pub(crate) fn trusted_root(&self) -> String {
        let valid = json!({"start": "2020-01-01T00:00:00Z"});
        let log = |key: &SigningKey| {
            json!({
                "baseUrl": format!("https://{LOG}"), "hashAlgorithm": "SHA2_256",
                "publicKey": {
                    "rawBytes": base64(key.public()), "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                    "validFor": valid,
                },
                "logId": {"keyId": base64(key.id())},
            })
        };
        json!({
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(&self.signature_log)],
            "certificateAuthorities": [{
                "subject": {"organization": "example", "commonName": "example"},
                "uri": "https://ca.example.com",
                "certChain": {"certificates": [{"rawBytes": base64(&self.certificate)}]},
                "validFor": valid,
            }],
            "ctlogs": [log(&self.certificate_log)],
            "timestampAuthorities": [],
        })
        .to_string()
    }

    /// Issues a certificate for an identity, with the proof that it is in the certificate log.
    fn issue(&self, identity: &str, key: &SigningKey) -> Vec<u8> {
        let pair = key.for_certificates();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.serial_number = Some(SerialNumber::from(now()));
        params.subject_alt_names = vec![SanType::Rfc822Name(identity.try_into().unwrap())];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
        params.use_authority_key_identifier_extension = true;
        let issuer = der(0x0c, ISSUER.as_bytes());
        let extension = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 57264, 1, 8], issuer);
        params.custom_extensions.push(extension);
        let without = params.signed_by(&pair, &self.issuer).unwrap();
        let tbs = signed_part(without.der());
        // RFC 6962: what the log signs, and what it gives back.
        let timestamp = (now() * 1000).to_be_bytes();
        let mut message = vec![0, 0];
        message.extend(timestamp);
        message.extend([0, 1]);
        message.extend(Digest::hash_bytes(&self.issuer_key).as_bytes());
        message.extend(&u32::try_from(tbs.len()).unwrap().to_be_bytes()[1..]);
        message.extend(tbs);
        message.extend([0, 0]);
        let signature = self.certificate_log.sign(&message);
        let mut proof = vec![0];
        proof.extend(self.certificate_log.id());
        proof.extend(timestamp);
        proof.extend([0, 0, 4, 3]);
        proof.extend(u16::try_from(signature.len()).unwrap().to_be_bytes());
        proof.extend(signature);
        let mut list = u16::try_from(proof.len()).unwrap().to_be_bytes().to_vec();
        list.extend(proof);
        let mut content = u16::try_from(list.len()).unwrap().to_be_bytes().to_vec();
        content.extend(list);
        let oid = [1, 3, 6, 1, 4, 1, 11129, 2, 4, 2];
        let extension = CustomExtension::from_oid_content(&oid, der(0x04, &content));
        params.custom_extensions.push(extension);
        params
            .signed_by(&pair, &self.issuer)
            .unwrap()
            .der()
            .to_vec()
    }

    /// Signs bytes and returns the bundle.
    pub(crate) fn sign(&self, identity: &str, artifact: &[u8]) -> String {
        let key = SigningKey::generate();
        let certificate = self.issue(identity, &key);
        let signature = key.sign(artifact);
        let digest = Digest::hash_bytes(artifact);
        let lines: Vec<String> = base64(&certificate)
            .as_bytes()
            .chunks(64)
            .map(|line| String::from_utf8(line.to_vec()).unwrap())
            .collect();
        let pem = format!(
            "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
            lines.join("\n")
        );
        let body = json!({
            "apiVersion": "0.0.1", "kind": "hashedrekord",
            "spec": {
                "data": {"hash": {"algorithm": "sha256", "value": digest.hex_digits()}},
                "signature": {"content": base64(&signature), "publicKey": {"content": base64(pem)}},
            },
        })
        .to_string();
        let log = &self.signature_log;
        let at = now();
        // A log with one entry: its hash is the root.
        let leaf = [&[0][..], body.as_bytes()].concat();
        let root = base64(Digest::hash_bytes(&leaf).as_bytes());
        let note = format!("{LOG}\n1\n{root}\n");
        let signed_note = [&log.id()[..4], &log.sign(note.as_bytes())].concat();
        let log_id = Digest::hash_bytes(&log.public()).hex_digits();
        let promise = format!(
            "{{\"body\":\"{}\",\"integratedTime\":{at},\"logID\":\"{log_id}\",\"logIndex\":0}}",
            base64(&body)
        );
        json!({
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": base64(&certificate)},
                "tlogEntries": [{
                    "logIndex": "0", "logId": {"keyId": base64(log.id())},
                    "kindVersion": {"kind": "hashedrekord", "version": "0.0.1"},
                    "integratedTime": at.to_string(),
                    "inclusionPromise": {
                        "signedEntryTimestamp": base64(log.sign(promise.as_bytes())),
                    },
                    "inclusionProof": {
                        "logIndex": "0", "rootHash": root, "treeSize": "1", "hashes": [],
                        "checkpoint": {
                            "envelope": format!("{note}\n— {LOG} {}\n", base64(signed_note)),
                        },
                    },
                    "canonicalizedBody": base64(&body),
                }],
            },
            "messageSignature": {
                "messageDigest": {"algorithm": "SHA2_256", "digest": base64(digest.as_bytes())},
                "signature": base64(&signature),
            },
        })
        .to_string()
    }
}
