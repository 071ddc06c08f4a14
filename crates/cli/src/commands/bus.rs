//! `call` and `functions`: calls and lists functions on the bus.

use std::{fmt::Write as _, path::Path, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail};
use repertoire_core::text::terminal_safe;
use repertoire_serve::iii::{
    DEFAULT_URL,
    bus_client::BusClient,
    bus_mode::{check_url, hub_url},
};
use repertoire_serve::local_token;
use serde_json::Value;

use super::{read_input, serve::build_runtime};
use crate::{
    args::{BusCommand, UrlArgs},
    failure::UsageError,
    output::{DIM, ID, Output, format_count, terminal_width, truncate_to_width},
    settings::CliSettings,
};

pub(crate) fn run(
    command: BusCommand,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    match command {
        BusCommand::Call {
            function,
            payload,
            timeout,
            bus,
        } => {
            let bus = BusEndpoint::from_args(bus, settings)?;
            call_function(&function, &payload, timeout, &bus, output)
        }
        BusCommand::Functions { internal, bus } => {
            list_functions(internal, &BusEndpoint::from_args(bus, settings)?, output)
        }
    }
}

/// The most bytes of a payload.
const MAX_PAYLOAD: usize = 64 * 1024 * 1024;

/// The address of a bus and the token for it.
pub(crate) struct BusEndpoint {
    url: String,
    token: Option<String>,
    namespace: Option<String>,
}

impl BusEndpoint {
    /// Uses the given URL, else the hub of the settings, else the default address.
    pub(super) fn from_args(args: UrlArgs, settings: &CliSettings) -> Result<Self> {
        let asked = args.url.filter(|url| !url.is_empty());
        let hub = settings.hub.as_deref().filter(|hub| *hub != "off");
        let hub = hub.map(hub_url);
        let url = asked.or(hub).unwrap_or_else(|| DEFAULT_URL.to_owned());
        check_url(&url)?;
        let token = std::env::var(&args.token_env).ok();
        let token = token.filter(|token| !token.is_empty());
        let token = match token {
            Some(token) => Some(token),
            // The user's own token, for a server of the user on this machine.
            None => local_token::read_for(&settings.account, &url)?,
        };
        let namespace = args.namespace.filter(|name| !name.trim().is_empty());
        Ok(Self {
            url,
            token,
            namespace,
        })
    }
}

fn call_function(
    function: &str,
    payload: &str,
    timeout: Duration,
    bus: &BusEndpoint,
    output: &Output,
) -> Result<ExitCode> {
    let text = match payload {
        "-" => {
            let bytes = read_input(Path::new("-"), MAX_PAYLOAD)?;
            String::from_utf8(bytes).context("stdin is not UTF-8")?
        }
        text => text.to_owned(),
    };
    let payload: Value = repertoire_core::json::from_str(&text)
        .map_err(|error| UsageError(format!("the payload is not JSON: {error}")))?;
    let answer = send_request(function, &payload, timeout, bus)?;
    match (answer, output.json) {
        // Print a string without its JSON quotes.
        (Value::String(text), false) => output.print_bytes(format!("{text}\n").as_bytes())?,
        (answer, true) => output.print_json(&answer)?,
        (answer, false) => {
            let text = serde_json::to_string_pretty(&answer)?;
            output.print_bytes(format!("{text}\n").as_bytes())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list_functions(internal: bool, bus: &BusEndpoint, output: &Output) -> Result<ExitCode> {
    let payload = serde_json::json!({"include_internal": internal});
    let patience = Duration::from_secs(30);
    let mut answer = send_request("engine::functions::list", &payload, patience, bus)?;
    let rows = answer.get_mut("functions").and_then(Value::as_array_mut);
    let Some(rows) = rows else {
        bail!("{} does not list its functions", bus.url);
    };
    rows.sort_by_cached_key(|row| row["function_id"].as_str().map(str::to_owned));
    if output.json {
        output.print_json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = |row: &Value, key: &str| {
        let text = row[key].as_str().unwrap_or_default();
        terminal_safe(text).into_owned()
    };
    let longest = rows.iter().map(|row| text(row, "function_id").len()).max();
    let longest = longest.unwrap_or(0).min(48);
    let mut out = String::new();
    for row in rows.iter() {
        let (id, worker) = (text(row, "function_id"), text(row, "worker_name"));
        let about = text(row, "description");
        let about = match terminal_width() {
            Some(width) => {
                truncate_to_width(&about, width.saturating_sub(longest + worker.len() + 4))
            }
            None => about,
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{ID}{id:longest$}{ID:#}  {DIM}{worker}{DIM:#}  {about}"
        );
    }
    output.print_text(&out)?;
    output.print_note(format!(
        "{DIM}{}{DIM:#}",
        format_count(rows.len(), "function")
    ));
    Ok(ExitCode::SUCCESS)
}

/// Sends one request to a bus and returns the response.
fn send_request(
    function: &str,
    payload: &Value,
    patience: Duration,
    bus: &BusEndpoint,
) -> Result<Value> {
    if function.is_empty() {
        bail!(UsageError(
            "name a function; `repertoire bus functions` lists them".to_owned()
        ));
    }
    build_runtime()?.block_on(async {
        // The functions of the bus itself are in no namespace.
        let is_of_bus = function.starts_with("engine::") || function.starts_with("state::");
        let namespace = bus.namespace.as_deref().filter(|_| !is_of_bus);
        let client = BusClient::connect(&bus.url, bus.token.as_deref()).await?;
        // A hub has only one.
        let namespace = namespace.filter(|_| !client.is_hub());
        let answer = client
            .call_json_in(namespace, function, &payload.to_string(), patience)
            .await?;
        Ok(repertoire_core::json::from_str(&answer)?)
    })
}
