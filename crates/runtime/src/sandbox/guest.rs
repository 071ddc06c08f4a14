//! One instance of the guest, created for one script and dropped after it.

use std::sync::{Arc, atomic::Ordering};

use repertoire_core::{markdown::truncate_text, text::terminal_safe};
use serde::Deserialize;
use serde_json::json;
use wasmtime::{
    ResourceLimiter, Store, StoreContextMut, Trap, UpdateDeadline,
    component::{Component, InstancePre, Linker, ResourceTable, TypedFunc},
};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView, p2::pipe::MemoryOutputPipe};

use super::host::ScriptHost;
use crate::{
    dispatch::ArtifactOutput,
    error::{Error, Result},
    template::RenderedScript,
};

/// The store data of an instance; a script gets no WASI resources besides host calls.
pub(super) struct GuestState {
    wasi: WasiCtx,
    table: ResourceTable,
    host: Arc<ScriptHost>,
}

impl WasiView for GuestState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

impl ResourceLimiter for GuestState {
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
            self.host.end_script(Error::ScriptLimit(format!(
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

/// The maximum table size; Python uses about twelve thousand entries.
const MAX_TABLE: usize = 100_000;
/// The maximum number of host resources a guest holds, such as clocks it waits for.
const MAX_RESOURCES: usize = 1000;

/// Fuel is accounted in steps of this size while a loop makes no host call.
const FUEL_YIELD_INTERVAL: u64 = 10_000_000;

/// The maximum bytes of a failure report of the guest.
const MAX_FAILURE_BYTES: usize = 64 * 1024;

type GuestArgs = (String, String);
type GuestResult = (std::result::Result<String, String>,);

/// Links the host calls into the guest.
pub(super) fn bind_host(component: &Component) -> wasmtime::Result<InstancePre<GuestState>> {
    let mut linker: Linker<GuestState> = Linker::new(component.engine());
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    linker.root().func_wrap_async(
        "call",
        |mut store: StoreContextMut<'_, GuestState>, (name, args): GuestArgs| {
            let host = store.data().host.clone();
            Box::new(async move {
                let fuel = store.get_fuel()?;
                let answered = host.handle_call(&name, &args, fuel).await;
                // Fuel used by nested scripts counts as fuel of this script.
                store.set_fuel(host.fuel_left(fuel))?;
                answered.map(|answer| (answer,)).map_err(|error| {
                    host.end_script(error);
                    wasmtime::Error::msg("ended by the host")
                })
            })
        },
    )?;
    linker.instantiate_pre(component)
}

/// The failure report of the guest.
#[derive(Deserialize)]
struct GuestFailure {
    r#type: String,
    message: String,
    line: Option<usize>,
}

/// Runs a script in a new instance.
pub(super) async fn run_guest(
    guest: &InstancePre<GuestState>,
    code: RenderedScript,
    values: &serde_json::Value,
    host: &Arc<ScriptHost>,
) -> Result<ArtifactOutput> {
    let limits = &host.limits;
    let capacity = usize::try_from(limits.output).unwrap_or(usize::MAX);
    let printed = MemoryOutputPipe::new(capacity);
    let (so_far, meter) = (printed.clone(), host.meter.clone());
    host.notes.set_output_source(move || {
        let printed = so_far.contents();
        let many = printed.len() as u64;
        meter.output.fetch_add(many, Ordering::Relaxed);
        String::from_utf8_lossy(&printed).into_owned()
    });
    let mut table = ResourceTable::new();
    table.set_max_capacity(MAX_RESOURCES);
    let state = GuestState {
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
    let helping = Some(FUEL_YIELD_INTERVAL);
    store.fuel_async_yield_interval(helping).map_err(broken)?;
    // Yield to other scripts, and record the fuel used so far in case the script is stopped here.
    store.epoch_deadline_callback(|store| {
        let host = &store.data().host;
        host.note_fuel(store.get_fuel()?);
        Ok(UpdateDeadline::Yield(1))
    });
    let given = json!({"values": values, "holes": code.holes}).to_string();
    let over = tokio::time::Instant::from_std(host.begun) + limits.time();
    let ended = tokio::time::timeout_at(over, async {
        let instance = guest.instantiate_async(&mut store).await?;
        let run: TypedFunc<GuestArgs, GuestResult> = instance.get_typed_func(&mut store, "run")?;
        run.call_async(&mut store, (code.source, given)).await
    });
    let ended = ended.await;
    let left = store.get_fuel().unwrap_or(0);
    // Printed output is untrusted text.
    let printed = printed.contents();
    // The script cannot be stopped any more.
    host.notes.set_printed(None);
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
        _ if let Some(error) = host.take_fatal() => Err(error),
        _ if flooded => Err(Error::ScriptLimit(format!(
            "it printed or submitted more than {} bytes",
            limits.output
        ))),
        Err(_) => Err(Error::ScriptLimit(format!(
            "it took more than {} s",
            limits.seconds
        ))),
        Ok(Err(error)) => Err(trap_error(&error, limits.fuel)),
        Ok(Ok((Err(failure),))) => Err(script_failure(&failure, host)),
        Ok(Ok((Ok(_),))) => match host.take_submitted() {
            // Without a submitted value, the printed output is the result.
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
        .set_printed(Some(printed).filter(|text| !text.is_empty()));
    outcome
}

fn script_failure(failure: &str, host: &ScriptHost) -> Error {
    // The guest limits its reports too, but the guest is not trusted.
    let failure = if failure.len() > MAX_FAILURE_BYTES {
        ""
    } else {
        failure
    };
    let Ok(GuestFailure {
        r#type: kind,
        message,
        line,
    }) = repertoire_core::json::from_str(failure)
    else {
        return Error::Sandbox("the guest did not say what went wrong".to_owned());
    };
    if kind == "Error"
        && let Some(error) = host.take_refusal(&message)
    {
        return error;
    }
    let mut message = truncate_text(&message, 2000);
    if kind == "NameError" && undefined_name(&message).is_some() {
        message = format!("{message}: if it is a value of the skill, it was not given");
    }
    Error::Script {
        line,
        kind: truncate_text(&terminal_safe(&kind), 100),
        message,
    }
}

/// Extracts the name from a Python `NameError` message.
fn undefined_name(message: &str) -> Option<&str> {
    let name = message.strip_prefix("name '")?;
    name.strip_suffix("' is not defined")
}

/// Converts a trap into an error.
fn trap_error(error: &wasmtime::Error, fuel: u64) -> Error {
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => Error::ScriptLimit(format!(
            "it took more than {fuel} steps: does a loop never end?"
        )),
        Some(Trap::StackOverflow) => {
            Error::ScriptLimit("it nests too deep: the stack was used up".to_owned())
        }
        Some(Trap::UnreachableCodeReached) => {
            Error::ScriptLimit("Python aborted: out of resources, or an explicit abort".to_owned())
        }
        _ if error.downcast_ref::<wasmtime_wasi::I32Exit>().is_some() => {
            Error::ScriptLimit("it exited with os._exit".to_owned())
        }
        _ => Error::Sandbox(format!("{:#}", error.root_cause())),
    }
}
