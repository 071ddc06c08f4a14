//! Where skills are, as users and project files write it.
//!
//! Invariant: nothing in a source can be taken for an option of a program, and no source holds a
//! password.

mod parse;

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use repertoire_core::Digest;
use url::Url;

use crate::{
    archive::ArchiveFormat,
    error::{Error, Result},
};
use parse::{check_reference, check_text, find_local, parse_address, parse_oci};

/// The public ClawHub registry.
const CLAWHUB: &str = "https://clawhub.ai";

/// Which networks a source may lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceReach {
    /// The public internet only.
    PublicOnly,
    /// Private networks too, if the source names an IP address or this machine.
    PrivateAddresses,
    /// Private networks too, by address or by name.
    PrivateNames,
}

/// Where skills are, and which one is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillSource {
    text: String,
    place: SourcePlace,
    skill: Option<String>,
}

/// A place that has skills.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourcePlace {
    /// A folder on this machine.
    Folder(PathBuf),
    /// An archive on this machine.
    Archive(PathBuf, ArchiveFormat),
    /// A package in its JSON form, on this machine.
    Package(PathBuf),
    /// A git repository.
    Git(GitSource),
    /// A web address: an index of skills, an archive or a document.
    Web(Url),
    /// An artifact in an OCI registry.
    Oci(OciSource),
    /// A skill in a ClawHub registry.
    ClawHub(ClawHubSource),
}

/// A git repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitSource {
    /// Its URL, or `user@host:path`.
    pub url: String,
    /// A branch, a tag or a commit.
    pub reference: Option<String>,
    /// Only this folder of it.
    pub folder: Option<String>,
}

/// An artifact in an OCI registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OciSource {
    /// The registry: a host with an optional port.
    pub registry: String,
    /// The repository.
    pub repository: String,
    /// A tag.
    pub tag: Option<String>,
    /// The digest of a manifest.
    pub digest: Option<Digest>,
}

/// A skill in a ClawHub registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClawHubSource {
    /// The registry.
    pub registry: Url,
    /// Who published it.
    pub owner: Option<String>,
    /// Its name there.
    pub slug: String,
    /// The version; the latest if there is none.
    pub version: Option<String>,
}

impl SkillSource {
    /// The source as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The place.
    pub fn place(&self) -> &SourcePlace {
        &self.place
    }

    /// The skill that is meant, if the place has several.
    pub fn skill(&self) -> Option<&str> {
        self.skill.as_deref()
    }

    /// Means one skill of the place.
    #[must_use]
    pub fn with_skill(self, skill: &str) -> Self {
        Self {
            skill: Some(skill.to_owned()),
            ..self
        }
    }

    /// Uses a branch, tag, version or digest, where the place has them and none was written.
    pub fn with_reference(self, reference: &str) -> Result<Self> {
        let refuse = |reason: &str| {
            Err(Error::Source {
                text: self.text.clone(),
                reason: reason.to_owned(),
            })
        };
        let place = match &self.place {
            SourcePlace::Git(git) if git.reference.is_none() => {
                check_reference(&self.text, reference)?;
                SourcePlace::Git(GitSource {
                    reference: Some(reference.to_owned()),
                    ..git.clone()
                })
            }
            SourcePlace::ClawHub(clawhub) if clawhub.version.is_none() => {
                SourcePlace::ClawHub(ClawHubSource {
                    version: Some(reference.to_owned()),
                    ..clawhub.clone()
                })
            }
            SourcePlace::Oci(oci) if oci.tag.is_none() && oci.digest.is_none() => {
                let text = format!("oci://{}/{}", oci.registry, oci.repository);
                let separator = if reference.starts_with("sha256:") {
                    '@'
                } else {
                    ':'
                };
                return parse_oci(&text, &format!("{text}{separator}{reference}"));
            }
            SourcePlace::Git(_) | SourcePlace::ClawHub(_) | SourcePlace::Oci(_) => {
                return refuse("names a version already");
            }
            _ => return refuse("has no branches, tags or versions"),
        };
        Ok(Self { place, ..self })
    }

    /// Whether it is a file or folder on this machine.
    pub fn is_local(&self) -> bool {
        match &self.place {
            SourcePlace::Folder(_) | SourcePlace::Archive(..) | SourcePlace::Package(_) => true,
            SourcePlace::Git(git) => git.url.starts_with("file://"),
            SourcePlace::Web(_) | SourcePlace::Oci(_) | SourcePlace::ClawHub(_) => false,
        }
    }

    /// The host that is asked first, with its port; none on this machine.
    pub fn host(&self) -> Option<String> {
        let of_url = |url: &Url| {
            let host = url.host_str()?;
            Some(match url.port() {
                Some(port) => format!("{host}:{port}"),
                None => host.to_owned(),
            })
        };
        match &self.place {
            SourcePlace::Folder(_) | SourcePlace::Archive(..) | SourcePlace::Package(_) => None,
            SourcePlace::Git(git) => match Url::parse(&git.url) {
                Ok(url) => of_url(&url),
                Err(_) => git
                    .url
                    .split_once(':')
                    .map(|(host, _)| host.rsplit('@').next().unwrap_or(host).to_owned()),
            },
            SourcePlace::Web(url) => of_url(url),
            SourcePlace::Oci(oci) => Some(oci.registry.clone()),
            SourcePlace::ClawHub(clawhub) => of_url(&clawhub.registry),
        }
    }

    /// The place in full, without the chosen skill.
    pub fn location(&self) -> String {
        self.place.to_string()
    }
}

impl fmt::Display for SourcePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) | Self::Archive(path, _) | Self::Package(path) => {
                write!(f, "{}", path.display())
            }
            Self::Git(git) => {
                f.write_str(&git.url)?;
                if let Some(reference) = &git.reference {
                    write!(f, "#{reference}")?;
                }
                match &git.folder {
                    Some(folder) => write!(f, " ({folder})"),
                    None => Ok(()),
                }
            }
            Self::Web(url) => write!(f, "{url}"),
            Self::Oci(oci) => {
                write!(f, "oci://{}/{}", oci.registry, oci.repository)?;
                if let Some(tag) = &oci.tag {
                    write!(f, ":{tag}")?;
                }
                match &oci.digest {
                    Some(digest) => write!(f, "@{digest}"),
                    None => Ok(()),
                }
            }
            Self::ClawHub(clawhub) => {
                if clawhub.registry.as_str().trim_end_matches('/') == CLAWHUB {
                    f.write_str("clawhub:")?;
                } else {
                    let registry = clawhub.registry.as_str().trim_end_matches('/');
                    write!(f, "clawhub+{registry}/")?;
                }
                if let Some(owner) = &clawhub.owner {
                    write!(f, "@{owner}/")?;
                }
                f.write_str(&clawhub.slug)?;
                match &clawhub.version {
                    Some(version) => write!(f, "@{version}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl FromStr for SkillSource {
    type Err = Error;

    /// Parses what a user typed: what is there as a file or folder is meant.
    fn from_str(text: &str) -> Result<Self> {
        check_text(text)?;
        let is_address = text.contains(':') && !text.starts_with(['.', '/', '~']);
        match find_local(text).filter(|_| !is_address) {
            Some(place) => Ok(Self {
                text: text.to_owned(),
                place,
                skill: None,
            }),
            None => parse_address(text),
        }
    }
}

impl SkillSource {
    /// Parses what a project file says: only paths that begin with `./` or `../` are paths, relative to
    /// the project's folder, so that it means the same everywhere.
    pub fn parse_in_project(text: &str, folder: &Path) -> Result<Self> {
        check_text(text)?;
        if !text.starts_with(['.', '/', '~']) {
            return parse_address(text);
        }
        let path = folder.join(text);
        let place = find_local(&path.to_string_lossy());
        Ok(Self {
            text: text.to_owned(),
            place: place.unwrap_or(SourcePlace::Folder(path)),
            skill: None,
        })
    }
}
