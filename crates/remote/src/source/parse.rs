//! Parses sources as people write them.

use std::path::PathBuf;

use repertoire_core::Digest;
use url::Url;

use super::{CLAWHUB, ClawHubSource, GitSource, OciSource, SkillSource, SourcePlace};
use crate::{
    archive::ArchiveFormat,
    error::{Error, Result},
};

/// The longest source that is read.
const MAX_BYTES: usize = 2048;
/// Where `owner/repo` is.
const GITHUB: &str = "https://github.com";

/// Refuses what no source is, and what a terminal or a program would misread.
pub(super) fn check_text(text: &str) -> Result<()> {
    let refuse = |reason: &str| {
        Err(Error::Source {
            text: text.chars().take(200).collect(),
            reason: reason.to_owned(),
        })
    };
    if text.is_empty() {
        return refuse("a source is a folder, an address, or owner/repo");
    }
    if text.len() > MAX_BYTES {
        return refuse("a source has at most 2048 bytes");
    }
    if text.starts_with('-') {
        return refuse("starts with a hyphen, like an option");
    }
    if text.chars().any(|c| c.is_control() || c == '\u{feff}') {
        return refuse("holds a control character");
    }
    Ok(())
}

/// Parses an address, or `owner/repo`.
pub(super) fn parse_address(text: &str) -> Result<SkillSource> {
    if let Some(rest) = text.strip_prefix("oci://") {
        return parse_oci(text, &format!("oci://{rest}"));
    }
    if text.starts_with("clawhub:") || text.starts_with("clawhub+") {
        return parse_clawhub(text);
    }
    if let Some(url) = text.strip_prefix("git+") {
        return parse_git_url(text, url);
    }
    if text.starts_with("ssh://") || text.starts_with("file://") {
        return parse_git_url(text, text);
    }
    if text.starts_with("http://") || text.starts_with("https://") {
        return parse_web(text);
    }
    if is_scp_address(text) {
        return parse_git_url(text, text);
    }
    // An address without its beginning.
    let first = text.split('/').next().unwrap_or_default();
    if first.contains('.') && text.matches('/').count() >= 2 && !text.contains("://") {
        let mut found = parse_web(&format!("https://{text}"))?;
        text.clone_into(&mut found.text);
        return Ok(found);
    }
    if text.contains("://") {
        return Err(Error::Source {
            text: text.to_owned(),
            reason: "only http, https, ssh, git+, oci and clawhub addresses are known".to_owned(),
        });
    }
    parse_shorthand(text)
}

/// Returns what a path is, if it is one.
pub(super) fn find_local(text: &str) -> Option<SourcePlace> {
    let path = match text.strip_prefix("~/") {
        Some(rest) => std::env::home_dir()?.join(rest),
        None => PathBuf::from(text),
    };
    let is_written_as_path = text.starts_with(['.', '/', '~']) || text.contains('\\');
    let found = path.metadata().ok();
    if found.is_none() && !is_written_as_path {
        return None;
    }
    if found.as_ref().is_some_and(std::fs::Metadata::is_file) {
        if let Some(format) = ArchiveFormat::from_name(text) {
            return Some(SourcePlace::Archive(path, format));
        }
        if path
            .extension()
            .is_some_and(|e| e.eq_ignore_ascii_case("json"))
        {
            return Some(SourcePlace::Package(path));
        }
    }
    let is_bare = path.join("HEAD").is_file() && path.join("objects").is_dir();
    if is_bare && !path.join("SKILL.md").exists() {
        let full = std::path::absolute(&path).ok()?;
        let url = Url::from_file_path(full).ok()?;
        return Some(SourcePlace::Git(GitSource {
            url: url.to_string(),
            reference: None,
            folder: None,
        }));
    }
    Some(SourcePlace::Folder(path))
}

/// Whether text is `user@host:path`, as ssh and git write it.
fn is_scp_address(text: &str) -> bool {
    text.split_once(':').is_some_and(|(host, path)| {
        !host.contains('/') && host.contains('@') && !path.is_empty() && !path.starts_with('/')
    })
}

fn parse_git_url(text: &str, url: &str) -> Result<SkillSource> {
    let refuse = |reason: &str| {
        Err(Error::Source {
            text: text.to_owned(),
            reason: reason.to_owned(),
        })
    };
    let (address, reference) = match url.split_once('#') {
        Some((address, reference)) => (address, Some(reference)),
        None => (url, None),
    };
    // As in `owner/repo@skill`.
    let (address, skill) = match address.rsplit_once(".git@") {
        Some((_, skill)) if !skill.is_empty() && !skill.contains(['/', '@']) => {
            (&address[..address.len() - skill.len() - 1], Some(skill))
        }
        _ => (address, None),
    };
    if is_scp_address(address) {
        let (host, path) = address.split_once(':').unwrap_or_default();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_@".contains(c);
        if host.starts_with('-') || !host.chars().all(is_plain) || path.starts_with('-') {
            return refuse("is no address of a git server");
        }
    } else {
        let Ok(parsed) = Url::parse(address) else {
            return refuse("is no valid address");
        };
        if !matches!(parsed.scheme(), "http" | "https" | "ssh" | "file") {
            return refuse("git is asked over https, http, ssh and files only");
        }
        if parsed.password().is_some()
            || (parsed.scheme() != "ssh" && !parsed.username().is_empty())
        {
            return refuse("holds a password: leave logins to git's credential helpers");
        }
        if parsed.scheme() != "file" && parsed.host_str().is_none_or(|host| host.starts_with('-')) {
            return refuse("names no host");
        }
        if parsed.username().starts_with('-') {
            return refuse("names no user");
        }
        if parsed.query().is_some() {
            return refuse("a git address has no query");
        }
    }
    if let Some(reference) = reference {
        check_reference(text, reference)?;
    }
    Ok(SkillSource {
        text: text.to_owned(),
        place: SourcePlace::Git(GitSource {
            url: address.to_owned(),
            reference: reference.map(str::to_owned),
            folder: None,
        }),
        skill: skill.map(str::to_owned),
    })
}

/// Refuses what git would not take as the name of a branch or tag, or would take as an option.
pub(super) fn check_reference(text: &str, reference: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "./-_+@".contains(c) || !c.is_ascii();
    let bad = reference.is_empty()
        || reference.len() > 255
        || reference.starts_with(['-', '/', '.'])
        || reference.ends_with(['/', '.'])
        || reference.contains("..")
        || reference.contains("//")
        || reference.contains("@{")
        || !reference.chars().all(is_plain);
    if bad {
        return Err(Error::Source {
            text: text.to_owned(),
            reason: format!("{reference:?} is no name of a branch, tag or commit"),
        });
    }
    Ok(())
}

/// Checks a folder within a repository: relative, without `.` and `..`.
fn check_folder(text: &str, folder: &str) -> Result<Option<String>> {
    let folder = folder.trim_matches('/');
    if folder.is_empty() {
        return Ok(None);
    }
    let bad = |part: &str| part.is_empty() || part == "." || part == "..";
    if folder.split('/').any(bad) {
        return Err(Error::Source {
            text: text.to_owned(),
            reason: format!("{folder:?} is no folder of a repository"),
        });
    }
    Ok(Some(folder.to_owned()))
}

/// Whether the name of a parameter says that its value is a secret.
fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let words = [
        "token",
        "key",
        "sig",
        "secret",
        "password",
        "auth",
        "credential",
    ];
    words.iter().any(|word| name.contains(word))
}

/// Whether an address ends like one of a repository.
#[allow(
    clippy::case_sensitive_file_extension_comparisons,
    reason = "git servers tell these apart"
)]
fn has_git_ending(address: &str) -> bool {
    address.ends_with(".git")
}

fn parse_web(text: &str) -> Result<SkillSource> {
    let refuse = |reason: String| {
        Err(Error::Source {
            text: text.to_owned(),
            reason,
        })
    };
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(error) => return refuse(format!("is no valid address: {error}")),
    };
    if !url.username().is_empty() || url.password().is_some() {
        return refuse("must not hold a password".to_owned());
    }
    if url.query_pairs().any(|(name, _)| is_secret_name(&name)) {
        // It would be written into files that others read.
        return refuse("its query holds what looks like a secret".to_owned());
    }
    let host = url.host_str().unwrap_or_default();
    let parts: Vec<&str> = url.path_segments().into_iter().flatten().collect();
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    // The pages of these sites show folders of repositories.
    let found = match host {
        "github.com" | "www.github.com" => {
            find_page(&parts, &["tree"], 2).or_else(|| find_page(&parts, &["blob"], 2))
        }
        "bitbucket.org" => find_page(&parts, &["src"], 2),
        "codeberg.org" => find_page(&parts, &["src", "branch"], 2)
            .or_else(|| find_page(&parts, &["src", "tag"], 2)),
        _ => {
            let at = parts
                .windows(2)
                .position(|two| two == ["-", "tree"] || two == ["-", "blob"]);
            at.and_then(|at| {
                find_page(&parts, &["-", "tree"], at)
                    .or_else(|| find_page(&parts, &["-", "blob"], at))
            })
        }
    };
    let git = |url: String, reference: Option<String>, folder: Option<String>| SkillSource {
        text: text.to_owned(),
        place: SourcePlace::Git(GitSource {
            url,
            reference,
            folder,
        }),
        skill: None,
    };
    let origin = url.origin().ascii_serialization();
    if let Some((repository, reference, mut folder)) = found {
        check_reference(text, reference)?;
        if folder
            .last()
            .is_some_and(|last| last.eq_ignore_ascii_case("SKILL.md"))
        {
            folder.pop();
        }
        let folder = folder.join("/");
        let folder = percent_decode(&folder);
        let folder = check_folder(text, &folder)?;
        let repository = repository.join("/");
        let repository = repository.trim_end_matches(".git");
        let address = format!("{origin}/{repository}.git");
        return Ok(git(address, Some(reference.to_owned()), folder));
    }
    let is_repository = matches!(
        host,
        "github.com" | "www.github.com" | "bitbucket.org" | "codeberg.org" | "gitlab.com"
    ) && parts.len() == 2
        || parts.contains(&"_git");
    let names_skill = url
        .path()
        .rsplit('/')
        .next()
        .is_some_and(|last| last.contains(".git@"));
    if is_repository || names_skill || has_git_ending(url.path()) {
        let (address, _) = text.split_once('#').unwrap_or((text, ""));
        let mut found = parse_git_url(
            text,
            &match url.fragment() {
                Some(reference) => format!("{address}#{reference}"),
                None => address.to_owned(),
            },
        )?;
        if let SourcePlace::Git(git) = &mut found.place
            && is_repository
            && !has_git_ending(&git.url)
            && !parts.contains(&"_git")
        {
            git.url = format!("{}.git", git.url.trim_end_matches('/'));
        }
        return Ok(found);
    }
    if url.fragment().is_some() {
        return refuse("must not have a fragment".to_owned());
    }
    Ok(SkillSource {
        text: text.to_owned(),
        place: SourcePlace::Web(url),
        skill: None,
    })
}

/// Returns the repository, the reference and the folder of a page that shows a folder, which is marked
/// by these parts after the repository.
fn find_page<'a>(
    parts: &[&'a str],
    marks: &[&str],
    repository: usize,
) -> Option<(Vec<&'a str>, &'a str, Vec<&'a str>)> {
    let rest = parts.get(repository..)?;
    if !rest.starts_with(marks) {
        return None;
    }
    let (reference, folder) = rest.get(marks.len()..)?.split_first()?;
    Some((parts[..repository].to_vec(), reference, folder.to_vec()))
}

fn percent_decode(text: &str) -> String {
    // The parser of queries decodes plus signs too, which paths keep.
    let kept = text.replace('+', "%2B");
    let pairs = format!("a={}", kept.replace('&', "%26"));
    url::form_urlencoded::parse(pairs.as_bytes())
        .next()
        .map_or_else(String::new, |(_, value)| value.into_owned())
}

fn parse_shorthand(text: &str) -> Result<SkillSource> {
    let refuse = || Error::Source {
        text: text.to_owned(),
        reason: "is no folder here, and no owner/repo[@skill][#ref]".to_owned(),
    };
    let (rest, reference) = match text.split_once('#') {
        Some((rest, reference)) => (rest, Some(reference)),
        None => (text, None),
    };
    let (rest, skill) = match rest.split_once('@') {
        Some((rest, skill)) => (rest, Some(skill)),
        None => (rest, None),
    };
    let mut parts = rest.splitn(3, '/');
    let (Some(owner), Some(repository)) = (parts.next(), parts.next()) else {
        return Err(refuse());
    };
    let is_name = |name: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !name.is_empty() && !name.starts_with(['-', '.']) && name.chars().all(plain)
    };
    if !is_name(owner) || !is_name(repository) || skill.is_some_and(str::is_empty) {
        return Err(refuse());
    }
    if let Some(reference) = reference {
        check_reference(text, reference)?;
    }
    let repository = repository.trim_end_matches(".git");
    Ok(SkillSource {
        text: text.to_owned(),
        place: SourcePlace::Git(GitSource {
            url: format!("{GITHUB}/{owner}/{repository}.git"),
            reference: reference.map(str::to_owned),
            folder: check_folder(text, parts.next().unwrap_or_default())?,
        }),
        skill: skill.map(str::to_owned),
    })
}

pub(super) fn parse_oci(text: &str, address: &str) -> Result<SkillSource> {
    let refuse = |reason: &str| {
        Err(Error::Source {
            text: text.to_owned(),
            reason: reason.to_owned(),
        })
    };
    let rest = address.strip_prefix("oci://").unwrap_or(address);
    let Some((registry, rest)) = rest.split_once('/') else {
        return refuse("write oci://registry/repository[:tag|@digest]");
    };
    let (rest, digest) = match rest.split_once('@') {
        Some((rest, digest)) => match digest.parse::<Digest>() {
            Ok(digest) => (rest, Some(digest)),
            Err(_) => {
                return refuse("its digest is not of the form sha256:<64 hexadecimal digits>");
            }
        },
        None => (rest, None),
    };
    let (repository, tag) = match rest.split_once(':') {
        Some((repository, tag)) => (repository, Some(tag)),
        None => (rest, None),
    };
    let is_host = Url::parse(&format!("https://{registry}/"))
        .is_ok_and(|url| url.username().is_empty() && url.path() == "/");
    if registry.is_empty() || !is_host || registry.contains(['@', '?', '#']) {
        return refuse("names no registry");
    }
    let part_is_valid = |part: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        part.chars().all(plain)
            && part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    if repository.len() > 255 || !repository.split('/').all(part_is_valid) {
        return refuse("its repository is not of lowercase letters, digits, '.', '_', '-' and '/'");
    }
    let tag_is_valid = |tag: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        !tag.is_empty()
            && tag.len() <= 128
            && !tag.starts_with(['.', '-'])
            && tag.chars().all(plain)
    };
    if tag.is_some_and(|tag| !tag_is_valid(tag)) {
        return refuse("its tag is not valid");
    }
    Ok(SkillSource {
        text: text.to_owned(),
        place: SourcePlace::Oci(OciSource {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            tag: tag.map(str::to_owned),
            digest,
        }),
        skill: None,
    })
}

fn parse_clawhub(text: &str) -> Result<SkillSource> {
    let refuse = |reason: &str| Error::Source {
        text: text.to_owned(),
        reason: reason.to_owned(),
    };
    let form = "write clawhub:[@owner/]name[@version]";
    let (registry, name) = match text.strip_prefix("clawhub+") {
        Some(rest) => {
            // The last part is the name; an owner before it starts with @.
            let at = rest.rfind("/@").or_else(|| rest.rfind('/'));
            let at = at.ok_or_else(|| refuse(form))?;
            (&rest[..at], &rest[at + 1..])
        }
        None => (CLAWHUB, text.strip_prefix("clawhub:").unwrap_or_default()),
    };
    let registry = Url::parse(registry).map_err(|_| refuse("names no registry"))?;
    if !matches!(registry.scheme(), "http" | "https") || registry.host_str().is_none() {
        return Err(refuse("names no registry"));
    }
    if !registry.username().is_empty() || registry.password().is_some() {
        return Err(refuse("must not hold a password"));
    }
    let (owner, rest) = match name.strip_prefix('@') {
        Some(rest) => {
            let (owner, rest) = rest.split_once('/').ok_or_else(|| refuse(form))?;
            (Some(owner), rest)
        }
        None => (None, name),
    };
    let (slug, version) = match rest.split_once('@') {
        Some((slug, version)) => (slug, Some(version)),
        None => (rest, None),
    };
    let is_name = |name: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
        !name.is_empty()
            && name.len() <= 128
            && !name.starts_with(['-', '.'])
            && name.chars().all(plain)
    };
    if ![Some(slug), owner, version]
        .into_iter()
        .flatten()
        .all(is_name)
    {
        return Err(refuse(form));
    }
    Ok(SkillSource {
        text: text.to_owned(),
        place: SourcePlace::ClawHub(ClawHubSource {
            registry,
            owner: owner.map(str::to_owned),
            slug: slug.to_owned(),
            version: version.map(str::to_owned),
        }),
        skill: None,
    })
}

#[cfg(test)]
mod tests {
    use crate::SkillSource;

    fn parse(text: &str) -> SkillSource {
        text.parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn sources_are_read_as_people_write_them() {
        for (text, location, skill) in [
            ("acme/skills", "https://github.com/acme/skills.git", None),
            (
                "acme/skills@pdf",
                "https://github.com/acme/skills.git",
                Some("pdf"),
            ),
            (
                "acme/skills@pdf#v1.2",
                "https://github.com/acme/skills.git#v1.2",
                Some("pdf"),
            ),
            (
                "acme/skills/tools/pdf",
                "https://github.com/acme/skills.git (tools/pdf)",
                None,
            ),
            (
                "https://github.com/acme/skills",
                "https://github.com/acme/skills.git",
                None,
            ),
            (
                "https://github.com/acme/skills/tree/main/tools/pdf",
                "https://github.com/acme/skills.git#main (tools/pdf)",
                None,
            ),
            (
                "https://github.com/acme/skills/blob/main/tools/pdf/SKILL.md",
                "https://github.com/acme/skills.git#main (tools/pdf)",
                None,
            ),
            (
                "https://git.example.com/a/b/c/-/tree/v1/x%20y",
                "https://git.example.com/a/b/c.git#v1 (x y)",
                None,
            ),
            (
                "https://example.com/r.git#dev",
                "https://example.com/r.git#dev",
                None,
            ),
            ("git+https://example.com/r", "https://example.com/r", None),
            (
                "git@example.com:acme/r.git",
                "git@example.com:acme/r.git",
                None,
            ),
            (
                "ssh://git@example.com/r.git",
                "ssh://git@example.com/r.git",
                None,
            ),
            ("https://example.com/docs", "https://example.com/docs", None),
            (
                "oci://ghcr.io/acme/pdf:1.0",
                "oci://ghcr.io/acme/pdf:1.0",
                None,
            ),
            (
                "oci://127.0.0.1:5000/acme/pdf",
                "oci://127.0.0.1:5000/acme/pdf",
                None,
            ),
            ("clawhub:pdf", "clawhub:pdf", None),
            ("clawhub:@acme/pdf@1.0", "clawhub:@acme/pdf@1.0", None),
            (
                "clawhub+http://127.0.0.1:9/@acme/pdf",
                "clawhub+http://127.0.0.1:9/@acme/pdf",
                None,
            ),
        ] {
            let source = parse(text);
            assert_eq!(source.location(), location, "{text}");
            assert_eq!(source.skill(), skill, "{text}");
            assert_eq!(source.as_str(), text);
        }
    }

    #[test]
    fn t52_sources_that_look_like_options_or_hold_passwords_are_refused() {
        for text in [
            "",
            "--upload-pack=touch /tmp/x",
            "-oProxyCommand=x",
            "git+ext::sh -c touch",
            "ext::sh",
            "git://example.com/r.git",
            "ssh://-oProxyCommand=x/r",
            "ssh://git:secret@example.com/r.git",
            "git@-oProxyCommand=x:r",
            "-x@example.com:r",
            "https://me:secret@example.com/r.git",
            "https://token@example.com/",
            "https://example.com/x.zip?access_token=x",
            "https://example.com/x.zip?X-Amz-Signature=x",
            "acme/skills#--upload-pack=x",
            "acme/skills#a..b",
            "acme/skills#a b",
            "acme/skills#refs/@{1}",
            "acme/skills/../../x",
            "acme/skills\u{1b}[31m",
            "acme",
            "-/x",
            "oci://host",
            "oci://host/UPPER",
            "oci://u@host/x",
            "oci://host/x:-tag",
            "oci://host/x@sha256:12",
            "clawhub:",
            "clawhub:../x",
            "clawhub:@a",
            "clawhub+file:///x/y",
            "ftp://example.com/x",
        ] {
            let refused = text.parse::<SkillSource>();
            let error = refused.map(|s| s.location()).expect_err(text);
            assert_eq!(error.code(), "invalid_source", "{text}");
            assert!(!error.to_string().contains('\u{1b}'));
        }
    }
}
