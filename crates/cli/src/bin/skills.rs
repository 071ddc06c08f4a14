//! The `skills` worker, as an iii engine starts it.
//!
//! Nothing but the worker: the files its settings name, and what the engine keeps. Whoever wants
//! more runs `repertoire worker`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the edge of the program"
)]

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use repertoire_serve::{
    Engine, Options,
    iii::{
        config::{WorkerConfig, base_of, manifest},
        worker::{Worker, WorkerOptions, url_of},
    },
};

/// Skills and prompts on the iii bus.
#[derive(Debug, Parser)]
#[command(name = "skills", version)]
struct Args {
    /// Path to config.yaml
    #[arg(long, value_name = "PATH", default_value = "./config.yaml")]
    config: PathBuf,
    /// WebSocket URL of the iii engine [default: `ws://127.0.0.1:49134`]
    #[arg(long)]
    url: Option<String>,
    /// Output the module manifest as JSON and exit
    #[arg(long)]
    manifest: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.manifest {
        println!("{:#}", manifest());
        return ExitCode::SUCCESS;
    }
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        tracing_subscriber::EnvFilter::new("warn,repertoire_serve=info,iii_sdk=error")
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    let (config, problem) = WorkerConfig::load(&args.config);
    if let Some(problem) = problem {
        tracing::warn!("{problem}");
    }
    let original = std::env::var_os("III_CONFIG_PATH");
    let base = base_of(&args.config, original.as_deref().map(Path::new));
    let options = WorkerOptions {
        url: url_of(args.url),
        functions: config.functions(),
        ..WorkerOptions::default()
    };
    anyhow::ensure!(
        options.url.starts_with("ws://") || options.url.starts_with("wss://"),
        "{:?} is no address of an engine: write one such as ws://127.0.0.1:49134",
        options.url
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let engine = Engine::open(config.sources(&base), Options::default(), |_| {});
        let stop = engine.clone();
        ctrlc::set_handler(move || stop.shut_down())?;
        engine.registry().await?;
        Worker::new(engine, options).run().await;
        Ok(())
    })
}
