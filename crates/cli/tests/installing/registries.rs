//! OCI registries and ClawHub registries.

use std::fs;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::json;

use crate::{
    places::{HubSkill, OciRegistry, Repository, start_clawhub},
    user::{User, document},
};

#[test]
fn artifacts_of_every_shape_come_from_a_stock_registry() {
    let Some(registry) = OciRegistry::start(None) else {
        return;
    };
    let repository = Repository::with_skills(&["pdf", "mail"]);
    let one = repository.archive("tar.gz", "skills/pdf");
    let rooted = repository.archive("tar.gz", "skills");
    let user = User::new();
    let pinned = registry.put_skill("acme/pdf", "1.0", "1.0", &one);
    let source = format!("oci://{}/acme/pdf:1.0", registry.host);
    let added = user.run(&["add", &source]).ok().json();
    let pdf = &added["skills"][0];
    assert_eq!(pdf["pin"], format!("oci:{pinned}"));
    assert_eq!(pdf["version"], "1.0");
    let digest = pdf["digest"].clone();
    let shown = |source: &str| user.run(&["show", source]).ok().json()["digest"].clone();
    // By digest, and the same skill in other shapes.
    assert_eq!(
        shown(&format!("oci://{}/acme/pdf@{pinned}", registry.host)),
        digest
    );
    registry.put_skill("acme/all", "latest", "2", &rooted);
    let all = user.run(&[
        "add",
        "--list",
        &format!("oci://{}/acme/all", registry.host),
    ]);
    assert_eq!(
        all.ok().json()["sources"][0]["skills"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    // As an image with an index by platform.
    let layer = registry.put_blob(
        "acme/image",
        "application/vnd.oci.image.layer.v1.tar+gzip",
        &one,
    );
    let config = json!({"architecture": "amd64", "os": "linux"}).to_string();
    let config = registry.put_blob(
        "acme/image",
        "application/vnd.oci.image.config.v1+json",
        config.as_bytes(),
    );
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config, "layers": [layer],
    });
    let inner = registry.put_manifest("acme/image", "", &manifest);
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": inner,
            "size": manifest.to_string().len(),
            "platform": {"architecture": "amd64", "os": "linux"},
        }],
    });
    registry.put_manifest("acme/image", "v1", &index);
    assert_eq!(
        shown(&format!("oci://{}/acme/image:v1", registry.host)),
        digest
    );
    // File by file, named by titles.
    let mut layers = Vec::new();
    for (path, text) in [
        ("SKILL.md", document("pdf", "# One\n\nText.\n")),
        ("scripts/run.sh", "#!/bin/sh\necho run\n".to_owned()),
    ] {
        let mut layer = registry.put_blob("acme/files", "text/plain", text.as_bytes());
        layer["annotations"] = json!({"org.opencontainers.image.title": path});
        layers.push(layer);
    }
    let files = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": registry.put_blob("acme/files", "application/vnd.oci.empty.v1+json", b"{}"),
        "layers": layers,
    });
    registry.put_manifest("acme/files", "v1", &files);
    assert_eq!(
        shown(&format!("oci://{}/acme/files:v1", registry.host)),
        digest
    );

    // A tag that moves is noticed, and a version that was published again is refused (T24).
    repository.write("skills/pdf/SKILL.md", document("pdf", "# Two\n"));
    repository.commit("two");
    registry.put_skill(
        "acme/pdf",
        "1.0",
        "1.0",
        &repository.archive("tar.gz", "skills/pdf"),
    );
    assert_eq!(user.run(&["outdated"]).code, 1);
    let refused = user.run(&["update"]);
    assert_eq!(refused.json()["failed"][0]["code"], "moved_version");
    user.run(&["add", &format!("oci://{}/acme/none", registry.host)])
        .refused("not_found", "acme/none");
}

#[test]
fn logins_of_the_docker_configuration_are_used() {
    let Some(registry) = OciRegistry::start(Some(("ali", "open sesame"))) else {
        return;
    };
    let repository = Repository::with_skills(&["pdf"]);
    registry.put_skill(
        "acme/pdf",
        "1.0",
        "1.0",
        &repository.archive("tar.gz", "skills/pdf"),
    );
    let source = format!("oci://{}/acme/pdf:1.0", registry.host);
    let user = User::new();
    let refused = user
        .run(&["add", &source])
        .refused("unauthorized", "wants a login");
    assert!(refused.err.contains("docker login"));
    user.has_nothing(&user.path("home"));
    let login = |password: &str| {
        let auth = STANDARD.encode(format!("ali:{password}"));
        let config = json!({"auths": {registry.host.as_str(): {"auth": auth}}});
        fs::write(user.path("home").join("config.json"), config.to_string()).unwrap();
    };
    login("wrong");
    let refused = user.run(&["add", &source]);
    assert_ne!(refused.code, 0);
    login("open sesame");
    let added = user.run(&["add", &source]).ok();
    // No login is written anywhere.
    for text in [&refused.err, &added.out, &added.err] {
        assert!(!text.contains("sesame") && !text.contains(&STANDARD.encode("ali:open sesame")));
    }
    let lock = fs::read_to_string(user.account().join("repertoire.lock")).unwrap();
    assert!(!lock.contains("ali"));
}

#[test]
fn clawhub_registries_are_searched_and_installed_from() {
    let repository = Repository::with_skills(&["pdf"]);
    let first = repository.archive("zip", "skills/pdf");
    repository.write("skills/pdf/SKILL.md", document("pdf", "# Two\n"));
    repository.commit("two");
    let second = repository.archive("zip", "skills/pdf");
    let skill = |version, archive: &Vec<u8>| HubSkill {
        slug: "pdf",
        version,
        archive: archive.clone(),
    };
    let hub = start_clawhub(vec![skill("1.0.0", &first)]);
    let user = User::new();
    let found = user
        .run(&["search", "--remote", "--registry", &hub.url, "pdf"])
        .ok()
        .json();
    let source = found["skills"][0]["source"].as_str().unwrap().to_owned();
    assert_eq!(source, format!("clawhub+{}/@acme/pdf", hub.url));
    let added = user.run(&["add", &source]).ok().json();
    assert_eq!(added["skills"][0]["version"], "1.0.0");
    assert_eq!(
        user.run(&["outdated"]).ok().json()["skills"][0]["is_outdated"],
        false
    );
    user.run(&["add", &format!("clawhub+{}/@acme/none", hub.url)])
        .refused("not_found", "none");
    // A new version at the same place; the registry of a test is replaced by moving the source.
    let newer = start_clawhub(vec![skill("1.0.0", &first), skill("1.1.0", &second)]);
    for file in ["repertoire.toml", "repertoire.lock"] {
        let path = user.account().join(file);
        let text = fs::read_to_string(&path)
            .unwrap()
            .replace(&hub.url, &newer.url);
        fs::write(path, text).unwrap();
    }
    let outdated = user.run(&["outdated", "--private"]);
    assert_eq!(outdated.json()["skills"][0]["available"], "1.1.0");
    user.run(&["update", "--private"]).ok();
    let home = user.path("home");
    assert!(user.cat(&home, "skill://pdf/SKILL.md").contains("# Two"));
    // Other bytes under the same version are refused (T52).
    let liar = start_clawhub(vec![skill("1.1.0", &first)]);
    for file in ["repertoire.toml", "repertoire.lock"] {
        let path = user.account().join(file);
        let text = fs::read_to_string(&path)
            .unwrap()
            .replace(&newer.url, &liar.url);
        fs::write(path, text).unwrap();
    }
    let refused = user.run(&["update", "--private"]);
    assert_eq!(refused.json()["failed"][0]["code"], "moved_version");
    assert!(user.cat(&home, "skill://pdf/SKILL.md").contains("# Two"));
}
