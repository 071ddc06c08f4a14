//! ClawHub registries, version 1 of their interface: search, versions, download.

use bytes::Bytes;
use serde::Deserialize;
use url::Url;

use crate::{
    digest_hex::plain_version,
    error::{Error, Result},
    http::{WebClient, WebRequest},
    source::ClawHubSource,
};

/// The most bytes of a description of a skill.
const MAX_ANSWER_BYTES: u64 = 1024 * 1024;

/// A skill that a registry found.
#[derive(Debug, Clone, PartialEq)]
pub struct ClawHubResult {
    /// The source to add it from.
    pub source: String,
    /// Its name as people read it.
    pub title: String,
    /// What it does.
    pub summary: String,
    /// Its newest version.
    pub version: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Discovery {
    #[serde(default, alias = "registry")]
    api_base: Option<String>,
}

#[derive(Deserialize)]
struct SearchAnswer {
    #[serde(default)]
    results: Vec<SearchResult>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SearchResult {
    slug: String,
    #[serde(default)]
    display_name: Option<String>,
    #[serde(default)]
    summary: Option<String>,
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    owner_handle: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SkillAnswer {
    skill: SkillRow,
    #[serde(default)]
    latest_version: Option<VersionRow>,
    #[serde(default)]
    owner: Option<OwnerRow>,
}

#[derive(Deserialize)]
struct SkillRow {
    slug: String,
    #[serde(default)]
    summary: Option<String>,
}

#[derive(Deserialize)]
struct VersionRow {
    version: String,
}

#[derive(Deserialize)]
struct OwnerRow {
    #[serde(default)]
    handle: Option<String>,
}

/// A registry whose address is known.
#[derive(Debug)]
pub(crate) struct ClawHub<'a> {
    web: &'a WebClient,
    /// The address that paths are added to; ends in a slash.
    api: Url,
}

/// What a registry says about a skill.
#[derive(Debug)]
pub(crate) struct ClawHubSkill {
    pub(crate) slug: String,
    pub(crate) owner: Option<String>,
    pub(crate) summary: String,
    pub(crate) version: String,
}

impl<'a> ClawHub<'a> {
    /// Finds the interface of a registry.
    pub(crate) async fn connect(registry: &Url, web: &'a WebClient) -> Result<Self> {
        let refuse = |reason: String| Error::refused(registry.as_str(), reason);
        let discovery = registry.join("/.well-known/clawhub.json");
        let discovery = discovery.map_err(|error| refuse(error.to_string()))?;
        let asked = web
            .get(WebRequest::get(discovery, MAX_ANSWER_BYTES))
            .await?;
        let named = match asked.into_body() {
            Ok(bytes) => repertoire_core::json::from_slice::<Discovery>(&bytes)
                .ok()
                .and_then(|found| found.api_base),
            Err(Error::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let base = match named {
            Some(base) => registry
                .join(&base)
                .map_err(|error| refuse(error.to_string()))?,
            None => registry.clone(),
        };
        let mut api = base;
        api.set_query(None);
        api.set_fragment(None);
        let path = api.path().trim_end_matches('/');
        let path = path.strip_suffix("/api/v1").unwrap_or(path).to_owned();
        api.set_path(&format!("{path}/api/v1/"));
        Ok(Self { web, api })
    }

    async fn get(&self, path: &str, query: &[(&str, &str)], limit: u64) -> Result<Bytes> {
        let url = self.api.join(path);
        let mut url = url.map_err(|e| Error::refused(self.api.as_str(), e.to_string()))?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.web.get(WebRequest::get(url, limit)).await?.into_body()
    }

    fn parse<'b, T: Deserialize<'b>>(&self, bytes: &'b [u8]) -> Result<T> {
        repertoire_core::json::from_slice(bytes).map_err(|error| {
            let reason = format!("its answer is not that of a ClawHub registry: {error}");
            Error::refused(self.api.as_str(), reason)
        })
    }

    /// Searches the registry.
    pub(crate) async fn search(&self, words: &str, limit: usize) -> Result<Vec<ClawHubResult>> {
        let count = limit.to_string();
        let query = [("q", words), ("limit", count.as_str())];
        let bytes = self.get("search", &query, MAX_ANSWER_BYTES).await?;
        let answer: SearchAnswer = self.parse(&bytes)?;
        let mut found = Vec::new();
        for row in answer.results.into_iter().take(limit) {
            let source = ClawHubSource {
                registry: self.registry(),
                owner: row.owner_handle,
                slug: row.slug.clone(),
                version: None,
            };
            let source = crate::source::SourcePlace::ClawHub(source).to_string();
            // A name that could not be written as a source could not be added either.
            if source.parse::<crate::SkillSource>().is_err() {
                continue;
            }
            found.push(ClawHubResult {
                source,
                title: row.display_name.unwrap_or(row.slug),
                summary: row.summary.unwrap_or_default(),
                version: row.version.as_deref().and_then(plain_version),
            });
        }
        Ok(found)
    }

    fn registry(&self) -> Url {
        let mut url = self.api.clone();
        let path = url.path().trim_end_matches("/api/v1/").to_owned();
        url.set_path(&path);
        url
    }

    /// Returns what is known of a skill, with the version that is wanted.
    pub(crate) async fn find(&self, source: &ClawHubSource) -> Result<ClawHubSkill> {
        let owner = source.owner.as_deref();
        let query: Vec<(&str, &str)> = owner
            .map(|owner| ("ownerHandle", owner))
            .into_iter()
            .collect();
        let path = format!("skills/{}", source.slug);
        let bytes = match self.get(&path, &query, MAX_ANSWER_BYTES).await {
            Err(Error::NotFound { .. }) => {
                return Err(Error::NotFound {
                    what: "skill",
                    name: crate::source::SourcePlace::ClawHub(source.clone()).to_string(),
                });
            }
            answer => answer?,
        };
        let answer: SkillAnswer = self.parse(&bytes)?;
        let latest = answer.latest_version.map(|row| row.version);
        let version = source
            .version
            .clone()
            .or(latest.and_then(|version| plain_version(&version)))
            .ok_or_else(|| Error::NotFound {
                what: "version",
                name: source.slug.clone(),
            })?;
        if answer.skill.slug != source.slug {
            let reason = format!(
                "describes {:?} instead of {:?}",
                answer.skill.slug, source.slug
            );
            return Err(Error::refused(self.api.as_str(), reason));
        }
        Ok(ClawHubSkill {
            slug: answer.skill.slug,
            owner: source
                .owner
                .clone()
                .or(answer.owner.and_then(|owner| owner.handle)),
            summary: answer.skill.summary.unwrap_or_default(),
            version,
        })
    }

    /// Downloads the archive of a version.
    pub(crate) async fn download(&self, skill: &ClawHubSkill) -> Result<(String, Bytes)> {
        let mut query = vec![
            ("slug", skill.slug.as_str()),
            ("version", skill.version.as_str()),
        ];
        if let Some(owner) = &skill.owner {
            query.push(("ownerHandle", owner));
        }
        let bytes = match self
            .get("download", &query, self.web.limits().file_bytes)
            .await
        {
            Err(Error::NotFound { .. }) => {
                return Err(Error::NotFound {
                    what: "version",
                    name: format!("{} of {}", skill.version, skill.slug),
                });
            }
            answer => answer?,
        };
        Ok((
            format!(
                "{}download?slug={}&version={}",
                self.api, skill.slug, skill.version
            ),
            bytes,
        ))
    }
}
