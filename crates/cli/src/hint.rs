//! What to do about an error, where its message does not say it.
//!
//! Library errors know no commands and no flags; their hints are here.

use std::borrow::Cow;

use repertoire_app::Error as AppError;
use repertoire_core::ArtifactKind;
use repertoire_registry::{Error as RegistryError, Origin, StoreScope};
use repertoire_remote::Error as RemoteError;
use repertoire_runtime::{Error as RunError, NO_PAGES};
use repertoire_serve::{Error as ServeError, ListenProblem};

/// Returns the hint for an error of the application.
pub(crate) fn app_hint(error: &AppError) -> Option<Cow<'static, str>> {
    Some(match error {
        AppError::Registry(error) => return registry_hint(error).map(Cow::from),
        AppError::Run(error) => return run_hint(error).map(Cow::from),
        AppError::Remote(error) => return remote_hint(error).map(Cow::from),
        AppError::SeveralOffers { .. } => {
            Cow::from("choose with --skill NAME or --all; --list shows what each one does")
        }
        AppError::NoSuchOffer { .. } => Cow::from("--list shows what each one does"),
        AppError::FrozenLock { .. } => {
            Cow::from("run `repertoire install` where you may change the lock, and commit it")
        }
        AppError::Offline(_) => Cow::from("leave --offline out"),
        AppError::ProjectFile { path, .. } if path.ends_with("repertoire.lock") => Cow::from(
            "after a merge: settle repertoire.toml, delete repertoire.lock and run `repertoire install`",
        ),
        AppError::OwnSkill { id, .. } => Cow::from(format!(
            "choose another id with --id, or remove yours first: `repertoire remove {id}`"
        )),
        AppError::OtherSource { id, .. } => Cow::from(format!(
            "choose another id with --id, or remove that one first: `repertoire remove {id}`"
        )),
        AppError::MovedVersion { .. } => Cow::from("ask its author why; --allow-moved accepts it"),
        AppError::SignerChanged { .. } => {
            Cow::from("ask its author why; --allow-signer-change accepts it")
        }
        AppError::UpdateConflict { skill } => Cow::from(format!(
            "run `repertoire update {skill}` and decide file by file"
        )),
        AppError::NotInstalled(_) => Cow::from("repertoire.toml names what is installed"),
        AppError::NotOnDisk(_) => Cow::from("install it with the other tool first"),
        AppError::UnknownSession { skill, .. } if skill == "ask" => {
            Cow::from("`repertoire ask` prints the session of each conversation")
        }
        AppError::UnknownSession { skill, .. } => Cow::from(format!(
            "`repertoire trace list --skill {skill} --json` shows the sessions there are"
        )),
        AppError::NoModule { skill, name: None } => Cow::from(format!(
            "add one with `repertoire artifact put {skill} NAME FILE --kind dspy_module`"
        )),
        AppError::AmbiguousSkill { .. } => Cow::from("name one of them with its origin"),
        AppError::AmbiguousModule { .. } => Cow::from("name one with --artifact"),
        AppError::NoTrainingTraces { .. } => Cow::from("or bring examples with --examples FILE"),
        AppError::UnusedScope { .. } | AppError::ContradictingScope(_) => {
            Cow::from("leave --scope out")
        }
        AppError::NotInStore {
            skill,
            origin: Origin::Account,
            scope: StoreScope::Workspace,
        } => Cow::from(format!(
            "name it as account:{skill}, or copy it to the workspace with `repertoire fork {skill}`"
        )),
        AppError::NotInStore {
            origin: Origin::Files(_),
            ..
        } => Cow::from("it is a folder on disk: change or delete its files there"),
        AppError::NotInStore {
            origin: Origin::Remote(_),
            ..
        } => Cow::from("it belongs to another server: `repertoire remote list` shows them"),
        AppError::NotInStore {
            origin: Origin::State,
            ..
        } => Cow::from("a program registered it: name it with its origin, as in state:ID"),
        AppError::NotInStore { .. } => Cow::from("name its store with --scope"),
        AppError::SkillAndFolder { name, skill } => Cow::from(format!("write {skill} or ./{name}")),
        AppError::WorkspaceExists(_) => Cow::from(
            "to add folders of skills, name them under `folders` in .repertoire/config.toml; if it came \
             from elsewhere, `repertoire trust` trusts it",
        ),
        AppError::WorkspaceNotNew(_) => {
            Cow::from("look at them with `repertoire list`, then run `repertoire trust`")
        }
        AppError::KindNeeded(_) => Cow::from("name its kind with --kind"),
        AppError::OldPython { .. } => Cow::from("name a newer one with REPERTOIRE_PYTHON"),
        AppError::Download { folder, .. } => Cow::from(format!(
            "get the package another way, and give its folder `{folder}` with --from"
        )),
        AppError::NotABundle(_) => Cow::from("`cargo xtask sidecar-bundle` builds one"),
        _ => return None,
    })
}

/// Returns the hint for an error of the registry.
pub(crate) fn registry_hint(error: &RegistryError) -> Option<&'static str> {
    Some(match error {
        RegistryError::Invalid(error) | RegistryError::InvalidAt { error, .. } => {
            return error.hint();
        }
        RegistryError::NotFound { what, .. } => match *what {
            "skill" => "`repertoire list --all` shows every skill",
            "revision" => "`repertoire history` shows every revision",
            "folder to pack" => "`repertoire package export` prints a skill of a store",
            "server" => "`repertoire remote list` shows every server",
            "token" => "`repertoire token list` shows every token",
            "prompt" => "`repertoire list --prompts` shows every prompt",
            "scope" => "with --from only folders are used: leave it out to use the stores",
            "trace" => "`repertoire trace list` shows the newest traces",
            _ => return None,
        },
        RegistryError::AlreadyExists { what: "token", .. } => "revoke it or choose another name",
        RegistryError::AlreadyExists { what: "folder", .. } => {
            "choose another folder, or remove it first"
        }
        RegistryError::AlreadyInWorkspace(_) => "change that copy, or remove it first",
        RegistryError::AmbiguousTrace(_) => "give more of the id",
        RegistryError::Changed { .. } | RegistryError::NotSaved(_) => "try again",
        RegistryError::LearnedForOther(_) => "run `repertoire optimize` again",
        RegistryError::KeptOnBus => "change it through the worker that registered it",
        RegistryError::UntrustedSkill(_) => {
            "if it was installed, look at it with `repertoire approve SKILL --show`; else trust its \
             workspace with `repertoire trust`, or keep a copy with `repertoire add`"
        }
        RegistryError::NoWorkspace => {
            "`repertoire init` makes this folder one; --scope account, where a command has it, uses the \
             account's store"
        }
        RegistryError::EscapesRoot(_) => "copy the file into the skill instead of linking to it",
        RegistryError::NotRegular(_) => "a skill holds regular files only: remove it or replace it",
        RegistryError::Remote { .. } => "check that it runs, and where: `repertoire remote list`",
        RegistryError::Tampered { .. } => {
            "list it again with `repertoire remote refresh`; if it persists, contact its operator"
        }
        RegistryError::Corrupt { .. } => {
            "a store that is damaged is replaced by `repertoire restore BACKUP`, which keeps the damaged \
             file beside it"
        }
        RegistryError::NewerSchema { .. } => "install a newer version of repertoire",
        RegistryError::Busy(_) => "try again, or end the other process",
        RegistryError::OutsideWorkspace(_) | RegistryError::TooLargeForUntrusted { .. } => {
            "run `repertoire trust` if you know the workspace"
        }
        RegistryError::ReadOnly(_) => "give this user write permission, or use another --home",
        RegistryError::ReplacedStore(_) => {
            "end the server, look at the workspace, then run `repertoire trust`"
        }
        RegistryError::NotABackup { .. } => "name a file that `repertoire backup` wrote",
        RegistryError::ForeignJournal(_) => {
            "a pull can bring one: move it away, or apply it with `repertoire trust --with-journal`"
        }
        RegistryError::Untrusted(_) => {
            "look at it with `repertoire list`, then run `repertoire trust`"
        }
        _ => return None,
    })
}

/// Returns the hint for an error about a place that skills come from.
pub(crate) fn remote_hint(error: &RemoteError) -> Option<&'static str> {
    Some(match error {
        RemoteError::Invalid(error) => return error.hint(),
        RemoteError::Target(_) => {
            "--bearer-env names a variable that holds a token, --private allows private networks"
        }
        RemoteError::Source { .. } => {
            "`repertoire add --help` shows every form of a source, with examples"
        }
        RemoteError::Refused { reason, .. } if reason.contains("private") => {
            "--private allows it, if you know that network"
        }
        RemoteError::Unreachable { .. } => "check the address and the network, then try again",
        RemoteError::Unauthorized { .. } => {
            "log in with the tool that keeps the login: git's credential helper, or `docker login`"
        }
        RemoteError::DigestMismatch { .. } | RemoteError::Signature { .. } => {
            "nothing was stored; tell the one who runs that place"
        }
        RemoteError::NoProgram { program: "git", .. } => "install git",
        _ => return None,
    })
}

/// Returns the hint for an error of a run.
pub(crate) fn run_hint(error: &RunError) -> Option<&'static str> {
    match error {
        RunError::NoHandler(ArtifactKind::CodeTemplate) => {
            Some("this build is without the feature `sandbox`")
        }
        RunError::Workspace(_) => Some("name a folder of pages with --vault"),
        RunError::Template { reason, .. } if reason.contains(NO_PAGES) => {
            Some("name a folder of pages with --vault")
        }
        RunError::UndefinedVariable { name, .. } if name == "message" || name == "query" => {
            Some("give it with --message")
        }
        RunError::UndefinedVariable { .. } => Some("give it with --param NAME=VALUE"),
        RunError::Script { kind, .. } if kind == "NameError" => {
            Some("a value of the skill is given with --param NAME=VALUE")
        }
        RunError::NeedsSandbox(_) => Some("`repertoire setup sandbox` builds it, in a minute"),
        RunError::NeedsSidecar(_) => Some("`repertoire setup sidecar` installs it"),
        RunError::ScriptLimit(_) => Some(
            "limits are those of [sandbox] in config.toml, or lower where the artifact's \
             metadata say so: docs/run.md, Code",
        ),
        RunError::Model(_) => Some(
            "name one with --model PROVIDER/MODEL, such as ollama/llama3.2, or set `model` in \
             config.toml",
        ),
        RunError::Provider {
            status: Some(401 | 403),
            ..
        } => Some("check the provider's key: its environment variable, or key_file in config.toml"),
        RunError::NoPrice(_) => Some("add it under [prices] in config.toml: docs/run.md, Models"),
        RunError::Provider { status: None, .. } => {
            Some("is its server running, and is base_url in config.toml right?")
        }
        RunError::Sandbox(_) => Some("`repertoire setup sandbox --again` builds it again"),
        RunError::Decision(_) => Some(
            "a larger model decides better; `repertoire search` and `repertoire run SKILL` \
             need no decision",
        ),
        RunError::Budget(_) => Some("allow more with --max-tokens or --max-cost"),
        _ => None,
    }
}

/// Returns the hint for an error of a server.
pub(crate) fn serve_hint(error: &ServeError) -> Option<&'static str> {
    match error {
        ServeError::Open(error) => registry_hint(error),
        ServeError::Invalid(error) => error.hint(),
        ServeError::Listen { reason, .. } => match reason {
            ListenProblem::InUse => Some("choose another --port"),
            ListenProblem::NotPermitted => Some("choose a --port above 1023"),
            ListenProblem::HubPortInUse => {
                Some("--hub PORT uses another port, --hub off disables it")
            }
            ListenProblem::UsedByBus => Some(
                "--join runs as a worker there, --hub PORT uses another port, --hub off disables \
                 it",
            ),
            _ => None,
        },
        ServeError::TokenNeeded(_) => {
            Some("make a token with `repertoire token create NAME`, or use --no-auth")
        }
        ServeError::Transport(reason) if reason.contains("no bus answers") => {
            Some("`repertoire serve` starts a hub; --url names another bus")
        }
        ServeError::Transport(reason) if reason.contains("401") => {
            Some("set III_TOKEN to a token: `repertoire token create NAME --allow read,run,write`")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_missing_parts_name_the_setup_command() {
        let sandbox = RunError::NeedsSandbox("Script".to_owned());
        assert!(run_hint(&sandbox).is_some_and(|hint| hint.contains("repertoire setup sandbox")));
        let sidecar = RunError::NeedsSidecar("Module".to_owned());
        assert!(run_hint(&sidecar).is_some_and(|hint| hint.contains("repertoire setup sidecar")));
    }
}
