//! One instance of the guest: made for one script, dropped with it.

use std::sync::{Arc, atomic::Ordering};

use repertoire_core::{markdown::cut, text::terminal_safe};
use serde::Deserialize;
use serde_json::json;
use wasmtime::{
    ResourceLimiter, Store, StoreContextMut, Trap, UpdateDeadline,
    component::{Component, InstancePre, Linker, ResourceTable, TypedFunc},
};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView, p2::pipe::MemoryOutputPipe};

use super::host::Host;
use crate::{
    dispatch::ArtifactOutput,
    error::{Error, Result, way},
    template::Code,
};

/// What a script gets besides what it can ask: nothing.
pub(super) struct State {
    wasi: WasiCtx,
    table: ResourceTable,
    host: Arc<Host>,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

impl ResourceLimiter for State {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let most = self.host.limits.memory;
        let fits = desired as u64 <= most;
        if fits {
            let memory = &self.host.meter.memory;
            memory.fetch_max(desired as u64, Ordering::Relaxed);
        } else if current == 0 {
            self.host.end(Error::ScriptLimit(format!(
                "Python alone takes {desired} bytes of memory, and it may have {most}"
            )));
        }
        Ok(fits)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= MAX_TABLE)
    }
}

/// The most functions of a table; Python has some twelve thousand.
const MAX_TABLE: usize = 100_000;
/// The most things of the host a guest holds at a time, such as clocks it waits for.
const MAX_HELD: usize = 1000;

/// How much fuel it is given at a time: of a loop that calls nothing, no less is known to be burnt.
const HELPING: u64 = 10_000_000;

/// The most bytes of what the guest says of a failure.
const MAX_TOLD: usize = 64 * 1024;

type Args = (String, String);
type Answered = (std::result::Result<String, String>,);

/// Binds the guest to its host.
pub(super) fn bind(component: &Component) -> wasmtime::Result<InstancePre<State>> {
    let mut linker: Linker<State> = Linker::new(component.engine());
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    linker.root().func_wrap_async(
        "call",
        |mut store: StoreContextMut<'_, State>, (name, args): Args| {
            let host = store.data().host.clone();
            Box::new(async move {
                let fuel = store.get_fuel()?;
                let answered = host.call(&name, &args, fuel).await;
                // What was run for it is its own doing.
                store.set_fuel(host.fuel_left(fuel))?;
                answered.map(|answer| (answer,)).map_err(|error| {
                    host.end(error);
                    wasmtime::Error::msg("ended by the host")
                })
            })
        },
    )?;
    linker.instantiate_pre(component)
}

/// What the guest says of a script that failed.
#[derive(Deserialize)]
struct Failed {
    r#type: String,
    message: String,
    line: Option<usize>,
}

/// Runs a script in an instance of its own.
pub(super) async fn run(
    guest: &InstancePre<State>,
    code: Code,
    values: &serde_json::Value,
    host: &Arc<Host>,
) -> Result<ArtifactOutput> {
    let limits = &host.limits;
    let capacity = usize::try_from(limits.output).unwrap_or(usize::MAX);
    let printed = MemoryOutputPipe::new(capacity);
    let (so_far, meter) = (printed.clone(), host.meter.clone());
    host.notes.printing(move || {
        let printed = so_far.contents();
        let many = printed.len() as u64;
        meter.output.fetch_add(many, Ordering::Relaxed);
        String::from_utf8_lossy(&printed).into_owned()
    });
    let mut table = ResourceTable::new();
    table.set_max_capacity(MAX_HELD);
    let state = State {
        wasi: WasiCtx::builder()
            .stdout(printed.clone())
            .stderr(printed.clone())
            .allow_tcp(false)
            .allow_udp(false)
            .build(),
        table,
        host: host.clone(),
    };
    let mut store = Store::new(guest.engine(), state);
    store.limiter(|state| state);
    let broken = |error: wasmtime::Error| Error::Sandbox(format!("{error:#}"));
    store.set_fuel(limits.fuel).map_err(broken)?;
    let helping = Some(HELPING);
    store.fuel_async_yield_interval(helping).map_err(broken)?;
    // Others have their turn; and if it is stopped there, what it has used is known.
    store.epoch_deadline_callback(|store| {
        let host = &store.data().host;
        host.note_fuel(store.get_fuel()?);
        Ok(UpdateDeadline::Yield(1))
    });
    let given = json!({"values": values, "holes": code.holes}).to_string();
    let over = tokio::time::Instant::from_std(host.begun) + limits.time();
    let ended = tokio::time::timeout_at(over, async {
        let instance = guest.instantiate_async(&mut store).await?;
        let run: TypedFunc<Args, Answered> = instance.get_typed_func(&mut store, "run")?;
        run.call_async(&mut store, (code.source, given)).await
    });
    let ended = ended.await;
    let left = store.get_fuel().unwrap_or(0);
    // What is printed is text of strangers.
    let printed = printed.contents();
    // From here on it is not stopped any more.
    host.notes.printed(None);
    let meter = &host.meter;
    host.note_fuel(left);
    meter
        .output
        .fetch_add(printed.len() as u64, Ordering::Relaxed);
    let _ = meter.time.set(host.begun.elapsed());
    drop(store);
    let flooded = printed.len() >= capacity || meter.output.load(Ordering::Relaxed) > limits.output;
    let printed = String::from_utf8_lossy(&printed).into_owned();
    let outcome = match ended {
        _ if let Some(error) = host.fatal() => Err(error),
        _ if flooded => Err(Error::ScriptLimit(format!(
            "it printed or submitted more than {} bytes",
            limits.output
        ))),
        Err(_) => Err(Error::ScriptLimit(format!(
            "it took more than {} s",
            limits.seconds
        ))),
        Ok(Err(error)) => Err(trapped(&error, limits.fuel)),
        Ok(Ok((Err(told),))) => Err(failed(&told, host)),
        Ok(Ok((Ok(_),))) => match host.submitted() {
            // What was printed is the result.
            None => {
                return Ok(ArtifactOutput {
                    text: printed,
                    ..ArtifactOutput::default()
                });
            }
            Some(value) => Ok(ArtifactOutput {
                text: match &value {
                    serde_json::Value::String(text) => text.clone(),
                    other => other.to_string(),
                },
                value: Some(value),
                ..ArtifactOutput::default()
            }),
        },
    };
    host.notes
        .printed(Some(printed).filter(|text| !text.is_empty()));
    outcome
}

fn failed(told: &str, host: &Host) -> Error {
    // The guest's own cap is the guest's.
    let told = if told.len() > MAX_TOLD { "" } else { told };
    let Ok(Failed {
        r#type: kind,
        message,
        line,
    }) = repertoire_core::json::from_str(told)
    else {
        return Error::Sandbox("the guest did not say what went wrong".to_owned());
    };
    if kind == "Error"
        && let Some(error) = host.refused(&message)
    {
        return error;
    }
    let mut message = cut(&message, 2000);
    if kind == "NameError"
        && let Some(name) = missing(&message)
    {
        let way = way(name);
        message = format!("{message}: if it is a value of the skill, give it with {way}");
    }
    Error::Script {
        line,
        kind: cut(&terminal_safe(&kind), 100),
        message,
    }
}

/// The name that Python does not know.
fn missing(message: &str) -> Option<&str> {
    let name = message.strip_prefix("name '")?;
    name.strip_suffix("' is not defined")
}

/// Why an instance stopped.
fn trapped(error: &wasmtime::Error, fuel: u64) -> Error {
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => Error::ScriptLimit(format!(
            "it took more than {fuel} steps: does a loop never end?"
        )),
        Some(Trap::StackOverflow) => {
            Error::ScriptLimit("it nests too deep: the stack was used up".to_owned())
        }
        Some(Trap::UnreachableCodeReached) => {
            Error::ScriptLimit("Python gave up: it ran out of something, or was told to".to_owned())
        }
        _ if error.downcast_ref::<wasmtime_wasi::I32Exit>().is_some() => {
            Error::ScriptLimit("it left by os._exit".to_owned())
        }
        _ => Error::Sandbox(format!("{:#}", error.root_cause())),
    }
}
