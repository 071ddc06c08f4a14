//! What exactly was fetched, so that the same can be fetched again.

use std::{fmt, str::FromStr};

use repertoire_core::Digest;
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    git::is_commit_id,
};

/// What exactly was fetched, so that the same can be fetched again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Pin {
    /// The commit of a repository.
    Commit(String),
    /// The manifest of an OCI artifact.
    OciManifest(Digest),
    /// An archive or a document.
    Artifact(Digest),
    /// The set of files itself, where there is no other.
    Files(Digest),
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commit(id) => write!(f, "git:{id}"),
            Self::OciManifest(digest) => write!(f, "oci:{digest}"),
            Self::Artifact(digest) => write!(f, "artifact:{digest}"),
            Self::Files(digest) => write!(f, "files:{digest}"),
        }
    }
}

impl FromStr for Pin {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = || Error::Source {
            text: text.chars().take(100).collect(),
            reason: "is no pin: git:<commit>, or oci:, artifact: or files: with a digest"
                .to_owned(),
        };
        let (kind, value) = text.split_once(':').ok_or_else(refuse)?;
        let digest = || value.parse::<Digest>().map_err(|_| refuse());
        Ok(match kind {
            "git" if is_commit_id(value) => Self::Commit(value.to_owned()),
            "oci" => Self::OciManifest(digest()?),
            "artifact" => Self::Artifact(digest()?),
            "files" => Self::Files(digest()?),
            _ => return Err(refuse()),
        })
    }
}

impl TryFrom<String> for Pin {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Pin> for String {
    fn from(pin: Pin) -> Self {
        pin.to_string()
    }
}
