//! Skills written in code, served in a few lines.

use std::{collections::BTreeMap, sync::Arc};

use repertoire_app::FileWatching;
use repertoire_core::{Skill, SkillId, Skills};
use repertoire_registry::{Registry, RegistrySettings};

use crate::{
    error::Result,
    mcp::McpConnection,
    service::{PromptExposure, ServeOptions, ServerIdentity, SkillService},
    stdio::serve_stdio,
};

/// A server of skills that were written in code.
///
/// ```
/// use repertoire_serve::{Server, Skill};
///
/// let server = Server::builder()
///     .name("skills-demo")
///     .version("0.1.0")
///     .skill(Skill::new("hello", "---\nname: hello\ndescription: Greets.\n---\n# Hello\n"))
///     .build()?;
/// assert_eq!(server.registry().snapshot().len(), 1);
/// # Ok::<(), repertoire_serve::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Server {
    service: Arc<SkillService>,
    registry: Arc<Registry>,
}

impl Server {
    /// Starts building a server.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Creates the handler of one connection, for any transport or to mount in another server.
    pub fn mcp_connection(&self) -> McpConnection {
        McpConnection::new(self.service.clone())
    }

    /// The service that answers all requests.
    pub fn service(&self) -> &Arc<SkillService> {
        &self.service
    }

    /// The registry that holds the skills.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Serves one host over standard input and output until it disconnects.
    pub async fn serve_stdio(&self) -> Result<()> {
        serve_stdio(self.service.clone()).await
    }
}

/// Collects the skills and settings of a [`Server`]; [`build`](Self::build) checks everything.
#[derive(Debug, Clone, Default)]
pub struct ServerBuilder {
    identity: ServerIdentity,
    skills: Skills,
    prompts: Vec<(String, Skill)>,
}

impl ServerBuilder {
    /// Sets the server name reported to hosts.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.identity.name = name.into();
        self
    }

    /// Sets the server version reported to hosts.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.identity.version = version.into();
        self
    }

    /// Adds a skill, served as resources.
    pub fn skill(mut self, skill: Skill) -> Self {
        self.skills = self.skills.add(skill);
        self
    }

    /// Adds several skills, served as resources.
    pub fn skills(mut self, skills: Skills) -> Self {
        self.skills = self.skills.merge(skills);
        self
    }

    /// Adds a skill as resources and, under this name, as a prompt with the same bytes.
    pub fn bootstrap_skill_and_prompt(mut self, skill: Skill, prompt: impl Into<String>) -> Self {
        self.prompts.push((prompt.into(), skill.clone()));
        self.skill(skill)
    }

    /// Checks all settings and creates the server.
    pub fn build(self) -> Result<Server> {
        let mut aliases: BTreeMap<String, SkillId> = BTreeMap::new();
        for (name, skill) in self.prompts {
            if name.trim().is_empty() || aliases.contains_key(&name) {
                return Err(repertoire_core::Error::Field {
                    field: "prompt".to_owned(),
                    rule: format!("{name:?} is empty or used twice"),
                }
                .into());
            }
            aliases.insert(name, skill.id()?);
        }
        for skill in &self.skills {
            if let Err(error) = skill.frontmatter() {
                tracing::warn!(
                    skill = skill.name(), %error,
                    "is served as a resource, but not listed in skills/list"
                );
            }
        }
        let registry = Registry::open(RegistrySettings {
            embedded: self.skills,
            ..RegistrySettings::default()
        })?;
        let options = ServeOptions {
            identity: self.identity,
            prompts: PromptExposure::None,
            aliases,
            watch: FileWatching::Off,
            ..ServeOptions::default()
        };
        let service = SkillService::with_registry(registry.clone(), options);
        Ok(Server { service, registry })
    }
}
