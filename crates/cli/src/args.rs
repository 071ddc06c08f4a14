//! The command line as typed; `settings` resolves it.

mod duration;
mod groups;
mod install_args;
mod run_args;
mod serve_args;

use std::path::PathBuf;

use clap::{ArgAction, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::ArgValueCompleter;
use repertoire_app::SkillQuery;
use repertoire_core::SkillId;
use repertoire_registry::Origin;

pub(crate) use groups::{grouped_command, parse_args};
pub(crate) use install_args::{
    AddArgs, ApproveArgs, InstallArgs, InstalledArgs, MigrateArgs, SOURCE_FORMS, UpdateArgs,
    VerifyArgs,
};
pub(crate) use run_args::{
    ArtifactCommand, AskArgs, CatalogueArgs, EvalArgs, ModelArgs, NewArtifact, OptimizeArgs,
    OptimizerArg, ParamValue, RunArgs, SearchArgs, SetupCommand, TraceCommand, TraceFilterArgs,
    TraceFormat,
};
pub(crate) use serve_args::{
    AddFrom, BusArgs, ExposeArgs, OfferedTool, RemoteCommand, TokenCommand, UrlArgs,
};

use crate::completion::{complete_host, complete_skill};
use duration::parse_duration;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  something is wrong with a skill, or a check failed
  2  the command line or the settings are wrong
  3  not found
  4  refused: the input broke a rule, nothing was changed
  5  the store is damaged, newer, or busy
  6  the workspace is not trusted
  7  the file system or the network refused
  130  interrupted";

/// Keep your agents' skills once, and give them to every agent.
#[derive(Debug, Parser)]
#[command(name = "repertoire", version, after_help = EXIT_CODES, max_term_width = 100)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Use only these folders, without stores and settings
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub(crate) from: Vec<PathBuf>,
    /// The account's folder [default: ~/.repertoire]
    #[arg(long, global = true, env = "REPERTOIRE_HOME", value_name = "PATH")]
    #[arg(hide_env_values = true, value_hint = ValueHint::DirPath)]
    pub(crate) home: Option<PathBuf>,
    /// The workspace [default: the nearest folder above with `.repertoire`]
    #[arg(long, global = true, env = "REPERTOIRE_WORKSPACE", value_name = "PATH")]
    #[arg(hide_env_values = true, value_hint = ValueHint::DirPath)]
    pub(crate) workspace: Option<PathBuf>,
    /// Do not add the skills that come with the product to the account
    #[arg(
        long,
        global = true,
        env = "REPERTOIRE_NO_SYSTEM_SKILLS",
        hide_env_values = true
    )]
    #[arg(value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) no_system_skills: bool,
    /// Print data as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// When to use colour
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: ColorWhen,
    /// Print less on stderr
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// Print more on stderr (twice for details)
    #[arg(long, short, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorWhen {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScopeArg {
    Workspace,
    Account,
}

impl From<ScopeArg> for repertoire_registry::StoreScope {
    fn from(scope: ScopeArg) -> Self {
        match scope {
            ScopeArg::Workspace => Self::Workspace,
            ScopeArg::Account => Self::Account,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the tree of skills and one example
    #[command(after_help = "Example:\n  repertoire tour examples/skills")]
    Tour {
        /// Folders to read instead of stores and settings
        #[arg(value_name = "PATH", value_hint = ValueHint::DirPath)]
        paths: Vec<PathBuf>,
    },
    /// Make this folder a workspace with its own skills
    #[command(
        after_help = "Examples:\n  repertoire init\n  repertoire init ~/projects/shop --trust"
    )]
    Init {
        /// The folder
        #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
        path: PathBuf,
        /// Trust the skills that the folder already has, such as those in .claude/skills
        #[arg(long)]
        trust: bool,
    },
    /// List skills
    #[command(
        after_help = "Examples:\n  repertoire list --tree\n  repertoire list examples/skills\n  \
                      repertoire list --all --origin account\n  repertoire list --json | jq '.skills[].id'"
    )]
    List {
        /// Folders to read instead of stores and settings
        #[arg(value_name = "PATH", value_hint = ValueHint::DirPath)]
        paths: Vec<PathBuf>,
        /// Also show what is shadowed or skipped, and why
        #[arg(long)]
        all: bool,
        /// Only skills from here: state, workspace, files, files-2, account, mcp-LABEL
        #[arg(long, value_name = "ORIGIN")]
        origin: Option<Origin>,
        /// Draw ids as a tree
        #[arg(long, conflicts_with = "all")]
        tree: bool,
        /// List prompts instead of skills
        #[arg(long, conflicts_with_all = ["tree", "origin"])]
        prompts: bool,
    },
    /// Show one skill: its metadata, files and text
    #[command(after_help = "Examples:\n  repertoire show acme/billing/refunds\n  \
                            repertoire show account:refunds --json\n  \
                            repertoire show anthropics/skills@pdf     # before it is added\n  \
                            repertoire --from examples/skills show code-mode")]
    Show {
        /// The skill: an id, `origin:id`, a package name, a folder, or a source as `add` takes it
        #[arg(add = ArgValueCompleter::new(complete_skill))]
        skill: String,
    },
    /// Print the exact bytes behind a URI
    #[command(
        after_help = "Examples:\n  repertoire cat skill://code-mode/SKILL.md\n  \
                            repertoire cat iii://skills\n  repertoire cat --prompt code-mode"
    )]
    Cat {
        /// `skill://<id>/<file>`, `iii://<id>`, `iii://skills` or `skill://index.json`
        #[arg(required_unless_present = "prompt")]
        uri: Option<String>,
        /// Print a prompt, or a skill as one prompt text, instead
        #[arg(long, value_name = "NAME", conflicts_with = "uri")]
        #[arg(add = ArgValueCompleter::new(complete_skill))]
        prompt: Option<SkillQuery>,
    },
    /// Serve skills to one MCP host over stdin and stdout
    #[command(
        after_help = "Examples:\n  repertoire mcp\n  repertoire mcp examples/skills\n  \
                            claude mcp add skills -- repertoire mcp ~/skills"
    )]
    Mcp {
        /// Folders to serve instead of stores and settings
        #[arg(value_name = "PATH", value_hint = ValueHint::DirPath)]
        paths: Vec<PathBuf>,
        #[command(flatten)]
        expose: ExposeArgs,
    },
    /// Serve skills to many hosts over HTTP
    #[command(
        after_help = "Examples:\n  repertoire serve\n  repertoire serve examples/skills \
                            --port 9000\n  repertoire token create laptop && repertoire serve \
                            --bind 0.0.0.0 --host skills.example.com\n  repertoire serve --tool \
                            'demo::*'\n\n\
                            /mcp is the MCP endpoint, /healthz and /metrics are for operators; the \
                            hub is where workers with an iii SDK connect."
    )]
    Serve {
        /// Folders to serve instead of stores and settings; worker registrations are still stored
        #[arg(value_name = "PATH", value_hint = ValueHint::DirPath)]
        paths: Vec<PathBuf>,
        /// The port; 0 picks a free one [default: 8321, or a free one if that is in use]
        #[arg(long, env = "REPERTOIRE_PORT")]
        port: Option<u16>,
        /// The address to listen on; a non-loopback address needs a token
        #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
        bind: std::net::IpAddr,
        /// An additional host name that the server accepts
        #[arg(long, value_name = "NAME")]
        host: Vec<String>,
        /// A web origin that may send requests, such as `https://app.example.com`
        #[arg(long, value_name = "URL")]
        origin: Vec<String>,
        /// Write a line of JSON for each request here; `-` is stderr
        #[arg(long, value_name = "FILE")]
        access_log: Option<PathBuf>,
        /// Accept requests of everyone who can reach the ports, without a token
        #[arg(long)]
        no_auth: bool,
        /// Require a token from your own programs too; `local-token` in the account's folder has one
        #[arg(long, conflicts_with = "no_auth")]
        require_token: bool,
        #[command(flatten)]
        bus: BusArgs,
        #[command(flatten)]
        expose: ExposeArgs,
    },
    /// Run as the `skills` worker on an iii engine
    #[command(
        after_help = "Examples:\n  repertoire worker\n  repertoire worker --url \
                            ws://10.0.0.5:49134 --config ./config.yaml\n\n\
                            The address is taken from --url, then from III_URL and \
                            III_ENGINE_URL."
    )]
    Worker {
        /// A settings file: scopes, timeouts, patterns of skills and prompts
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: Option<PathBuf>,
        /// Where the engine is [default: `ws://127.0.0.1:49134`]
        #[arg(long)]
        url: Option<String>,
        /// Put the packages of your account, and the system skills, on the bus too
        #[arg(long)]
        share_account: bool,
        /// Print the manifest of the worker as JSON and exit
        #[arg(long)]
        manifest: bool,
    },
    /// Call and list the functions on the bus
    #[command(
        after_help = "Examples:\n  repertoire bus functions\n  repertoire bus call skills::list"
    )]
    Bus {
        #[command(subcommand)]
        command: BusCommand,
    },
    /// Find the skills that fit a message, without calling a model
    #[command(
        after_help = "Examples:\n  repertoire search are there any contradictions in my notes\n  \
                            repertoire search --explain which commit broke the build\n  \
                            repertoire search --all --json tidy up my notes"
    )]
    Search(SearchArgs),
    /// Print a summary of the skills for a model, within a token budget
    #[command(
        after_help = "Examples:\n  repertoire catalogue --tokens 800\n  repertoire catalogue \
                            --message \"my tests are flaky\" --json"
    )]
    Catalogue(CatalogueArgs),
    /// Install optional components: the script sandbox, DSPy, embeddings for search
    #[command(
        after_help = "Examples:\n  repertoire setup\n  repertoire setup embeddings\n  repertoire \
                            setup examples --dry-run\n  repertoire setup sandbox\n  repertoire \
                            setup sidecar"
    )]
    Setup {
        #[command(subcommand)]
        command: Option<SetupCommand>,
    },
    /// Measure how well search finds skills and how well skills perform
    #[command(
        after_help = "The file is YAML: `skills` (a folder; else the catalogue), `goals`, \
                            `goals_with_meaning`,\nand `activations`, a list of `message`, \
                            `expect` (an id, or none), `also`\n(ids that are as right), `near` (the similar skill that \
                            must not match) and `kind`\n(ordinary, avoid, noisy, named, hard, easy, chitchat). `outputs` is a list of `skill`,\n`message`, `params` and \
                            `expect` (assertions as in a package): each is run with the\nskill \
                            and sent to the model without it. Exit code 1 if a goal is missed.\n\nExamples:\n  repertoire \
                            eval corpus/activation/tuning.yaml --misses"
    )]
    Eval(EvalArgs),
    /// Send a message: find fitting skills, let a model choose, and run its choice
    #[command(
        after_help = "Examples:\n  repertoire ask --model ollama/llama3.2 --vault notes \"Are there \
                            any contradictions about Mira?\"\n  repertoire ask --decide-only \"How do I \
                            undo my last commit?\""
    )]
    Ask(AskArgs),
    /// Run a skill: send its prompts to a model and record a trace of every step
    #[command(
        after_help = "Examples:\n  repertoire run tone-check --model ollama/llama3.2 -m \"Too \
                            blunt?\"\n  repertoire run checker --param entity_name=Mira --vault \
                            notes --dry-run\n  repertoire run checker --param claims:='[\"a\"]' \
                            --model openai/gpt-4o-mini --max-cost 0.05"
    )]
    Run(Box<RunArgs>),
    /// Optimize a skill's DSPy module from examples; a worse result is discarded
    #[command(
        after_help = "Examples are traces whose assertions held, or a file: a JSON array, or one \
                            object a line,\nwith a value for each input and output of the module's \
                            signature. A quarter is held back\nfor evaluation. Exit code 1 if the \
                            result is worse and was discarded.\n\nExamples:\n  repertoire \
                            optimize consistency-checker --model ollama/llama3.2\n  repertoire \
                            optimize checker --examples examples.jsonl --with mipro --max-cost 0.50"
    )]
    Optimize(Box<OptimizeArgs>),
    /// List, show, summarise and export traces of runs
    #[command(
        after_help = "Examples:\n  repertoire trace list\n  repertoire trace stats --since 30d\n  \
                            repertoire trace export --format dspy -o eval.jsonl"
    )]
    Trace {
        #[command(subcommand)]
        command: TraceCommand,
    },
    /// Create, list and revoke tokens for HTTP
    #[command(
        after_help = "Examples:\n  repertoire token create laptop --expires 90d\n  \
                            repertoire token list\n  repertoire token revoke laptop"
    )]
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Check whether folders are valid Agent Skills
    #[command(after_help = "Examples:\n  repertoire validate my-skill\n  \
                            repertoire validate --recursive --strict skills/")]
    Validate {
        /// Skill folders, or their SKILL.md
        #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
        paths: Vec<PathBuf>,
        /// Follow the specification where the reference validator is looser
        #[arg(long)]
        strict: bool,
        /// Validate every skill beneath the folders
        #[arg(long, short)]
        recursive: bool,
    },
    /// Find broken links, hidden text, risky commands and vague descriptions
    #[command(
        after_help = "Examples:\n  repertoire lint\n  repertoire lint skills/pdf\n  \
                            repertoire lint --fix ./skills\n  repertoire lint --rules"
    )]
    Lint {
        /// Skills or folders [default: every skill]
        #[arg(value_name = "SKILL|PATH")]
        #[arg(add = ArgValueCompleter::new(complete_skill))]
        targets: Vec<SkillQuery>,
        /// Fail on warnings too
        #[arg(long)]
        strict: bool,
        /// Fix what needs no decision: frontmatter that hosts refuse, links of the form `iii://x/a::b`
        #[arg(long)]
        fix: bool,
        /// List the rules
        #[arg(long, conflicts_with_all = ["targets", "fix"])]
        rules: bool,
    },
    /// Add skills from a folder, git, a web site, a registry or another MCP server
    #[command(after_help = format!("{SOURCE_FORMS}

What is added from elsewhere is pinned in repertoire.lock and approved with exactly the files
that are shown.

Examples:
  repertoire add ./pdf-forms
  repertoire add ./refunds --id acme/billing/refunds
  repertoire add anthropics/skills --list
  repertoire add anthropics/skills@pdf
  repertoire add oci://ghcr.io/acme/refunds:1.2 --scope account
  repertoire add mcp acme https://skills.example.com/mcp"))]
    #[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
    Add {
        #[command(subcommand)]
        from: Option<AddFrom>,
        #[command(flatten)]
        args: AddArgs,
    },
    /// Install what repertoire.toml names, as repertoire.lock pins it
    #[command(
        after_help = "repertoire.toml says which skills a project wants and from where; settings are in \
                      .repertoire/config.toml.\nInstalling approves nothing: `repertoire approve` \
                      does.\n\nExamples:\n  repertoire install\n  repertoire install --frozen     # in \
                      CI and fresh clones\n  repertoire install --offline"
    )]
    Install(InstallArgs),
    /// Update installed skills and keep your changes
    #[command(
        after_help = "What you changed and what the source changed are merged. If both changed the same \
                      lines, nothing\nis changed until you decide for each file; decisions \
                      accumulate.\n\nExamples:\n  repertoire update\n  repertoire update pdf \
                      --dry-run\n  repertoire update --take-remote pdf:SKILL.md --keep-local \
                      pdf:scripts/fill.py\n  repertoire update --abort"
    )]
    Update(UpdateArgs),
    /// Show which installed skills their sources have in a newer state
    #[command(
        after_help = "Exit code 1 if one is outdated or could not be asked for.\n\nExamples:\n  repertoire outdated --json"
    )]
    Outdated(InstalledArgs),
    /// Read every installed file again and compare it with the lock
    #[command(
        after_help = "Exit code 1 if something differs; each file is named.\n\nExamples:\n  repertoire \
                      verify\n  repertoire verify --edits     # your own changes are fine"
    )]
    Verify(VerifyArgs),
    /// Say why a skill is installed, and from where
    #[command(after_help = "Examples:\n  repertoire why pdf")]
    Why {
        /// The skill
        #[arg(add = ArgValueCompleter::new(complete_skill))]
        skill: SkillId,
        /// The project's skills or the account's [default: the project's, if there is one]
        #[arg(long)]
        scope: Option<ScopeArg>,
    },
    /// Adopt skills that `npx skills`, ClawHub or ToolHive installed, with their locks
    #[command(
        after_help = "Their files and locks stay as they are.\n\nExamples:\n  repertoire migrate \
                      --dry-run\n  repertoire migrate\n  repertoire migrate ~ --scope account"
    )]
    Migrate(MigrateArgs),
    /// Copy a skill into the workspace; the original stays unchanged
    #[command(after_help = "Examples:\n  repertoire fork consistency-checker")]
    Fork {
        /// The skill
        #[arg(add = ArgValueCompleter::new(complete_skill))]
        skill: SkillQuery,
    },
    /// List, show and change the artifacts of a stored package
    #[command(
        after_help = "Examples:\n  repertoire artifact list consistency-checker\n  \
                            repertoire artifact put tone-check \"Check Prompt\" prompt.j2 --variant \
                            openai\n  echo 'Be kind.' | repertoire artifact put tone-check Manner - \
                            --kind approach"
    )]
    Artifact {
        #[command(subcommand)]
        command: ArtifactCommand,
    },
    /// Remove skills from a store
    #[command(
        after_help = "Examples:\n  repertoire remove refunds\n  repertoire remove refunds --purge"
    )]
    Remove {
        /// The skills
        #[arg(required = true, value_name = "SKILL")]
        #[arg(add = ArgValueCompleter::new(complete_skill))]
        skills: Vec<SkillQuery>,
        /// Delete the history too, with every file that no other skill needs
        #[arg(long)]
        purge: bool,
        /// The store [default: workspace in a trusted workspace, else account]
        #[arg(long, env = "REPERTOIRE_SCOPE", hide_env_values = true)]
        scope: Option<ScopeArg>,
    },
    /// Show the revisions of a stored or registered skill
    History {
        /// The skill: an id, `workspace:id`, `account:id`, or `state:id` for a registered one
        #[arg(add = ArgValueCompleter::new(complete_skill))]
        skill: SkillQuery,
        /// The store [default: workspace in a trusted workspace, else account]
        #[arg(long, env = "REPERTOIRE_SCOPE", hide_env_values = true)]
        scope: Option<ScopeArg>,
    },
    /// Restore an earlier revision of a stored or registered skill
    #[command(
        after_help = "Example:\n  repertoire history refunds\n  repertoire rollback refunds 2"
    )]
    Rollback {
        /// The skill: an id, `workspace:id`, `account:id`, or `state:id` for a registered one
        #[arg(add = ArgValueCompleter::new(complete_skill))]
        skill: SkillQuery,
        /// The revision, as `history` shows it
        revision: i64,
        /// The store [default: workspace in a trusted workspace, else account]
        #[arg(long, env = "REPERTOIRE_SCOPE", hide_env_values = true)]
        scope: Option<ScopeArg>,
    },
    /// Convert, import and export packages
    #[command(
        after_help = "Examples:\n  repertoire package import tone-check.json\n  \
                            repertoire package export tone-check -o tone-check.json\n  \
                            repertoire package pack ./tone-check -o tone-check.json"
    )]
    Package {
        #[command(subcommand)]
        command: PackageCommand,
    },
    /// Manage other MCP servers that provide skills
    #[command(
        after_help = "Examples:\n  repertoire remote list\n  repertoire remote refresh \
                            acme\n  repertoire remote remove acme"
    )]
    Remote {
        #[command(subcommand)]
        command: RemoteCommand,
    },
    /// Trust installed skills and those of other servers until any of their files changes
    #[command(
        after_help = "It shows where a skill came from, what changed since you last approved it, what the \
                      rules found and who signed it.\n\nExamples:\n  repertoire approve pdf --show\n  \
                      repertoire approve acme/pdf\n  repertoire approve --all\n  repertoire approve \
                      acme/pdf --revoke"
    )]
    Approve(ApproveArgs),
    /// Trust a workspace, so that its skills can override others and run
    #[command(
        after_help = "Examples:\n  repertoire list        # look first\n  repertoire trust\n  \
                            repertoire trust --revoke\n  \
                            repertoire trust --link .claude/skills/pdf"
    )]
    Trust {
        /// The workspace [default: the one this folder is in]
        path: Option<PathBuf>,
        /// Revoke the trust
        #[arg(long)]
        revoke: bool,
        /// Apply a journal beside the store (`agents.db-wal`) that this account did not write
        #[arg(long, conflicts_with = "revoke")]
        with_journal: bool,
        /// Serve what this link or folder leads to, although it is outside of the project
        #[arg(long, value_name = "LINK", conflicts_with_all = ["path", "with_journal"])]
        link: Option<PathBuf>,
    },
    /// Show what differs between revisions, origins, or a folder and the registry
    #[command(
        after_help = "With one skill: its last revision and the one before. With one folder: the skill \
                      of the same id in the registry, and the folder.\n\nExamples:\n  \
                      repertoire diff refunds\n  repertoire diff refunds@2\n  \
                      repertoire diff refunds@2 refunds@4\n  repertoire diff ./refunds\n  \
                      repertoire diff account:refunds workspace:refunds"
    )]
    Diff {
        /// The old one: a skill, a folder, or a revision as SKILL@NUMBER
        #[arg(value_name = "OLD", add = ArgValueCompleter::new(complete_skill))]
        old: String,
        /// The new one
        #[arg(value_name = "NEW", add = ArgValueCompleter::new(complete_skill))]
        new: Option<String>,
    },
    /// Stop serving skills, in all your projects, without removing them
    #[command(after_help = "Examples:\n  repertoire disable acme/refunds\n  repertoire list --all")]
    Disable {
        /// Their ids
        #[arg(required = true, add = ArgValueCompleter::new(complete_skill))]
        skills: Vec<SkillId>,
    },
    /// Serve skills again that were disabled
    #[command(after_help = "Examples:\n  repertoire enable acme/refunds")]
    Enable {
        /// Their ids
        #[arg(required = true)]
        skills: Vec<SkillId>,
    },
    /// Let a host use Repertoire: write its settings, or list the hosts
    #[command(
        after_help = "Without a host it lists them. What was in the file before is kept beside it, in \
                      FILE.repertoire-backup. No token is ever written.\n\nExamples:\n  \
                      repertoire connect claude-code\n  \
                      repertoire connect cursor .agents/skills\n  repertoire connect codex --user\n  \
                      repertoire connect vscode --print\n  \
                      repertoire connect cursor --url http://127.0.0.1:8321/mcp"
    )]
    Connect {
        /// The host, for instance claude-code, codex, cursor, vscode, gemini-cli
        #[arg(value_name = "HOST", add = ArgValueCompleter::new(complete_host))]
        host: Option<String>,
        /// Folders to serve instead of stores and settings
        #[arg(value_name = "PATH", value_hint = ValueHint::DirPath, conflicts_with = "url")]
        paths: Vec<PathBuf>,
        #[command(flatten)]
        place: HostPlaceArgs,
        /// Print the settings and write nothing
        #[arg(long)]
        print: bool,
        /// Connect to a running server instead of starting a program
        #[arg(long, value_name = "URL")]
        url: Option<String>,
    },
    /// Remove Repertoire from a host's settings
    #[command(after_help = "Examples:\n  repertoire disconnect claude-code")]
    Disconnect {
        /// The host
        #[arg(value_name = "HOST", add = ArgValueCompleter::new(complete_host))]
        host: String,
        #[command(flatten)]
        place: HostPlaceArgs,
    },
    /// Copy trusted skills into a host's own skills folder and keep them up to date
    #[command(
        after_help = "Only copies that this command made are ever replaced or removed; a record beside \
                      them says which. Run it again to bring them up to date.\n\nExamples:\n  \
                      repertoire link claude-code\n  repertoire link universal --user --only acme\n  \
                      repertoire link ./agent/skills --watch\n  repertoire link claude-code --remove"
    )]
    Link {
        /// The host, or a folder
        #[arg(value_name = "HOST|FOLDER", add = ArgValueCompleter::new(complete_host))]
        target: String,
        #[command(flatten)]
        place: HostPlaceArgs,
        /// Copy only these skills: ids, or paths that they are below
        #[arg(long, value_name = "ID", value_delimiter = ',')]
        only: Vec<repertoire_core::permission::IdPrefix>,
        /// Go on until Ctrl-C, and follow changes
        #[arg(long)]
        watch: bool,
        /// Remove the copies
        #[arg(long, conflicts_with_all = ["only", "watch"])]
        remove: bool,
    },
    /// Check stores, sources, settings and installed components, and show what takes space
    Doctor,
    /// Delete old traces, superseded revisions and unused caches
    #[command(
        after_help = "Without --yes it shows what would go and, on a terminal, asks. Current skills, \
                      approved files and registered skills always stay. A running server does this \
                      once a day.\n\nExamples:\n  repertoire gc\n  repertoire gc --yes\n  \
                      repertoire gc --traces 7d --yes"
    )]
    Gc {
        /// Delete traces that are older
        #[arg(long, value_name = "AGE", default_value = "90d", value_parser = parse_duration)]
        traces: std::time::Duration,
        /// Delete superseded revisions that are older; of each skill the newest 20 stay
        #[arg(long, value_name = "AGE", default_value = "90d", value_parser = parse_duration)]
        history: std::time::Duration,
        /// Delete without asking
        #[arg(long, short = 'y')]
        yes: bool,
    },
    /// Write a consistent copy of a store to a file, also while a server runs
    #[command(
        after_help = "Example:\n  repertoire backup ~/repertoire-2026-11.db\n  repertoire restore \
                      ~/repertoire-2026-11.db"
    )]
    Backup {
        /// The new file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The store [default: account]
        #[arg(long)]
        scope: Option<ScopeArg>,
    },
    /// Replace everything in a store by a backup; what was there is kept beside it
    #[command(after_help = "Example:\n  repertoire restore ~/repertoire-2026-11.db --yes")]
    Restore {
        /// The file that `backup` wrote
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The store [default: account]
        #[arg(long)]
        scope: Option<ScopeArg>,
        /// Accept the backup of another store, such as one of another machine
        #[arg(long)]
        other_store: bool,
        /// Replace without asking
        #[arg(long, short = 'y')]
        yes: bool,
    },
    /// Print changes as they happen
    Watch {
        /// Folders to watch instead of stores and settings
        #[arg(value_name = "PATH", value_hint = ValueHint::DirPath)]
        paths: Vec<PathBuf>,
    },
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  repertoire completions zsh > ~/.zfunc/_repertoire")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a folder
    #[cfg(feature = "man")]
    #[command(hide = true)]
    Man {
        /// The folder
        folder: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PackageCommand {
    /// Store packages from their JSON form
    #[command(
        after_help = "Examples:\n  repertoire package import tone-check.json\n  \
                            curl -s localhost:9000/pkg.json | repertoire package import -"
    )]
    Import {
        /// Package files; `-` reads stdin
        #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        write: WriteArgs,
    },
    /// Print a skill in the JSON form
    #[command(after_help = "Examples:\n  repertoire package export tone-check -o tone-check.json")]
    Export {
        /// The skill
        #[arg(add = ArgValueCompleter::new(complete_skill))]
        skill: SkillQuery,
        /// Write here instead of stdout
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Turn a skill folder into its JSON form
    Pack {
        /// The folder
        #[arg(value_hint = ValueHint::DirPath)]
        folder: PathBuf,
        /// Write here instead of stdout
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Turn the JSON form into a skill folder
    Unpack {
        /// The package; `-` reads stdin
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The folder to create [default: the skill's name]
        #[arg(long, short, value_name = "DIR")]
        output: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum BusCommand {
    /// Call a function on the bus
    #[command(
        after_help = "Examples:\n  repertoire bus call skills::list\n  repertoire bus call skill::fetch \
                            '{\"uri\": \"iii://skills\"}'\n  repertoire bus call demo::greet - < \
                            payload.json"
    )]
    Call {
        /// The function
        function: String,
        /// The payload as JSON; `-` reads stdin
        #[arg(default_value = "{}")]
        payload: String,
        /// How long to wait: 500ms, 30s, 5m
        #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s")]
        timeout: std::time::Duration,
        #[command(flatten)]
        bus: UrlArgs,
    },
    /// List the functions on the bus
    #[command(
        after_help = "Examples:\n  repertoire bus functions\n  repertoire bus functions --internal --json"
    )]
    Functions {
        /// Also show the bus's own functions
        #[arg(long)]
        internal: bool,
        #[command(flatten)]
        bus: UrlArgs,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct WriteArgs {
    /// The store [default: workspace in a trusted workspace, else account]
    #[arg(long, env = "REPERTOIRE_SCOPE", hide_env_values = true)]
    pub(crate) scope: Option<ScopeArg>,
    /// Check everything and store nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct HostPlaceArgs {
    /// For this project [default, in a workspace or repository]
    #[arg(long, conflicts_with = "user")]
    pub(crate) project: bool,
    /// For every project of this user
    #[arg(long)]
    pub(crate) user: bool,
    /// The name of the server in the host's settings
    #[arg(long, default_value = "repertoire", hide = true)]
    pub(crate) name: String,
}
