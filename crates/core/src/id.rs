//! Names: skill ids, Agent Skills names, prompt names.
//!
//! Each type can only be made by its parser, so a value of it is proof that the text is within
//! the grammar; code past the boundary never checks again.

use std::{fmt, str::FromStr, sync::Arc};

use crate::error::{Error, Result, input_excerpt};

const MAX_SEGMENT: usize = 64;
const MAX_ID: usize = 1024;

/// Returns the rule that one id segment breaks, if any.
pub(crate) fn find_segment_error(segment: &str) -> Option<&'static str> {
    if segment.is_empty() {
        Some("must be non-empty, in every segment between `/`")
    } else if segment.len() > MAX_SEGMENT {
        Some("too long: a segment has at most 64 characters")
    } else if !segment
        .bytes()
        .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'))
    {
        Some("only lowercase ASCII letters, digits, `-` and `_` are allowed between `/`")
    } else {
        None
    }
}

/// Replaces what a segment cannot have.
fn to_segment(text: &str) -> String {
    let mut segment = String::new();
    for c in text.chars() {
        match c.to_ascii_lowercase() {
            c @ ('a'..='z' | '0'..='9' | '_' | '-') => segment.push(c),
            _ if segment.ends_with('-') => {}
            _ => segment.push('-'),
        }
    }
    segment.trim_matches('-').to_owned()
}

macro_rules! name_type {
    ($name:ident) => {
        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(&self.0)
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use name_type;

/// The identity of a skill within its origin: a slashed path.
///
/// One or more segments of `[a-z0-9_-]{1,64}`, 1 024 characters in all. The first segment is
/// never `fn` (it marks function URIs) and the id `skills` is kept for the index.
///
/// ```
/// use repertoire_core::SkillId;
///
/// let id: SkillId = "acme/billing/refunds".parse()?;
/// assert_eq!(id.depth(), 2);
/// assert_eq!(id.parent().unwrap().as_str(), "acme/billing");
/// assert!("fn/echo".parse::<SkillId>().is_err());
/// assert!("docs/fn".parse::<SkillId>().is_ok());
/// # Ok::<(), repertoire_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SkillId(Arc<str>);
name_type!(SkillId);

impl SkillId {
    /// Parses a path as people name folders: letters become lowercase, other characters `-`.
    ///
    /// ```
    /// use repertoire_core::SkillId;
    ///
    /// assert_eq!(SkillId::from_path("JaneDoe/My Skill (1.2)")?.as_str(), "janedoe/my-skill-1-2");
    /// # Ok::<(), repertoire_core::Error>(())
    /// ```
    pub fn from_path(path: &str) -> Result<Self> {
        let is_valid = |part: &str| find_segment_error(part).is_none();
        if path.split('/').all(is_valid) {
            return path.parse();
        }
        let parts: Vec<String> = path.split('/').map(to_segment).collect();
        let is_nameless =
            |(given, segment): (&str, &String)| !given.is_empty() && segment.is_empty();
        if path.split('/').zip(&parts).any(is_nameless) {
            return Err(Error::Id {
                kind: "skill id",
                value: input_excerpt(path),
                rule: "a folder needs a letter from a to z or a digit in its name: rename it",
            });
        }
        parts.join("/").parse().map_err(|error| match error {
            Error::Id { kind, rule, .. } => Error::Id {
                kind,
                value: input_excerpt(path),
                rule,
            },
            other => other,
        })
    }

    /// The last segment.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// The last segment as an Agent Skills name, if it is one and the id can be a path of files.
    pub fn skill_name(&self) -> Option<SkillName> {
        // Some systems reserve names such as `nul` for devices, in any folder.
        let is_path = self.0.parse::<crate::RelPath>().is_ok();
        self.name().parse().ok().filter(|_| is_path)
    }

    /// The segments, outermost first.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// The number of segments before the last one.
    pub fn depth(&self) -> usize {
        self.0.matches('/').count()
    }

    /// The id one level up.
    pub fn parent(&self) -> Option<SkillId> {
        let (parent, _) = self.0.rsplit_once('/')?;
        parent.parse().ok()
    }
}

impl FromStr for SkillId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |rule| Error::Id {
            kind: "skill id",
            value: input_excerpt(text),
            rule,
        };
        if text.is_empty() {
            return Err(refuse("must be non-empty"));
        }
        if text.len() > MAX_ID {
            return Err(refuse("too long: an id has at most 1024 characters"));
        }
        if let Some(rule) = text.split('/').find_map(find_segment_error) {
            return Err(refuse(rule));
        }
        let reserve = |rule| Error::Reserved {
            kind: "skill id",
            value: input_excerpt(text),
            rule,
        };
        if text == "skills" {
            return Err(reserve("`iii://skills` is the index"));
        }
        if text == "fn" || text.starts_with("fn/") {
            return Err(reserve("`fn` as the first segment marks a function URI"));
        }
        Ok(Self(text.into()))
    }
}

/// A name as the Agent Skills specification defines it.
///
/// 1 to 64 lowercase ASCII letters, digits and hyphens; no hyphen first, last or doubled.
///
/// ```
/// use repertoire_core::SkillName;
///
/// assert!("pdf-forms".parse::<SkillName>().is_ok());
/// assert!("pdf--forms".parse::<SkillName>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SkillName(Arc<str>);
name_type!(SkillName);

impl FromStr for SkillName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let rule = if text.is_empty() {
            "must be non-empty"
        } else if text.len() > MAX_SEGMENT {
            "too long: a name has at most 64 characters"
        } else if !text
            .bytes()
            .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        {
            "only lowercase ASCII letters, digits and `-` are allowed"
        } else if text.starts_with('-') || text.ends_with('-') {
            "must not start or end with a hyphen"
        } else if text.contains("--") {
            "must not contain two hyphens in a row"
        } else {
            return Ok(Self(text.into()));
        };
        Err(Error::Id {
            kind: "skill name",
            value: input_excerpt(text),
            rule,
        })
    }
}

/// The name of a slash-command prompt: one segment of `[a-z0-9_-]{1,64}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PromptName(Arc<str>);
name_type!(PromptName);

impl FromStr for PromptName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match find_segment_error(text) {
            None => Ok(Self(text.into())),
            Some(rule) => Err(Error::Id {
                kind: "prompt name",
                value: input_excerpt(text),
                rule,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skill_ids_outside_the_grammar_are_refused() {
        for good in ["a", "a/b/c", "docs/fn", "a_b-c/0", "skills/x", "fnord"] {
            assert!(good.parse::<SkillId>().is_ok(), "{good}");
        }
        let longest = vec!["x".repeat(63); 16].join("/");
        assert_eq!(longest.len(), 1023);
        assert!(longest.parse::<SkillId>().is_ok());
        assert!(format!("{longest}/y").parse::<SkillId>().is_err());
        for bad in [
            "", "/", "a/", "/a", "a//b", "A", "a b", "a.b", "é", "a\0", "..", "a/../b", "%61",
        ] {
            assert_eq!(
                bad.parse::<SkillId>().unwrap_err().code(),
                "invalid_id",
                "{bad:?}"
            );
        }
        assert!("x".repeat(65).parse::<SkillId>().is_err());
        for reserved in ["skills", "fn", "fn/a"] {
            assert_eq!(
                reserved.parse::<SkillId>().unwrap_err().code(),
                "reserved_id"
            );
        }
    }

    #[test]
    fn an_id_with_a_device_name_has_no_skill_name() {
        assert!("a/nul-1".parse::<SkillId>().unwrap().skill_name().is_some());
        for device in ["nul", "con/x", "a/aux"] {
            let id: SkillId = device.parse().unwrap();
            assert_eq!(id.skill_name(), None, "{device}");
        }
    }

    #[test]
    fn depth_equals_the_number_of_parents() {
        let id: SkillId = "a/b/c".parse().unwrap();
        assert_eq!(id.depth(), 2);
        assert_eq!(id.parent().unwrap().parent().unwrap().parent(), None);
    }

    #[test]
    fn prompt_names_have_one_segment() {
        assert!("send-email".parse::<PromptName>().is_ok());
        for bad in ["", "a/b", "a::b", "a b", "Send"] {
            assert!(bad.parse::<PromptName>().is_err(), "{bad:?}");
        }
    }
}
