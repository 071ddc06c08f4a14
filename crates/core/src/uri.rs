//! One grammar for `skill://` and `iii://`, used by every surface.
//!
//! `iii://` holds ids only, so nothing in it is ever percent-encoded. `skill://` holds file names,
//! so each segment is decoded exactly once and then has to be a valid [`RelPath`]. Schemes match
//! exactly; queries, fragments and credentials do not exist.

use std::{fmt, str::FromStr, sync::Arc};

use crate::{
    error::{Error, Result, input_excerpt},
    id::{SkillId, name_type},
    path::RelPath,
};

/// An address of something Repertoire serves.
///
/// ```
/// use repertoire_core::Uri;
///
/// let uri: Uri = "iii://fn/resend/email/send".parse()?;
/// assert!(matches!(&uri, Uri::Function(f) if f.as_str() == "resend::email::send"));
/// assert_eq!(uri.to_string(), "iii://fn/resend/email/send");
/// # Ok::<(), repertoire_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Uri {
    /// `iii://skills`: the rendered index.
    Index,
    /// `iii://<id>`: the body of a skill.
    Body(SkillId),
    /// `iii://fn/<a>/<b>`: the result of the function `a::b`.
    Function(FunctionId),
    /// `skill://index.json`: the discovery index of the draft surface.
    DiscoveryIndex,
    /// `skill://<skill>/<file>`: a file or a directory of a skill.
    Skill(SkillUri),
}

impl Uri {
    /// The URI of a skill's document.
    pub fn for_document(id: &SkillId) -> Self {
        Self::for_file(id, &RelPath::document())
    }

    /// Appends the URI of a file of a skill to `out`, without building a value.
    pub fn push_file(out: &mut String, id: &SkillId, path: &RelPath) {
        out.push_str("skill://");
        out.push_str(id.as_str());
        out.push('/');
        if path.as_str().bytes().all(is_unreserved) {
            out.push_str(path.as_str());
        } else {
            // Writing to a string cannot fail.
            let _ = fmt::Write::write_fmt(out, format_args!("{}", PercentEncoded(path.as_str())));
        }
    }

    /// The `skill://` URI of a path that contains both skill and file.
    pub fn from_path(path: &RelPath) -> Self {
        Self::Skill(SkillUri(path.as_str().into()))
    }

    /// The URI of a file of a skill.
    pub fn for_file(id: &SkillId, path: &RelPath) -> Self {
        Self::Skill(SkillUri(format!("{id}/{path}").into()))
    }
}

/// The path of a `skill://` URI, decoded.
///
/// Skills nest, so only the catalogue knows where the skill ends and the file begins;
/// [`possible_splits`](Self::possible_splits) gives the possibilities, longest skill first.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SkillUri(Arc<str>);

impl SkillUri {
    /// The decoded path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Every way to read this as (skill, file within it), longest skill first.
    ///
    /// ```
    /// use repertoire_core::Uri;
    ///
    /// let Uri::Skill(uri) = "skill://a/b/SKILL.md".parse::<Uri>()? else { panic!() };
    /// let splits: Vec<_> = uri.possible_splits().map(|(id, path)| format!("{id} + {path}")).collect();
    /// assert_eq!(splits, ["a/b + SKILL.md", "a + b/SKILL.md"]);
    /// # Ok::<(), repertoire_core::Error>(())
    /// ```
    pub fn possible_splits(&self) -> impl Iterator<Item = (SkillId, RelPath)> {
        self.0.rmatch_indices('/').filter_map(|(at, _)| {
            Some((self.0[..at].parse().ok()?, self.0[at + 1..].parse().ok()?))
        })
    }

    /// The whole path as a skill id, for the URI of a skill's root directory.
    pub fn to_skill_id(&self) -> Option<SkillId> {
        self.0.parse().ok()
    }
}

/// The id of a function on the bus: segments joined by `::`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId(Arc<str>);
name_type!(FunctionId);

impl FromStr for FunctionId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let ok = |s: &str| {
            (1..=64).contains(&s.len())
                && s.bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        };
        if text.len() <= 1024 && text.split("::").all(ok) {
            return Ok(Self(text.into()));
        }
        Err(Error::Id {
            kind: "function id",
            value: input_excerpt(text),
            rule: "segments of 1 to 64 ASCII letters, digits, `-` and `_`, joined by `::`",
        })
    }
}

impl FromStr for Uri {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |rule: &str| Error::Uri {
            uri: input_excerpt(text),
            rule: rule.to_owned(),
        };
        let inner = |error: &Error| refuse(&error.to_string());
        if let Some(rest) = text.strip_prefix("iii://") {
            if rest == "skills" {
                return Ok(Self::Index);
            }
            if let Some(path) = rest.strip_prefix("fn/") {
                let function = path.replace('/', "::");
                // A `:` in the path would alias another spelling of the same function.
                if path.contains(':') {
                    return Err(refuse("write `/` between the segments of a function"));
                }
                return function.parse().map(Self::Function).map_err(|e| inner(&e));
            }
            return rest.parse().map(Self::Body).map_err(|e| inner(&e));
        }
        if let Some(rest) = text.strip_prefix("skill://") {
            if rest == "index.json" {
                return Ok(Self::DiscoveryIndex);
            }
            let segments: Vec<String> = rest
                .split('/')
                .map(decode_segment)
                .collect::<Result<_, _>>()
                .map_err(refuse)?;
            let path: RelPath = segments.join("/").parse().map_err(|e| inner(&e))?;
            return Ok(Self::Skill(SkillUri(path.as_str().into())));
        }
        Err(refuse("must start with `skill://` or `iii://`"))
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index => f.write_str("iii://skills"),
            Self::Body(id) => write!(f, "iii://{id}"),
            Self::Function(id) => write!(f, "iii://fn/{}", id.as_str().replace("::", "/")),
            Self::DiscoveryIndex => f.write_str("skill://index.json"),
            Self::Skill(uri) => {
                f.write_str("skill://")?;
                encode_path(uri.as_str(), f)
            }
        }
    }
}

/// Decodes one segment, once.
fn decode_segment(segment: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let pair = [rest.next(), rest.next()];
                let [Some(high), Some(low)] =
                    pair.map(|b| b.and_then(|b| char::from(b).to_digit(16)))
                else {
                    return Err("`%` must be followed by two hexadecimal digits");
                };
                let decoded = u8::try_from(high * 16 + low).unwrap_or_default();
                if decoded == b'/' || decoded == b'\\' {
                    return Err("an encoded path separator is not allowed");
                }
                bytes.push(decoded);
            }
            b'?' | b'#' => return Err("queries and fragments are not part of skill URIs"),
            b' ' => return Err("a space must be written `%20`"),
            _ => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| "must decode to UTF-8")
}

/// Whether a byte needs no encoding in a URI's path.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte)
}

/// A path that is displayed percent-encoded.
struct PercentEncoded<'a>(&'a str);

impl fmt::Display for PercentEncoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        encode_path(self.0, f)
    }
}

fn encode_path(path: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if path.bytes().all(is_unreserved) {
        return f.write_str(path);
    }
    for byte in path.bytes() {
        if is_unreserved(byte) {
            fmt::Write::write_char(f, char::from(byte))?;
        } else {
            write!(f, "%{byte:02X}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_uri_form_round_trips() {
        for text in [
            "iii://skills",
            "iii://a",
            "iii://a/b/c",
            "iii://fn/a",
            "iii://fn/a/b",
            "skill://index.json",
            "skill://a/SKILL.md",
            "skill://a/b%20c.md",
            "skill://a",
        ] {
            let uri: Uri = text.parse().unwrap();
            assert_eq!(uri.to_string(), text);
        }
    }

    #[test]
    fn t1_traversal_in_every_spelling_is_refused() {
        for bad in [
            "",
            "a",
            "III://a",
            "iii:a",
            "iii://",
            "iii://A",
            "iii://a/",
            "iii://a//b",
            "iii://a/../b",
            "iii://a%2fb",
            "iii://fn/",
            "iii://fn",
            "iii://fn//a",
            "iii://fn/a::b",
            "iii://fn/a%3a%3ab",
            "iii://fn/a.b",
            "file:///etc/passwd",
            "skill://",
            "skill:///a",
            "skill://a/../b",
            "skill://a/%2e%2e/b",
            "skill://a/%252e%252e/b",
            "skill://a/b%2fc",
            "skill://a/b%5cc",
            "skill://a/b\\c",
            "skill://a/%00",
            "skill://a/x%3Ay",
            "skill://a/%zz",
            "skill://a/%4",
            "skill://a/b?x",
            "skill://a/b#x",
            "skill://a/b c",
            "skill://u@h/a:80",
            "skill://a/b.",
            "skill://a/nul",
            "skill://a/%ff",
        ] {
            assert_eq!(
                bad.parse::<Uri>().unwrap_err().code(),
                "invalid_uri",
                "{bad:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn parsing_a_formatted_uri_gives_the_same_uri(text in "(iii|skill)://(fn/)?[a-zA-Z0-9%/._ é:-]{0,40}") {
            if let Ok(uri) = text.parse::<Uri>() {
                let shown = uri.to_string();
                let again: Uri = shown.parse().unwrap();
                prop_assert_eq!(&again, &uri);
                prop_assert_eq!(again.to_string(), shown);
            }
        }

        #[test]
        fn parsing_any_text_never_panics(text in any::<String>()) {
            let _ = text.parse::<Uri>();
            let _ = format!("skill://{text}").parse::<Uri>();
            let _ = format!("iii://{text}").parse::<Uri>();
        }

        #[test]
        fn every_file_uri_resolves_to_its_skill_and_path(id in "[a-z]{1,5}(/[a-z]{1,5}){0,3}", path in "[^/]{1,12}(/[^/]{1,12}){0,2}") {
            let Ok(id) = id.parse::<SkillId>() else { return Ok(()) };
            let Ok(path) = path.parse::<RelPath>() else { return Ok(()) };
            // An id with the name of a device is served under `iii://` only.
            if id.as_str().parse::<RelPath>().is_err() { return Ok(()) }
            let Uri::Skill(uri) = Uri::for_file(&id, &path).to_string().parse::<Uri>().unwrap() else {
                return Err(TestCaseError::fail("not a skill URI"));
            };
            prop_assert!(uri.possible_splits().any(|(i, p)| i == id && p == path));
        }
    }

    #[test]
    fn the_document_uri_ends_in_skill_md() {
        let id: SkillId = "acme/refunds".parse().unwrap();
        assert_eq!(
            Uri::for_document(&id).to_string(),
            "skill://acme/refunds/SKILL.md"
        );
    }
}
