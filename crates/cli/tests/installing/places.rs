//! Real places that skills come from: git repositories, a stock web server, an OCI registry, and a
//! registry that the `clawhub` command works with.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use repertoire_core::Digest;
use serde_json::json;
use tempfile::TempDir;

use crate::{
    http::{RawServer, answer, header, not_found, send},
    part::installed_part,
    user::{document, write_file},
};

/// A repository with a working tree, and how it is served.
pub(crate) struct Repository {
    folder: TempDir,
}

impl Repository {
    /// Creates a repository with these skills.
    pub(crate) fn with_skills(names: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let repository = Self { folder };
        repository.git(&["init", "--quiet", "--initial-branch=main"]);
        for name in names {
            repository.write(
                &format!("skills/{name}/SKILL.md"),
                document(name, "# One\n\nText.\n"),
            );
            repository.write(
                &format!("skills/{name}/scripts/run.sh"),
                "#!/bin/sh\necho run\n",
            );
        }
        repository.commit("one");
        repository
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        write_file(&self.path().join(path), text);
    }

    pub(crate) fn git(&self, args: &[&str]) -> String {
        let output = Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@example.com"])
            .args([
                "-c",
                "commit.gpgsign=false",
                "-c",
                "protocol.file.allow=always",
            ])
            .args(args)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .current_dir(self.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "git {args:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Commits everything and returns the commit.
    pub(crate) fn commit(&self, message: &str) -> String {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", message]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// The address for git over files.
    pub(crate) fn file_url(&self) -> String {
        format!("file://{}", self.path().display())
    }

    /// Packs a folder of the newest commit.
    pub(crate) fn archive(&self, format: &str, folder: &str) -> Vec<u8> {
        let output = Command::new("git")
            .args([
                "archive",
                &format!("--format={format}"),
                &format!("HEAD:{folder}"),
            ])
            .current_dir(self.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }
}

/// Returns a program of the unpacked servers with the libraries it needs.
fn server_command(program: &str) -> Option<(PathBuf, Command)> {
    let root = PathBuf::from(installed_part("REPERTOIRE_TEST_SERVERS")?);
    let mut command = Command::new(root.join(program));
    let libraries = root.join("usr/lib");
    let inner = libraries.read_dir().unwrap().flatten();
    let folders = inner.map(|entry| entry.path()).filter(|path| path.is_dir());
    command.env("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap());
    Some((root, command))
}

/// A running server; dropping it ends it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It was started here, so it is ended here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn wait_for_port(port: u16) {
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "no server on {port}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A stock web server over a folder: files, and git over HTTP below `/git/`.
pub(crate) struct WebServer {
    pub(crate) url: String,
    folder: TempDir,
    _running: Running,
}

impl WebServer {
    /// Starts it; `None` in a quick run without the server.
    pub(crate) fn start() -> Option<Self> {
        let (root, mut command) = server_command("usr/sbin/lighttpd")?;
        let folder = tempfile::tempdir().unwrap();
        let files = folder.path().join("files");
        fs::create_dir_all(files.join("git")).unwrap();
        let backend = Command::new("git").arg("--exec-path").output().unwrap();
        let backend = String::from_utf8_lossy(&backend.stdout).trim().to_owned();
        let port = free_port();
        let config = format!(
            r#"server.modules = ("mod_cgi", "mod_alias", "mod_setenv")
server.document-root = "{files}"
server.port = {port}
server.bind = "127.0.0.1"
server.stat-cache-engine = "disable"
server.errorlog = "{log}"
mimetype.assign = (".json" => "application/json", ".md" => "text/markdown",
  ".zip" => "application/zip", ".gz" => "application/gzip")
$HTTP["url"] =~ "^/git/" {{
  cgi.assign = ("" => "")
  alias.url = ("/git" => "{backend}/git-http-backend")
  setenv.set-environment = ("GIT_PROJECT_ROOT" => "{files}/git", "GIT_HTTP_EXPORT_ALL" => "1",
    "GIT_CONFIG_COUNT" => "1", "GIT_CONFIG_KEY_0" => "safe.directory",
    "GIT_CONFIG_VALUE_0" => "*")
}}
"#,
            files = files.display(),
            log = folder.path().join("errors.log").display(),
        );
        let file = folder.path().join("lighttpd.conf");
        fs::write(&file, config).unwrap();
        command.arg("-D").arg("-f").arg(&file);
        command.arg("-m").arg(root.join("usr/lib/lighttpd"));
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let running = Running(child);
        wait_for_port(port);
        Some(Self {
            url: format!("http://127.0.0.1:{port}"),
            folder,
            _running: running,
        })
    }

    /// Publishes a file.
    pub(crate) fn put(&self, path: &str, content: impl AsRef<[u8]>) -> String {
        write_file(&self.folder.path().join("files").join(path), content);
        format!("{}/{path}", self.url)
    }

    /// Publishes a repository, or what it has now, and returns its address.
    pub(crate) fn put_repository(&self, name: &str, repository: &Repository) -> String {
        let bare = self.folder.path().join("files/git").join(name);
        let bare = bare.to_str().unwrap();
        if Path::new(bare).exists() {
            repository.git(&["push", "--quiet", "--force", bare, "main"]);
            repository.git(&["push", "--quiet", "--force", "--tags", bare]);
        } else {
            repository.git(&["clone", "--quiet", "--bare", ".", bare]);
        }
        format!("{}/git/{name}", self.url)
    }
}

/// A stock OCI registry.
pub(crate) struct OciRegistry {
    pub(crate) host: String,
    login: Option<(&'static str, &'static str)>,
    _folder: TempDir,
    _running: Running,
}

impl OciRegistry {
    /// Starts it; `None` in a quick run without the server.
    pub(crate) fn start(login: Option<(&'static str, &'static str)>) -> Option<Self> {
        let (_, mut command) = server_command("usr/bin/docker-registry")?;
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let mut config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: \
             {0}/data\n  delete:\n    enabled: true\nhttp:\n  addr: 127.0.0.1:{port}\n",
            folder.path().display()
        );
        if login.is_some() {
            // The hash of the password `open sesame`, as `htpasswd -B` makes it.
            let line = "ali:$2y$05$xQE6viUsSJNcxw/HBUc5I.6NT.lpxYY/wQFs3mHdyZ5fE0SUIJWOu\n";
            fs::write(folder.path().join("htpasswd"), line).unwrap();
            let auth = format!(
                "auth:\n  htpasswd:\n    realm: registry\n    path: {}/htpasswd\n",
                folder.path().display()
            );
            config.push_str(&auth);
        }
        let file = folder.path().join("config.yml");
        fs::write(&file, config).unwrap();
        let child = command
            .arg("serve")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let running = Running(child);
        wait_for_port(port);
        Some(Self {
            host: format!("127.0.0.1:{port}"),
            login,
            _folder: folder,
            _running: running,
        })
    }

    fn send(&self, method: &str, url: &str, kind: &str, body: &[u8]) -> (u16, String) {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let mut headers = vec![("Content-Type", kind)];
        let login = self.login.map(|(name, password)| {
            format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))
        });
        if let Some(login) = &login {
            headers.push(("Authorization", login));
        }
        send(method, url, &headers, body)
    }

    /// Uploads a blob and returns its descriptor.
    pub(crate) fn put_blob(&self, repository: &str, kind: &str, bytes: &[u8]) -> serde_json::Value {
        let base = format!("http://{}/v2/{repository}", self.host);
        let (status, head) = self.send("POST", &format!("{base}/blobs/uploads/"), kind, b"");
        assert_eq!(status, 202, "{head}");
        let digest = Digest::hash_bytes(bytes).to_string();
        let location = header(&head, "location").unwrap();
        let location = if location.starts_with('/') {
            format!("http://{}{location}", self.host)
        } else {
            location.to_owned()
        };
        let mark = if location.contains('?') { '&' } else { '?' };
        let url = format!("{location}{mark}digest={}", digest.replace(':', "%3A"));
        let (status, head) = self.send("PUT", &url, "application/octet-stream", bytes);
        assert_eq!(status, 201, "{head}");
        json!({"mediaType": kind, "digest": digest, "size": bytes.len()})
    }

    /// Uploads a manifest under a tag or its digest and returns its digest.
    pub(crate) fn put_manifest(
        &self,
        repository: &str,
        tag: &str,
        manifest: &serde_json::Value,
    ) -> String {
        let bytes = manifest.to_string();
        let digest = Digest::hash_bytes(bytes.as_bytes()).to_string();
        let tag = if tag.is_empty() { &digest } else { tag };
        let kind = manifest["mediaType"].as_str().unwrap();
        let url = format!("http://{}/v2/{repository}/manifests/{tag}", self.host);
        let (status, head) = self.send("PUT", &url, kind, bytes.as_bytes());
        assert_eq!(status, 201, "{head}");
        digest
    }

    /// Returns the bytes of a manifest.
    pub(crate) fn get_manifest(&self, repository: &str, digest: &str) -> Vec<u8> {
        let url = format!("http://{}/v2/{repository}/manifests/{digest}", self.host);
        let accept = [("Accept", "application/vnd.oci.image.manifest.v1+json")];
        crate::http::get(&url, &accept)
    }

    /// Publishes an archive in the agentskills form and returns the digest of the manifest.
    pub(crate) fn put_skill(
        &self,
        repository: &str,
        tag: &str,
        version: &str,
        layer: &[u8],
    ) -> String {
        let config = json!({"name": "x", "version": version}).to_string();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": "application/vnd.agentskills.skill.v1",
            "config": self.put_blob(
                repository,
                "application/vnd.agentskills.skill.config.v1+json",
                config.as_bytes(),
            ),
            "layers": [self.put_blob(
                repository,
                "application/vnd.agentskills.skill.content.v1.tar+gzip",
                layer,
            )],
            "annotations": {"org.opencontainers.image.version": version},
        });
        self.put_manifest(repository, tag, &manifest)
    }
}

/// A skill of a ClawHub registry.
#[derive(Clone)]
pub(crate) struct HubSkill {
    pub(crate) slug: &'static str,
    pub(crate) version: &'static str,
    pub(crate) archive: Vec<u8>,
}

/// A registry with the interface that the `clawhub` command reads.
pub(crate) fn start_clawhub(skills: Vec<HubSkill>) -> RawServer {
    RawServer::start(move |request, stream| {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let parameter = |name: &str| {
            query.split('&').find_map(|pair| {
                let (known, value) = pair.split_once('=')?;
                (known == name).then(|| value.to_owned())
            })
        };
        let find = |slug: &str| {
            let version = parameter("version");
            skills.iter().rev().find(|skill| {
                skill.slug == slug
                    && version
                        .as_deref()
                        .is_none_or(|wanted| wanted == skill.version)
            })
        };
        let as_json = |stream: &mut TcpStream, value: serde_json::Value| {
            let kind = [("Content-Type", "application/json")];
            answer(stream, "200 OK", &kind, value.to_string().as_bytes())
        };
        let place = path.strip_prefix("/api/v1/").unwrap_or(path);
        match place {
            "/.well-known/clawhub.json" => as_json(stream, json!({"apiBase": "/"})),
            "search" => {
                let rows: Vec<_> = skills
                    .iter()
                    .map(|skill| {
                        json!({
                            "score": 1.0, "slug": skill.slug, "displayName": skill.slug,
                            "summary": "A skill.", "version": skill.version,
                            "ownerHandle": "acme", "owner": {"handle": "acme"},
                        })
                    })
                    .collect();
                as_json(stream, json!({"results": rows}))
            }
            "resolve" => {
                let latest = find(&parameter("slug").unwrap_or_default());
                let latest = latest.map(|skill| json!({"version": skill.version}));
                as_json(stream, json!({"match": null, "latestVersion": latest}))
            }
            "download" => match find(&parameter("slug").unwrap_or_default()) {
                Some(skill) => {
                    let kind = [("Content-Type", "application/zip")];
                    answer(stream, "200 OK", &kind, &skill.archive)
                }
                None => not_found(stream),
            },
            _ => {
                let slug = place.strip_prefix("skills/").unwrap_or_default();
                let (slug, rest) = slug.split_once('/').unwrap_or((slug, ""));
                match (find(slug), rest) {
                    (Some(skill), "") => as_json(
                        stream,
                        json!({
                            "skill": {
                                "slug": skill.slug, "displayName": skill.slug, "summary": "A skill.",
                                "tags": {}, "stats": {}, "createdAt": 1, "updatedAt": 1,
                            },
                            "latestVersion": {
                                "version": skill.version, "createdAt": 1, "changelog": "",
                            },
                            "owner": {"handle": "acme"}, "moderation": null,
                        }),
                    ),
                    (Some(skill), rest) if rest.starts_with("versions") => as_json(
                        stream,
                        json!({"version": {
                            "version": skill.version, "createdAt": 1, "changelog": "", "files": [],
                        }}),
                    ),
                    _ => not_found(stream),
                }
            }
        }
    })
}

/// A command of a package of npm, with the Node that it needs.
pub(crate) fn node_command(script: &str) -> Option<Command> {
    let modules = PathBuf::from(installed_part("REPERTOIRE_TEST_NODE")?);
    let mut command = Command::new(modules.join("node/bin/node"));
    command.arg(modules.join(script)).stdin(Stdio::null());
    Some(command)
}
