//! The error type of the core.
//!
//! Every error names the rejected value, the rule it broke and, through [`Error::hint`], what to
//! do next. The [`code`](Error::code) is stable: callers and the hostile corpus match on it, never
//! on the message.

/// A result of the core.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A value that broke a rule.
///
/// ```
/// use repertoire_core::SkillId;
///
/// let error = "Billing".parse::<SkillId>().unwrap_err();
/// assert_eq!(error.code(), "invalid_id");
/// assert!(error.to_string().contains("lowercase"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A skill id, skill name, prompt name or function id outside its grammar.
    #[error("{}{rule}", describe_value(kind, value))]
    Id {
        /// What was being named.
        kind: &'static str,
        /// The text as given, cut to a readable length.
        value: String,
        /// The rule it broke.
        rule: &'static str,
    },
    /// A name that matches the grammar but is reserved by the product.
    #[error("{kind} {value:?} is reserved: {rule}")]
    Reserved {
        /// What was being named.
        kind: &'static str,
        /// The reserved name.
        value: String,
        /// Why it is reserved.
        rule: &'static str,
    },
    /// A relative path that could leave its root or differ between platforms.
    #[error("path {path:?}: {rule}")]
    Path {
        /// The path as given.
        path: String,
        /// The rule it broke.
        rule: &'static str,
    },
    /// A text that is not a valid `skill://` or `iii://` URI.
    #[error("URI {uri:?}: {rule}")]
    Uri {
        /// The URI as given.
        uri: String,
        /// The rule it broke.
        rule: String,
    },
    /// A text that is not a valid `sha256:` digest.
    #[error("digest {0:?}: must be `sha256:` and 64 lowercase hexadecimal digits")]
    Digest(String),
    /// Bytes that must be UTF-8 and are not.
    #[error("{path}: not valid UTF-8 (first bad byte at offset {offset})")]
    NotUtf8 {
        /// The file.
        path: String,
        /// Byte offset of the first invalid byte.
        offset: usize,
    },
    /// A document without a frontmatter block.
    #[error("line {line}: {rule}")]
    NoFrontmatter {
        /// Line in the document, from 1.
        line: usize,
        /// What was expected there.
        rule: &'static str,
    },
    /// Frontmatter that is not acceptable YAML.
    #[error("line {line}: {rule}")]
    Frontmatter {
        /// Line in the document, from 1.
        line: usize,
        /// The rule it broke.
        rule: String,
    },
    /// Frontmatter that is no YAML at all.
    #[error("line {line}: {rule}")]
    FrontmatterSyntax {
        /// Line in the document, from 1.
        line: usize,
        /// What was found there.
        rule: String,
    },
    /// Frontmatter past its byte, depth, node or alias budget.
    #[error("line {line}: frontmatter is too large: {rule}")]
    FrontmatterBudget {
        /// Line in the document, from 1.
        line: usize,
        /// The budget it broke.
        rule: String,
    },
    /// A field of a document or prompt that has to have a value.
    #[error("{0} must be non-empty")]
    EmptyField(&'static str),
    /// A field of a document or prompt with an unusable value.
    #[error("field `{field}`: {rule}")]
    Field {
        /// The field.
        field: String,
        /// The rule it broke.
        rule: String,
    },
    /// A function in a namespace that is reserved for the bus.
    #[error(
        "function {function:?} is in the internal namespace `{prefix}`: it cannot be reached here"
    )]
    Internal {
        /// The function.
        function: String,
        /// The prefix that is guarded.
        prefix: String,
    },
    /// The same path twice in one skill.
    #[error("file {0:?} is in the set twice")]
    DuplicatePath(String),
    /// Every URI that more than one skill claims.
    #[error("claimed by more than one skill: {}", .0.join(", "))]
    DuplicateUris(Vec<String>),
    /// Two paths that are one file on a case-insensitive or normalising file system.
    #[error("files {first:?} and {second:?} are the same name on some file systems")]
    CollidingPaths {
        /// The path that was there.
        first: String,
        /// The path that collides with it.
        second: String,
    },
    /// More files than a host accepts.
    #[error("{count} files: a skill has at most {max}")]
    TooManyFiles {
        /// How many there are.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// More bytes than allowed.
    #[error("{what} is too large: {size} bytes, at most {max}")]
    TooLarge {
        /// What is too large.
        what: String,
        /// Its size.
        size: u64,
        /// The limit.
        max: u64,
    },
    /// A skill without its `SKILL.md`.
    #[error("no SKILL.md at the root of the skill")]
    NoDocument,
    /// A package that is not well formed.
    #[error("package: {0}")]
    Package(String),
    /// Two artifacts with the same name and model variant.
    #[error("package: artifact {name:?} (variant {variant}) is there twice")]
    DuplicateArtifact {
        /// The artifact's name.
        name: String,
        /// Its model variant, `default` for none.
        variant: String,
    },
    /// An unknown artifact kind.
    #[error(
        "package: artifact kind {0:?} is unknown: use description, prompt_template, \
         code_template, dspy_module, approach or example"
    )]
    UnknownKind(String),
    /// The kind of a stored span is not known to this version.
    #[error("trace: span kind {0:?} is unknown")]
    UnknownSpanKind(String),
}

impl Error {
    /// The stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Id { .. } => "invalid_id",
            Self::Reserved { .. } => "reserved_id",
            Self::Path { .. } => "invalid_path",
            Self::Uri { .. } => "invalid_uri",
            Self::Digest(_) => "invalid_digest",
            Self::NotUtf8 { .. } => "not_utf8",
            Self::NoFrontmatter { .. } => "missing_frontmatter",
            Self::Frontmatter { .. } | Self::FrontmatterSyntax { .. } => "invalid_frontmatter",
            Self::FrontmatterBudget { .. } => "frontmatter_too_large",
            Self::EmptyField(_) | Self::Field { .. } => "invalid_field",
            Self::Internal { .. } => "internal_namespace",
            Self::DuplicatePath(_) => "duplicate_path",
            Self::DuplicateUris(_) => "duplicate_uri",
            Self::CollidingPaths { .. } => "colliding_paths",
            Self::TooManyFiles { .. } => "too_many_files",
            Self::TooLarge { .. } => "too_large",
            Self::NoDocument => "missing_document",
            Self::Package(_) => "invalid_package",
            Self::DuplicateArtifact { .. } => "duplicate_artifact",
            Self::UnknownKind(_) => "unknown_kind",
            Self::UnknownSpanKind(_) => "unknown_span_kind",
        }
    }

    /// Returns what to do next, where the message does not make it clear.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Id { .. } => {
                "use lowercase letters, digits, `-` and `_` in segments of 1 to 64 characters"
            }
            Self::Reserved { .. } => "choose another first segment",
            Self::Internal { .. } => "use a function of one of your own workers",
            Self::Path { .. } => "use a plain relative path such as `references/notes.md`",
            Self::Uri { .. } => "write `skill://<skill>/SKILL.md`, `iii://<id>` or `iii://skills`",
            Self::NotUtf8 { .. } => "save the file as UTF-8",
            Self::NoFrontmatter { .. } => {
                "open the file with a line `---`, then `name:` and `description:`, then `---`"
            }
            Self::FrontmatterBudget { .. } => "keep frontmatter short; move content into the body",
            Self::DuplicatePath(_) | Self::CollidingPaths { .. } => "rename one of the files",
            Self::DuplicateUris(_) => "give one of them another path",
            Self::TooManyFiles { .. } | Self::TooLarge { .. } => {
                "split the skill, or leave generated and binary files out of it"
            }
            Self::NoDocument => "add a SKILL.md with `name` and `description` frontmatter",
            Self::DuplicateArtifact { .. } => {
                "give each artifact its own name, or its own model_variant"
            }
            _ => return None,
        })
    }
}

/// The start of a message about a name. An empty one is not quoted: "skill id must be non-empty".
fn describe_value(kind: &str, value: &str) -> String {
    if value.is_empty() {
        return format!("{kind} ");
    }
    format!("{kind} {value:?}: ")
}

/// Shortens untrusted input to a length that fits an error message.
pub(crate) fn input_excerpt(text: &str) -> String {
    const KEEP: usize = 80;
    match text.char_indices().nth(KEEP) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
