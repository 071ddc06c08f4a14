//! Error reporting: the printed message and the exit code of the process.

use std::{borrow::Cow, io::Write, process::ExitCode};

use repertoire_app::Error as AppError;
use repertoire_core::text::terminal_safe;
use repertoire_serve::iii::CallError;
use serde_json::json;

use crate::{
    hint::{app_hint, registry_hint, remote_hint, run_hint, serve_hint},
    output::Output,
};

/// An invalid command line or invalid settings.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// The command worked and found a problem in a skill.
pub(crate) const EXIT_PROBLEMS: u8 = 1;
const EXIT_USAGE: u8 = 2;
const EXIT_NOT_FOUND: u8 = 3;
const EXIT_REFUSED: u8 = 4;
const EXIT_STORE: u8 = 5;
const EXIT_UNTRUSTED: u8 = 6;
const EXIT_IO: u8 = 7;
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// Maps error codes to exit codes; an unlisted code counts as refused.
pub(crate) fn exit_code(code: &str) -> u8 {
    match code {
        "update_conflict" | "frozen_lock" | "assertion_failed" | "script_error"
        | "script_limit" | "program_error" => EXIT_PROBLEMS,
        "usage"
        | "no_workspace"
        | "ambiguous_skill"
        | "no_module"
        | "ambiguous_module"
        | "no_training_traces"
        | "unused_scope"
        | "not_in_store"
        | "invalid_examples"
        | "invalid_token_name"
        | "invalid_pattern"
        | "listen"
        | "invalid_target"
        | "invalid_source"
        | "project_file"
        | "not_installed"
        | "several_skills"
        | "no_conflict"
        | "unknown_model"
        | "undefined_variable"
        | "provider_key"
        | "unknown_price"
        | "kind_needed"
        | "invalid_token_grant"
        | "invalid_option"
        | "token_needed"
        | "not_in_build"
        | "setup_failed"
        | "unexpected_file"
        | "invalid_evaluation"
        | "no_store"
        | "contradicting_scope"
        | "not_a_folder"
        | "account_folder"
        | "workspace_exists"
        | "workspace_not_new" => EXIT_USAGE,
        "not_found" | "function_not_found" | "unknown_session" => EXIT_NOT_FOUND,
        "store_corrupt" | "store_newer" | "store_busy" | "store_error" => EXIT_STORE,
        "untrusted" | "foreign_journal" => EXIT_UNTRUSTED,
        "io_error"
        | "remote_error"
        | "unreachable"
        | "unauthorized"
        | "offline"
        | "transport"
        | "disconnected"
        | "timeout"
        | "provider_error"
        | "provider_auth"
        | "provider_rate_limited"
        | "provider_timeout"
        | "sandbox_error"
        | "sidecar_error" => EXIT_IO,
        "interrupted" => EXIT_INTERRUPTED,
        _ => EXIT_REFUSED,
    }
}

/// Maps the error code of a call to a stable code; functions have codes of their own.
fn stable_call_code(code: &str) -> &'static str {
    match code {
        "function_not_found" => "function_not_found",
        "disconnected" => "disconnected",
        "timeout" => "timeout",
        "not_found" => "not_found",
        _ => "call_failed",
    }
}

/// Returns the stable code and the hint of an error, however deep it is wrapped.
fn code_and_hint(error: &anyhow::Error) -> (&'static str, Option<Cow<'static, str>>) {
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<AppError>() {
            return (error.code(), app_hint(error));
        }
        if let Some(error) = cause.downcast_ref::<repertoire_registry::Error>() {
            return (error.code(), registry_hint(error).map(Cow::from));
        }
        if let Some(error) = cause.downcast_ref::<repertoire_remote::Error>() {
            return (error.code(), remote_hint(error).map(Cow::from));
        }
        if let Some(error) = cause.downcast_ref::<repertoire_runtime::Error>() {
            return (error.code(), run_hint(error).map(Cow::from));
        }
        if let Some(error) = cause.downcast_ref::<CallError>() {
            return (stable_call_code(&error.code), None);
        }
        if let Some(error) = cause.downcast_ref::<repertoire_serve::Error>() {
            return (error.code(), serve_hint(error).map(Cow::from));
        }
        if let Some(error) = cause.downcast_ref::<repertoire_core::Error>() {
            return (error.code(), error.hint().map(Cow::from));
        }
        if cause.is::<UsageError>() {
            return ("usage", None);
        }
        // Files that the user names are opened here; those inside a skill have errors of their own.
        if let Some(error) = cause.downcast_ref::<std::io::Error>() {
            return match error.kind() {
                std::io::ErrorKind::NotFound => ("not_found", None),
                _ => ("io_error", None),
            };
        }
    }
    ("error", None)
}

/// Reports an invalid command line; help and version are not errors.
pub(crate) fn report_usage_error(error: &clap::Error) -> ExitCode {
    let wants_json = std::env::args_os().any(|arg| arg == "--json");
    if error.use_stderr() && wants_json {
        let text = error.to_string();
        // The first paragraph names the arguments, a later one may say what was meant.
        let paragraphs = text.trim_start_matches("error: ").split("\n\n");
        let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut paragraphs = paragraphs.map(one_line);
        let message = paragraphs.next().unwrap_or_default();
        let hint = paragraphs.find_map(|text| Some(text.strip_prefix("tip: ")?.to_owned()));
        let body = json!({"error": {"code": "usage", "message": message, "hint": hint}});
        // A closed stderr cannot be reported anywhere.
        let _ = writeln!(std::io::stderr(), "{body}");
        return ExitCode::from(EXIT_USAGE);
    }
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(EXIT_USAGE))
}

/// Prints an error as text or JSON and returns its exit code.
pub(crate) fn report_error(error: &anyhow::Error, output: &Output) -> ExitCode {
    // A closed pipe (`| head`) is not a failure.
    let closed = error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    });
    if closed {
        return ExitCode::SUCCESS;
    }
    let (code, hint) = code_and_hint(error);
    let message = format!("{error:#}");
    if output.json {
        let body = json!({"error": {"code": code, "message": message, "hint": hint}});
        output.write_stderr(&format!("{body}\n"));
    } else {
        output.print_error(&terminal_safe(&message));
        if let Some(hint) = hint {
            output.print_hint(&hint);
        }
    }
    ExitCode::from(exit_code(code))
}
