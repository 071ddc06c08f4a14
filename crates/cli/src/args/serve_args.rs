//! Arguments of the commands for other servers, access tokens and the bus.

use clap::{Subcommand, ValueEnum};
use repertoire_registry::remote::RemoteLabel;

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
        /// Allow writing, not only reading
        #[arg(long)]
        write: bool,
        /// How long it is valid: 12h, 90d [default: until revoked]
        #[arg(long, value_name = "TIME", value_parser = parse_expiry)]
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

/// Parses a duration such as `500ms`, `30s` or `5m`.
pub(super) fn parse_timeout(text: &str) -> Result<std::time::Duration, String> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let unit = match &text[end..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        _ => return Err("write a number and ms, s or m, such as 30s".to_owned()),
    };
    let number: u64 = text[..end].parse().map_err(|_| "not a number")?;
    let millis = number.checked_mul(unit).filter(|millis| *millis > 0);
    millis
        .map(std::time::Duration::from_millis)
        .ok_or_else(|| "the time must be greater than zero".to_owned())
}

/// Parses a duration such as `30m`, `12h` or `90d`.
fn parse_expiry(text: &str) -> Result<std::time::Duration, String> {
    let wrong = || "write a number and m, h or d, such as 90d".to_owned();
    let unit = match text.chars().last() {
        Some('m') => 60,
        Some('h') => 60 * 60,
        Some('d') => 24 * 60 * 60,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    let seconds = number.checked_mul(unit).filter(|s| *s > 0);
    seconds
        .map(std::time::Duration::from_secs)
        .ok_or_else(wrong)
}

#[derive(Debug, clap::Args)]
pub(crate) struct BusArgs {
    /// Where workers connect: a port, IP:PORT, or `off` [default: 127.0.0.1:49134]
    #[arg(long, env = "REPERTOIRE_HUB", value_name = "WHERE")]
    pub(crate) hub: Option<String>,
    /// Connect to this engine as a worker instead of listening for workers
    #[arg(long, value_name = "URL", num_args = 0..=1)]
    #[arg(default_missing_value = repertoire_serve::iii::DEFAULT_URL)]
    pub(crate) join: Option<String>,
    /// A function of a worker to offer as an MCP tool: an id, or a prefix with `*`
    #[arg(long, value_name = "FUNCTION")]
    pub(crate) tool: Vec<String>,
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
    /// The environment variable that holds a token, if one is needed
    #[arg(long, value_name = "NAME", default_value = "III_TOKEN")]
    pub(crate) token_env: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExposeArgs {
    /// Which skills are also prompts: `all`, `none`, or ids with commas [default: all]
    #[arg(long, value_name = "WHICH", value_delimiter = ',')]
    pub(crate) prompts: Vec<String>,
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
