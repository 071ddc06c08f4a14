//! The `repertoire` command: parse, resolve settings, run, exit.

mod args;
mod commands;
mod completion;
mod failure;
mod hint;
mod interrupt;
mod output;
mod settings;

use std::process::ExitCode;

use crate::output::Output;

fn main() -> ExitCode {
    repertoire_malloc::set_thresholds();
    completion::answer_shell(args::grouped_command);
    let mut args = match args::parse_args() {
        Ok(args) => args,
        Err(error) => return failure::report_usage_error(&error),
    };
    // Their own `--from` has another meaning, but clap sets the global one too.
    if matches!(args.command, args::Command::Setup { .. }) {
        args.global.from.clear();
    }
    let output = Output::new(&args.global);
    interrupt::install_handler();
    init_logging(
        &args.global,
        matches!(args.command, args::Command::Worker { .. }),
    );
    let settings = settings::resolve_settings(&args.global);
    match commands::run(args.command, settings, &output) {
        Ok(code) => code,
        Err(error) => failure::report_error(&error, &output),
    }
}

/// Logs warnings of the libraries to stderr; `-v` and `RUST_LOG` show more.
fn init_logging(global: &args::GlobalArgs, is_worker: bool) {
    let level = match global.verbose {
        // A worker's log reports its skill files and its connection state.
        0 if is_worker => "warn,rmcp=off,repertoire_serve::iii=info",
        0 => "warn,rmcp=off",
        1 => "info",
        _ => "debug",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        .init();
}
