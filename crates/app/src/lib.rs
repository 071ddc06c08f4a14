//! What Repertoire does, however it is called.
//!
//! This crate joins the registry and the runtime: it finds skills for a message, plans and runs
//! them, lets a model decide ([`Runner::ask`]), evaluates and optimizes them, and stores what came
//! of it as traces. The command line, MCP tools and programs call the same functions. It knows no
//! wire format and no terminal.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use repertoire_app::{RunRequest, Runner, RunnerSettings};
//! use repertoire_registry::{Registry, RegistrySettings};
//! # async fn example(model: Arc<dyn repertoire_runtime::Model>) -> Result<(), repertoire_app::Error> {
//! let registry = Registry::open(RegistrySettings::from_folders(["skills".into()]))?;
//! let settings = RunnerSettings {
//!     model: Some(model),
//!     ..RunnerSettings::default()
//! };
//! let runner = Runner::new(registry, settings);
//! let request = RunRequest {
//!     message: Some("what changed in this release?".to_owned()),
//!     ..RunRequest::default()
//! };
//! let report = runner.run(&"release-notes".parse()?, &request).await?;
//! println!("{}", report.outcome?.text);
//! # Ok(())
//! # }
//! ```

pub use repertoire_core::permission::Permission;

mod activation;
mod artifact_editing;
mod ask;
mod caller;
mod components;
mod conversation;
mod create_workspace;
mod error;
mod evaluate;
mod evaluation_file;
mod example_messages;
mod health;
mod hosts;
pub mod install;
mod lint_fix;
mod live_registry;
mod maintenance;
mod optimize;
mod reoptimize;
mod runner;
mod runtime_adapter;
mod search_usage;
mod server_pool;
mod skill_diff;
mod skill_files;
mod skill_index;
mod skill_query;
mod skill_scope;
mod stored_skill;
mod tokens;
mod trace_export;
mod trace_keeper;
mod trace_tree;
mod worker_record;

pub use activation::{
    ActivationCase, ActivationGoals, ActivationReport, ActivationTally, CaseKind, GoalMetric, ratio,
};
pub use artifact_editing::{
    ArtifactChange, ArtifactName, ArtifactOutcome, check_artifact, put_artifact, remove_artifact,
};
pub use ask::{AskOutcome, AskProgress, AskRequest, SkillShortlist};
pub use caller::Caller;
pub use components::{ComponentKind, Components, InstallOutcome, InstallProgress, InstallRequest};
pub use conversation::{last_session, load_conversation};
pub use create_workspace::{
    CONFIG_FILE, ExistingSkills, create_workspace, existing_skill_folders, ignore_store,
};
pub use error::{Error, Result};
pub use evaluate::{CaseOutcome, CaseResult, OutputCase};
pub use evaluation_file::EvaluationFile;
pub use example_messages::{ExampleReport, MissingExamples, missing_examples};
pub use health::{HealthCheck, HealthProblem, check_health};
pub use hosts::{
    ConfigChange, ConfigPlan, HOSTS, Host, HostScope, KnownAddresses, LinkChange, LinkReport,
    ServerEntry, SkillLinks,
};
pub use lint_fix::{LintFix, fix_folder, fix_skill};
pub use live_registry::{FileWatching, LiveRegistry, OnSettled};
pub use maintenance::{CleanupReport, DiskUsage, clean_up, clean_up_periodically, disk_usage};
pub use optimize::{
    OptimizeReport, OptimizeRequest, TrainingSource, parse_examples, training_examples,
};
pub use reoptimize::Reoptimizer;
pub use runner::{PlannedStep, PreparedRun, RunLimits, RunRequest, Runner, RunnerSettings};
pub use runtime_adapter::RunnableSkill;
pub use search_usage::{UsagePolicy, UseRecorder, uses_of};
pub use server_pool::ConnectionPool;
pub use skill_diff::{FileChange, FileDiff, diff_files};
pub use skill_files::{
    FoundSkills, SkillFiles, export_package, lint_entry, lint_files, lint_names, outermost_skills,
    read_entry, read_skill_folders, validate_folder,
};
pub use skill_index::{LiveSkillIndex, build_skill_index};
pub use skill_query::{SkillQuery, find_skill};
pub use skill_scope::{
    ScopePreference, folder_skill, folder_source, require_folder, require_in_scope, resolve_folder,
    resolve_skill,
};
pub use stored_skill::find_stored_skill;
pub use tokens::{TokenGrant, create_token};
pub use trace_export::{ArtifactStats, artifact_stats, export_examples, export_lines};
pub use trace_keeper::TraceListener;
pub use trace_tree::{SpanNode, span_trees};
pub use worker_record::{StoredWorker, WorkerRecord};
