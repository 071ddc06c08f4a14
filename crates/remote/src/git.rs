//! Git repositories, read with the system's `git` and without a checkout.
//!
//! A temporary bare repository gets one commit without its files; the names come from `ls-tree`, and
//! only the files of chosen skills are fetched.
//!
//! Invariants (T52): no working tree exists, so no hook, filter, link or submodule of the repository
//! has an effect. What the server sends is bounded in bytes, memory and time; what a tree lists is
//! bounded before it is kept. Every address and name was checked by [`crate::source`] and stands
//! behind `--`.

mod program;

use std::{collections::HashMap, path::Path};

use bytes::Bytes;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use url::Url;

use crate::{
    address::Reach,
    error::{Error, Result},
    file_tree::{FileTree, TreeEntry},
    http::WebClient,
    limits::FetchLimits,
    source::GitSource,
};

/// The reference under which the wanted commit is kept.
const KEPT_REFERENCE: &str = "refs/repertoire/wanted";
/// The longest line of `ls-tree`.
const MAX_TREE_LINE: usize = 8 * 1024;
/// The most bytes of all names of a tree.
const MAX_TREE_BYTES: usize = 32 * 1024 * 1024;

/// A commit of a repository, in a temporary bare repository.
#[derive(Debug)]
pub(crate) struct GitCommit {
    git: Git,
    /// Its id.
    pub(crate) id: String,
}

/// The bare repository and how it is used.
#[derive(Debug)]
struct Git {
    folder: TempDir,
    /// The address that git is given.
    url: String,
    /// The address as it was asked for, for messages.
    shown: String,
    /// Settings that depend on the address.
    settings: Vec<String>,
    ssh_command: Option<&'static str>,
    limits: FetchLimits,
}

impl GitCommit {
    /// Fetches a commit of a repository: the pinned one, or the one that a name stands for.
    pub(crate) async fn fetch(
        source: &GitSource,
        pinned: Option<&str>,
        web: &WebClient,
        scratch: Option<&Path>,
    ) -> Result<Self> {
        let git = Git::prepare(source, web, scratch).await?;
        let id = if let Some(commit) = pinned {
            git.fetch_pinned(commit, source.reference.as_deref())
                .await?
        } else {
            let reference = source.reference.as_deref().unwrap_or("HEAD");
            git.fetch_reference(reference, &["--depth=1"]).await?
        };
        Ok(Self { git, id })
    }

    /// Returns the commit that a name stands for, without fetching anything.
    pub(crate) async fn look_up(
        source: &GitSource,
        web: &WebClient,
        scratch: Option<&Path>,
    ) -> Result<String> {
        let git = Git::prepare(source, web, scratch).await?;
        let reference = source.reference.as_deref().unwrap_or("HEAD");
        if is_commit_id(reference) {
            return Ok(reference.to_owned());
        }
        let peeled = format!("{reference}^{{}}");
        let arguments = ["ls-remote", "--quiet", "--", &git.url, reference, &peeled];
        let listed = git.run(&arguments, None, 1024 * 1024).await?;
        let listed = String::from_utf8_lossy(&listed);
        // As git does: a tag before a branch, and the commit of an annotated tag.
        let find = |name: String| {
            listed.lines().find_map(|line| {
                let (id, listed) = line.split_once('\t')?;
                (listed == name && is_commit_id(id)).then(|| id.to_owned())
            })
        };
        let names = [
            format!("refs/tags/{reference}^{{}}"),
            format!("refs/tags/{reference}"),
            format!("refs/heads/{reference}"),
            reference.to_owned(),
        ];
        let found = names.into_iter().find_map(find);
        found.ok_or_else(|| git.no_reference(reference))
    }

    /// Lists the files of the commit.
    pub(crate) async fn list_files(&self) -> Result<FileTree> {
        self.git.list_files(&self.id).await
    }

    /// Reads files of the commit into a tree.
    pub(crate) async fn read_files(&self, tree: &mut FileTree, paths: &[String]) -> Result<()> {
        let mut wanted: HashMap<String, Vec<&str>> = HashMap::new();
        for path in paths {
            if let Some(TreeEntry::File { object: Some(id) }) = tree.entries.get(path)
                && !tree.contents.contains_key(path)
            {
                wanted.entry(id.clone()).or_default().push(path);
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let mut objects: Vec<&String> = wanted.keys().collect();
        objects.sort();
        let mut found = self.git.read_objects(&objects).await?;
        let missing: Vec<&String> = objects
            .into_iter()
            .filter(|id| !found.contains_key(*id))
            .collect();
        if !missing.is_empty() {
            self.git.fetch_objects(&missing).await?;
            found.extend(self.git.read_objects(&missing).await?);
        }
        for (id, paths) in &wanted {
            let content = found.get(id).ok_or_else(|| {
                let reason = format!("did not send the file {}", paths.join(", "));
                Error::refused(&self.git.shown, reason)
            })?;
            for path in paths {
                tree.contents.insert((*path).to_owned(), content.clone());
            }
        }
        Ok(())
    }
}

impl Git {
    async fn prepare(source: &GitSource, web: &WebClient, scratch: Option<&Path>) -> Result<Self> {
        let place = scratch.map_or_else(std::env::temp_dir, Path::to_owned);
        let io = |error| Error::Io {
            path: place.clone(),
            error,
        };
        std::fs::create_dir_all(&place).map_err(io)?;
        let folder = tempfile::Builder::new()
            .prefix("git-")
            .tempdir_in(&place)
            .map_err(io)?;
        create_repository(folder.path())?;
        let mut git = Self {
            folder,
            url: source.url.clone(),
            shown: source.url.clone(),
            settings: Vec::new(),
            ssh_command: None,
            limits: *web.limits(),
        };
        match Url::parse(&source.url) {
            Ok(url) if matches!(url.scheme(), "http" | "https") => {
                git.pin_address(url, web).await?;
            }
            Ok(url) if url.scheme() == "file" => {}
            parsed => {
                let host = ssh_host(&source.url, parsed.ok().as_ref());
                let host = host.ok_or_else(|| Error::refused(&source.url, "names no host"))?;
                check_ssh_host(&host, &source.url, web).await?;
                let known = std::env::var_os("GIT_SSH_COMMAND").is_some()
                    || std::env::var_os("GIT_SSH").is_some()
                    || git
                        .run(&["config", "core.sshCommand"], None, 4096)
                        .await
                        .is_ok();
                // Without it, ssh would wait for an answer at the terminal.
                git.ssh_command = (!known).then_some("ssh -oBatchMode=yes");
            }
        }
        Ok(git)
    }

    /// Follows the redirects of an address under the rules for all requests, and lets git connect to
    /// nothing else (T26).
    async fn pin_address(&mut self, url: Url, web: &WebClient) -> Result<()> {
        const QUERY: &str = "/info/refs?service=git-upload-pack";
        let base = url.as_str().trim_end_matches('/').to_owned();
        let probe = Url::parse(&format!("{base}{QUERY}"));
        let probe = probe.map_err(|_| Error::refused(&base, "is no address of a repository"))?;
        let (end, status) = web.resolve_redirects(probe).await?;
        if status.as_u16() == 404 {
            return Err(Error::NotFound {
                what: "repository",
                name: base,
            });
        }
        if status.is_server_error() {
            return Err(Error::unreachable(&base, format!("answered with {status}")));
        }
        let end = end.to_string();
        let end = end.strip_suffix(QUERY).unwrap_or(&base);
        end.clone_into(&mut self.url);
        self.settings.push("http.followRedirects=false".to_owned());
        if let Ok(url) = Url::parse(&self.url)
            && let Some(url::Host::Domain(name)) = url.host()
        {
            let port = url.port_or_known_default().unwrap_or(443);
            let reach = web.reach_of(&url).await?;
            let found = tokio::net::lookup_host((name, port)).await;
            let found = found.map_err(|error| {
                Error::unreachable(&self.url, format!("cannot be resolved: {error}"))
            })?;
            let addresses: Vec<std::net::IpAddr> = found.map(|address| address.ip()).collect();
            let is_local = name == "localhost" || name.ends_with(".localhost");
            if reach == Reach::Public
                && !is_local
                && let Some(wrong) = addresses.iter().find(|ip| !crate::address::is_public(**ip))
            {
                let reason = format!("resolves to {wrong}, a private address");
                return Err(Error::refused(&self.url, reason));
            }
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let pinned = format!("http.curloptResolve={name}:{port}:{}", addresses.join(","));
            self.settings.push(pinned);
        }
        Ok(())
    }

    /// Fetches what a name stands for and returns the commit.
    async fn fetch_reference(&self, reference: &str, depth: &[&str]) -> Result<String> {
        let wanted = format!("+{reference}:{KEPT_REFERENCE}");
        let mut arguments = vec!["fetch", "--quiet", "--no-tags", "--filter=blob:none"];
        arguments.extend(["--no-write-fetch-head", "--recurse-submodules=no"]);
        arguments.extend(depth);
        arguments.extend(["--", &self.url, &wanted]);
        self.run(&arguments, None, 4096)
            .await
            .map_err(|error| match error {
                Error::Unreachable { reason, .. }
                    if reason.contains("couldn't find remote ref") =>
                {
                    self.no_reference(reference)
                }
                error => error,
            })?;
        let peeled = format!("{KEPT_REFERENCE}^{{commit}}");
        let id = self
            .run(&["rev-parse", "--verify", "--quiet", &peeled], None, 4096)
            .await?;
        let id = String::from_utf8_lossy(&id).trim().to_owned();
        if is_commit_id(&id) {
            return Ok(id);
        }
        Err(Error::refused(
            &self.shown,
            format!("{reference} is no commit"),
        ))
    }

    /// Fetches a commit by its id; through the history of a name where the server gives out commits
    /// by name only.
    async fn fetch_pinned(&self, commit: &str, reference: Option<&str>) -> Result<String> {
        let direct = match self.fetch_reference(commit, &["--depth=1"]).await {
            Err(Error::Unreachable { reason, .. }) if !is_connection_failure(&reason) => {
                let reference = reference
                    .filter(|name| !is_commit_id(name))
                    .unwrap_or("HEAD");
                self.fetch_reference(reference, &[]).await?;
                let wanted = format!("{commit}^{{commit}}");
                let arguments = ["rev-parse", "--verify", "--quiet", &wanted];
                let found = self.run(&arguments, None, 4096);
                let gone = |_| Error::NotFound {
                    what: "commit",
                    name: format!("{commit} of {}", self.shown),
                };
                let id = found.await.map_err(gone)?;
                String::from_utf8_lossy(&id).trim().to_owned()
            }
            fetched => fetched?,
        };
        if direct == commit {
            return Ok(direct);
        }
        Err(Error::DigestMismatch {
            address: self.shown.clone(),
            expected: commit.to_owned(),
            found: direct,
        })
    }

    /// Fetches files by their objects.
    async fn fetch_objects(&self, ids: &[&String]) -> Result<()> {
        let mut input = String::new();
        for id in ids {
            input.push_str(id);
            input.push('\n');
        }
        let arguments = [
            "-c",
            "fetch.negotiationAlgorithm=noop",
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--recurse-submodules=no",
            "--filter=blob:none",
            "--stdin",
            "--",
            &self.url,
        ];
        self.run(&arguments, Some(input), 4096).await?;
        Ok(())
    }

    async fn list_files(&self, commit: &str) -> Result<FileTree> {
        let arguments = ["ls-tree", "-r", "-z", "--full-tree", commit];
        let mut running = self.start(&arguments, None)?;
        let refuse = |reason: String| Error::refused(&self.shown, reason);
        let mut tree = FileTree::default();
        let mut bytes = 0;
        let output = running.take_output()?;
        let read = async {
            let mut lines = BufReader::new(output);
            let mut line = Vec::new();
            loop {
                line.clear();
                let limit = MAX_TREE_LINE as u64;
                let count = (&mut lines).take(limit).read_until(0, &mut line).await;
                if count.map_err(|error| self.broken_pipe(&error))? == 0 {
                    return Ok(());
                }
                bytes += line.len();
                if tree.entries.len() >= self.limits.entries || bytes > MAX_TREE_BYTES {
                    let reason = format!("has more than {} files", self.limits.entries);
                    return Err(refuse(reason));
                }
                if line.pop() != Some(0) {
                    return Err(refuse("has a path that is too long".to_owned()));
                }
                if let Some((path, entry)) = parse_tree_line(&line) {
                    tree.entries.insert(path, entry);
                }
            }
        };
        let read = tokio::time::timeout(self.limits.time, read).await;
        read.unwrap_or_else(|_| Err(self.late()))?;
        running.finish(self).await?;
        Ok(tree)
    }

    /// Reads the contents of objects that are here, within the limits.
    async fn read_objects(&self, ids: &[&String]) -> Result<HashMap<String, Bytes>> {
        let mut input = String::new();
        for id in ids {
            input.push_str(id);
            input.push('\n');
        }
        let mut running = self.start(&["cat-file", "--batch", "--buffer"], Some(&input))?;
        let mut output = BufReader::new(running.take_output()?);
        let mut found = HashMap::new();
        let mut left = self.limits.total_bytes;
        let read = async {
            for id in ids {
                let mut line = String::new();
                let head = (&mut output).take(256).read_line(&mut line).await;
                head.map_err(|error| self.broken_pipe(&error))?;
                let mut words = line.split_whitespace();
                let (_, kind, size) = (words.next(), words.next(), words.next());
                let (Some("blob"), Some(size)) = (kind, size.and_then(|s| s.parse::<u64>().ok()))
                else {
                    if kind == Some("missing") {
                        continue;
                    }
                    let reason = format!("object {id} is no file");
                    return Err(Error::refused(&self.shown, reason));
                };
                if size > left || size > self.limits.file_bytes {
                    let reason =
                        format!("its files have more than {} bytes", self.limits.total_bytes);
                    return Err(Error::refused(&self.shown, reason));
                }
                left -= size;
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                let mut content = vec![0; size + 1];
                let read = output.read_exact(&mut content).await;
                read.map_err(|error| self.broken_pipe(&error))?;
                content.pop();
                found.insert((*id).clone(), Bytes::from(content));
            }
            Ok(())
        };
        let read = tokio::time::timeout(self.limits.time, read).await;
        read.unwrap_or_else(|_| Err(self.late()))?;
        drop(output);
        Ok(found)
    }

    fn no_reference(&self, reference: &str) -> Error {
        Error::NotFound {
            what: "branch, tag or commit",
            name: format!("{reference} of {}", self.shown),
        }
    }
}

/// Refuses a host that the source may not lead to. ssh resolves the name again, and proves with the
/// key of the host whom it reached.
async fn check_ssh_host(host: &str, address: &str, web: &WebClient) -> Result<()> {
    let place = Url::parse(&format!("http://{host}/"));
    let place = place.map_err(|_| Error::refused(address, "names no valid host"))?;
    if web.reach_of(&place).await? == Reach::Private || web.allows_private_names() {
        return Ok(());
    }
    if let Some(url::Host::Domain(name)) = place.host() {
        let found = tokio::net::lookup_host((name, 22)).await;
        let mut found = found
            .map_err(|error| Error::unreachable(address, format!("cannot be resolved: {error}")))?;
        if let Some(wrong) = found.find(|found| !crate::address::is_public(found.ip())) {
            let reason = format!("resolves to {}, a private address", wrong.ip());
            return Err(Error::refused(address, reason));
        }
    }
    Ok(())
}

/// Returns the host of an address for ssh.
fn ssh_host(address: &str, parsed: Option<&Url>) -> Option<String> {
    if let Some(url) = parsed {
        url.host_str().map(str::to_owned)
    } else {
        let (host, _) = address.split_once(':')?;
        Some(host.rsplit('@').next().unwrap_or(host).to_owned())
    }
}

/// Creates an empty bare repository; a fraction of the time that `git init` takes.
fn create_repository(folder: &Path) -> Result<()> {
    let write = || -> std::io::Result<()> {
        std::fs::create_dir(folder.join("objects"))?;
        std::fs::create_dir(folder.join("refs"))?;
        std::fs::write(folder.join("HEAD"), "ref: refs/heads/none\n")?;
        std::fs::write(
            folder.join("config"),
            "[core]\n\trepositoryformatversion = 0\n\tbare = true\n",
        )
    };
    write().map_err(|error| Error::Io {
        path: folder.to_owned(),
        error,
    })
}

/// Whether a failure of git says that the server was not reached.
fn is_connection_failure(reason: &str) -> bool {
    let words = [
        "Could not resolve",
        "Failed to connect",
        "Connection",
        "timed out",
        "in time",
        "unable to access",
    ];
    words.iter().any(|word| reason.contains(word))
}

pub(crate) fn is_commit_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64)
        && text
            .bytes()
            .all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase())
}

/// Parses `mode type object<TAB>path`; `None` for a path that is no text.
fn parse_tree_line(line: &[u8]) -> Option<(String, TreeEntry)> {
    let line = std::str::from_utf8(line).ok()?;
    let (about, path) = line.split_once('\t')?;
    let mut words = about.split(' ');
    let (mode, kind, object) = (words.next()?, words.next()?, words.next()?);
    let entry = match (mode, kind) {
        ("120000", _) => TreeEntry::Other("a link"),
        (_, "commit") => TreeEntry::Other("a submodule"),
        (_, "blob") => TreeEntry::File {
            object: Some(object.to_owned()),
        },
        _ => TreeEntry::Other("no file"),
    };
    Some((path.to_owned(), entry))
}
