//! One typed piece of a package.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use uuid::Uuid;

use super::ArtifactMetadata;
use crate::{
    error::{Error, Result, input_excerpt},
    path::RelPath,
};

/// The kind of an artifact, which selects its handler.
///
/// Matches name every kind, so that the compiler points at each place that handles a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ArtifactKind {
    /// The purpose of the skill; added to the context.
    Description,
    /// A template rendered and sent to a model.
    PromptTemplate,
    /// Python run in the sandbox.
    CodeTemplate,
    /// A DSPy module run in the sidecar.
    DspyModule,
    /// Guidance put into the system prompt.
    Approach,
    /// A worked example put into the conversation.
    Example,
}

impl ArtifactKind {
    /// Whether it is context for a model and is not executed.
    pub const fn is_context(self) -> bool {
        match self {
            Self::Description | Self::Approach | Self::Example => true,
            Self::PromptTemplate | Self::CodeTemplate | Self::DspyModule => false,
        }
    }

    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Description,
        Self::PromptTemplate,
        Self::CodeTemplate,
        Self::DspyModule,
        Self::Approach,
        Self::Example,
    ];

    /// The word used in JSON and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Description => "description",
            Self::PromptTemplate => "prompt_template",
            Self::CodeTemplate => "code_template",
            Self::DspyModule => "dspy_module",
            Self::Approach => "approach",
            Self::Example => "example",
        }
    }

    /// The extension of such an artifact's file in the folder form.
    pub(super) fn file_extension(self) -> &'static str {
        match self {
            Self::Description | Self::Approach | Self::Example => "md",
            Self::PromptTemplate => "j2",
            Self::CodeTemplate => "py",
            Self::DspyModule => "json",
        }
    }
}

impl std::str::FromStr for ArtifactKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| Error::UnknownKind(input_excerpt(text)))
    }
}

impl Serialize for ArtifactKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ArtifactKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse()
            .map_err(|_| D::Error::custom(format!("unknown kind `{}`", input_excerpt(&text))))
    }
}

/// One typed piece of a package.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Artifact {
    /// A UUID; made from package, name and variant when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Uuid>,
    /// What it is.
    pub kind: ArtifactKind,
    /// Its name, unique within the package for each variant.
    pub name: String,
    /// Its position in display and execution.
    #[serde(default)]
    pub ordinal: i64,
    /// The template, code, text or JSON itself. In the folder form it is in `file` instead.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content: String,
    /// Its file in the folder form, where that is not the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<RelPath>,
    /// The model family it is meant for; none is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_variant: Option<String>,
    /// Kind-specific settings: assertions, fallback, limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ArtifactMetadata>,
    /// Serialised DSPy state, base64 in JSON.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "state_in_json"
    )]
    pub state_blob: Option<Vec<u8>>,
    /// When it was made, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// When it was last changed, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
}

impl Artifact {
    /// Creates an artifact without content.
    pub fn new(kind: ArtifactKind, name: impl Into<String>) -> Self {
        Self {
            id: None,
            kind,
            name: name.into(),
            ordinal: 0,
            content: String::new(),
            file: None,
            model_variant: None,
            metadata: None,
            state_blob: None,
            created_at: None,
            updated_at: None,
        }
    }

    /// The name of the fallback artifact, if there is one.
    pub fn fallback_name(&self) -> Option<&str> {
        self.metadata.as_ref()?.get("fallback_artifact")?.as_str()
    }

    pub(super) fn check_artifact(&self) -> Result<()> {
        let refuse = |text: String| Err(Error::Package(text));
        let name = &self.name;
        if name.trim().is_empty() || name.chars().count() > 128 {
            return refuse(format!(
                "artifact name {:?}: 1 to 128 characters are needed",
                input_excerpt(name)
            ));
        }
        if let Some(variant) = &self.model_variant {
            let ok = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if variant.is_empty() || variant.len() > 64 || !variant.chars().all(ok) {
                return refuse(format!(
                    "artifact {name:?}: model_variant {:?} must be 1 to 64 letters, digits, `.`, \
                     `_` or `-`",
                    input_excerpt(variant)
                ));
            }
        }
        if self.state_blob.is_some() && self.kind != ArtifactKind::DspyModule {
            return refuse(format!(
                "artifact {name:?}: only a dspy_module has a state_blob"
            ));
        }
        if self.content.contains('\0') {
            return refuse(format!(
                "artifact {name:?}: the content holds a NUL character"
            ));
        }
        if let Some(file) = &self.file
            && (file.is_document() || file.as_str() == super::PACKAGE_FILE)
        {
            return refuse(format!("artifact {name:?}: {file} cannot be its file"));
        }
        Ok(())
    }
}

mod state_in_json {
    use super::{BASE64_STANDARD, Deserialize, Deserializer, Engine, Serializer};

    #[allow(clippy::ref_option, reason = "the signature serde calls")]
    pub(super) fn serialize<S: Serializer>(
        state: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match state {
            Some(bytes) => serializer.serialize_str(&BASE64_STANDARD.encode(bytes)),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let Some(text) = <Option<String>>::deserialize(deserializer)? else {
            return Ok(None);
        };
        BASE64_STANDARD
            .decode(text)
            .map(Some)
            .map_err(|e| serde::de::Error::custom(format!("state_blob: base64: {e}")))
    }
}
