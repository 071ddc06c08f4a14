//! `token`: manages tokens for HTTP access.

use std::process::ExitCode;

use anyhow::Result;
use repertoire_app::{Permission, TokenGrant};
use repertoire_core::text::terminal_safe;
use repertoire_registry::{
    Error,
    store::{Account, Store, StoredToken},
};
use serde_json::json;

use crate::{
    args::TokenCommand,
    output::{DIM, ID, Output},
    settings::CliSettings,
};

pub(crate) fn run(
    command: TokenCommand,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let store = &*Account::open(&settings.account)?.store;
    match command {
        TokenCommand::Create {
            name,
            allow,
            write,
            only,
            tool,
            expires,
        } => {
            let write = write.then_some(Permission::Write);
            let grant = TokenGrant {
                permissions: allow.into_iter().chain(write).collect(),
                prefixes: only,
                tools: tool,
            };
            create_token(store, &name, grant, expires, output)
        }
        TokenCommand::List => list_tokens(store, output),
        TokenCommand::Revoke { name } => {
            if !store.revoke_token(&name)? {
                return Err(Error::NotFound {
                    what: "token",
                    name,
                }
                .into());
            }
            if output.json {
                output.print_json(&json!({"revoked": name}))?;
            }
            output.print_note(format!(
                "{} is revoked; running servers refuse it within a second",
                terminal_safe(&name)
            ));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn create_token(
    store: &dyn Store,
    name: &str,
    grant: TokenGrant,
    expires: Option<std::time::Duration>,
    output: &Output,
) -> Result<ExitCode> {
    let (token, secret) = repertoire_app::create_token(store, name, grant, expires)?;
    if output.json {
        let mut value = json!(token);
        value["token"] = secret.into();
        output.print_json(&value)?;
    } else {
        output.print_text(&format!("{secret}\n"))?;
        output.print_note("keep it now: it is not shown again");
    }
    Ok(ExitCode::SUCCESS)
}

fn list_tokens(store: &dyn Store, output: &Output) -> Result<ExitCode> {
    let tokens = store.tokens()?;
    if output.json {
        output.print_json(&json!({"tokens": tokens}))?;
        return Ok(ExitCode::SUCCESS);
    }
    for token in &tokens {
        let until = match &token.expires_at {
            None => String::new(),
            Some(at) if token.is_expired() => format!(", expired {at}"),
            Some(at) => format!(", until {at}"),
        };
        output.print_text(&format!(
            "{ID}{}{ID:#}  {}{}  {DIM}made {}{until}{DIM:#}\n",
            token.name,
            token.permissions,
            describe_restrictions(token),
            token.created_at
        ))?;
        if token.lost_run {
            output.print_note(format!(
                "{} was made before running became a permission of its own, and can no longer run \
                 anything: create another one with `--allow read,run`",
                token.name
            ));
        }
    }
    if tokens.is_empty() {
        output.print_note("no tokens; `repertoire token create NAME` makes one");
    }
    Ok(ExitCode::SUCCESS)
}

/// Says which skills and tools a token is for, if not for all.
fn describe_restrictions(token: &StoredToken) -> String {
    let prefixes = token.prefixes.iter().map(|prefix| format!(" {prefix}"));
    let tools = token.tools.iter();
    let tools = tools.map(|tool| format!(" tool:{}", terminal_safe(tool)));
    prefixes.chain(tools).collect()
}
