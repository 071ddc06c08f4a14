//! One way in for every kind of source that is not a folder: open it and look things up.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use repertoire_core::{DOCUMENT, Digest};
use url::Url;

use crate::{
    clawhub::{ClawHub, ClawHubResult},
    error::{Error, Result},
    file_tree::FileTree,
    git::GitCommit,
    http::WebClient,
    limits::FetchLimits,
    oci::OciRepository,
    opened_source::{OpenedSource, SignedArtifact},
    pin::Pin,
    sigstore::TrustRoot,
    source::{SkillSource, SourcePlace, SourceReach},
    well_known::{WebPlace, open_place},
};

/// Opens sources.
#[derive(Debug, Clone, Default)]
pub struct Fetcher {
    limits: FetchLimits,
    trust_root: Option<TrustRoot>,
    scratch: Option<PathBuf>,
}

impl Fetcher {
    /// Opens sources within limits.
    pub fn new(limits: FetchLimits) -> Self {
        Self {
            limits,
            trust_root: None,
            scratch: None,
        }
    }

    /// Uses a folder for what is there only while a source is read, instead of the system's.
    #[must_use]
    pub fn with_scratch(self, folder: PathBuf) -> Self {
        Self {
            scratch: Some(folder),
            ..self
        }
    }

    /// Verifies signatures against a root.
    #[must_use]
    pub fn with_trust_root(self, root: TrustRoot) -> Self {
        Self {
            trust_root: Some(root),
            ..self
        }
    }

    /// Returns a client that goes where a source may lead to.
    fn client(&self, source: &SkillSource, reach: SourceReach) -> Result<WebClient> {
        let web = WebClient::new(reach, self.limits)?;
        Ok(match source.place() {
            SourcePlace::Web(url) => web.starting_at(url),
            SourcePlace::ClawHub(clawhub) => web.starting_at(&clawhub.registry),
            _ => web,
        })
    }

    /// Asks a source what it has: what is pinned, or the newest.
    ///
    /// Folders and packages in JSON are read by the registry, not here.
    pub async fn open(
        &self,
        source: &SkillSource,
        reach: SourceReach,
        pin: Option<&Pin>,
    ) -> Result<OpenedSource> {
        let web = self.client(source, reach)?;
        let mut opened = OpenedSource::new(source.location(), web, self.trust_root.clone());
        match source.place() {
            SourcePlace::Git(git) => {
                let pinned = match pin {
                    Some(Pin::Commit(id)) => Some(id.as_str()),
                    _ => None,
                };
                let commit =
                    GitCommit::fetch(git, pinned, opened.web(), self.scratch.as_deref()).await?;
                let tree = commit.list_files().await?;
                let pin = Pin::Commit(commit.id.clone());
                let root = git.folder.as_deref().unwrap_or_default();
                let name = repository_name(&git.url);
                opened
                    .open_tree(tree, root, &name, Some(commit), Some(pin))
                    .await?;
                if opened.skills.is_empty() && !root.is_empty() {
                    return Err(no_skill(&opened.location));
                }
            }
            SourcePlace::Archive(path, _) => {
                let bytes = read_local(path, self.limits.file_bytes)?;
                let shown = path.display().to_string();
                opened.open_archive(&shown, bytes, None).await?;
            }
            SourcePlace::Web(url) => match open_place(url, opened.web()).await? {
                WebPlace::Index(index) => {
                    opened.open_index(&index.url, index.entries, index.skipped);
                }
                WebPlace::Archive { url, bytes } => {
                    let name = url.to_string();
                    opened.open_archive(&name, bytes, Some(url)).await?;
                }
                WebPlace::Document { url, bytes } => {
                    let mut tree = FileTree::default();
                    tree.insert_file(DOCUMENT.to_owned(), bytes.clone());
                    let pin = Pin::Artifact(Digest::hash_bytes(&bytes));
                    let parts: Vec<&str> = url.path_segments().into_iter().flatten().collect();
                    let name = parts.iter().rev().nth(1).copied().unwrap_or_default();
                    opened.open_tree(tree, "", name, None, Some(pin)).await?;
                    opened.set_signed(SignedArtifact::File(url, bytes));
                }
            },
            SourcePlace::Oci(oci) => {
                let pinned = match pin {
                    Some(Pin::OciManifest(digest)) => Some(*digest),
                    _ => None,
                };
                let web = opened.web().clone();
                let mut repository = OciRepository::connect(oci, &web).await?;
                let artifact = repository.fetch(pinned).await?;
                let bundles = match self.trust_root {
                    Some(_) => repository.signatures(&artifact.digest).await?,
                    None => Vec::new(),
                };
                let pin = Pin::OciManifest(artifact.digest);
                let name = oci.repository.rsplit('/').next().unwrap_or_default();
                opened
                    .open_tree(artifact.tree, "", name, None, Some(pin))
                    .await?;
                for skill in &mut opened.skills {
                    skill.version.clone_from(&artifact.version);
                }
                opened.set_signed(SignedArtifact::Manifest(artifact.manifest, bundles));
            }
            SourcePlace::ClawHub(clawhub) => {
                let web = opened.web().clone();
                let registry = ClawHub::connect(&clawhub.registry, &web).await?;
                let skill = registry.find(clawhub).await?;
                let (address, bytes) = registry.download(&skill).await?;
                opened.open_archive(&address, bytes, None).await?;
                for offered in &mut opened.skills {
                    offered.version = Some(skill.version.clone());
                    if offered.description.is_empty() {
                        offered.description.clone_from(&skill.summary);
                    }
                }
            }
            SourcePlace::Folder(path) | SourcePlace::Package(path) => {
                return Err(Error::Source {
                    text: path.display().to_string(),
                    reason: "is on this machine".to_owned(),
                });
            }
        }
        Ok(opened)
    }

    /// Returns what a source would give now, as cheaply as it can be known. `None` if only fetching
    /// tells.
    pub async fn look_up(&self, source: &SkillSource, reach: SourceReach) -> Result<Option<Pin>> {
        let web = self.client(source, reach)?;
        Ok(match source.place() {
            SourcePlace::Git(git) => Some(Pin::Commit(
                GitCommit::look_up(git, &web, self.scratch.as_deref()).await?,
            )),
            SourcePlace::Oci(oci) => {
                let mut repository = OciRepository::connect(oci, &web).await?;
                Some(Pin::OciManifest(repository.resolve().await?))
            }
            _ => None,
        })
    }

    /// Returns the version that a ClawHub registry has now.
    pub async fn newest_version(
        &self,
        source: &SkillSource,
        reach: SourceReach,
    ) -> Result<Option<String>> {
        let SourcePlace::ClawHub(clawhub) = source.place() else {
            return Ok(None);
        };
        let web = self.client(source, reach)?;
        let registry = ClawHub::connect(&clawhub.registry, &web).await?;
        Ok(Some(registry.find(clawhub).await?.version))
    }

    /// Searches a ClawHub registry.
    pub async fn search(
        &self,
        registry: &Url,
        reach: SourceReach,
        words: &str,
        limit: usize,
    ) -> Result<Vec<ClawHubResult>> {
        let web = WebClient::new(reach, self.limits)?.starting_at(registry);
        ClawHub::connect(registry, &web)
            .await?
            .search(words, limit)
            .await
    }
}

/// Reads a file of this machine within a limit.
fn read_local(path: &Path, limit: u64) -> Result<Bytes> {
    use std::io::Read as _;
    let io = |error| Error::Io {
        path: path.to_owned(),
        error,
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(io)?;
    file.take(limit + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > limit {
        let reason = format!("has more than {limit} bytes");
        return Err(Error::refused(&path.display().to_string(), reason));
    }
    Ok(bytes.into())
}

fn repository_name(url: &str) -> String {
    let last = url.trim_end_matches('/').rsplit(['/', ':']).next();
    last.unwrap_or_default().trim_end_matches(".git").to_owned()
}

fn no_skill(location: &str) -> Error {
    Error::NotFound {
        what: "skill in",
        name: location.to_owned(),
    }
}
