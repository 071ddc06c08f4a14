//! Arguments of the commands that install skills from elsewhere.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use clap_complete::ArgValueCompleter;
use repertoire_app::{
    SkillQuery,
    install::{ConflictChoice, FetchOptions, FileChoice},
};
use repertoire_core::SkillId;

use super::{ScopeArg, WriteArgs};
use crate::completion::complete_skill;

/// The forms of a source, for help texts.
pub(crate) const SOURCE_FORMS: &str = "\
Sources:
  ./folder, ./skills.zip, ./skill.tar.gz, ./package.json     on this machine
  owner/repo[@skill][#ref]                                   on GitHub
  https://git.example.com/r.git[#ref], git@host:r.git        any git repository
  https://github.com/owner/repo/tree/main/skills/pdf         a folder of one
  https://example.com                                        an index of skills (.well-known)
  https://example.com/pdf.zip, https://example.com/SKILL.md  an archive or a document
  oci://ghcr.io/acme/pdf[:tag|@sha256:…]                     an OCI registry
  clawhub:[@owner/]name[@version]                            a ClawHub registry";

/// How sources are asked.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Source options")]
#[allow(clippy::struct_excessive_bools, reason = "one field per flag")]
pub(crate) struct SourceArgs {
    /// Send no requests: install what is locked from what was fetched before
    #[arg(long)]
    pub(crate) offline: bool,
    /// Allow hosts on private networks
    #[arg(long)]
    pub(crate) private: bool,
    /// Accept another signer than the recorded one, or none
    #[arg(long)]
    pub(crate) allow_signer_change: bool,
    /// Accept other content under a version or tag that was installed before
    #[arg(long)]
    pub(crate) allow_moved: bool,
}

impl SourceArgs {
    pub(crate) fn fetch_options(&self) -> FetchOptions {
        FetchOptions {
            offline: self.offline,
            private: self.private,
            allow_signer_change: self.allow_signer_change,
            allow_moved: self.allow_moved,
            ..FetchOptions::default()
        }
    }
}

#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "one field per flag")]
pub(crate) struct AddArgs {
    /// Where skills are: a folder, an archive, owner/repo, a URL, oci://…, clawhub:…
    #[arg(required = true, value_name = "SOURCE", value_hint = ValueHint::AnyPath)]
    pub(crate) sources: Vec<String>,
    /// Only these skills of a source that has several
    #[arg(long = "skill", short = 's', value_name = "NAME")]
    pub(crate) skills: Vec<String>,
    /// Every skill of a source that has several
    #[arg(long, conflicts_with = "skills")]
    pub(crate) all: bool,
    /// Show what the source has, and add nothing
    #[arg(long, short = 'l')]
    pub(crate) list: bool,
    /// The id to store it under; it ends in the skill's name [default: its path or name]
    #[arg(long)]
    pub(crate) id: Option<SkillId>,
    /// Store nothing unless every skill is valid and hosts list it
    #[arg(long)]
    pub(crate) strict: bool,
    /// Store it unapproved: it can be read, and neither runs nor overrides
    #[arg(long)]
    pub(crate) no_approve: bool,
    #[command(flatten)]
    pub(crate) write: WriteArgs,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    /// Change neither repertoire.toml nor repertoire.lock; fail if the lock does not say everything
    #[arg(long)]
    pub(crate) frozen: bool,
    /// Trust the project first, if it is not trusted
    #[arg(long)]
    pub(crate) trust: bool,
    /// The project's skills or the account's [default: the project's, if there is one]
    #[arg(long)]
    pub(crate) scope: Option<ScopeArg>,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UpdateArgs {
    /// Only these skills [default: all]
    #[arg(value_name = "SKILL")]
    pub(crate) skills: Vec<SkillId>,
    /// Of a file in conflict use what the source has: SKILL or SKILL:FILE
    #[arg(long, value_name = "SKILL[:FILE]", value_parser = parse_file)]
    pub(crate) take_remote: Vec<ConflictFile>,
    /// Of a file in conflict keep what you have: SKILL or SKILL:FILE
    #[arg(long, value_name = "SKILL[:FILE]", value_parser = parse_file)]
    pub(crate) keep_local: Vec<ConflictFile>,
    /// Forget an update that waits for decisions
    #[arg(long, conflicts_with_all = ["skills", "take_remote", "keep_local"])]
    pub(crate) abort: bool,
    /// Say what would change, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The project's skills or the account's [default: the project's, if there is one]
    #[arg(long)]
    pub(crate) scope: Option<ScopeArg>,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// A skill, or one file of it.
#[derive(Debug, Clone)]
pub(crate) struct ConflictFile {
    skill: SkillId,
    path: Option<repertoire_core::RelPath>,
}

fn parse_file(text: &str) -> Result<ConflictFile, String> {
    let (skill, path) = match text.split_once(':') {
        Some((skill, path)) => (skill, Some(path)),
        None => (text, None),
    };
    Ok(ConflictFile {
        skill: skill.parse().map_err(|error| format!("{error}"))?,
        path: path
            .map(|path| path.parse().map_err(|error| format!("{error}")))
            .transpose()?,
    })
}

impl UpdateArgs {
    /// Returns the decisions, in any order.
    pub(crate) fn choices(&self) -> Vec<FileChoice> {
        let with = |choice| {
            move |file: &ConflictFile| FileChoice {
                skill: file.skill.clone(),
                path: file.path.clone(),
                choice,
            }
        };
        let taken = self
            .take_remote
            .iter()
            .map(with(ConflictChoice::TakeRemote));
        let kept = self.keep_local.iter().map(with(ConflictChoice::KeepLocal));
        taken.chain(kept).collect()
    }
}

/// Which installed skills a command is about.
#[derive(Debug, Args)]
pub(crate) struct InstalledArgs {
    /// The project's skills or the account's [default: the project's, if there is one]
    #[arg(long)]
    pub(crate) scope: Option<ScopeArg>,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Accept skills that you changed
    #[arg(long)]
    pub(crate) edits: bool,
    /// The project's skills or the account's [default: the project's, if there is one]
    #[arg(long)]
    pub(crate) scope: Option<ScopeArg>,
}

#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    /// The folder with the other tools' locks [default: the project, or your home folder]
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) folder: Option<PathBuf>,
    /// Say what would be adopted, and adopt nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) installed: InstalledArgs,
}

#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "one field per flag")]
pub(crate) struct ApproveArgs {
    /// The skills
    #[arg(required_unless_present = "all", value_name = "SKILL")]
    #[arg(add = ArgValueCompleter::new(complete_skill))]
    pub(crate) skills: Vec<SkillQuery>,
    /// Every installed skill that is not approved
    #[arg(long, conflicts_with = "skills")]
    pub(crate) all: bool,
    /// Only look: what it is, what changed, what the rules found
    #[arg(long, conflicts_with = "revoke")]
    pub(crate) show: bool,
    /// Approve only if this is its digest
    #[arg(long, value_name = "DIGEST", conflicts_with_all = ["all", "revoke"])]
    pub(crate) digest: Option<repertoire_core::Digest>,
    /// Approve without asking
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,
    /// Revoke the approval
    #[arg(long)]
    pub(crate) revoke: bool,
}
