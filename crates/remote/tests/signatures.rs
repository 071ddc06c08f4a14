//! Signatures: who signed, and every part of the proof that is needed for that.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/signing.rs"]
mod signing;

use repertoire_remote::TrustRoot;
use serde_json::{Value, json};
use signing::SigningAuthority;

const ARTIFACT: &[u8] = b"the bytes of an archive";

#[test]
fn t24_the_signer_is_proven_by_certificate_and_logs() {
    let authority = SigningAuthority::new();
    let root = TrustRoot::from_json(&authority.trusted_root()).unwrap();
    let bundle = authority.sign("releases@example.com", ARTIFACT);
    let signer = root.verify("x", ARTIFACT, bundle.as_bytes()).unwrap();
    assert_eq!(signer.identity, "releases@example.com");
    assert_eq!(signer.issuer, "https://accounts.example.com");

    let refuse = |artifact: &[u8], bundle: &str, root: &TrustRoot| {
        let refused = root.verify("x", artifact, bundle.as_bytes());
        assert_eq!(refused.unwrap_err().code(), "invalid_signature");
    };
    // Other bytes, another root, another authority with the same names.
    refuse(b"other bytes", &bundle, &root);
    refuse(ARTIFACT, &bundle, &TrustRoot::public().unwrap());
    let other = SigningAuthority::new();
    refuse(
        ARTIFACT,
        &bundle,
        &TrustRoot::from_json(&other.trusted_root()).unwrap(),
    );
    refuse(
        ARTIFACT,
        &other.sign("releases@example.com", ARTIFACT),
        &root,
    );
    // Each part of the proof.
    let parsed: Value = serde_json::from_str(&bundle).unwrap();
    let entry = "/verificationMaterial/tlogEntries/0";
    for (place, value) in [
        (
            format!("{entry}/inclusionPromise/signedEntryTimestamp"),
            json!("MEUCIQ=="),
        ),
        (format!("{entry}/integratedTime"), json!("1600000000")),
        (
            format!("{entry}/inclusionProof/rootHash"),
            json!("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
        ),
        (format!("{entry}/canonicalizedBody"), json!("e30=")),
        ("/messageSignature/signature".to_owned(), json!("MEUCIQ==")),
        ("/verificationMaterial/tlogEntries".to_owned(), json!([])),
    ] {
        let mut changed = parsed.clone();
        *changed.pointer_mut(&place).unwrap() = value;
        refuse(ARTIFACT, &changed.to_string(), &root);
    }
    let nested = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    refuse(ARTIFACT, &nested, &root);
}
