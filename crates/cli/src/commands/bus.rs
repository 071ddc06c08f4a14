//! `call` and `functions`: the bus, for people.

use std::{fmt::Write as _, path::Path, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail};
use repertoire_core::text::terminal_safe;
use repertoire_serve::iii::{DEFAULT_URL, client::Client};
use serde_json::Value;

use super::{read_input, serve::runtime, side::check_url};
use crate::{
    args::UrlArgs,
    failure::Usage,
    output::{DIM, ID, Output, count, fit, width},
    settings::Settings,
};

/// The most bytes of a payload.
const MAX_PAYLOAD: usize = 64 * 1024 * 1024;

/// Where a bus is, and what to present there.
pub(crate) struct Place {
    url: String,
    token: Option<String>,
}

impl Place {
    /// As asked for, else the hub of the settings, else where one usually is.
    pub(super) fn of(args: UrlArgs, settings: &Settings) -> Result<Self> {
        let asked = args.url.filter(|url| !url.is_empty());
        let hub = settings.hub.as_deref().filter(|hub| *hub != "off");
        let hub = hub.map(|hub| match hub.parse::<u16>() {
            Ok(port) => format!("ws://127.0.0.1:{port}"),
            Err(_) => format!("ws://{hub}"),
        });
        let url = asked.or(hub).unwrap_or_else(|| DEFAULT_URL.to_owned());
        check_url(&url)?;
        let token = std::env::var(&args.token_env).ok();
        Ok(Self {
            url,
            token: token.filter(|token| !token.is_empty()),
        })
    }
}

pub(crate) fn call(
    function: &str,
    payload: &str,
    timeout: Duration,
    bus: &Place,
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
        .map_err(|error| Usage(format!("the payload is not JSON: {error}")))?;
    let answer = ask(function, &payload, timeout, bus)?;
    match (answer, output.json) {
        // A text is what people came for, not its quotes.
        (Value::String(text), false) => output.print_bytes(format!("{text}\n").as_bytes())?,
        (answer, true) => output.print_json(&answer)?,
        (answer, false) => {
            let text = serde_json::to_string_pretty(&answer)?;
            output.print_bytes(format!("{text}\n").as_bytes())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn functions(internal: bool, bus: &Place, output: &Output) -> Result<ExitCode> {
    let payload = serde_json::json!({"include_internal": internal});
    let patience = Duration::from_secs(30);
    let mut answer = ask("engine::functions::list", &payload, patience, bus)?;
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
        let about = match width() {
            Some(width) => fit(&about, width.saturating_sub(longest + worker.len() + 4)),
            None => about,
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{ID}{id:longest$}{ID:#}  {DIM}{worker}{DIM:#}  {about}"
        );
    }
    output.print(&out)?;
    output.note(format!("{DIM}{}{DIM:#}", count(rows.len(), "function")));
    Ok(ExitCode::SUCCESS)
}

/// Asks a bus one thing.
fn ask(function: &str, payload: &Value, patience: Duration, bus: &Place) -> Result<Value> {
    if function.is_empty() {
        bail!(Usage(
            "name a function; `repertoire functions` lists them".to_owned()
        ));
    }
    runtime()?.block_on(async {
        let client = Client::connect(&bus.url, bus.token.as_deref()).await?;
        let answer = client.ask(function, &payload.to_string(), patience).await?;
        Ok(repertoire_core::json::from_str(&answer)?)
    })
}
