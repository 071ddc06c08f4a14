//! `worker`: the catalogue on an iii engine.

use std::{path::Path, process::ExitCode};

use anyhow::Result;
use repertoire_core::text::terminal_safe;
use repertoire_registry::RegisteredContent;
use repertoire_serve::{
    ServeOptions, SkillService,
    iii::{
        bus_mode::check_url,
        config::{WorkerConfig, pattern_base},
        functions::FunctionOptions,
        worker::{SkillsWorker, WorkerOptions, bus_url},
    },
};

use super::serve::{build_runtime, shared_account};
use crate::{interrupt, output::Output, settings::CliSettings};

pub(crate) fn run(
    config: Option<&Path>,
    url: Option<String>,
    share_account: bool,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let mut sources = settings.sources.clone();
    sources.state = RegisteredContent::Bus;
    let mut options = WorkerOptions {
        url: bus_url(url),
        functions: FunctionOptions {
            limits: settings.limits,
            ..FunctionOptions::default()
        },
        account: Some(settings.account.clone()),
        ..WorkerOptions::default()
    };
    if let Some(path) = config {
        let (config, problem) = WorkerConfig::load_or_default(path);
        if let Some(problem) = problem {
            output.print_warning(terminal_safe(&problem));
        }
        let original = std::env::var_os("III_CONFIG_PATH");
        let files =
            config.registry_settings(&pattern_base(path, original.as_deref().map(Path::new)));
        sources.skills.extend(files.skills);
        sources.prompts.extend(files.prompts);
        sources.max_index_bytes = files.max_index_bytes;
        options.functions = config.function_options();
    }
    options.functions.account = shared_account(share_account, settings);
    check_url(&options.url)?;
    let runtime = build_runtime()?;
    runtime.block_on(async {
        let engine = SkillService::open_in_background(sources, ServeOptions::default(), |_| {});
        let stop = engine.clone();
        interrupt::set_shutdown_handler(move || stop.shut_down());
        engine.registry().await?;
        output.print_note(format!("worker on {}; Ctrl-C ends", options.url));
        SkillsWorker::new(engine, options).run().await;
        Ok(ExitCode::SUCCESS)
    })
}
