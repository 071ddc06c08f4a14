//! A source that answered: what it has, and the files of chosen skills.

use std::collections::BTreeMap;

use bytes::Bytes;
use repertoire_core::{
    DOCUMENT, Digest, FileEntry, Frontmatter, Manifest, ManifestBuilder, RelPath, Signer,
    SkillName, frontmatter, markdown::to_single_line, path::is_ignored, text::make_slug,
};
use url::Url;

use crate::{
    archive::read_archive,
    error::{Error, Result},
    file_tree::{FileTree, TreeEntry},
    git::GitCommit,
    http::{WebClient, WebRequest},
    limits::FetchLimits,
    pin::Pin,
    plugin::{PluginSkills, manifest_paths, plugin_manifest_paths, read_manifest},
    sigstore::{MAX_BUNDLE_BYTES, TrustRoot},
    skill_search::{SkillFolder, find_skill_folders},
    well_known::{IndexEntry, read_entry},
};

/// The files of a skill.
pub type SkillFiles = BTreeMap<RelPath, Bytes>;

/// A skill that a source has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedSkill {
    /// Its name.
    pub name: String,
    /// What it does, as its source says.
    pub description: String,
    /// Its folder within the source; empty for the root.
    pub folder: String,
    /// Its version, if the source has versions.
    pub version: Option<String>,
    /// The plugin that it is part of.
    pub plugin: Option<String>,
}

/// Something of a source that is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceProblem {
    /// What it is.
    pub subject: String,
    /// Why it is not used.
    pub reason: String,
}

/// A skill with all its files. Its digests were checked as far as its source has digests.
#[derive(Debug, Clone)]
pub struct FetchedSkill {
    /// Its name.
    pub name: String,
    /// Its folder within the source.
    pub folder: String,
    /// Its files.
    pub files: SkillFiles,
    /// The digest of all of them.
    pub digest: Digest,
    /// What was fetched.
    pub pin: Pin,
    /// Its version, if the source has versions.
    pub version: Option<String>,
    /// Who signed it.
    pub signer: Option<Signer>,
}

/// A source that answered, and what it has.
#[derive(Debug)]
pub struct OpenedSource {
    /// Where it is, in full.
    pub location: String,
    /// Its skills.
    pub skills: Vec<OfferedSkill>,
    /// What of it is not used.
    pub problems: Vec<SourceProblem>,
    carrier: Carrier,
    web: WebClient,
    trust_root: Option<TrustRoot>,
}

/// How the files of a source are reached.
#[derive(Debug)]
enum Carrier {
    /// A tree, with the places of its skills.
    Tree {
        tree: FileTree,
        folders: Vec<SkillFolder>,
        commit: Option<Box<GitCommit>>,
        pin: Option<Pin>,
        signed: Box<SignedArtifact>,
    },
    /// An index of a web site.
    Index(Vec<IndexEntry>),
}

/// What a signature of a source is made over, and where signatures are.
#[derive(Debug)]
pub(crate) enum SignedArtifact {
    /// The source has no signatures.
    Nothing,
    /// A file at an address.
    File(Url, Bytes),
    /// A manifest, with the bundles that are attached to it.
    Manifest(Bytes, Vec<Bytes>),
}

impl OpenedSource {
    pub(crate) fn new(location: String, web: WebClient, trust_root: Option<TrustRoot>) -> Self {
        Self {
            location,
            skills: Vec::new(),
            problems: Vec::new(),
            carrier: Carrier::Index(Vec::new()),
            web,
            trust_root,
        }
    }

    pub(crate) fn web(&self) -> &WebClient {
        &self.web
    }

    pub(crate) fn set_signed(&mut self, artifact: SignedArtifact) {
        if let Carrier::Tree { signed, .. } = &mut self.carrier {
            **signed = artifact;
        }
    }

    pub(crate) async fn open_archive(
        &mut self,
        name: &str,
        bytes: Bytes,
        from: Option<Url>,
    ) -> Result<()> {
        let tree = read_archive(name, &bytes, self.web.limits())?.without_wrapper();
        let pin = Pin::Artifact(Digest::hash_bytes(&bytes));
        let file = name.rsplit(['/', '\\', '=']).next().unwrap_or_default();
        let stem = file.split('.').next().unwrap_or_default().to_owned();
        self.open_tree(tree, "", &stem, None, Some(pin)).await?;
        if let Some(url) = from {
            self.set_signed(SignedArtifact::File(url, bytes));
        }
        Ok(())
    }

    pub(crate) fn open_index(&mut self, url: &Url, entries: Vec<IndexEntry>, skipped: Vec<String>) {
        let problem = |reason| SourceProblem {
            subject: url.to_string(),
            reason,
        };
        self.problems.extend(skipped.into_iter().map(problem));
        self.skills = entries
            .iter()
            .map(|entry| OfferedSkill {
                name: entry.name.clone(),
                description: to_single_line(&entry.description),
                folder: String::new(),
                version: entry.version.clone(),
                plugin: None,
            })
            .collect();
        self.carrier = Carrier::Index(entries);
    }

    /// Finds the skills of a tree and reads their documents.
    pub(crate) async fn open_tree(
        &mut self,
        mut tree: FileTree,
        root: &str,
        root_name: &str,
        commit: Option<GitCommit>,
        pin: Option<Pin>,
    ) -> Result<()> {
        let mut plugins = PluginSkills::default();
        let mut manifests = manifest_paths(&tree, root);
        for _ in 0..2 {
            read_missing(&mut tree, commit.as_ref(), &manifests).await?;
            for path in &manifests {
                if let Some(bytes) = tree.contents.get(path) {
                    read_manifest(root, path, &bytes.clone(), &mut plugins);
                }
            }
            manifests = plugin_manifest_paths(&tree, &plugins);
        }
        let mut folders = find_skill_folders(&tree, root, &plugins);
        let most = self.web.limits().skills;
        if folders.len() > most {
            let reason = format!("has more than {most} skills");
            return Err(Error::refused(&self.location, reason));
        }
        for name in plugins.elsewhere {
            self.problems.push(SourceProblem {
                subject: format!("plugin {name}"),
                reason: "is in another place: add it from there".to_owned(),
            });
        }
        for reason in plugins.unreadable {
            self.problems.push(SourceProblem {
                subject: self.location.clone(),
                reason,
            });
        }
        let documents: Vec<String> = folders.iter().map(|one| one.document.clone()).collect();
        read_missing(&mut tree, commit.as_ref(), &documents).await?;
        let mut known: BTreeMap<String, String> = BTreeMap::new();
        let mut offered = Vec::new();
        folders.retain(|one| {
            let document = tree
                .contents
                .get(&one.document)
                .cloned()
                .unwrap_or_default();
            let skill = offer(one, &document, root_name);
            if let Some(first) = known.get(&skill.name) {
                self.problems.push(SourceProblem {
                    subject: one.folder.clone(),
                    reason: format!("has the name {:?} of the skill in {first:?}", skill.name),
                });
                false
            } else {
                known.insert(skill.name.clone(), one.folder.clone());
                offered.push(skill);
                true
            }
        });
        self.skills = offered;
        self.carrier = Carrier::Tree {
            tree,
            folders,
            commit: commit.map(Box::new),
            pin,
            signed: Box::new(SignedArtifact::Nothing),
        };
        Ok(())
    }

    /// Returns the skill of a name, of a folder, or the last part of one.
    pub fn find(&self, wanted: &str) -> Result<usize> {
        let by_name = |skill: &&OfferedSkill| skill.name.eq_ignore_ascii_case(wanted);
        let by_folder = |skill: &&OfferedSkill| {
            skill.folder == wanted || skill.folder.rsplit('/').next() == Some(wanted)
        };
        let position =
            |is: &dyn Fn(&&OfferedSkill) -> bool| self.skills.iter().position(|s| is(&s));
        position(&by_name)
            .or_else(|| position(&by_folder))
            .ok_or_else(|| {
                let names: Vec<&str> = self
                    .skills
                    .iter()
                    .map(|skill| skill.name.as_str())
                    .collect();
                let shown = names
                    .iter()
                    .take(20)
                    .copied()
                    .collect::<Vec<_>>()
                    .join(", ");
                let more = if names.len() > 20 { ", …" } else { "" };
                Error::NotFound {
                    what: "skill",
                    name: format!("{wanted} of {} (it has {shown}{more})", self.location),
                }
            })
    }

    /// Fetches all files of some skills and verifies them.
    ///
    /// A skill that cannot be used is an error of its own; a place that is no longer reached is one
    /// of the whole.
    pub async fn read(&mut self, chosen: &[usize]) -> Result<Vec<Result<FetchedSkill>>> {
        let mut found = Vec::new();
        match &mut self.carrier {
            Carrier::Tree {
                tree,
                folders,
                commit,
                pin,
                signed,
            } => {
                let mut paths = Vec::new();
                for index in chosen {
                    if let Some(one) = folders.get(*index)
                        && check_entries(tree, &one.folder).is_ok()
                    {
                        let beneath = tree.entries_beneath(&one.folder);
                        let wanted = beneath.into_iter().filter(|(path, _)| !has_ignored(path));
                        paths
                            .extend(wanted.map(|(path, _)| crate::plugin::join(&one.folder, path)));
                    }
                }
                read_missing(tree, commit.as_deref(), &paths).await?;
                let signer =
                    verify_signed(signed, &self.location, &self.web, self.trust_root.as_ref())
                        .await?;
                for index in chosen {
                    let (Some(one), Some(skill)) = (folders.get(*index), self.skills.get(*index))
                    else {
                        continue;
                    };
                    let files = collect_files(tree, &one.folder, &self.location);
                    found.push(files.map(|(files, digest)| FetchedSkill {
                        name: skill.name.clone(),
                        folder: one.folder.clone(),
                        files,
                        digest,
                        pin: pin.clone().unwrap_or(Pin::Files(digest)),
                        version: skill.version.clone(),
                        signer: signer.clone(),
                    }));
                }
            }
            Carrier::Index(entries) => {
                let mut left = self.web.limits().total_bytes;
                for index in chosen {
                    let Some(entry) = entries.get(*index) else {
                        continue;
                    };
                    let fetched =
                        read_index_skill(entry, &self.web, self.trust_root.as_ref()).await;
                    match fetched {
                        Err(error) if error.is_unreachable() => return Err(error),
                        fetched => {
                            let files = fetched.iter().flat_map(|skill| skill.files.values());
                            let size: u64 = files.map(|bytes| bytes.len() as u64).sum();
                            left = left.checked_sub(size).ok_or_else(|| {
                                let reason = "has more than is fetched at once: choose skills";
                                Error::refused(&self.location, reason)
                            })?;
                            found.push(fetched);
                        }
                    }
                }
            }
        }
        Ok(found)
    }

    /// Returns the pin that a skill would have, if that is known before it is fetched.
    pub fn pin(&self, index: usize) -> Option<Pin> {
        match &self.carrier {
            Carrier::Tree { pin, .. } => pin.clone(),
            Carrier::Index(entries) => entries.get(index)?.digest().map(Pin::Artifact),
        }
    }
}

async fn read_index_skill(
    entry: &IndexEntry,
    web: &WebClient,
    root: Option<&TrustRoot>,
) -> Result<FetchedSkill> {
    let found = read_entry(entry, web).await?;
    let tree = found.tree.without_wrapper();
    // An archive may hold the skill in a folder of its name.
    let folder = if tree.entries.contains_key(DOCUMENT) {
        String::new()
    } else {
        entry.name.clone()
    };
    let (files, digest) = collect_files(&tree, &folder, &found.address)?;
    let (pin, signed) = match found.artifact {
        Some((url, bytes)) => (
            Pin::Artifact(Digest::hash_bytes(&bytes)),
            SignedArtifact::File(url, bytes),
        ),
        None => (Pin::Files(digest), SignedArtifact::Nothing),
    };
    Ok(FetchedSkill {
        name: entry.name.clone(),
        folder: String::new(),
        files,
        digest,
        pin,
        version: entry.version.clone(),
        signer: verify_signed(&signed, &found.address, web, root).await?,
    })
}

/// Verifies the signatures of an artifact, if it has any.
async fn verify_signed(
    artifact: &SignedArtifact,
    address: &str,
    web: &WebClient,
    root: Option<&TrustRoot>,
) -> Result<Option<Signer>> {
    let Some(root) = root else {
        return Ok(None);
    };
    match artifact {
        SignedArtifact::Nothing => Ok(None),
        SignedArtifact::File(url, bytes) => {
            let mut place = url.clone();
            place.set_path(&format!("{}.sigstore.json", url.path()));
            let asked = web.get(WebRequest::get(place, MAX_BUNDLE_BYTES)).await?;
            let bundle = match asked.into_body() {
                // Many servers answer every address with a page.
                Ok(bundle) if bundle.trim_ascii_start().starts_with(b"{") => bundle,
                Ok(_) | Err(Error::NotFound { .. } | Error::Unauthorized { .. }) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            root.verify(address, bytes, &bundle).map(Some)
        }
        SignedArtifact::Manifest(manifest, bundles) => {
            let mut failed = None;
            for bundle in bundles {
                match root.verify(address, manifest, bundle) {
                    Ok(signer) => return Ok(Some(signer)),
                    Err(error) => failed = Some(error),
                }
            }
            failed.map_or(Ok(None), Err)
        }
    }
}

async fn read_missing(
    tree: &mut FileTree,
    commit: Option<&GitCommit>,
    paths: &[String],
) -> Result<()> {
    match commit {
        Some(commit) => commit.read_files(tree, paths).await,
        None => Ok(()),
    }
}

/// Describes a skill by its document, or by its folder where the document says nothing.
fn offer(place: &SkillFolder, document: &[u8], root_name: &str) -> OfferedSkill {
    let front = std::str::from_utf8(document).ok().and_then(|text| {
        let split = frontmatter::split_document(text).ok()?;
        Some(Frontmatter::parse(split.yaml, 2).ok()?.to_json())
    });
    let text = |key: &str| Some(front.as_ref()?.get(key)?.as_str()?.trim().to_owned());
    let folder = match place.folder.rsplit('/').next() {
        None | Some("") => root_name,
        Some(last) => last,
    };
    let named = text("name").filter(|name| name.parse::<SkillName>().is_ok());
    OfferedSkill {
        name: named.unwrap_or_else(|| match folder.parse::<SkillName>() {
            Ok(name) => name.to_string(),
            Err(_) => make_slug(folder),
        }),
        description: to_single_line(&text("description").unwrap_or_default()),
        folder: place.folder.clone(),
        version: None,
        plugin: place.plugin.clone(),
    }
}

fn has_ignored(path: &str) -> bool {
    path.split('/').any(is_ignored)
}

/// Refuses a folder with an entry that is no regular file.
fn check_entries(tree: &FileTree, folder: &str) -> Result<()> {
    for (path, entry) in tree.entries_beneath(folder) {
        if let TreeEntry::Other(what) = entry
            && !has_ignored(path)
        {
            let shown = crate::plugin::join(folder, path);
            return Err(Error::refused(&shown, format!("is {what}")));
        }
    }
    Ok(())
}

/// Collects the files of a skill under the rules for all skills.
fn collect_files(tree: &FileTree, folder: &str, location: &str) -> Result<(SkillFiles, Digest)> {
    check_entries(tree, folder)?;
    let refuse = |path: &str, error: repertoire_core::Error| {
        let shown = crate::plugin::join(folder, path);
        Error::refused(&format!("{location}: {shown}"), error.to_string())
    };
    let mut limits = ManifestBuilder::default();
    let mut files = SkillFiles::new();
    let beneath = tree.entries_beneath(folder);
    let has_document = beneath.iter().any(|(path, _)| *path == DOCUMENT);
    for (path, _) in beneath {
        if has_ignored(path) {
            continue;
        }
        // Another spelling of the document, which only some file systems find.
        let is_document = !has_document && path.eq_ignore_ascii_case(DOCUMENT);
        let name = if is_document { DOCUMENT } else { path };
        let parsed: RelPath = name.parse().map_err(|error| refuse(path, error))?;
        let full = crate::plugin::join(folder, path);
        let content = tree
            .contents
            .get(&full)
            .cloned()
            .ok_or_else(|| Error::refused(location, format!("did not send the file {full}")))?;
        limits
            .reserve_file(&parsed, content.len() as u64)
            .map_err(|error| refuse(path, error))?;
        limits.push(FileEntry::from_bytes(parsed.clone(), &content));
        files.insert(parsed, content);
    }
    let manifest: Manifest = limits.finish().map_err(|error| refuse("", error))?;
    Ok((files, manifest.digest()))
}

/// Unpacks an archive that holds one skill, at its root or in one folder.
pub fn unpack_skill(name: &str, bytes: &[u8]) -> Result<SkillFiles> {
    let limits = FetchLimits {
        total_bytes: repertoire_core::MAX_BYTES,
        entries: 4 * repertoire_core::MAX_FILES,
        ..FetchLimits::default()
    };
    let tree = read_archive(name, bytes, &limits)?.without_wrapper();
    let folder = match tree.entries.keys().next() {
        Some(first) if !tree.entries.contains_key(DOCUMENT) => {
            first.split('/').next().unwrap_or_default().to_owned()
        }
        _ => String::new(),
    };
    Ok(collect_files(&tree, &folder, name)?.0)
}
