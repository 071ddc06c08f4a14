//! Errors at the edge: what is printed, and with which exit code the process ends.

use std::{io::Write, process::ExitCode};

use repertoire_core::text::terminal_safe;
use repertoire_serve::iii::CallError;
use serde_json::json;

use crate::output::Output;

/// The command line or the settings make no sense.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Something is wrong with a skill: the command worked, the answer is no.
pub(crate) const PROBLEMS: u8 = 1;
const USAGE: u8 = 2;
const NOT_FOUND: u8 = 3;
const REFUSED: u8 = 4;
const STORE: u8 = 5;
const UNTRUSTED: u8 = 6;
const IO: u8 = 7;
pub(crate) const INTERRUPTED: u8 = 130;

/// The one table from codes to exit codes; what is not in it was refused.
pub(crate) fn exit_code(code: &str) -> u8 {
    match code {
        "assertion_failed" | "script_error" | "script_limit" | "program_error" => PROBLEMS,
        "usage" | "invalid_pattern" | "listen" | "invalid_target" | "unknown_model"
        | "undefined_variable" | "provider_key" | "unknown_price" => USAGE,
        "not_found" | "function_not_found" => NOT_FOUND,
        "store_corrupt" | "store_newer" | "store_busy" | "store_error" => STORE,
        "untrusted" => UNTRUSTED,
        "io_error"
        | "remote_error"
        | "transport"
        | "disconnected"
        | "timeout"
        | "provider_error"
        | "provider_auth"
        | "provider_rate_limited"
        | "provider_timeout"
        | "sandbox_error"
        | "sidecar_error" => IO,
        "interrupted" => INTERRUPTED,
        _ => REFUSED,
    }
}

/// The codes of calls that mean something to a shell; functions have codes of their own.
fn call_code(code: &str) -> &'static str {
    match code {
        "function_not_found" => "function_not_found",
        "disconnected" => "disconnected",
        "timeout" => "timeout",
        "not_found" => "not_found",
        _ => "call_failed",
    }
}

/// The stable code and the way out of an error, however deep it is wrapped.
fn describe(error: &anyhow::Error) -> (&'static str, Option<&'static str>) {
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<repertoire_registry::Error>() {
            return (error.code(), error.hint());
        }
        if let Some(error) = cause.downcast_ref::<repertoire_runtime::Error>() {
            return (error.code(), error.hint());
        }
        if let Some(error) = cause.downcast_ref::<CallError>() {
            return (call_code(&error.code), None);
        }
        if let Some(error) = cause.downcast_ref::<repertoire_serve::Error>() {
            return (error.code(), error.hint());
        }
        if let Some(error) = cause.downcast_ref::<repertoire_core::Error>() {
            return (error.code(), error.hint());
        }
        if cause.is::<Usage>() {
            return ("usage", None);
        }
        if cause.is::<std::io::Error>() {
            return ("io_error", None);
        }
    }
    ("error", None)
}

/// Answers a command line that makes no sense; help and version are no errors.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let wants_json = std::env::args_os().any(|arg| arg == "--json");
    if error.use_stderr() && wants_json {
        let text = error.to_string();
        let message = text
            .trim_start_matches("error: ")
            .lines()
            .next()
            .unwrap_or_default();
        let body = json!({"error": {"code": "usage", "message": message, "hint": null}});
        // With stderr gone there is nobody left to tell.
        let _ = writeln!(std::io::stderr(), "{body}");
        return ExitCode::from(USAGE);
    }
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE))
}

/// Prints an error for people, or as JSON, and gives the exit code.
pub(crate) fn report(error: &anyhow::Error, output: &Output) -> ExitCode {
    // A reader that had enough (`| head`) is no failure.
    let closed = error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    });
    if closed {
        return ExitCode::SUCCESS;
    }
    let (code, hint) = describe(error);
    let message = format!("{error:#}");
    if output.json {
        let body = json!({"error": {"code": code, "message": message, "hint": hint}});
        output.raw_err(&format!("{body}\n"));
    } else {
        output.error(&terminal_safe(&message));
        if let Some(hint) = hint {
            output.hint(hint);
        }
    }
    ExitCode::from(exit_code(code))
}
