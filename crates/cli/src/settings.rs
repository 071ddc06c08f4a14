//! Settings: flags, then environment, then the workspace's file, then the account's.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use repertoire_app::{
    CONFIG_FILE, Components, ScopePreference, UsagePolicy, folder_source, require_folder,
};
use repertoire_registry::{
    AccountSkills, RegistrySettings as Sources, RequestedBy, SourceLocation, StoreScope, folder,
    trust,
};
use repertoire_runtime::{Price, ProviderConfig, Providers};
use repertoire_serve::iii::functions::FunctionLimits;
use serde::Deserialize;

use crate::{args::GlobalArgs, failure::UsageError};

/// A settings file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigFile {
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
    pub(crate) skills_as_prompts: Option<PromptSelection>,
    /// Where workers connect: a port, IP:PORT, or "off".
    #[serde(default)]
    pub(crate) hub: Option<HubAddress>,
    /// Functions of workers that are tools over MCP.
    #[serde(default)]
    pub(crate) tools: Vec<String>,
    /// Further functions that content and prompts never reach, by prefix.
    #[serde(default)]
    pub(crate) guard: Vec<String>,
    /// Functions whose content may be read over MCP although no trusted skill links to them.
    #[serde(default)]
    pub(crate) content: Vec<String>,
    /// Whether packages of the account, and the system skills, are on the bus.
    #[serde(default)]
    pub(crate) share_account: bool,
    /// How much the functions on the bus do for one call.
    #[serde(default)]
    pub(crate) limits: FunctionLimits,
    /// The default model.
    #[serde(default)]
    pub(crate) model: Option<String>,
    /// Model providers.
    #[serde(default)]
    pub(crate) providers: BTreeMap<String, ProviderConfig>,
    /// Prices of models.
    #[serde(default)]
    pub(crate) prices: BTreeMap<String, Price>,
    /// A folder of pages that skills can search.
    #[serde(default)]
    pub(crate) vault: Option<PathBuf>,
    /// Further tools for hosts.
    #[serde(default)]
    pub(crate) offer: Vec<crate::args::OfferedTool>,
    /// The most tokens of one run that a host starts.
    #[serde(default)]
    pub(crate) run_max_tokens: Option<u64>,
    /// Whether states made by another version of DSPy are optimized again.
    #[serde(default)]
    pub(crate) renew: Option<bool>,
    /// What is kept of searches.
    #[serde(default)]
    pub(crate) search: SearchConfig,
    /// Resource limits of scripts.
    #[serde(default)]
    pub(crate) sandbox: repertoire_runtime::Limits,
    /// The most US dollars of one run that a host starts.
    #[serde(default)]
    pub(crate) run_max_cost: Option<f64>,
    /// Whether the built-in skills are included.
    #[serde(default)]
    pub(crate) system_skills: Option<bool>,
    /// The store that `add`, `import` and `remove` use.
    pub(crate) scope: Option<ConfigScope>,
}

/// `[search]`: what is kept of searches.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SearchConfig {
    /// Whether later rankings learn from what is chosen.
    learn: Option<bool>,
    /// Whether the text of messages is kept too.
    keep_text: Option<bool>,
}

impl SearchConfig {
    fn usage_policy(&self) -> UsagePolicy {
        let default = UsagePolicy::default();
        UsagePolicy {
            learn: self.learn.unwrap_or(default.learn),
            keep_text: self.keep_text.unwrap_or(default.keep_text),
        }
    }
}

/// `"all"`, `"none"` or a list of ids.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum PromptSelection {
    Word(String),
    Ids(Vec<String>),
}

/// `49134`, `"127.0.0.1:49134"` or `"off"`.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum HubAddress {
    Port(i64),
    Word(String),
}

impl HubAddress {
    fn into_text(self) -> String {
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

impl From<ConfigScope> for StoreScope {
    fn from(scope: ConfigScope) -> Self {
        match scope {
            ConfigScope::Workspace => Self::Workspace,
            ConfigScope::Account => Self::Account,
        }
    }
}

/// The resolved settings of a command.
#[derive(Debug)]
pub(crate) struct CliSettings {
    /// The account's folder.
    pub(crate) account: PathBuf,
    /// The workspace, if there is one.
    pub(crate) workspace: Option<PathBuf>,
    /// The sources of the catalogue.
    pub(crate) sources: Sources,
    /// The store for writes, where the account's settings name one.
    pub(crate) scope: Option<StoreScope>,
    /// The store for writes by the workspace's settings; used only if the workspace is trusted.
    pub(crate) workspace_scope: Option<StoreScope>,
    /// Which skills are also prompts over MCP, by the account's settings.
    pub(crate) skills_as_prompts: Option<Vec<String>>,
    /// Where workers connect, by the account's settings.
    pub(crate) hub: Option<String>,
    /// Functions that are tools, by the account's settings.
    pub(crate) tools: Vec<String>,
    /// Functions that are guarded, by the account's settings.
    pub(crate) guard: Vec<String>,
    /// Functions whose content may be read over MCP without a link, by the account's settings.
    pub(crate) content: Vec<String>,
    /// Whether packages of the account are on the bus, by the account's settings.
    pub(crate) account_skills: AccountSkills,
    /// The limits of the functions on the bus, by the account's settings.
    pub(crate) limits: FunctionLimits,
    /// The default model, by the account's settings.
    pub(crate) model: Option<String>,
    /// A folder of pages, by the account's settings.
    pub(crate) vault: Option<PathBuf>,
    /// Model providers and prices, by the account's settings alone: an untrusted workspace must
    /// not decide where prompts are sent.
    providers: Providers,
    /// Further tools for hosts, by the account's settings.
    pub(crate) offer: Vec<crate::args::OfferedTool>,
    /// The most tokens and dollars of one run that a host starts.
    pub(crate) run_limits: (Option<u64>, Option<f64>),
    /// Whether states made by another version of DSPy are optimized again.
    pub(crate) renew: bool,
    /// What is kept of searches, by the account's settings.
    pub(crate) usage: UsagePolicy,
    /// Resource limits of one script.
    pub(crate) script_limits: repertoire_runtime::Limits,
    /// The error in the workspace's file; it is fatal only if the workspace is trusted.
    pub(crate) workspace_problem: Option<String>,
}

impl CliSettings {
    /// Returns the folder where servers cache the instructions they last sent to hosts.
    pub(crate) fn instructions_cache_dir(&self) -> PathBuf {
        self.account.join("cache").join("instructions")
    }

    /// Returns the stores that the settings name for changes.
    pub(crate) fn scope_preference(&self) -> ScopePreference {
        ScopePreference {
            workspace: self.workspace_scope,
            account: self.scope,
        }
    }

    /// Returns the optional components of the account.
    pub(crate) fn components(&self) -> Components {
        let components = Components::of_account(&self.account);
        match std::env::var_os("REPERTOIRE_PYTHON") {
            Some(python) => components.with_python(python),
            None => components,
        }
    }

    /// Returns the model providers; key files are relative to the account's folder.
    pub(crate) fn resolved_providers(&self) -> Providers {
        let mut providers = self.providers.clone();
        for config in providers.configured.values_mut() {
            config.key_file = config.key_file.take().map(|file| self.account.join(file));
        }
        providers
    }

    /// Clears the cached instructions, because the user changed what is trusted.
    pub(crate) fn clear_instructions_cache(&self) {
        // The folder may not exist.
        let _ = std::fs::remove_dir_all(self.instructions_cache_dir());
    }

    /// Returns sources of these folders only, or all sources if none are given.
    pub(crate) fn sources_for(&self, paths: &[PathBuf]) -> Result<Sources> {
        if paths.is_empty() {
            return Ok(self.sources.clone());
        }
        let mut folders = Vec::new();
        for path in paths {
            require_folder(path)?;
            folders.push(folder_source(path, &self.account)?);
        }
        Ok(Sources {
            cache: self.sources.cache.clone(),
            traces: Some(self.account.clone()),
            max_index_bytes: Some(self.limits.index_bytes),
            folders,
            ..Sources::default()
        })
    }
}

/// Resolves the global options.
#[allow(clippy::too_many_lines, reason = "one line per setting")]
pub(crate) fn resolve_settings(global: &GlobalArgs) -> Result<CliSettings> {
    let account = account_folder(global)?;
    let workspace = if let Some(path) = &global.workspace {
        require_folder(path)?;
        Some(path.clone())
    } else {
        // A deleted working directory is in no workspace.
        let here = std::env::current_dir().ok();
        here.and_then(|here| trust::find_workspace(&here, &account))
    };
    let cache = Some(account.join("cache"));
    let config = read_config(&account)?;
    if !global.from.is_empty() {
        let bare = CliSettings {
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
            content: Vec::new(),
            account_skills: AccountSkills::Hidden,
            limits: config.limits,
            // Which skills there are is named on the command line; how they are run is not.
            model: config.model,
            vault: config.vault.map(|vault| account.join(vault)),
            providers: Providers {
                configured: config.providers,
                prices: config.prices,
                ..Providers::default()
            },
            offer: Vec::new(),
            run_limits: (config.run_max_tokens, config.run_max_cost),
            renew: false,
            usage: config.search.usage_policy(),
            script_limits: config.sandbox,
            workspace_problem: None,
            account,
        };
        let sources = bare.sources_for(&global.from)?;
        return Ok(CliSettings { sources, ..bare });
    }
    let mut sources = Sources {
        system_skills: config.system_skills.unwrap_or(true) && !global.no_system_skills,
        account: Some(account.clone()),
        workspace: workspace.clone(),
        cache,
        max_index_bytes: Some(config.limits.index_bytes),
        ..Sources::default()
    };
    let mut workspace_scope = None;
    let mut workspace_problem = None;
    if let Some(workspace) = &workspace {
        let own = workspace.join(trust::WORKSPACE_FOLDER);
        let theirs = read_config(&own).unwrap_or_else(|error| {
            workspace_problem = Some(error.to_string());
            ConfigFile::default()
        });
        add_sources(
            &mut sources,
            workspace,
            &own,
            &theirs,
            RequestedBy::Workspace,
        );
        workspace_scope = theirs.scope;
    }
    let base = account.clone();
    let account_skills = config.account_skills();
    add_sources(&mut sources, &account, &account, &config, RequestedBy::User);
    Ok(CliSettings {
        account,
        workspace,
        sources,
        scope: config.scope.map(Into::into),
        workspace_scope: workspace_scope.map(Into::into),
        skills_as_prompts: config.skills_as_prompts.map(|which| match which {
            PromptSelection::Word(word) => vec![word],
            PromptSelection::Ids(ids) => ids,
        }),
        hub: config.hub.map(HubAddress::into_text),
        tools: config.tools,
        guard: config.guard,
        content: config.content,
        account_skills,
        limits: config.limits,
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
        usage: config.search.usage_policy(),
        script_limits: config.sandbox,
        workspace_problem,
    })
}

/// Returns the account's folder, which need not exist yet.
fn account_folder(global: &GlobalArgs) -> Result<PathBuf> {
    let account = match &global.home {
        // Programs in it are started from other working directories.
        Some(home) => std::path::absolute(home)?,
        None => default_home()?,
    };
    // Without this, an account that cannot be read would look like an empty one.
    match account.read_dir() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(repertoire_registry::Error::Io {
                path: account,
                error,
            }
            .into())
        }
        _ => Ok(account),
    }
}

/// Adds the sources that a settings file names; paths are relative to `base`.
fn add_sources(
    sources: &mut Sources,
    base: &Path,
    own: &Path,
    config: &ConfigFile,
    asked_by: RequestedBy,
) {
    let folder = |path: PathBuf| SourceLocation {
        path,
        pattern: None,
        requested_by: asked_by,
    };
    let pattern = |pattern: &String| SourceLocation {
        path: base.to_owned(),
        pattern: Some(pattern.clone()),
        requested_by: asked_by,
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

/// Reads a settings file with the checks for untrusted files.
fn read_config(folder: &Path) -> Result<ConfigFile, UsageError> {
    let at = |reason: String| {
        let text = format!("settings {}: {reason}", folder.join(CONFIG_FILE).display());
        UsageError(text.trim_end().to_owned())
    };
    let bytes = match folder::read_small_file(folder, CONFIG_FILE, 64 * 1024) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(ConfigFile::default()),
        Err(error) => return Err(at(error.to_string())),
    };
    let text = std::str::from_utf8(&bytes).map_err(|_| at("not valid UTF-8".to_owned()))?;
    let config: ConfigFile = toml::from_str(text).map_err(|error| at(error.to_string()))?;
    let limits = config.limits.check();
    limits.map_err(|reason| at(format!("limits.{reason}")))?;
    Ok(config)
}

impl ConfigFile {
    fn account_skills(&self) -> AccountSkills {
        if self.share_account {
            AccountSkills::Shown
        } else {
            AccountSkills::Hidden
        }
    }
}

fn default_home() -> Result<PathBuf> {
    match std::env::home_dir().filter(|home| !home.as_os_str().is_empty()) {
        Some(home) => Ok(home.join(trust::WORKSPACE_FOLDER)),
        None => bail!(UsageError(
            "no home folder is known: set REPERTOIRE_HOME or use --home".to_owned()
        )),
    }
}
