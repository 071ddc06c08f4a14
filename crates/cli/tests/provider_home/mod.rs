//! Helpers that run the real command in a temporary home with a scripted model provider.
#![allow(dead_code, reason = "each test binary uses only some helpers")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

#[path = "../../../runtime/tests/common/fake.rs"]
mod fake;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};

pub(crate) use fake::{FakeProvider, FakeResponse};

/// The provider's API key; it may appear only in requests to the provider.
pub(crate) const KEY: &str = "planted-key-0123456789";

pub(crate) fn examples_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

pub(crate) fn run_cli(home: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_repertoire"))
        .args(args)
        .env("REPERTOIRE_HOME", home)
        .env("PLANTED_API_KEY", KEY)
        .env_remove("REPERTOIRE_MODEL")
        .current_dir(home)
        .output()
        .unwrap()
}

pub(crate) fn to_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn parse_stdout(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{} {}", to_text(&output.stdout), to_text(&output.stderr)))
}

/// Creates a home whose settings name the provider and the example vault.
pub(crate) fn home_with_provider(fake: &FakeProvider) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let config = format!(
        "model = \"there/m\"\nvault = '{}'\n[providers.there]\nkind = \"openai\"\nbase_url = {:?}\n\
         key_env = \"PLANTED_API_KEY\"\n[prices.\"there/m\"]\ninput = 1.0\noutput = 2.0\n",
        examples_dir().join("vault").display(),
        format!("{}/v1", fake.url),
    );
    fs::write(home.path().join("config.toml"), config).unwrap();
    home
}

pub(crate) fn chat_reply(content: &str) -> FakeResponse {
    let body = json!({
        "id": "x", "object": "chat.completion", "model": "m", "choices": [
            {"index": 0, "message": {"role": "assistant", "content": content},
             "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 400, "completion_tokens": 50, "total_tokens": 450},
    });
    FakeResponse::Json(200, body.to_string())
}
