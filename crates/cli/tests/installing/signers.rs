//! Signed skills: the signer is recorded on first use, and another one is refused.

use std::fs;

use serde_json::json;

use crate::{
    places::{OciRegistry, Repository, WebServer},
    signing::SigningAuthority,
    user::{User, document},
};

fn trust(user: &User, authority: &SigningAuthority) {
    fs::create_dir_all(user.account()).unwrap();
    fs::write(
        user.account().join("trusted_root.json"),
        authority.trusted_root(),
    )
    .unwrap();
}

#[test]
fn t24_signers_of_archives_are_recorded_and_a_change_is_refused() {
    let Some(server) = WebServer::start() else {
        return;
    };
    let authority = SigningAuthority::new();
    let repository = Repository::with_skills(&["pdf"]);
    let publish = |signer: Option<&str>| {
        let archive = repository.archive("tar.gz", "skills/pdf");
        let url = server.put("pdf.tar.gz", &archive);
        let bundle = signer.map_or(String::new(), |signer| authority.sign(signer, &archive));
        server.put("pdf.tar.gz.sigstore.json", bundle);
        url
    };
    let user = User::new();
    trust(&user, &authority);
    let home = user.path("home");
    let url = publish(Some("ann@example.com"));
    let added = user.run(&["add", &url]).ok().json();
    assert_eq!(added["skills"][0]["signer"]["identity"], "ann@example.com");
    let lock = || fs::read_to_string(user.account().join("repertoire.lock")).unwrap();
    assert!(lock().contains("ann@example.com") && !lock().contains("unsigned"));
    let change = |body: &str| {
        repository.write("skills/pdf/SKILL.md", document("pdf", body));
        repository.commit("next");
    };
    for (body, signer, words) in [
        (
            "Eve.\n",
            Some("eve@example.com"),
            "signed by eve@example.com",
        ),
        ("Nobody.\n", None, "unsigned"),
    ] {
        change(body);
        publish(signer);
        let refused = user.run(&["update"]);
        let failed = &refused.json()["failed"][0];
        assert_eq!(failed["code"], "signer_changed", "{failed}");
        assert!(
            failed["message"].as_str().unwrap().contains(words),
            "{failed}"
        );
        assert!(!user.cat(&home, "skill://pdf/SKILL.md").contains(body));
    }
    // A signature over other bytes is no signature at all.
    let archive = repository.archive("tar.gz", "skills/pdf");
    server.put(
        "pdf.tar.gz.sigstore.json",
        authority.sign("ann@example.com", b"else"),
    );
    server.put("pdf.tar.gz", &archive);
    let refused = user.run(&["update"]);
    assert_eq!(refused.json()["failed"][0]["code"], "invalid_signature");
    change("Ann.\n");
    publish(Some("ann@example.com"));
    user.run(&["update"]).ok();
    assert!(user.cat(&home, "skill://pdf/SKILL.md").contains("Ann."));
    change("Eve again.\n");
    publish(Some("eve@example.com"));
    user.run(&["update", "--allow-signer-change"]).ok();
    assert!(lock().contains("eve@example.com"));
    // Another machine verifies it itself, and from the cache without the server.
    let other = User::new();
    trust(&other, &authority);
    for file in ["repertoire.toml", "repertoire.lock"] {
        fs::copy(user.account().join(file), other.account().join(file)).unwrap();
    }
    other.run(&["install", "--frozen", "--private"]).ok();
    let why = other.run(&["why", "pdf"]).ok().json();
    assert_eq!(why["signer"]["identity"], "eve@example.com");
    fs::remove_file(other.account().join("agents.db")).unwrap();
    drop(server);
    other.run(&["install", "--frozen", "--offline"]).ok();
}

#[test]
fn t24_bundles_that_are_attached_to_artifacts_are_verified() {
    let Some(registry) = OciRegistry::start(None) else {
        return;
    };
    let authority = SigningAuthority::new();
    let repository = Repository::with_skills(&["pdf"]);
    let archive = repository.archive("tar.gz", "skills/pdf");
    let digest = registry.put_skill("acme/pdf", "1.0", "1.0", &archive);
    let manifest = registry.get_manifest("acme/pdf", &digest);
    // As clients attach signatures where a registry has no list of referrers: under a tag.
    let kind = "application/vnd.dev.sigstore.bundle.v0.3+json";
    let attach = |bundle: &str| {
        let layer = registry.put_blob("acme/pdf", kind, bundle.as_bytes());
        let attached = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": kind,
            "config": registry.put_blob("acme/pdf", "application/vnd.oci.empty.v1+json", b"{}"),
            "layers": [layer],
        });
        let attached_digest = registry.put_manifest("acme/pdf", "", &attached);
        let index = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [{
                "mediaType": "application/vnd.oci.image.manifest.v1+json", "artifactType": kind,
                "digest": attached_digest, "size": attached.to_string().len(),
            }],
        });
        registry.put_manifest("acme/pdf", &digest.replace(':', "-"), &index);
    };
    let source = format!("oci://{}/acme/pdf:1.0", registry.host);
    let signer = |user: &User| user.run(&["show", &source]).ok().json()["signer"].clone();
    let user = User::new();
    trust(&user, &authority);
    assert_eq!(signer(&user), json!(null));
    attach(&authority.sign("ann@example.com", &manifest));
    assert_eq!(signer(&user)["identity"], "ann@example.com");
    attach(&authority.sign("ann@example.com", b"another manifest"));
    user.run(&["add", &source])
        .refused("invalid_signature", "signature");
    user.has_nothing(&user.path("home"));
}
