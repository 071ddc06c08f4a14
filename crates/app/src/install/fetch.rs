//! Gets skills from their sources, or from the cache, for an installation.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use repertoire_core::{
    Digest, FileEntry, Frontmatter, MAX_BYTES, Manifest, Package, Signer, SkillId, frontmatter,
    markdown::to_single_line,
};
use repertoire_registry::{folder, store::LocalStore};
use repertoire_remote::{
    ClawHubResult, FetchLimits, FetchedSkill, Fetcher, OfferedSkill, OpenedSource, Pin,
    SkillSource, SourcePlace, SourceProblem, SourceReach, TrustRoot,
};

use super::skill_cache::SkillCache;
use crate::{
    SkillFiles,
    error::{Error, Result, io_error_at},
    skill_files::outermost_skills,
};

/// The kind of a record that the user knows a host on a private network.
const PRIVATE_HOST_KIND: &str = "private-host";
/// The file of the account with other authorities for signatures.
const TRUST_ROOT_FILE: &str = "trusted_root.json";
/// The most bytes of that file.
const MAX_TRUST_ROOT_BYTES: u64 = 4 * 1024 * 1024;

/// How sources are asked.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools, reason = "one field per flag")]
pub struct FetchOptions {
    /// Use only what was fetched before.
    pub offline: bool,
    /// Allow private networks.
    pub private: bool,
    /// Accept another signer than the recorded one, or none.
    pub allow_signer_change: bool,
    /// Accept other content under a version or a tag that was installed before.
    pub allow_moved: bool,
    /// Limits of the answers.
    pub limits: FetchLimits,
}

/// Returns the file with the authorities that signatures are checked against, instead of those of the
/// public Sigstore instance.
pub fn trust_root_file(account: &Path) -> PathBuf {
    account.join(TRUST_ROOT_FILE)
}

/// Who named a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NamedBy {
    /// The user, just now.
    User,
    /// A file of a project.
    Project,
}

/// What a source has, before anything of it is installed.
#[derive(Debug)]
pub struct SourceOffer {
    /// Where it is, in full.
    pub location: String,
    /// Its skills.
    pub skills: Vec<OfferedSkill>,
    /// What of it is not used.
    pub problems: Vec<SourceProblem>,
    pub(super) opened: OpenedOffer,
}

/// How the files of an offer are read.
#[derive(Debug)]
pub(super) enum OpenedOffer {
    /// A source that answered.
    Remote(Box<OpenedSource>),
    /// Folders of this machine.
    Folders(Vec<PathBuf>),
    /// A package of this machine.
    Package(Box<SkillFiles>),
}

/// Asks sources, with the rights of one user.
#[derive(Debug)]
pub(super) struct SourceReader<'a> {
    pub(super) account: &'a Path,
    pub(super) local: Option<&'a LocalStore>,
    pub(super) cache: &'a SkillCache,
    pub(super) options: &'a FetchOptions,
    pub(super) runtime: &'a tokio::runtime::Runtime,
    /// A folder for what is there only while a source is read.
    pub(super) scratch: PathBuf,
}

/// One skill that is wanted, and what is known of it.
#[derive(Debug, Clone)]
pub(super) struct FetchRequest {
    pub(super) id: SkillId,
    pub(super) source: SkillSource,
    /// What has to be fetched; the newest if nothing is pinned.
    pub(super) pin: Option<Pin>,
    /// The digest that it has to have.
    pub(super) digest: Option<Digest>,
    pub(super) signer: Option<Signer>,
    pub(super) version: Option<String>,
}

/// A skill with where it came from.
#[derive(Debug, Clone)]
pub(super) struct FetchedFrom {
    pub(super) skill: FetchedSkill,
    pub(super) resolved: String,
    /// Whether the cache had it, so that no request was sent.
    pub(super) from_cache: bool,
}

impl SourceReader<'_> {
    /// Decides which networks a source may lead to: a private one only if the source itself is there.
    fn reach(&self, source: &SkillSource, named_by: NamedBy) -> SourceReach {
        let is_private = source.host().is_some_and(|host| is_private_host(&host));
        if self.options.private || self.knows_host(source) {
            return if is_private {
                SourceReach::PrivateAddresses
            } else {
                SourceReach::PrivateNames
            };
        }
        match named_by {
            NamedBy::User if is_private => SourceReach::PrivateAddresses,
            NamedBy::User | NamedBy::Project => SourceReach::PublicOnly,
        }
    }

    fn knows_host(&self, source: &SkillSource) -> bool {
        let (Some(local), Some(host)) = (self.local, source.host()) else {
            return false;
        };
        let known = local.find_approval(PRIVATE_HOST_KIND, &host);
        known.is_ok_and(|known| known.is_some())
    }

    /// Remembers that the user added from this host, so that projects may name it.
    pub(super) fn remember_host(&self, source: &SkillSource) -> Result<()> {
        let (Some(local), Some(host)) = (self.local, source.host()) else {
            return Ok(());
        };
        // Public hosts need no permission, and get none.
        let is_private =
            is_private_host(&host) || (self.options.private && resolves_privately(&host));
        if !is_private {
            return Ok(());
        }
        Ok(local.grant_approval(PRIVATE_HOST_KIND, &host, "")?)
    }

    pub(super) fn fetcher(&self, source: &SkillSource) -> Result<Fetcher> {
        let fetcher = Fetcher::new(self.options.limits).with_scratch(self.scratch.clone());
        let is_signed = matches!(source.place(), SourcePlace::Web(_) | SourcePlace::Oci(_));
        if !is_signed {
            return Ok(fetcher);
        }
        let own = folder::read_small_file(self.account, TRUST_ROOT_FILE, MAX_TRUST_ROOT_BYTES)?;
        let root = match own {
            Some(bytes) => {
                let text = std::str::from_utf8(&bytes).unwrap_or_default();
                TrustRoot::from_json(text)?
            }
            None => TrustRoot::public()?,
        };
        Ok(fetcher.with_trust_root(root))
    }

    /// Opens a source and lists what it has.
    pub(super) fn open(
        &self,
        source: &SkillSource,
        named_by: NamedBy,
        pin: Option<&Pin>,
    ) -> Result<SourceOffer> {
        match source.place() {
            SourcePlace::Folder(path) => open_folder(path),
            SourcePlace::Package(path) => open_package(path),
            _ if self.options.offline && !source.is_local() => {
                Err(Error::Offline(source.location()))
            }
            _ => {
                let fetcher = self.fetcher(source)?;
                let reach = self.reach(source, named_by);
                let opened = self.runtime.block_on(fetcher.open(source, reach, pin))?;
                Ok(SourceOffer {
                    location: opened.location.clone(),
                    skills: opened.skills.clone(),
                    problems: opened.problems.clone(),
                    opened: OpenedOffer::Remote(Box::new(opened)),
                })
            }
        }
    }

    /// Returns what a source would give now, if that can be known cheaply.
    pub(super) fn look_up(&self, source: &SkillSource) -> Result<Option<Pin>> {
        let fetcher = self.fetcher(source)?;
        let reach = self.reach(source, NamedBy::Project);
        Ok(self.runtime.block_on(fetcher.look_up(source, reach))?)
    }

    /// Returns the newest version of a skill in a ClawHub registry.
    pub(super) fn newest_version(&self, source: &SkillSource) -> Result<Option<String>> {
        let fetcher = self.fetcher(source)?;
        let reach = self.reach(source, NamedBy::Project);
        Ok(self
            .runtime
            .block_on(fetcher.newest_version(source, reach))?)
    }

    /// Searches the registry of a source.
    pub(super) fn search(
        &self,
        source: &SkillSource,
        words: &str,
        limit: usize,
    ) -> Result<Vec<ClawHubResult>> {
        let SourcePlace::ClawHub(place) = source.place() else {
            return Ok(Vec::new());
        };
        if self.options.offline {
            return Err(Error::Offline(source.location()));
        }
        let reach = self.reach(source, NamedBy::User);
        let fetcher = self.fetcher(source)?;
        let searching = fetcher.search(&place.registry, reach, words, limit);
        Ok(self.runtime.block_on(searching)?)
    }

    /// Gets skills: from the cache where the digest is known, else from their sources, each of which is
    /// asked once. A skill that cannot be got is an error of its own.
    pub(super) fn fetch(
        &self,
        requests: &[FetchRequest],
        named_by: NamedBy,
    ) -> BTreeMap<SkillId, Result<FetchedFrom>> {
        let mut found = BTreeMap::new();
        let mut groups: BTreeMap<(String, Option<String>), Vec<&FetchRequest>> = BTreeMap::new();
        for request in requests {
            if let Some(kept) = self.find_kept(request) {
                found.insert(request.id.clone(), Ok(kept));
                continue;
            }
            let place = request.source.location();
            let pin = request.pin.as_ref().map(ToString::to_string);
            groups.entry((place, pin)).or_default().push(request);
        }
        for group in groups.into_values() {
            let Some(first) = group.first() else { continue };
            match self.open(&first.source, named_by, first.pin.as_ref()) {
                Ok(mut offer) => {
                    for (request, fetched) in self.read_group(&mut offer, &group) {
                        found.insert(request.id.clone(), fetched);
                    }
                }
                Err(error) => {
                    let error = SharedError::new(error);
                    for request in group {
                        found.insert(request.id.clone(), Err(error.get()));
                    }
                }
            }
        }
        found
    }

    /// Returns a skill of the cache, if the digest that it has to have is known.
    ///
    /// The signer is the one that was verified when it was kept; if a lock says another one, the
    /// source is asked.
    fn find_kept(&self, request: &FetchRequest) -> Option<FetchedFrom> {
        let (digest, pin) = (request.digest?, request.pin.clone()?);
        let kept = self.cache.get(&digest)?;
        if kept.signer != request.signer {
            return None;
        }
        Some(FetchedFrom {
            skill: FetchedSkill {
                name: request.id.name().to_owned(),
                folder: String::new(),
                files: kept.files,
                digest,
                pin,
                version: request.version.clone(),
                signer: kept.signer,
            },
            resolved: request.source.location(),
            from_cache: true,
        })
    }

    fn read_group<'r>(
        &self,
        offer: &mut SourceOffer,
        group: &[&'r FetchRequest],
    ) -> Vec<(&'r FetchRequest, Result<FetchedFrom>)> {
        let mut results = Vec::new();
        let mut chosen: Vec<(&FetchRequest, usize)> = Vec::new();
        for request in group {
            match choose(offer, request.source.skill(), request.id.name()) {
                Ok(index) => chosen.push((*request, index)),
                Err(error) => results.push((*request, Err(error))),
            }
        }
        let indexes: Vec<usize> = chosen.iter().map(|(_, index)| *index).collect();
        let location = offer.location.clone();
        match self.read(offer, &indexes) {
            Ok(read) => {
                for ((request, _), fetched) in chosen.into_iter().zip(read) {
                    let fetched = fetched.and_then(|skill| {
                        check_digest(request, &skill)?;
                        if request.digest.is_some() {
                            self.cache
                                .put(&skill.digest, &skill.files, skill.signer.as_ref());
                        }
                        Ok(FetchedFrom {
                            skill,
                            resolved: location.clone(),
                            from_cache: false,
                        })
                    });
                    results.push((request, fetched));
                }
            }
            Err(error) => {
                let error = SharedError::new(error);
                for (request, _) in chosen {
                    results.push((request, Err(error.get())));
                }
            }
        }
        results
    }

    /// Reads chosen skills of an offer.
    pub(super) fn read(
        &self,
        offer: &mut SourceOffer,
        chosen: &[usize],
    ) -> Result<Vec<Result<FetchedSkill>>> {
        let read: Vec<Result<FetchedSkill>> = match &mut offer.opened {
            OpenedOffer::Remote(opened) => {
                let read = self.runtime.block_on(opened.read(chosen))?;
                read.into_iter()
                    .map(|one| one.map_err(Error::from))
                    .collect()
            }
            OpenedOffer::Folders(folders) => {
                let folders = chosen.iter().filter_map(|index| folders.get(*index));
                folders.map(|path| local_skill(path)).collect()
            }
            OpenedOffer::Package(files) => {
                let name = offer.skills.first().map(|skill| skill.name.as_str());
                vec![as_fetched(
                    name.unwrap_or_default(),
                    SkillFiles::clone(files),
                )]
            }
        };
        Ok(read)
    }
}

/// Returns the index of the wanted skill: the named one, the one of the same name as the id, or the
/// only one.
pub(super) fn choose(offer: &SourceOffer, named: Option<&str>, name: &str) -> Result<usize> {
    let position = |wanted: &str| {
        offer
            .skills
            .iter()
            .position(|skill| skill.name.eq_ignore_ascii_case(wanted))
            .or_else(|| {
                let last = |skill: &OfferedSkill| {
                    skill.folder == wanted || skill.folder.rsplit('/').next() == Some(wanted)
                };
                offer.skills.iter().position(last)
            })
    };
    let found = match (named, offer.skills.as_slice()) {
        (Some(named), _) => position(named),
        (None, [_]) => Some(0),
        (None, _) => position(name),
    };
    found.ok_or_else(|| {
        let all: Vec<&str> = offer.skills.iter().map(|s| s.name.as_str()).collect();
        Error::NoSuchOffer {
            wanted: named.unwrap_or(name).to_owned(),
            location: offer.location.clone(),
            names: all.join(", "),
        }
    })
}

/// Refuses content that is not what was pinned.
fn check_digest(request: &FetchRequest, skill: &FetchedSkill) -> Result<()> {
    match request.digest {
        Some(expected) if expected != skill.digest => {
            Err(Error::Remote(repertoire_remote::Error::DigestMismatch {
                address: format!("{} of {}", request.id, request.source.location()),
                expected: expected.to_string(),
                found: skill.digest.to_string(),
            }))
        }
        _ => Ok(()),
    }
}

fn open_folder(path: &Path) -> Result<SourceOffer> {
    crate::require_folder(path)?;
    let (folders, skipped) = outermost_skills(path)?;
    let skills = folders.iter().map(|folder| {
        let name = folder.canonicalize().unwrap_or_else(|_| folder.clone());
        let name = name.file_name().unwrap_or_default().to_string_lossy();
        OfferedSkill {
            name: name.into_owned(),
            description: read_description(folder).unwrap_or_default(),
            folder: folder.to_string_lossy().into_owned(),
            version: None,
            plugin: None,
        }
    });
    Ok(SourceOffer {
        location: path.display().to_string(),
        skills: skills.collect(),
        problems: skipped
            .iter()
            .map(|error| SourceProblem {
                subject: path.display().to_string(),
                reason: error.to_string(),
            })
            .collect(),
        opened: OpenedOffer::Folders(folders),
    })
}

/// Returns what the document of a folder says about its skill.
fn read_description(path: &Path) -> Option<String> {
    let (_, bytes) = folder::read_document(path).ok()??;
    let split = frontmatter::split_document(std::str::from_utf8(&bytes).ok()?).ok()?;
    let front = Frontmatter::parse(split.yaml, 2).ok()?.to_json();
    Some(to_single_line(front.get("description")?.as_str()?))
}

fn open_package(path: &Path) -> Result<SourceOffer> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let parent = parent.unwrap_or(Path::new("."));
    let bytes = folder::read_small_file(parent, &name, MAX_BYTES * 2)?;
    let missing = || io_error_at(path)(std::io::ErrorKind::NotFound.into());
    let package = Package::from_json(&bytes.ok_or_else(missing)?)?;
    let (id, files) = package.to_stored_folder()?;
    Ok(SourceOffer {
        location: path.display().to_string(),
        skills: vec![OfferedSkill {
            name: id.to_string(),
            description: package.description.clone(),
            folder: String::new(),
            version: Some(package.version.clone()),
            plugin: None,
        }],
        problems: Vec::new(),
        opened: OpenedOffer::Package(Box::new(files)),
    })
}

fn local_skill(path: &Path) -> Result<FetchedSkill> {
    let files = folder::read_folder(path)?;
    let name = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    as_fetched(&name, files)
}

fn as_fetched(name: &str, files: SkillFiles) -> Result<FetchedSkill> {
    let digest = files_digest(&files)?;
    Ok(FetchedSkill {
        name: name.to_owned(),
        folder: String::new(),
        files,
        digest,
        pin: Pin::Files(digest),
        version: None,
        signer: None,
    })
}

/// Returns the list of a set of files.
pub(super) fn file_entries(files: &SkillFiles) -> Result<Vec<FileEntry>> {
    let entries = files
        .iter()
        .map(|(path, bytes)| FileEntry::from_bytes(path.clone(), bytes));
    Ok(Manifest::new(entries)?.into_files().into_vec())
}

/// Returns the digest of a set of files.
pub(super) fn files_digest(files: &SkillFiles) -> Result<Digest> {
    Ok(Manifest::digest_of(&file_entries(files)?))
}

/// Whether the name of a host leads to a private network.
fn resolves_privately(host: &str) -> bool {
    let with_port = match host.rsplit_once(':') {
        Some((_, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host.to_owned(),
        _ => format!("{host}:443"),
    };
    let found = std::net::ToSocketAddrs::to_socket_addrs(&with_port);
    found.is_ok_and(|mut found| found.any(|address| !repertoire_remote::is_public(address.ip())))
}

/// Whether a host is an address of a private network, or this machine.
fn is_private_host(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_matches(['[', ']']);
    match name.parse::<std::net::IpAddr>() {
        Ok(ip) => !repertoire_remote::is_public(ip),
        Err(_) => name == "localhost" || name.ends_with(".localhost"),
    }
}

/// An error that several skills have in common: the first one gets it, the others its text.
struct SharedError {
    first: std::cell::RefCell<Option<Error>>,
    code: &'static str,
    text: String,
}

impl SharedError {
    fn new(error: Error) -> Self {
        Self {
            code: error.code(),
            text: error.to_string(),
            first: std::cell::RefCell::new(Some(error)),
        }
    }

    fn get(&self) -> Error {
        let first = self.first.borrow_mut().take();
        first.unwrap_or_else(|| Error::SameSource {
            code: self.code,
            message: self.text.clone(),
        })
    }
}
