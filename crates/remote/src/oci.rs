//! Artifacts in OCI registries: any of the shapes in which skills are published.
//!
//! Invariants (T52): every manifest and blob is used only if its digest is the promised one and its
//! size the listed one; a blob that is listed as too large is never asked for. A login goes to its
//! registry and to the token service on the same host or over `https`, and to no redirect.
//!
//! The requests are made with the client that every other source uses, because its rules for
//! addresses, redirects and slow senders have to hold here too.

use bytes::Bytes;
use repertoire_core::Digest;
use reqwest::{StatusCode, header::HeaderValue};
use serde::Deserialize;
use serde_json::{Map, Value};
use url::Url;

use crate::{
    address::Reach,
    archive::{ArchiveFormat, read_archive},
    digest_hex::{check_digest, plain_version},
    docker_login::{RegistryLogin, sensitive_header},
    error::{Error, Result},
    file_tree::FileTree,
    http::{WebAnswer, WebClient, WebRequest},
    sigstore::{BUNDLE_TYPE, MAX_BUNDLE_BYTES},
    source::OciSource,
};

/// The most bytes of a manifest: what registries accept.
const MAX_MANIFEST_BYTES: u64 = 4 * 1024 * 1024;
/// The most bytes of the answer of a token service.
const MAX_TOKEN_BYTES: u64 = 256 * 1024;
/// The most layers of an artifact, and manifests of an index.
const MAX_PARTS: usize = 512;
/// The most signatures that are looked at.
const MAX_SIGNATURES: usize = 8;
const MANIFEST_TYPES: &str = "application/vnd.oci.image.manifest.v1+json, \
     application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.v2+json, \
     application/vnd.docker.distribution.manifest.list.v2+json";
/// The config of the agentskills form.
const SKILL_CONFIG: &str = "application/vnd.agentskills.skill.config.v1+json";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
    /// Of an index.
    #[serde(default)]
    manifests: Vec<Descriptor>,
    #[serde(default)]
    annotations: Map<String, Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: Digest,
    size: u64,
    #[serde(default)]
    artifact_type: Option<String>,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: Map<String, Value>,
}

#[derive(Debug, Clone, Deserialize)]
struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
}

/// The answer of a token service.
#[derive(Deserialize)]
struct TokenAnswer {
    #[serde(alias = "access_token")]
    token: String,
}

/// What an artifact holds.
#[derive(Debug)]
pub(crate) struct OciArtifact {
    pub(crate) tree: FileTree,
    /// The digest of the manifest that was asked for.
    pub(crate) digest: Digest,
    /// Its bytes, which signatures are made over.
    pub(crate) manifest: Bytes,
    pub(crate) version: Option<String>,
}

/// One repository of a registry.
pub(crate) struct OciRepository<'a> {
    web: WebClient,
    source: &'a OciSource,
    base: Url,
    login: RegistryLogin,
    /// What the registry wants to see, once it is known.
    authorization: Option<HeaderValue>,
}

impl<'a> OciRepository<'a> {
    /// Prepares requests to a repository. Helper programs for logins may be asked.
    pub(crate) async fn connect(source: &'a OciSource, web: &WebClient) -> Result<Self> {
        let refuse = |reason: String| Error::refused(&source.registry, reason);
        let host = match source.registry.as_str() {
            // Where the images of this name are.
            "docker.io" | "index.docker.io" => "registry-1.docker.io",
            host => host,
        };
        let https = Url::parse(&format!("https://{host}/v2/"));
        let https = https.map_err(|error| refuse(error.to_string()))?;
        // As other clients do, registries on this machine are asked without TLS.
        let is_local = match https.host() {
            Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
            Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
            Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
            None => false,
        };
        let scheme = if is_local { "http" } else { "https" };
        let base = Url::parse(&format!("{scheme}://{host}/v2/{}/", source.repository));
        let base = base.map_err(|error| refuse(error.to_string()))?;
        // Before a helper program is asked for a login.
        let _: Reach = web.reach_of(&base).await?;
        let web = web.clone().starting_at(&base);
        let registry = source.registry.clone();
        let login = tokio::task::spawn_blocking(move || RegistryLogin::find(&registry)).await;
        Ok(Self {
            web,
            source,
            base,
            login: login.unwrap_or(RegistryLogin::Anonymous),
            authorization: None,
        })
    }

    /// Returns the digest that the source means, without fetching more than the manifest.
    pub(crate) async fn resolve(&mut self) -> Result<Digest> {
        Ok(self.manifest(&self.reference()).await?.0)
    }

    fn reference(&self) -> String {
        match (&self.source.digest, &self.source.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => "latest".to_owned(),
        }
    }

    /// Fetches the artifact: the pinned one, or the one that the source names.
    pub(crate) async fn fetch(&mut self, pinned: Option<Digest>) -> Result<OciArtifact> {
        let reference = pinned.map_or_else(|| self.reference(), |digest| digest.to_string());
        let (digest, bytes) = self.manifest(&reference).await?;
        let mut manifest = self.parse_manifest(&bytes)?;
        let mut tree = FileTree::default();
        let mut left = self.web.limits().total_bytes;
        let version = |manifest: &Manifest| {
            let version = manifest.annotations.get("org.opencontainers.image.version");
            version.and_then(Value::as_str).map(str::to_owned)
        };
        let mut found_version = version(&manifest);
        if manifest.manifests.is_empty() {
            self.read_layers(&manifest, &mut tree, &mut left).await?;
        } else {
            let chosen = self.choose_manifests(&manifest)?;
            let is_collection = chosen.len() > 1;
            for descriptor in chosen {
                let (_, bytes) = self.manifest(&descriptor.digest.to_string()).await?;
                self.check_size(&descriptor, &bytes)?;
                let inner = self.parse_manifest(&bytes)?;
                if !inner.manifests.is_empty() {
                    return Err(self.refuse("is an index of indexes"));
                }
                self.read_layers(&inner, &mut tree, &mut left).await?;
                if !is_collection {
                    found_version = found_version.or(version(&inner));
                    manifest = inner;
                }
            }
        }
        if found_version.is_none() {
            found_version = self.config_version(&manifest).await?;
        }
        Ok(OciArtifact {
            tree,
            digest,
            manifest: bytes,
            version: found_version
                .or_else(|| self.source.tag.clone().filter(|tag| tag != "latest"))
                .and_then(|version| plain_version(&version)),
        })
    }

    /// Chooses what an index means: the skills of a collection, or the image for this platform.
    fn choose_manifests(&self, index: &Manifest) -> Result<Vec<Descriptor>> {
        if index.manifests.len() > MAX_PARTS {
            return Err(self.refuse("has too many manifests"));
        }
        let has_platforms = index.manifests.iter().any(|one| one.platform.is_some());
        if !has_platforms {
            // What is attached to a skill, such as a signature, is no skill.
            let is_skill = |one: &&Descriptor| {
                one.artifact_type
                    .as_deref()
                    .is_none_or(|kind| kind.contains("skill"))
            };
            return Ok(index.manifests.iter().filter(is_skill).cloned().collect());
        }
        let find = |os: &str, architecture: &str| {
            let is_meant = |one: &&Descriptor| {
                let platform = one.platform.as_ref();
                platform.is_some_and(|p| p.os == os && p.architecture == architecture)
            };
            index.manifests.iter().find(is_meant).cloned()
        };
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let own = find(std::env::consts::OS, architecture);
        let found = own
            .or_else(|| find("linux", "amd64"))
            .or_else(|| index.manifests.first().cloned());
        found
            .map(|one| vec![one])
            .ok_or_else(|| self.refuse("is an empty index"))
    }

    async fn read_layers(
        &mut self,
        manifest: &Manifest,
        tree: &mut FileTree,
        left: &mut u64,
    ) -> Result<()> {
        if manifest.layers.len() > MAX_PARTS {
            return Err(self.refuse("has too many layers"));
        }
        for layer in &manifest.layers {
            if layer.size > self.web.limits().file_bytes || layer.size > *left {
                return Err(self.refuse(format!("has a layer of {} bytes", layer.size)));
            }
            let bytes = self.blob(layer).await?;
            let is_archive = layer.media_type.contains("tar") || layer.media_type.contains("zip");
            if is_archive || ArchiveFormat::from_content(&bytes).is_some() {
                let unpacked = read_archive(
                    &self.base_name(&layer.digest.to_string()),
                    &bytes,
                    self.web.limits(),
                )?;
                let size: u64 = unpacked.contents.values().map(|c| c.len() as u64).sum();
                *left = left
                    .checked_sub(size)
                    .ok_or_else(|| self.refuse("unpacks to too much"))?;
                // A later layer replaces files, as in an image.
                tree.entries.extend(unpacked.entries);
                tree.contents.extend(unpacked.contents);
            } else if let Some(title) = layer
                .annotations
                .get("org.opencontainers.image.title")
                .and_then(Value::as_str)
            {
                *left = left.saturating_sub(bytes.len() as u64);
                let path: repertoire_core::RelPath = title.parse().map_err(|error| {
                    self.refuse(format!("has a layer named {title:?}: {error}"))
                })?;
                tree.insert_file(path.to_string(), bytes);
            }
            if tree.entries.len() > self.web.limits().entries {
                return Err(self.refuse("has too many files"));
            }
        }
        Ok(())
    }

    /// Returns the version that the config of a skill says.
    async fn config_version(&mut self, manifest: &Manifest) -> Result<Option<String>> {
        let Some(config) = manifest
            .config
            .clone()
            .filter(|one| one.media_type == SKILL_CONFIG)
        else {
            return Ok(None);
        };
        if config.size > MAX_MANIFEST_BYTES {
            return Ok(None);
        }
        let bytes = self.blob(&config).await?;
        let config: Option<Value> = repertoire_core::json::from_slice(&bytes).ok();
        Ok(config.and_then(|config| Some(config.get("version")?.as_str()?.to_owned())))
    }

    /// Returns the Sigstore bundles that are attached to a manifest.
    pub(crate) async fn signatures(&mut self, digest: &Digest) -> Result<Vec<Bytes>> {
        let index = match self
            .get(&format!("referrers/{digest}"), MAX_MANIFEST_BYTES)
            .await
        {
            Ok(bytes) => Some(bytes),
            // Registries without this interface keep the list under a tag.
            Err(Error::NotFound { .. } | Error::Unreachable { .. }) => {
                let tag = format!("sha256-{}", digest.hex_digits());
                match self.manifest(&tag).await {
                    Ok((_, bytes)) => Some(bytes),
                    Err(Error::NotFound { .. }) => None,
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        };
        let Some(index) = index else {
            return Ok(Vec::new());
        };
        let index = self.parse_manifest(&index)?;
        let is_bundle = |one: &&Descriptor| one.artifact_type.as_deref() == Some(BUNDLE_TYPE);
        let mut found = Vec::new();
        for descriptor in index
            .manifests
            .iter()
            .filter(is_bundle)
            .take(MAX_SIGNATURES)
        {
            let (_, bytes) = self.manifest(&descriptor.digest.to_string()).await?;
            let manifest = self.parse_manifest(&bytes)?;
            for layer in manifest
                .layers
                .iter()
                .filter(|layer| layer.media_type == BUNDLE_TYPE)
                .take(1)
            {
                if layer.size > MAX_BUNDLE_BYTES {
                    return Err(self.refuse("has a signature that is too large"));
                }
                found.push(self.blob(layer).await?);
            }
        }
        Ok(found)
    }

    /// Fetches a manifest by tag or digest and returns its digest and bytes.
    async fn manifest(&mut self, reference: &str) -> Result<(Digest, Bytes)> {
        let bytes = self
            .get(&format!("manifests/{reference}"), MAX_MANIFEST_BYTES)
            .await?;
        let digest = if reference.starts_with("sha256:") {
            check_digest(&self.base_name(reference), &bytes, reference)?
        } else {
            Digest::hash_bytes(&bytes)
        };
        Ok((digest, bytes))
    }

    fn parse_manifest(&self, bytes: &[u8]) -> Result<Manifest> {
        repertoire_core::json::from_slice(bytes)
            .map_err(|error| self.refuse(format!("sends no valid manifest: {error}")))
    }

    async fn blob(&mut self, descriptor: &Descriptor) -> Result<Bytes> {
        let bytes = self
            .get(&format!("blobs/{}", descriptor.digest), descriptor.size)
            .await?;
        self.check_size(descriptor, &bytes)?;
        let promised = descriptor.digest.to_string();
        check_digest(&self.base_name(&promised), &bytes, &promised)?;
        Ok(bytes)
    }

    fn check_size(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 == descriptor.size {
            return Ok(());
        }
        let (found, listed) = (bytes.len(), descriptor.size);
        Err(self.refuse(format!(
            "{} has {found} bytes, and {listed} were listed",
            descriptor.digest
        )))
    }

    /// Sends a request, with a login if the registry asks for one.
    async fn get(&mut self, path: &str, limit: u64) -> Result<Bytes> {
        let url = self
            .base
            .join(path)
            .map_err(|error| self.refuse(error.to_string()))?;
        let send = |authorization: Option<HeaderValue>| {
            let mut request = WebRequest::get(url.clone(), limit.max(64 * 1024));
            request.accept = path
                .starts_with("manifests/")
                .then(|| MANIFEST_TYPES.to_owned());
            request.authorization = authorization;
            self.web.get(request)
        };
        let mut answer = send(self.authorization.clone()).await?;
        if answer.status == StatusCode::UNAUTHORIZED && answer.url.origin() == self.base.origin() {
            let authorization = self.authorize(&answer).await?;
            answer = send(Some(authorization.clone())).await?;
            self.authorization = Some(authorization);
        }
        if answer.status == StatusCode::NOT_FOUND {
            return Err(Error::NotFound {
                what: "artifact",
                name: self.base_name(path),
            });
        }
        answer.into_body()
    }

    /// Answers the challenge of the registry.
    async fn authorize(&self, answer: &WebAnswer) -> Result<HeaderValue> {
        let refused = |reason: &str| Error::Unauthorized {
            address: self.source.registry.clone(),
            reason: reason.to_owned(),
        };
        let challenge = answer.challenge().unwrap_or_default();
        let (scheme, parameters) = challenge.split_once(' ').unwrap_or((challenge, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return match &self.login {
                RegistryLogin::Basic(_) if self.authorization.is_some() => {
                    Err(refused("refuses the login of the Docker configuration"))
                }
                RegistryLogin::Basic(header) => Ok(header.clone()),
                _ => Err(refused("wants a login: `docker login` keeps one")),
            };
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(refused("wants a login of an unknown kind"));
        }
        let parameters = parse_challenge(parameters);
        let find = |name: &str| {
            parameters
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, v)| v.as_str())
        };
        let realm = find("realm").and_then(|realm| self.base.join(realm).ok());
        let mut realm = realm.ok_or_else(|| refused("names no token service"))?;
        let may_see_login = may_see_login(&self.base, &realm);
        {
            let mut query = realm.query_pairs_mut();
            if let Some(service) = find("service") {
                query.append_pair("service", service);
            }
            let scope = format!("repository:{}:pull", self.source.repository);
            query.append_pair("scope", &scope);
        }
        let mut request = WebRequest::get(realm, MAX_TOKEN_BYTES);
        request.authorization = match &self.login {
            RegistryLogin::Basic(header) if may_see_login => Some(header.clone()),
            RegistryLogin::IdentityToken(token) if may_see_login => {
                sensitive_header(&format!("Bearer {token}"))
            }
            _ => None,
        };
        let bytes = self.web.get(request).await?.into_body()?;
        let answer: TokenAnswer = repertoire_core::json::from_slice(&bytes)
            .map_err(|_| refused("its token service gave no token"))?;
        sensitive_header(&format!("Bearer {}", answer.token))
            .ok_or_else(|| refused("its token service gave no valid token"))
    }

    fn base_name(&self, what: &str) -> String {
        format!(
            "oci://{}/{} {what}",
            self.source.registry, self.source.repository
        )
    }

    fn refuse(&self, reason: impl Into<String>) -> Error {
        let address = format!("oci://{}/{}", self.source.registry, self.source.repository);
        Error::refused(&address, reason)
    }
}

/// Whether a token service may see the login of a registry: on the same host, or encrypted on a host
/// of the same domain.
fn may_see_login(registry: &Url, realm: &Url) -> bool {
    if realm.host() == registry.host() && realm.scheme() == registry.scheme() {
        return true;
    }
    let domain = |url: &Url| match url.host() {
        Some(url::Host::Domain(name)) => {
            let mut labels = name.rsplit('.');
            Some((labels.next()?.to_owned(), labels.next()?.to_owned()))
        }
        _ => None,
    };
    realm.scheme() == "https" && domain(realm).is_some() && domain(realm) == domain(registry)
}

/// Parses `name="value",name="value"`.
fn parse_challenge(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_matches([' ', ',']).to_ascii_lowercase();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        found.push((name, value.to_owned()));
        rest = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t27_logins_go_to_token_services_of_the_same_domain_only() {
        let see = |registry: &str, realm: &str| {
            may_see_login(&Url::parse(registry).unwrap(), &Url::parse(realm).unwrap())
        };
        assert!(see(
            "https://registry-1.docker.io/v2/",
            "https://auth.docker.io/token"
        ));
        assert!(see(
            "http://127.0.0.1:5000/v2/",
            "http://127.0.0.1:5001/token"
        ));
        for realm in [
            "https://evil.test/token",
            "http://auth.docker.io/token",
            "https://docker.io.evil.test/token",
            "https://10.0.0.1/token",
        ] {
            assert!(!see("https://registry-1.docker.io/v2/", realm), "{realm}");
        }
    }

    #[test]
    fn challenges_are_parsed() {
        let found = parse_challenge(r#"realm="https://a.test/token?x=1",service="r",scope="a,b""#);
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|(a, b)| (a.as_str(), b.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("realm", "https://a.test/token?x=1"),
                ("service", "r"),
                ("scope", "a,b")
            ]
        );
    }
}
