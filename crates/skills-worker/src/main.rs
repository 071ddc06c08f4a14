//! The `skills` worker, as an iii engine starts it.
//!
//! It serves only the files its settings name and the engine's state. `repertoire worker` takes the
//! same options and serves the stores and folders of the user too.

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
    ServeOptions, SkillService,
    iii::{
        config::{WorkerConfig, pattern_base, worker_manifest},
        worker::{SkillsWorker, WorkerOptions, bus_url},
    },
};

/// Skills and prompts on the iii bus.
#[derive(Debug, Parser)]
#[command(name = "skills", version)]
struct WorkerArgs {
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
    let args = WorkerArgs::parse();
    if args.manifest {
        println!("{:#}", worker_manifest());
        return ExitCode::SUCCESS;
    }
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,repertoire_serve=info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    match run_worker(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_worker(args: WorkerArgs) -> anyhow::Result<()> {
    let (config, problem) = WorkerConfig::load_or_default(&args.config);
    if let Some(problem) = problem {
        tracing::warn!("{problem}");
    }
    let original = std::env::var_os("III_CONFIG_PATH");
    let base = pattern_base(&args.config, original.as_deref().map(Path::new));
    let options = WorkerOptions {
        url: bus_url(args.url),
        account: WorkerOptions::default_account(),
        functions: config.function_options(),
        ..WorkerOptions::default()
    };
    anyhow::ensure!(
        options.url.starts_with("ws://") || options.url.starts_with("wss://"),
        "{:?} is not the address of an engine: use one such as ws://127.0.0.1:49134",
        options.url
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let engine = SkillService::open_in_background(
            config.registry_settings(&base),
            ServeOptions::default(),
            |_| {},
        );
        let stop = engine.clone();
        ctrlc::set_handler(move || stop.shut_down())?;
        engine.registry().await?;
        SkillsWorker::new(engine, options).run().await;
        Ok(())
    })
}
