//! Arguments of the commands for other servers, access tokens and the bus.

use clap::{Subcommand, ValueEnum};
use repertoire_core::permission::{IdPrefix, Permission};
use repertoire_registry::remote::RemoteLabel;

use super::duration::parse_duration;

#[derive(Debug, Subcommand)]
pub(crate) enum AddFrom {
    /// Another MCP server: its skills are listed now, and read and verified when needed
    #[command(
        after_help = "Examples:\n  repertoire add mcp acme https://skills.example.com/mcp \
                      --bearer-env ACME_TOKEN\n  repertoire add mcp local -- npx -y some-mcp-server\n\n\
                      Its skills get ids that start with the label: acme/pdf"
    )]
    Mcp {
        /// Its label: lowercase letters, digits and hyphens
        label: RemoteLabel,
        /// Its address
        #[arg(required_unless_present = "command", conflicts_with_all = ["command", "env"])]
        url: Option<String>,
        /// The environment variable that holds its token
        #[arg(long, value_name = "NAME", conflicts_with = "command")]
        bearer_env: Option<String>,
        /// Allow an address in a private network
        #[arg(long, conflicts_with = "command")]
        private: bool,
        /// An environment variable to hand to the program
        #[arg(long, value_name = "NAME")]
        env: Vec<String>,
        /// A program that speaks MCP over stdin and stdout
        #[arg(last = true)]
        command: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum RemoteCommand {
    /// List the servers, with the number of skills at the last refresh
    List,
    /// Fetch the skill lists of servers again
    Refresh {
        /// Their labels [default: all]
        labels: Vec<RemoteLabel>,
    },
    /// Remove a server and its skills
    Remove {
        /// Its label
        label: RemoteLabel,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token; it is shown once and stored as a hash
    Create {
        /// Its name
        name: String,
        /// What it allows: read, run (models and functions may be called), write, or admin (all)
        #[arg(
            long,
            value_name = "PERMISSION",
            value_delimiter = ',',
            default_value = "read"
        )]
        allow: Vec<Permission>,
        /// Allow writing as well; short for `--allow read,write`
        #[arg(long, conflicts_with = "allow")]
        write: bool,
        /// Only for skills below this path; may be repeated: acme/**
        #[arg(long, value_name = "PREFIX")]
        only: Vec<IdPrefix>,
        /// Only for this MCP tool; may be repeated
        #[arg(long, value_name = "NAME")]
        tool: Vec<String>,
        /// How long it is valid: 12h, 90d [default: until revoked]
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        expires: Option<std::time::Duration>,
    },
    /// Show every token, without the secrets
    List,
    /// Revoke a token
    Revoke {
        /// Its name
        name: String,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct BusArgs {
    /// Where workers connect: a port, IP:PORT, or `off` [default: 127.0.0.1:49134]
    #[arg(long, env = "REPERTOIRE_HUB", value_name = "WHERE")]
    pub(crate) hub: Option<String>,
    /// Connect to this engine as a worker instead of listening for workers [without a URL: where `--hub`
    /// says, else `III_URL`, else `ws://127.0.0.1:49134`]
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = "")]
    pub(crate) join: Option<String>,
    /// A function of a worker to offer as an MCP tool: an id, or a prefix with `*`
    #[arg(long, value_name = "FUNCTION")]
    pub(crate) tool: Vec<String>,
    /// Put the packages of your account, and the system skills, on the bus too
    #[arg(long)]
    pub(crate) share_account: bool,
    /// Leave the functions of the registry to a worker
    #[arg(long, hide = true)]
    pub(crate) bare_hub: bool,
    /// Send no events on state changes, like some engines
    #[arg(long, hide = true)]
    pub(crate) silent_state: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UrlArgs {
    /// Where the bus is [default: the hub of the settings, else `ws://127.0.0.1:49134`]
    #[arg(long, env = "III_URL")]
    pub(crate) url: Option<String>,
    /// The namespace of the functions, on an engine that has some
    #[arg(long, env = "III_NAMESPACE", value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// The environment variable that holds a token, if one is needed
    #[arg(long, value_name = "NAME", default_value = "III_TOKEN")]
    pub(crate) token_env: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExposeArgs {
    /// Which skills are also prompts: `all`, `none`, or ids with commas [default: all]
    #[arg(long, value_name = "WHICH", value_delimiter = ',')]
    pub(crate) prompts: Vec<String>,
    /// Serve only these skills: ids, or paths that they are below; may be repeated
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub(crate) only: Vec<IdPrefix>,
    /// Do not watch for changes on disk
    #[arg(long)]
    pub(crate) no_watch: bool,
    /// An additional tool for hosts; may be repeated [default: none]
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub(crate) offer: Vec<OfferedTool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OfferedTool {
    /// `skills_search`: the skills that fit a message
    Search,
    /// `skill_run`: runs a skill with the configured model, else with the host's
    Run,
}
