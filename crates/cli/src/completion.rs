//! Completion in the shell: commands and flags, and the ids of the skills that exist.
//!
//! The script of a shell calls this program with [`COMPLETE_VAR`] set, so that it always offers the
//! current skills.

use std::{ffi::OsStr, io::Write};

use clap::{Command, Parser};
use clap_complete::{
    CompletionCandidate, PathCompleter, Shell,
    engine::ValueCompleter,
    env::{CompleteEnv, Shells},
};
use repertoire_core::markdown::{to_single_line, truncate_text};
use repertoire_registry::{Registry, store::Account};

use crate::{args::Args, settings};

const COMPLETE_VAR: &str = "REPERTOIRE_COMPLETE";
/// The most candidates that are offered.
const MAX_CANDIDATES: usize = 200;

/// Answers the shell and exits, if the shell asks for candidates.
pub(crate) fn answer_shell(command: fn() -> Command) {
    if std::env::var_os(COMPLETE_VAR).is_some() {
        CompleteEnv::with_factory(command)
            .var(COMPLETE_VAR)
            .complete();
    }
}

/// Writes the script that a shell reads at its start.
pub(crate) fn write_script(shell: Shell, script: &mut dyn Write) -> std::io::Result<()> {
    let shells = Shells::builtins();
    let name = "repertoire";
    match shells.completer(&shell.to_string()) {
        Some(shell) => shell.write_registration(COMPLETE_VAR, name, name, name, script),
        None => Err(std::io::ErrorKind::Unsupported.into()),
    }
}

/// Returns the skills, or folders, that the user may mean.
pub(crate) fn complete_skill(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    if text.starts_with(['.', '/', '~']) {
        return PathCompleter::dir().complete(current);
    }
    // A shell has no place for an error message.
    find_candidates(&text).unwrap_or_default()
}

/// Completes the id of a host.
pub(crate) fn complete_host(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    let hosts = repertoire_app::HOSTS.iter();
    let hosts = hosts.filter(|host| host.id.starts_with(&*text));
    hosts
        .map(|host| CompletionCandidate::new(host.id).help(Some(host.name.into())))
        .collect()
}

fn find_candidates(text: &str) -> anyhow::Result<Vec<CompletionCandidate>> {
    // The shell passes only the word; the other settings are those of the environment.
    let global = Args::try_parse_from(["repertoire", "doctor"])?.global;
    let settings = settings::resolve_settings(&global)?;
    let mut sources = settings.sources_for(&[])?;
    sources.system_skills = false;
    // Pressing a key must not create an account.
    if Account::is_missing(&settings.account) {
        sources.account = None;
    }
    let registry = Registry::open(sources)?;
    let snapshot = registry.snapshot();
    let candidates = snapshot.all_skills().filter_map(|(entry, shadowed_by)| {
        let id = match (text.contains(':'), shadowed_by) {
            (true, _) => format!("{}:{}", entry.origin, entry.id),
            (false, None) => entry.id.to_string(),
            (false, Some(_)) => return None,
        };
        let about = entry.metadata.description.as_deref().unwrap_or_default();
        let about = truncate_text(&to_single_line(about), 80);
        id.starts_with(text)
            .then(|| CompletionCandidate::new(id).help(Some(about.into())))
    });
    Ok(candidates.take(MAX_CANDIDATES).collect())
}
