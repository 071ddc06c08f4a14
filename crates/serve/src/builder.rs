//! Skills written in code, served in a few lines.

use std::{collections::BTreeMap, sync::Arc};

use repertoire_core::{Skill, SkillId, Skills};
use repertoire_registry::{Registry, Settings};

use crate::{
    engine::{Engine, Exposure, Identity, Options},
    error::Result,
    mcp::Handlers,
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
    engine: Arc<Engine>,
    registry: Arc<Registry>,
}

impl Server {
    /// Starts a server from nothing.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// The handlers of one connection, to serve on any transport or to mount in another server.
    pub fn handlers(&self) -> Handlers {
        Handlers::new(self.engine.clone())
    }

    /// What every surface is served from.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The skills, as a registry.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Serves one host over standard input and output until it hangs up.
    pub async fn serve_stdio(&self) -> Result<()> {
        serve_stdio(self.engine.clone()).await
    }
}

/// Collects what a [`Server`] is made of; everything is checked by [`build`](Self::build).
#[derive(Debug, Clone, Default)]
pub struct ServerBuilder {
    identity: Identity,
    skills: Skills,
    prompts: Vec<(String, Skill)>,
}

impl ServerBuilder {
    /// The name the server gives itself.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.identity.name = name.into();
        self
    }

    /// The version the server gives itself.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.identity.version = version.into();
        self
    }

    /// Serves a skill to hosts that read resources.
    pub fn skill(mut self, skill: Skill) -> Self {
        self.skills = self.skills.add(skill);
        self
    }

    /// Serves several skills to hosts that read resources.
    pub fn skills(mut self, skills: Skills) -> Self {
        self.skills = self.skills.merge(skills);
        self
    }

    /// Serves a skill as resources and, under this name, as one prompt of the same bytes.
    pub fn bootstrap_skill_and_prompt(mut self, skill: Skill, prompt: impl Into<String>) -> Self {
        self.prompts.push((prompt.into(), skill.clone()));
        self.skill(skill)
    }

    /// Checks everything and makes the server.
    pub fn build(self) -> Result<Server> {
        let mut aliases: BTreeMap<String, SkillId> = BTreeMap::new();
        for (name, skill) in self.prompts {
            if name.trim().is_empty() || aliases.contains_key(&name) {
                return Err(repertoire_core::Error::Field {
                    field: "prompt".to_owned(),
                    rule: format!("{name:?} is empty or there twice"),
                }
                .into());
            }
            aliases.insert(name, skill.id()?);
        }
        for skill in &self.skills {
            if let Err(error) = skill.frontmatter() {
                tracing::warn!(
                    skill = skill.name(), %error,
                    "is served as a resource, and not in skills/list"
                );
            }
        }
        let registry = Registry::open(Settings {
            embedded: self.skills,
            ..Settings::default()
        })?;
        let options = Options {
            identity: self.identity,
            prompts: Exposure::None,
            aliases,
            watch: false,
            ..Options::default()
        };
        let engine = Engine::over(registry.clone(), options);
        Ok(Server { engine, registry })
    }
}
