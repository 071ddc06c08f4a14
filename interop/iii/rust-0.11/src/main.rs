//! The worker of the quickstart, written for SDK 0.11.

use iii_sdk::{register_worker, InitOptions, RegisterFunction, TriggerRequest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

#[derive(Default, Deserialize, JsonSchema)]
struct Order {
    kind: String,
}

#[derive(Serialize, JsonSchema)]
struct OrderText {
    content: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("III_URL").unwrap_or_else(|_| "ws://localhost:49134".into());
    let iii = register_worker(&url, InitOptions::default());

    iii.register_function(
        RegisterFunction::new("tea::guide", |_input: Value| {
            Ok::<_, String>(OrderText {
                content: "# Tea\n\nGreen tea wants 80 degrees and two minutes.".into(),
            })
        })
        .description("How to make tea."),
    );
    iii.register_function(
        RegisterFunction::new("tea::order", |order: Order| {
            Ok::<_, String>(OrderText {
                content: format!("Make one cup of {} tea.", order.kind),
            })
        })
        .description("Renders the order."),
    );

    iii.trigger(TriggerRequest {
        function_id: "skills::register".into(),
        payload: json!({
            "id": "tea",
            "skill": "# Tea\n\nMakes tea. Use when a user is thirsty.\n\n\
                      See [the guide](iii://fn/tea/guide) for times and temperatures.\n",
        }),
        action: None,
        timeout_ms: Some(5_000),
    })
    .await?;
    iii.trigger(TriggerRequest {
        function_id: "prompts::register".into(),
        payload: json!({
            "name": "order-tea",
            "description": "Order a cup of tea.",
            "arguments": [{ "name": "kind", "description": "Which tea", "required": true }],
            "function_id": "tea::order",
        }),
        action: None,
        timeout_ms: Some(5_000),
    })
    .await?;
    println!("ready");

    tokio::signal::ctrl_c().await?;
    Ok(())
}
