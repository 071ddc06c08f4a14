//! `setup`: installs optional components that are too large to ship.

mod examples;

use std::{
    cell::RefCell,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use indicatif::ProgressBar;
use repertoire_app::{
    ComponentKind, InstallOutcome, InstallProgress, InstallRequest, build_skill_index,
};
use repertoire_core::text::terminal_safe;
use repertoire_registry::{
    Registry, Snapshot,
    search::{ModelKind, SentenceEncoder, SkillIndex},
    store::LocalStore,
};
use serde_json::json;

use self::examples::ExampleArgs;
use super::open_registry;
use crate::{
    args::SetupCommand,
    interrupt,
    output::{Output, format_count},
    settings::CliSettings,
};

pub(crate) fn run(
    command: Option<SetupCommand>,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let mut sentence_model = None;
    let (kind, from, again, remove) = match command {
        None => return show_components(settings, output),
        Some(SetupCommand::Examples {
            list,
            dry_run,
            remove,
            model,
        }) => {
            let args = ExampleArgs {
                list,
                dry_run,
                remove,
                model,
            };
            return examples::run(args, settings, output);
        }
        Some(SetupCommand::Embeddings {
            model,
            from,
            remove,
        }) => {
            sentence_model = model.map(Into::into);
            (ComponentKind::Embeddings, from, false, remove)
        }
        Some(SetupCommand::Sandbox {
            from,
            again,
            remove,
        }) => (ComponentKind::Sandbox, from, again, remove),
        Some(SetupCommand::Sidecar {
            from,
            again,
            remove,
        }) => (ComponentKind::Sidecar, from, again, remove),
    };
    if remove {
        return remove_component(kind, sentence_model, settings, output);
    }
    let request = InstallRequest {
        from: from.as_deref(),
        again,
        model: sentence_model,
    };
    install_component(kind, request, settings, output)?;
    let folder = settings.components().folder(kind);
    if kind == ComponentKind::Embeddings {
        return embed_skills(settings, output);
    }
    if output.json {
        let state = json!({"installed": true, "folder": folder});
        output.print_json(&json!({kind.as_str(): state}))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn install_component(
    kind: ComponentKind,
    request: InstallRequest<'_>,
    settings: &CliSettings,
    output: &Output,
) -> Result<()> {
    let components = settings.components();
    let name = kind.title();
    let started = Instant::now();
    let outcome = interrupt::run_protected(|is_cancelled| {
        let progress = TerminalProgress {
            output,
            is_cancelled,
            spinner: RefCell::new(None),
        };
        components.install(kind, request, &progress)
    })?;
    let folder = components.folder(kind);
    let at = folder.display();
    match outcome {
        InstallOutcome::AlreadyInstalled => {
            output.print_note(format!("the {name} is installed in {at}"));
        }
        InstallOutcome::Installed => {
            let took = started.elapsed().as_secs_f64();
            output.print_note(format!("installed the {name} in {at}, in {took:.0} s"));
        }
    }
    Ok(())
}

/// Prints each step, with a spinner while it runs.
struct TerminalProgress<'a> {
    output: &'a Output,
    is_cancelled: &'a dyn Fn() -> bool,
    spinner: RefCell<Option<ProgressBar>>,
}

impl InstallProgress for TerminalProgress<'_> {
    fn begin_step(&self, text: &str) {
        if let Some(spinner) = self.spinner.take() {
            spinner.finish_and_clear();
        }
        self.output.print_note(text);
        *self.spinner.borrow_mut() = Some(self.output.progress_spinner());
    }

    fn report_progress(&self, what: &str, percent: usize) {
        if let Some(spinner) = &*self.spinner.borrow() {
            spinner.set_message(format!("{} {percent} %", terminal_safe(what)));
        }
    }

    fn is_cancelled(&self) -> bool {
        (self.is_cancelled)()
    }
}

impl Drop for TerminalProgress<'_> {
    fn drop(&mut self) {
        if let Some(spinner) = self.spinner.take() {
            spinner.finish_and_clear();
        }
    }
}

/// Embeds all skills, so that the first search does not have to.
fn embed_skills(settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    let index = index_skills(
        &registry,
        &registry.snapshot(),
        settings,
        Duration::MAX,
        output,
    )?;
    let left = index.pending_count();
    if output.json {
        let components = settings.components();
        output.print_json(&json!({
            "model": components.current_model().published_name(),
            "folder": components.folder(ComponentKind::Embeddings),
            "skills": index.len(), "pending": left,
        }))?;
    } else {
        let read = format_count(index.len() - left, "skill");
        output.print_note(format!("{read} can be found by what a message means"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Says what the installation of a component costs, and its benefit.
pub(super) fn install_hint(kind: ComponentKind) -> String {
    let offer = match kind {
        ComponentKind::Embeddings => {
            "downloads 84 MB, so that skills are found by what a message means, not by its words \
             alone"
        }
        ComponentKind::Sandbox => "downloads 39 MB and builds a Python that skills' scripts run in",
        ComponentKind::Sidecar => {
            "installs DSPy (240 MB) for skills that are programs, and to optimize them"
        }
    };
    format!(
        "not installed: `repertoire setup {}` {offer}",
        kind.as_str()
    )
}

fn show_components(settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let components = settings.components();
    let mut all = serde_json::Map::new();
    for kind in ComponentKind::ALL {
        let (name, folder) = (kind.as_str(), components.folder(*kind));
        let installed = components.is_installed(*kind);
        all.insert(
            name.to_owned(),
            json!({"installed": installed, "folder": folder}),
        );
        if !output.json {
            output.print_text(&if installed {
                format!("{name:10}  installed in {}\n", folder.display())
            } else {
                format!("{name:10}  {}\n", install_hint(*kind))
            })?;
        }
    }
    if output.json {
        output.print_json(&all)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn remove_component(
    kind: ComponentKind,
    model: Option<ModelKind>,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let components = settings.components();
    let folder = match (kind, model) {
        (ComponentKind::Embeddings, Some(model)) => components.model_folder(model),
        _ => components.folder(kind),
    };
    let removed = output.with_spinner("removing", || components.remove(kind, model))?;
    output.print_note(if removed {
        format!("removed {}", folder.display())
    } else {
        format!("the {} is not installed", kind.title())
    });
    if output.json {
        output.print_json(&json!({"removed": removed, "folder": folder}))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds an index over all skills, with embeddings if the model is installed. New skills are
/// embedded until `patience` has passed.
pub(super) fn index_skills(
    registry: &Arc<Registry>,
    snapshot: &Snapshot,
    settings: &CliSettings,
    patience: Duration,
    output: &Output,
) -> Result<SkillIndex> {
    let encoder = open_encoder(registry.local_store().ok().cloned(), settings, output);
    let bar = ProgressBar::hidden();
    let style = "reading skills {bar:30} {pos}/{len}, {eta} left";
    bar.set_style(indicatif::ProgressStyle::with_template(style)?);
    let mut on_progress = |done: usize, total: usize| {
        if done == 0 && !output.is_quiet() {
            bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        }
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    };
    let index = output.with_spinner("indexing skills", || {
        build_skill_index(registry, snapshot, encoder, patience, &mut on_progress)
    });
    bar.finish_and_clear();
    Ok(index?)
}

/// Opens the model if it is installed; a broken one causes a warning.
pub(super) fn open_encoder(
    local: Option<Arc<LocalStore>>,
    settings: &CliSettings,
    output: &Output,
) -> Option<Arc<SentenceEncoder>> {
    settings
        .components()
        .open_encoder(local)
        .unwrap_or_else(|error| {
            output.print_warning(format!(
                "skills are found by their words alone: {error} (`repertoire setup embeddings \
                 --remove`, then `repertoire setup embeddings`, installs it anew)"
            ));
            None
        })
}
