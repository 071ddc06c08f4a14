//! What applies: flags, then environment, then the workspace's file, then the account's.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use repertoire_registry::{AskedBy, Error, Place, Scope, Settings as Sources, folder, trust};
use repertoire_runtime::{Price, ProviderConfig, Providers};
use serde::Deserialize;

use crate::{args::Global, failure::Usage};

/// The file of settings in a workspace's or the account's folder.
pub(crate) const CONFIG: &str = "config.toml";

/// A settings file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// Folders of skills.
    #[serde(default)]
    pub(crate) folders: Vec<String>,
    /// Patterns of loose markdown skills.
    #[serde(default)]
    pub(crate) skills: Vec<String>,
    /// Patterns of prompts.
    #[serde(default)]
    pub(crate) prompts: Vec<String>,
    /// Which skills are also prompts over MCP.
    #[serde(default)]
    pub(crate) skills_as_prompts: Option<Which>,
    /// Where workers connect: a port, IP:PORT, or "off".
    #[serde(default)]
    pub(crate) hub: Option<HubPlace>,
    /// Functions of workers that are tools over MCP.
    #[serde(default)]
    pub(crate) tools: Vec<String>,
    /// Further functions that content and prompts never reach, by prefix.
    #[serde(default)]
    pub(crate) guard: Vec<String>,
    /// The model that is asked, unless another is named.
    #[serde(default)]
    pub(crate) model: Option<String>,
    /// Where models are.
    #[serde(default)]
    pub(crate) providers: BTreeMap<String, ProviderConfig>,
    /// What models cost.
    #[serde(default)]
    pub(crate) prices: BTreeMap<String, Price>,
    /// A folder of pages that skills can search.
    #[serde(default)]
    pub(crate) vault: Option<PathBuf>,
    /// Further tools for hosts.
    #[serde(default)]
    pub(crate) offer: Vec<crate::args::Offer>,
    /// The most tokens of one run that a host asks for.
    #[serde(default)]
    pub(crate) run_max_tokens: Option<u64>,
    /// Whether states that another version of DSPy made are learned anew.
    #[serde(default)]
    pub(crate) renew: Option<bool>,
    /// What scripts may use.
    #[serde(default)]
    pub(crate) sandbox: repertoire_runtime::Limits,
    /// The most US dollars of one run that a host asks for.
    #[serde(default)]
    pub(crate) run_max_cost: Option<f64>,
    /// Whether the skills that come with the product are there.
    #[serde(default)]
    pub(crate) system_skills: Option<bool>,
    /// The store that `add`, `import` and `remove` use.
    pub(crate) scope: Option<ConfigScope>,
}

/// `"all"`, `"none"` or a list of ids.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Which {
    Word(String),
    Ids(Vec<String>),
}

/// `49134`, `"127.0.0.1:49134"` or `"off"`.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum HubPlace {
    Port(i64),
    Word(String),
}

impl HubPlace {
    fn text(self) -> String {
        match self {
            Self::Port(port) => port.to_string(),
            Self::Word(word) => word,
        }
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ConfigScope {
    Workspace,
    Account,
}

impl From<ConfigScope> for Scope {
    fn from(scope: ConfigScope) -> Self {
        match scope {
            ConfigScope::Workspace => Self::Workspace,
            ConfigScope::Account => Self::Account,
        }
    }
}

/// Everything a command needs to know.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The account's folder.
    pub(crate) account: PathBuf,
    /// The workspace, if there is one.
    pub(crate) workspace: Option<PathBuf>,
    /// What the catalogue is made of.
    pub(crate) sources: Sources,
    /// The store for writes, where the account's settings name one.
    pub(crate) scope: Option<Scope>,
    /// The same by the workspace's settings; it counts only if the workspace is trusted.
    pub(crate) workspace_scope: Option<Scope>,
    /// Which skills are also prompts over MCP, by the account's settings.
    pub(crate) skills_as_prompts: Option<Vec<String>>,
    /// Where workers connect, by the account's settings.
    pub(crate) hub: Option<String>,
    /// Functions that are tools, by the account's settings.
    pub(crate) tools: Vec<String>,
    /// Functions that are guarded, by the account's settings.
    pub(crate) guard: Vec<String>,
    /// The model that is asked, by the account's settings.
    pub(crate) model: Option<String>,
    /// A folder of pages, by the account's settings.
    pub(crate) vault: Option<PathBuf>,
    /// Where models are and what they cost, by the account's settings alone: a workspace from
    /// elsewhere must not say where prompts go.
    providers: Providers,
    /// Further tools for hosts, by the account's settings.
    pub(crate) offer: Vec<crate::args::Offer>,
    /// The most tokens and dollars of one run that a host asks for.
    pub(crate) run_limits: (Option<u64>, Option<f64>),
    /// Whether states that another version of DSPy made are learned anew.
    pub(crate) renew: bool,
    /// What one script may use.
    pub(crate) script_limits: repertoire_runtime::Limits,
    /// What is wrong with the workspace's file; it counts only if the workspace is trusted.
    pub(crate) workspace_problem: Option<String>,
}

impl Settings {
    /// Where servers keep what they told hosts last, until they know better.
    pub(crate) fn kept_instructions(&self) -> PathBuf {
        self.account.join("cache").join("instructions")
    }

    /// Where models are; key files are relative to the account's folder.
    pub(crate) fn providers(&self) -> Providers {
        let mut providers = self.providers.clone();
        for config in providers.configured.values_mut() {
            config.key_file = config.key_file.take().map(|file| self.account.join(file));
        }
        providers
    }

    /// Forgets what servers told hosts last: whom the user trusts has changed.
    pub(crate) fn forget_instructions(&self) {
        // There may never have been any.
        let _ = std::fs::remove_dir_all(self.kept_instructions());
    }

    /// The same settings over these folders only, if any are given.
    pub(crate) fn sources_of(&self, paths: &[PathBuf]) -> Result<Sources> {
        if paths.is_empty() {
            return Ok(self.sources.clone());
        }
        for path in paths {
            need_folder(path)?;
        }
        Ok(Sources {
            cache: self.sources.cache.clone(),
            ..Sources::of_folders(paths.iter().cloned())
        })
    }
}

/// Resolves the global options.
pub(crate) fn resolve(global: &Global) -> Result<Settings> {
    let account = match &global.home {
        // Programs in it are started from elsewhere.
        Some(home) => std::path::absolute(home)?,
        None => default_home()?,
    };
    let workspace = match &global.workspace {
        Some(path) if !path.is_dir() => {
            bail!(Usage(format!(
                "workspace {} is not a folder",
                path.display()
            )))
        }
        Some(path) => Some(path.clone()),
        None => find_workspace(&account),
    };
    let cache = Some(account.join("cache"));
    if !global.from.is_empty() {
        let bare = Settings {
            account,
            workspace: None,
            sources: Sources {
                cache,
                ..Sources::default()
            },
            scope: None,
            workspace_scope: None,
            skills_as_prompts: None,
            hub: None,
            tools: Vec::new(),
            guard: Vec::new(),
            model: None,
            vault: None,
            providers: Providers::default(),
            offer: Vec::new(),
            run_limits: (None, None),
            renew: false,
            script_limits: repertoire_runtime::Limits::default(),
            workspace_problem: None,
        };
        let sources = bare.sources_of(&global.from)?;
        return Ok(Settings { sources, ..bare });
    }
    let config = read_config(&account)?;
    let mut sources = Sources {
        system: config.system_skills.unwrap_or(true) && !global.no_system_skills,
        account: Some(account.clone()),
        workspace: workspace.clone(),
        cache,
        ..Sources::default()
    };
    let mut workspace_scope = None;
    let mut workspace_problem = None;
    if let Some(workspace) = &workspace {
        let own = workspace.join(trust::FOLDER);
        let theirs = read_config(&own).unwrap_or_else(|error| {
            workspace_problem = Some(error.to_string());
            Config::default()
        });
        extend(&mut sources, workspace, &own, &theirs, AskedBy::Workspace);
        workspace_scope = theirs.scope;
    }
    let base = account.clone();
    extend(&mut sources, &account, &account, &config, AskedBy::User);
    Ok(Settings {
        account,
        workspace,
        sources,
        scope: config.scope.map(Into::into),
        workspace_scope: workspace_scope.map(Into::into),
        skills_as_prompts: config.skills_as_prompts.map(|which| match which {
            Which::Word(word) => vec![word],
            Which::Ids(ids) => ids,
        }),
        hub: config.hub.map(HubPlace::text),
        tools: config.tools,
        guard: config.guard,
        model: config.model,
        vault: config.vault.map(|vault| base.join(vault)),
        providers: Providers {
            configured: config.providers,
            prices: config.prices,
            ..Providers::default()
        },
        offer: config.offer,
        run_limits: (config.run_max_tokens, config.run_max_cost),
        renew: config.renew.unwrap_or(true),
        script_limits: config.sandbox,
        workspace_problem,
    })
}

/// Adds what a settings file asks for; paths are relative to `base`.
fn extend(sources: &mut Sources, base: &Path, own: &Path, config: &Config, asked_by: AskedBy) {
    let folder = |path: PathBuf| Place {
        path,
        pattern: None,
        asked_by,
    };
    let pattern = |pattern: &String| Place {
        path: base.to_owned(),
        pattern: Some(pattern.clone()),
        asked_by,
    };
    let skills = own.join("skills");
    if skills.is_dir() {
        sources.folders.push(folder(skills));
    }
    let named = config.folders.iter().map(|f| folder(base.join(f)));
    sources.folders.extend(named);
    sources.skills.extend(config.skills.iter().map(pattern));
    sources.prompts.extend(config.prompts.iter().map(pattern));
}

/// Reads a settings file as carefully as anything else that may have come from elsewhere.
fn read_config(folder: &Path) -> Result<Config, Usage> {
    let at = |reason: String| {
        let text = format!("settings {}: {reason}", folder.join(CONFIG).display());
        Usage(text.trim_end().to_owned())
    };
    let bytes = match folder::small_file(folder, CONFIG, 64 * 1024) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(Config::default()),
        Err(error) => return Err(at(error.to_string())),
    };
    let text = std::str::from_utf8(&bytes).map_err(|_| at("not valid UTF-8".to_owned()))?;
    toml::from_str(text).map_err(|error| at(error.to_string()))
}

/// Refuses a path that is not there, or is no folder.
pub(crate) fn need_folder(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if path.symlink_metadata().is_ok() {
        bail!(Usage(format!("{} is not a folder", path.display())));
    }
    bail!(Error::NotFound {
        what: "folder",
        name: path.display().to_string(),
    });
}

fn default_home() -> Result<PathBuf> {
    match std::env::home_dir().filter(|home| !home.as_os_str().is_empty()) {
        Some(home) => Ok(home.join(trust::FOLDER)),
        None => bail!(Usage(
            "no home folder is known: set REPERTOIRE_HOME or use --home".to_owned()
        )),
    }
}

/// The nearest folder above with `.repertoire` in it that is not the account's.
fn find_workspace(account: &Path) -> Option<PathBuf> {
    // A folder that was deleted under our feet is in no workspace.
    let Ok(here) = std::env::current_dir() else {
        return None;
    };
    let account = account
        .canonicalize()
        .unwrap_or_else(|_| account.to_owned());
    let found = here.ancestors().find(|folder| {
        let own = folder.join(trust::FOLDER);
        own.is_dir() && own.canonicalize().is_ok_and(|own| own != account)
    });
    found.map(Path::to_owned)
}
