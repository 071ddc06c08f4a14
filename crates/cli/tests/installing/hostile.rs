//! Hostile web servers and registries: each is refused with the reason, and nothing is stored.

use std::{
    io::Write as _,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use repertoire_core::Digest;
use serde_json::{Value, json};

use crate::{
    http::{RawServer, answer, not_found},
    places::Repository,
    user::{User, document},
};

fn archive() -> Vec<u8> {
    Repository::with_skills(&["pdf"]).archive("tar.gz", "skills/pdf")
}

/// Adds from a source that has to be refused, and returns the message.
#[track_caller]
fn refuse(source: &str, words: &str) {
    let user = User::new();
    let place = user.path("home");
    let answer = user.run(&["add", source]);
    assert_ne!(answer.code, 0, "{answer:?}");
    let error: Value = serde_json::from_str(answer.err.lines().last().unwrap()).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains(words), "{words:?} is not in {message:?}");
    user.has_nothing(&place);
}

/// Serves one file, whose answer a function writes.
fn serve_file(
    write: impl Fn(&mut std::net::TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
) -> (RawServer, String) {
    let server = RawServer::start(move |request, stream| match request.path.as_str() {
        "/skill.zip" => write(stream),
        _ => not_found(stream),
    });
    let url = format!("{}/skill.zip", server.url);
    (server, url)
}

#[test]
fn t52_endless_data_is_given_up() {
    let (_server, url) = serve_file(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/zip\r\n\r\nPK\x03\x04")?;
        let zeros = vec![0; 1024 * 1024];
        // More than any limit; the client has to leave.
        for _ in 0..4096 {
            stream.write_all(&zeros)?;
        }
        Ok(())
    });
    refuse(&url, "sends more than");
    let (_server, url) = serve_file(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\nPK")
    });
    refuse(&url, "sends more than");
}

#[test]
fn t42_a_slow_drip_is_ended() {
    let (_server, url) = serve_file(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")?;
        loop {
            stream.write_all(b"x")?;
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    let begun = Instant::now();
    refuse(&url, "sends less than");
    assert!(begun.elapsed() < Duration::from_mins(1));
}

#[test]
fn t52_wrong_digests_of_an_index_are_refused_before_anything_is_unpacked() {
    let packed = archive();
    let index = json!({
        "$schema": "https://schemas.agentskills.io/discovery/0.2.0/schema.json",
        "skills": [{
            "name": "pdf", "type": "archive", "description": "P.", "url": "/pdf.tar.gz",
            "digest": format!("sha256:{}", "0".repeat(64)),
        }],
    });
    let server = RawServer::start(move |request, stream| match request.path.as_str() {
        "/.well-known/agent-skills/index.json" => {
            answer(stream, "200 OK", &[], index.to_string().as_bytes())
        }
        "/pdf.tar.gz" => answer(stream, "200 OK", &[], &packed),
        _ => not_found(stream),
    });
    refuse(&server.url, "was promised");
    let unknown = RawServer::start(|_, stream| {
        answer(
            stream,
            "200 OK",
            &[],
            br#"{"$schema": "https://x.example/9", "skills": []}"#,
        )
    });
    refuse(&unknown.url, "does not know");
    let deep = RawServer::start(|_, stream| {
        let body = format!(
            "{{\"skills\": {}1{}}}",
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        answer(stream, "200 OK", &[], body.as_bytes())
    });
    refuse(&deep.url, "valid index");
}

#[test]
fn t26_redirects_are_bounded_and_never_lead_to_other_schemes() {
    for (to, words) in [
        ("file:///etc/passwd", "only http"),
        ("http://me:secret@127.0.0.1/x.zip", "password"),
        ("http://169.254.169.254/latest", "internal"),
        ("/skill.zip", "redirects more than"),
    ] {
        let (_server, url) =
            serve_file(move |stream| answer(stream, "302 Found", &[("Location", to)], b""));
        refuse(&url, words);
    }
}

/// A registry that answers the requests for one artifact.
fn start_registry(
    manifest: impl Fn(&str) -> (Value, Vec<u8>) + Send + Sync + 'static,
) -> (RawServer, String) {
    let server = RawServer::start(move |request, stream| {
        let (manifest, blob) = manifest(&request.path);
        if request.path.contains("/manifests/") {
            answer(stream, "200 OK", &[], manifest.to_string().as_bytes())
        } else if request.path.contains("/blobs/") {
            answer(stream, "200 OK", &[], &blob)
        } else {
            not_found(stream)
        }
    });
    let source = format!("oci://{}/acme/pdf:1.0", server.host());
    (server, source)
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "values are made where they are used"
)]
fn manifest_of(layer: Value) -> Value {
    json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.empty.v1+json",
                   "digest": Digest::hash_bytes(b"{}").to_string(), "size": 2},
        "layers": [layer],
    })
}

fn layer_of(bytes: &[u8], size: usize) -> Value {
    json!({
        "mediaType": "application/vnd.agentskills.skill.content.v1.tar+gzip",
        "digest": Digest::hash_bytes(bytes).to_string(), "size": size,
    })
}

#[test]
fn t52_registries_that_lie_about_digests_and_sizes_are_refused() {
    let packed = archive();
    let other = b"something else".to_vec();
    let size = packed.len();
    let (_server, source) = {
        let layer = layer_of(&packed, other.len());
        start_registry(move |_| (manifest_of(layer.clone()), other.clone()))
    };
    refuse(&source, "was promised");
    let (_server, source) = {
        let (layer, packed) = (layer_of(&packed, size + 1), packed.clone());
        start_registry(move |_| (manifest_of(layer.clone()), packed.clone()))
    };
    refuse(&source, "bytes, and");
    let (_server, source) = {
        let (layer, packed) = (layer_of(&packed, 10), packed.clone());
        start_registry(move |_| (manifest_of(layer.clone()), packed.clone()))
    };
    refuse(&source, "");
    // A layer that is listed as too large is never asked for.
    let (server, source) = {
        let (layer, packed) = (layer_of(&packed, 1 << 40), packed.clone());
        start_registry(move |_| (manifest_of(layer.clone()), packed.clone()))
    };
    refuse(&source, "has a layer of");
    assert!(server.paths().iter().all(|path| !path.contains("/blobs/")));
    // The manifest of a digest is another one.
    let (server, _) = {
        let (layer, packed) = (layer_of(&packed, size), packed.clone());
        start_registry(move |_| (manifest_of(layer.clone()), packed.clone()))
    };
    let pinned = format!("oci://{}/acme/pdf@sha256:{}", server.host(), "0".repeat(64));
    refuse(&pinned, "was promised");
    // An archive of the layer that leads out of itself.
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[..9].copy_from_slice(b"../escape");
    header.set_size(1);
    header.set_cksum();
    builder.append(&header, &b"x"[..]).unwrap();
    let slip = builder.into_inner().unwrap();
    let (_server, source) = start_registry(move |_| {
        let mut layer = layer_of(&slip, slip.len());
        layer["mediaType"] = json!("application/vnd.oci.image.layer.v1.tar");
        (manifest_of(layer), slip.clone())
    });
    refuse(&source, "leads out");
}

#[test]
fn t27_no_login_and_no_token_reaches_another_origin() {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let thief_saw: Arc<Mutex<Vec<String>>> = Arc::default();
    let saw = thief_saw.clone();
    let thief = RawServer::start(move |request, stream| {
        let secret = request.headers.get("authorization").cloned();
        saw.lock().unwrap().extend(secret);
        answer(stream, "200 OK", &[], br#"{"token": "stolen"}"#)
    });
    let (thief_url, user) = (thief.url.clone(), User::new());
    // It takes the login for itself, as it may, and then sends the client elsewhere with it.
    let registry = RawServer::start(move |request, stream| {
        if request.path.starts_with("/token") {
            return answer(stream, "200 OK", &[], br#"{"token": "for-the-registry"}"#);
        }
        if !request.headers.contains_key("authorization") {
            let realm = "Bearer realm=\"/token\",service=\"r\"";
            return answer(
                stream,
                "401 Unauthorized",
                &[("WWW-Authenticate", realm)],
                b"",
            );
        }
        let to = format!("{thief_url}{}", request.path);
        answer(stream, "307 Temporary Redirect", &[("Location", &to)], b"")
    });
    let auth = STANDARD.encode("ali:open sesame");
    let config = json!({"auths": {registry.host(): {"auth": auth}}});
    std::fs::write(user.path("home").join("config.json"), config.to_string()).unwrap();
    let refused = user.run(&["add", &format!("oci://{}/acme/pdf", registry.host())]);
    assert_ne!(refused.code, 0);
    // The login went to the token service of the registry, the token to the registry.
    let requests = registry.requests.lock().unwrap().clone();
    let sent: Vec<&String> = requests
        .iter()
        .filter_map(|request| request.headers.get("authorization"))
        .collect();
    assert_eq!(
        sent[..2],
        [&format!("Basic {auth}"), "Bearer for-the-registry"]
    );
    assert!(
        sent[1..]
            .iter()
            .all(|one| *one == "Bearer for-the-registry")
    );
    assert!(
        !thief.paths().is_empty(),
        "the redirect was not followed at all"
    );
    assert_eq!(*thief_saw.lock().unwrap(), Vec::<String>::new());
    assert!(!refused.err.contains("for-the-registry") && !refused.err.contains(&auth));
}

#[test]
fn t27_a_token_service_on_another_host_sees_no_login() {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let thief = RawServer::start(|_, stream| answer(stream, "200 OK", &[], br#"{"token": "x"}"#));
    // Another name for this machine is another host.
    let port = thief.host().rsplit(':').next().unwrap().to_owned();
    let challenge = format!("Bearer realm=\"http://localhost:{port}/token\",service=\"r\"");
    let registry = RawServer::start(move |_, stream| {
        answer(
            stream,
            "401 Unauthorized",
            &[("WWW-Authenticate", &challenge)],
            b"",
        )
    });
    let user = User::new();
    let auth = STANDARD.encode("ali:open sesame");
    let config = json!({"auths": {registry.host(): {"auth": auth}}});
    std::fs::write(user.path("home").join("config.json"), config.to_string()).unwrap();
    let refused = user.run(&["add", &format!("oci://{}/acme/pdf", registry.host())]);
    assert_ne!(refused.code, 0);
    let requests = thief.requests.lock().unwrap().clone();
    assert!(!requests.is_empty());
    assert!(
        requests
            .iter()
            .all(|request| !request.headers.contains_key("authorization"))
    );
}

#[test]
fn t8_what_strangers_write_cannot_steer_a_terminal() {
    let text =
        "---\nname: pdf\ndescription: \"Nice\\e[31m\\e]0;title\\a skill\"\n---\n# \u{1b}[2J\n";
    let index = json!({"skills": [
        {"name": "evil\u{1b}[31m", "description": "x", "files": ["SKILL.md"]},
        {"name": "pdf", "description": "Nice\u{1b}[31m", "files": ["SKILL.md"]},
    ]});
    let server = RawServer::start(move |request, stream| match request.path.as_str() {
        "/.well-known/skills/index.json" => {
            answer(stream, "200 OK", &[], index.to_string().as_bytes())
        }
        "/.well-known/skills/pdf/SKILL.md" => answer(stream, "200 OK", &[], text.as_bytes()),
        path if path.contains(".zip") => answer(
            stream,
            "418 \u{1b}[31mTeapot",
            &[("Location", "\u{1b}[31m")],
            b"",
        ),
        _ => not_found(stream),
    });
    let user = User::new();
    let place = user.path("home");
    for args in [
        vec!["add", "--list", &server.url],
        vec!["show", &server.url],
        vec!["add", &server.url],
        vec!["why", "pdf"],
        vec!["approve", "pdf", "--show"],
        vec!["outdated"],
    ] {
        let answer = user.see(&place, &args);
        assert!(
            !answer.out.contains('\u{1b}') && !answer.err.contains('\u{1b}'),
            "{answer:?}"
        );
    }
    let zip = format!("{}/x.zip", server.url);
    let refused = user.see(&place, &["add", &zip]);
    assert!(
        refused.code != 0 && !refused.err.contains('\u{1b}'),
        "{refused:?}"
    );
}

#[test]
fn t5_hostile_archives_are_refused_whole() {
    let zip_of = |entries: &[(&str, &[u8])]| {
        let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, content) in entries {
            let options = zip::write::SimpleFileOptions::default();
            writer.start_file(*name, options).unwrap();
            writer.write_all(content).unwrap();
        }
        writer.finish().unwrap().into_inner()
    };
    let text = document("pdf", "");
    let zeros = vec![0; 300 * 1024 * 1024];
    let many: Vec<(String, &[u8])> = (0..600).map(|n| (format!("f{n}"), &b"x"[..])).collect();
    let mut many: Vec<(&str, &[u8])> = many.iter().map(|(name, b)| (name.as_str(), *b)).collect();
    many.push(("SKILL.md", text.as_bytes()));
    let mut linked = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    linked.start_file("SKILL.md", options).unwrap();
    linked.write_all(text.as_bytes()).unwrap();
    linked
        .add_symlink("secrets", "/etc/passwd", options)
        .unwrap();
    for (bytes, words) in [
        (zip_of(&[("../SKILL.md", text.as_bytes())]), ""),
        (
            zip_of(&[("SKILL.md", text.as_bytes()), ("bomb", &zeros)]),
            "far more",
        ),
        (zip_of(&many), "512"),
        (linked.finish().unwrap().into_inner(), "is a link"),
        (
            zip_of(&[("SKILL.md", text.as_bytes()), ("skill.MD", b"x")]),
            "SKILL.md",
        ),
        (zip_of(&[("readme.txt", b"x")]), ""),
        (b"PK\x03\x04garbage".to_vec(), "usable"),
    ] {
        let (_server, url) = serve_file(move |stream| answer(stream, "200 OK", &[], &bytes));
        refuse(&url, words);
    }
}

#[test]
fn t47_versions_of_strangers_cannot_fill_or_forge_files() {
    for version in ["x".repeat(6_000_000), "1\u{1b}[8m\nsafe: ok".to_owned()] {
        let text = document("pdf", "");
        let index = json!({
            "$schema": "https://schemas.agentskills.io/discovery/0.2.0/schema.json",
            "skills": [{
                "name": "pdf", "type": "skill-md", "description": "P.", "url": "/SKILL.md",
                "digest": Digest::hash_bytes(text.as_bytes()).to_string(), "version": version,
            }],
        });
        let server = RawServer::start(move |request, stream| match request.path.as_str() {
            "/.well-known/agent-skills/index.json" => {
                answer(stream, "200 OK", &[], index.to_string().as_bytes())
            }
            "/SKILL.md" => answer(stream, "200 OK", &[], text.as_bytes()),
            _ => not_found(stream),
        });
        let user = User::new();
        let seen = user.see(&user.path("home"), &["add", &server.url]).ok();
        assert!(
            !seen.out.contains("safe: ok") && !seen.out.contains('\u{1b}'),
            "{seen:?}"
        );
        let lock = std::fs::read(user.account().join("repertoire.lock")).unwrap();
        assert!(lock.len() < 4096);
    }
}

#[test]
fn t27_secrets_in_addresses_are_neither_recorded_nor_shown() {
    let (server, url) = serve_file(|stream| {
        let to = [("Location", "/b?X-Amz-Signature=SECRET")];
        answer(stream, "302 Found", &to, b"")
    });
    let user = User::new();
    let refused = user.run(&["add", &url]);
    assert_ne!(refused.code, 0);
    assert!(server.paths().iter().any(|path| path.contains("SECRET")));
    assert!(!refused.err.contains("SECRET"), "{refused:?}");
    user.run(&["add", &format!("{url}?token=SECRET")])
        .refused("invalid_source", "looks like a secret");
    user.has_nothing(&user.path("home"));
}

#[test]
fn t52_digests_of_other_kinds_are_not_taken_for_verified() {
    let packed = archive();
    let (_server, source) = start_registry(move |_| {
        let mut layer = layer_of(&packed, packed.len());
        layer["digest"] = json!("sha512:abc");
        (manifest_of(layer), packed.clone())
    });
    refuse(&source, "no valid manifest");
    let (_server, source) = start_registry(|_| {
        let index = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json",
                           "digest": "sha512:abc", "size": 2}],
        });
        (index, Vec::new())
    });
    refuse(&source, "no valid manifest");
}
