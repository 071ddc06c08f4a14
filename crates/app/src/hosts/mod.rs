//! Programs that use skills, where they keep their settings, and where they look for skills.

mod config;
mod config_text;
mod link;

use std::path::{Path, PathBuf};

pub use config::{ConfigChange, ConfigPlan, KnownAddresses, ServerEntry};
pub use link::{LinkChange, LinkReport, SkillLinks};

/// The form of a host's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConfigForm {
    /// JSON with an object of servers under this key.
    Json(&'static str, EntryForm),
    /// TOML with a table of servers, `[mcp_servers.NAME]`.
    Toml,
    /// YAML with a mapping of servers, `extensions`.
    Yaml,
}

/// How a host writes one server in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryForm {
    /// `command` and `args`, or `type` and `url`.
    Plain,
    /// `command` and `args`, or `url` alone.
    Untyped,
    /// `command` and `args`, or `serverUrl`.
    ServerUrl,
    /// A `type` always, and the tools that are allowed.
    Copilot,
    /// `disabled`, and its own word for HTTP.
    Cline,
    /// `transport` in place of `type`.
    Kimi,
    /// The command as one list.
    OpenCode,
    /// With its source.
    Zed,
}

/// One place of a host: in a project, or for the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostScope {
    /// Below the folder of a project.
    Project,
    /// Below the user's home folder.
    User,
}

impl HostScope {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::User => "user",
        }
    }
}

/// A program that uses skills.
#[derive(Debug, PartialEq, Eq)]
pub struct Host {
    /// Its id on the command line.
    pub id: &'static str,
    /// Its name.
    pub name: &'static str,
    project_skills: Option<&'static str>,
    user_skills: Option<&'static str>,
    project_config: Option<&'static str>,
    user_config: Option<&'static str>,
    form: ConfigForm,
}

const SERVERS: &str = "mcpServers";
const PLAIN: ConfigForm = ConfigForm::Json(SERVERS, EntryForm::Plain);
const AGENTS: Option<&str> = Some(".agents/skills");

const DESKTOP_CONFIG: &str = if cfg!(target_os = "macos") {
    "Library/Application Support/Claude/claude_desktop_config.json"
} else {
    ".config/Claude/claude_desktop_config.json"
};
const VSCODE_CONFIG: &str = if cfg!(target_os = "macos") {
    "Library/Application Support/Code/User/mcp.json"
} else {
    ".config/Code/User/mcp.json"
};
const CLINE_CONFIG: &str = if cfg!(target_os = "macos") {
    "Library/Application Support/Code/User/globalStorage/saoudrizwan.claude-dev/settings/\
     cline_mcp_settings.json"
} else {
    ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"
};

/// A host that takes skills from folders only.
const fn folder_host(
    id: &'static str,
    name: &'static str,
    project_skills: &'static str,
    user_skills: &'static str,
) -> Host {
    Host {
        id,
        name,
        project_skills: Some(project_skills),
        user_skills: Some(user_skills),
        project_config: None,
        user_config: None,
        form: PLAIN,
    }
}

/// Every known host.
pub const HOSTS: &[Host] = &[
    Host {
        id: "claude-code",
        name: "Claude Code",
        project_skills: Some(".claude/skills"),
        user_skills: Some(".claude/skills"),
        project_config: Some(".mcp.json"),
        user_config: Some(".claude.json"),
        form: PLAIN,
    },
    Host {
        id: "claude-desktop",
        name: "Claude Desktop",
        project_skills: None,
        user_skills: None,
        project_config: None,
        user_config: Some(DESKTOP_CONFIG),
        form: PLAIN,
    },
    Host {
        id: "codex",
        name: "Codex",
        project_skills: AGENTS,
        user_skills: AGENTS,
        project_config: Some(".codex/config.toml"),
        user_config: Some(".codex/config.toml"),
        form: ConfigForm::Toml,
    },
    Host {
        id: "cursor",
        name: "Cursor",
        project_skills: AGENTS,
        user_skills: Some(".cursor/skills"),
        project_config: Some(".cursor/mcp.json"),
        user_config: Some(".cursor/mcp.json"),
        form: ConfigForm::Json(SERVERS, EntryForm::Untyped),
    },
    Host {
        id: "gemini-cli",
        name: "Gemini CLI",
        project_skills: AGENTS,
        user_skills: Some(".gemini/skills"),
        project_config: Some(".gemini/settings.json"),
        user_config: Some(".gemini/settings.json"),
        form: PLAIN,
    },
    Host {
        id: "vscode",
        name: "Visual Studio Code",
        project_skills: AGENTS,
        user_skills: Some(".copilot/skills"),
        project_config: Some(".vscode/mcp.json"),
        user_config: Some(VSCODE_CONFIG),
        form: ConfigForm::Json("servers", EntryForm::Plain),
    },
    Host {
        id: "copilot-cli",
        name: "GitHub Copilot CLI",
        project_skills: AGENTS,
        user_skills: Some(".copilot/skills"),
        project_config: Some(".github/mcp.json"),
        user_config: Some(".copilot/mcp-config.json"),
        form: ConfigForm::Json(SERVERS, EntryForm::Copilot),
    },
    Host {
        id: "opencode",
        name: "OpenCode",
        project_skills: AGENTS,
        user_skills: Some(".config/opencode/skills"),
        project_config: Some("opencode.json"),
        user_config: Some(".config/opencode/opencode.json"),
        form: ConfigForm::Json("mcp", EntryForm::OpenCode),
    },
    Host {
        id: "goose",
        name: "Goose",
        project_skills: Some(".goose/skills"),
        user_skills: Some(".config/goose/skills"),
        project_config: None,
        user_config: Some(".config/goose/config.yaml"),
        form: ConfigForm::Yaml,
    },
    Host {
        id: "windsurf",
        name: "Windsurf",
        project_skills: Some(".windsurf/skills"),
        user_skills: Some(".codeium/windsurf/skills"),
        project_config: None,
        user_config: Some(".codeium/windsurf/mcp_config.json"),
        form: ConfigForm::Json(SERVERS, EntryForm::ServerUrl),
    },
    Host {
        id: "antigravity",
        name: "Antigravity",
        project_skills: AGENTS,
        user_skills: Some(".gemini/antigravity/skills"),
        project_config: None,
        user_config: Some(".gemini/config/mcp_config.json"),
        form: ConfigForm::Json(SERVERS, EntryForm::ServerUrl),
    },
    Host {
        id: "cline",
        name: "Cline",
        project_skills: AGENTS,
        user_skills: AGENTS,
        project_config: None,
        user_config: Some(CLINE_CONFIG),
        form: ConfigForm::Json(SERVERS, EntryForm::Cline),
    },
    Host {
        id: "cline-cli",
        name: "Cline CLI",
        project_skills: AGENTS,
        user_skills: AGENTS,
        project_config: None,
        user_config: Some(".cline/data/settings/cline_mcp_settings.json"),
        form: ConfigForm::Json(SERVERS, EntryForm::Cline),
    },
    Host {
        id: "zed",
        name: "Zed",
        project_skills: AGENTS,
        user_skills: AGENTS,
        project_config: Some(".zed/settings.json"),
        user_config: Some(".config/zed/settings.json"),
        form: ConfigForm::Json("context_servers", EntryForm::Zed),
    },
    Host {
        id: "kiro-cli",
        name: "Kiro",
        project_skills: Some(".kiro/skills"),
        user_skills: Some(".kiro/skills"),
        project_config: Some(".kiro/settings/mcp.json"),
        user_config: Some(".kiro/settings/mcp.json"),
        form: ConfigForm::Json(SERVERS, EntryForm::Untyped),
    },
    Host {
        id: "kilo",
        name: "Kilo",
        project_skills: AGENTS,
        user_skills: Some(".kilo/skills"),
        project_config: Some("kilo.json"),
        user_config: Some(".config/kilo/kilo.json"),
        form: ConfigForm::Json("mcp", EntryForm::OpenCode),
    },
    Host {
        id: "kimi-code",
        name: "Kimi Code",
        project_skills: AGENTS,
        user_skills: AGENTS,
        project_config: Some(".kimi-code/mcp.json"),
        user_config: Some(".kimi-code/mcp.json"),
        form: ConfigForm::Json(SERVERS, EntryForm::Kimi),
    },
    Host {
        id: "grok",
        name: "Grok",
        project_skills: Some(".grok/skills"),
        user_skills: Some(".grok/skills"),
        project_config: Some(".grok/config.toml"),
        user_config: Some(".grok/config.toml"),
        form: ConfigForm::Toml,
    },
    folder_host(
        "universal",
        "hosts that read .agents/skills",
        ".agents/skills",
        ".config/agents/skills",
    ),
    folder_host("amp", "Amp", ".agents/skills", ".config/agents/skills"),
    folder_host(
        "replit",
        "Replit",
        ".agents/skills",
        ".config/agents/skills",
    ),
    folder_host("openclaw", "OpenClaw", "skills", ".openclaw/skills"),
    folder_host("droid", "Droid", ".agents/skills", ".factory/skills"),
    folder_host(
        "hermes-agent",
        "Hermes",
        ".hermes-agent/skills",
        ".hermes-agent/skills",
    ),
    folder_host("junie", "Junie", ".junie/skills", ".junie/skills"),
    folder_host("roo", "Roo Code", ".roo/skills", ".roo/skills"),
    folder_host(
        "continue",
        "Continue",
        ".continue/skills",
        ".continue/skills",
    ),
    folder_host("crush", "Crush", ".crush/skills", ".config/crush/skills"),
    folder_host(
        "qwen-code",
        "Qwen Code",
        ".qwen-code/skills",
        ".qwen-code/skills",
    ),
    folder_host("trae", "Trae", ".trae/skills", ".trae/skills"),
    folder_host("augment", "Augment", ".augment/skills", ".augment/skills"),
    folder_host(
        "openhands",
        "OpenHands",
        ".openhands/skills",
        ".openhands/skills",
    ),
];

/// The ids under which other tools know some hosts.
const OTHER_IDS: [(&str, &str); 2] = [
    ("github-copilot", "vscode"),
    ("github-copilot-cli", "copilot-cli"),
];

impl Host {
    /// Finds a host by its id, or the id that other tools give it.
    pub fn find(id: &str) -> Option<&'static Self> {
        let other = OTHER_IDS.iter().find(|(other, _)| *other == id);
        let id = other.map_or(id, |(_, own)| own);
        HOSTS.iter().find(|host| host.id == id)
    }

    /// Returns the file with its settings for MCP servers.
    pub fn config_file(&self, scope: HostScope, base: &Path) -> Option<PathBuf> {
        let path = match scope {
            HostScope::Project => self.project_config,
            HostScope::User => self.user_config,
        };
        let file = base.join(path?);
        // Hosts with comments in their settings also accept this name.
        let commented = file.with_extension("jsonc");
        let has_both = matches!(self.form, ConfigForm::Json("mcp", _));
        Some(if has_both && !file.exists() && commented.exists() {
            commented
        } else {
            file
        })
    }

    /// Returns the folder where it looks for skills, to write to it. A folder of a project that leads
    /// out of it is refused.
    pub fn writable_skills_folder(
        &self,
        scope: HostScope,
        base: &Path,
    ) -> Result<Option<PathBuf>, crate::Error> {
        let Some(folder) = self.skills_folder(scope, base) else {
            return Ok(None);
        };
        let is_within = config::real_path(&folder).starts_with(config::real_path(base));
        if scope == HostScope::Project && !is_within {
            return Err(crate::Error::HostConfig {
                path: folder,
                reason: "leads out of the project".to_owned(),
            });
        }
        Ok(Some(folder))
    }

    /// Returns the folder where it looks for skills.
    pub fn skills_folder(&self, scope: HostScope, base: &Path) -> Option<PathBuf> {
        let path = match scope {
            HostScope::Project => self.project_skills,
            HostScope::User => self.user_skills,
        };
        Some(base.join(path?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_one_id_and_are_found_by_those_of_other_tools() {
        for (at, host) in HOSTS.iter().enumerate() {
            assert!(
                HOSTS[..at].iter().all(|other| other.id != host.id),
                "{}",
                host.id
            );
            assert_eq!(Host::find(host.id), Some(host));
        }
        for (other, own) in OTHER_IDS {
            assert_eq!(Host::find(other).map(|host| host.id), Some(own));
        }
        assert_eq!(Host::find("nothing"), None);
    }
}
