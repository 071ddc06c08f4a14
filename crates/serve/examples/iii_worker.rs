//! A worker with a skill, a section made by a function, and a slash command.
//!
//! Start a hub with `repertoire serve`, then run:
//!
//! ```sh
//! cargo run --package repertoire-serve --example iii_worker
//! ```
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example for the terminal"
)]

use std::{
    collections::HashMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use iii_sdk::{Error, IIIClient, InitOptions, RegisterFunction, protocol::TriggerRequest};
use serde_json::{Value, json};

/// Retries a registration, because the registry may start after this worker or restart.
async fn register_with_retry(
    iii: &IIIClient,
    function_id: &str,
    payload: Value,
) -> Result<(), Error> {
    let mut pause = Duration::from_millis(500);
    let begun = Instant::now();
    loop {
        let request = TriggerRequest {
            function_id: function_id.to_owned(),
            payload: payload.clone(),
            action: None,
            timeout_ms: Some(5_000),
        };
        match iii.trigger(request).await {
            Ok(_) => return Ok(()),
            // A permanent refusal: retrying is useless.
            Err(Error::Remote { code, message, .. }) if code != "function_not_found" => {
                return Err(Error::Handler(format!("{function_id}: {message}")));
            }
            Err(error) if begun.elapsed() > Duration::from_mins(3) => return Err(error),
            Err(_) => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(Duration::from_secs(30));
    }
}

/// The user's own token, which a server with `--require-token` keeps for the user's programs. The SDK
/// itself reads `III_TOKEN`.
///
/// It is sent to this machine only.
fn local_token_header(url: &str) -> Option<HashMap<String, String>> {
    let is_here = ["ws://127.0.0.1:", "ws://localhost:", "ws://[::1]:"]
        .iter()
        .any(|start| url.starts_with(start));
    if std::env::var_os("III_TOKEN").is_some() || !is_here {
        return None;
    }
    let home = std::env::home_dir().map(|home| home.join(".repertoire"));
    let account = std::env::var_os("REPERTOIRE_HOME").filter(|account| !account.is_empty());
    let account = account.map(PathBuf::from);
    let token = std::fs::read_to_string(account.or(home)?.join("local-token")).ok()?;
    let value = format!("Bearer {}", token.trim());
    Some(HashMap::from([("Authorization".to_owned(), value)]))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("III_URL").unwrap_or_else(|_| "ws://127.0.0.1:49134".to_owned());
    let options = InitOptions {
        headers: local_token_header(&url),
        ..InitOptions::default()
    };
    let iii = iii_sdk::register_worker(&url, options);

    let guide = RegisterFunction::new(|_: Value| {
        Ok::<_, Error>(json!({"content": "# Tea\n\nGreen tea wants 80 degrees and two minutes."}))
    });
    iii.register_function("tea::guide", guide.description("How to make tea."));

    let order = RegisterFunction::new(|given: Value| {
        let kind = given["kind"].as_str().unwrap_or("black").to_owned();
        Ok::<_, Error>(json!({"content": format!("Make one cup of {kind} tea.")}))
    });
    iii.register_function("tea::order", order.description("Words the order."));

    let skill = "# Tea\n\nMakes tea. Use when a user is thirsty.\n\n\
                 See [the guide](iii://fn/tea/guide) for times and temperatures.\n";
    register_with_retry(
        &iii,
        "skills::register",
        json!({"id": "tea", "skill": skill}),
    )
    .await?;
    let prompt = json!({
        "name": "order-tea",
        "description": "Order a cup of tea.",
        "arguments": [{"name": "kind", "description": "Which tea", "required": true}],
        "function_id": "tea::order",
    });
    register_with_retry(&iii, "prompts::register", prompt).await?;
    println!("ready");

    let mut end = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .map_err(|error| Error::Runtime(error.to_string()))?;
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = end.recv() => {}
    }
    iii.shutdown_async().await;
    Ok(())
}
