//! `worker`: the catalogue on an iii engine.

use std::{path::Path, process::ExitCode};

use anyhow::Result;
use repertoire_core::text::terminal_safe;
use repertoire_registry::StateFrom;
use repertoire_serve::{
    Engine, Options,
    iii::{
        config::{WorkerConfig, base_of},
        worker::{Worker, WorkerOptions, url_of},
    },
};

use super::{serve::runtime, side::check_url};
use crate::{interrupt, output::Output, settings::Settings};

pub(crate) fn run(
    config: Option<&Path>,
    url: Option<String>,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let mut sources = settings.sources.clone();
    sources.state = StateFrom::Bus;
    let mut options = WorkerOptions {
        url: url_of(url),
        ..WorkerOptions::default()
    };
    if let Some(path) = config {
        let (config, problem) = WorkerConfig::load(path);
        if let Some(problem) = problem {
            output.warn(terminal_safe(&problem));
        }
        let original = std::env::var_os("III_CONFIG_PATH");
        let files = config.sources(&base_of(path, original.as_deref().map(Path::new)));
        sources.skills.extend(files.skills);
        sources.prompts.extend(files.prompts);
        options.functions = config.functions();
    }
    check_url(&options.url)?;
    let runtime = runtime()?;
    runtime.block_on(async {
        let engine = Engine::open(sources, Options::default(), |_| {});
        let stop = engine.clone();
        interrupt::shut_down_with(move || stop.shut_down());
        engine.registry().await?;
        output.note(format!("worker on {}; Ctrl-C ends", options.url));
        Worker::new(engine, options).run().await;
        Ok(ExitCode::SUCCESS)
    })
}
