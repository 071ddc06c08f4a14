//! Running the real command with a home of its own, and a provider that says what it is told to.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

#[path = "../../../runtime/tests/common/fake.rs"]
mod fake;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};

pub(crate) use fake::{Fake, Says};

/// The provider's key; it must be nowhere but in what the provider hears.
pub(crate) const KEY: &str = "planted-key-0123456789";

pub(crate) fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

pub(crate) fn run(home: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_repertoire"))
        .args(args)
        .env("REPERTOIRE_HOME", home)
        .env("PLANTED_API_KEY", KEY)
        .env_remove("REPERTOIRE_MODEL")
        .current_dir(home)
        .output()
        .unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{} {}", text(&output.stdout), text(&output.stderr)))
}

/// A home whose settings name the provider and the example's pages.
pub(crate) fn home_with(fake: &Fake) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let config = format!(
        "model = \"there/m\"\nvault = '{}'\n[providers.there]\nkind = \"openai\"\nbase_url = {:?}\n\
         key_env = \"PLANTED_API_KEY\"\n[prices.\"there/m\"]\ninput = 1.0\noutput = 2.0\n",
        examples().join("vault").display(),
        format!("{}/v1", fake.url),
    );
    fs::write(home.path().join("config.toml"), config).unwrap();
    home
}

pub(crate) fn answer(content: &str) -> Says {
    let body = json!({
        "id": "x", "object": "chat.completion", "model": "m", "choices": [
            {"index": 0, "message": {"role": "assistant", "content": content},
             "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 400, "completion_tokens": 50, "total_tokens": 450},
    });
    Says::Json(200, body.to_string())
}
