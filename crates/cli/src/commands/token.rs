//! `token`: manages tokens for HTTP access.

use std::process::ExitCode;

use anyhow::Result;
use repertoire_core::text::terminal_safe;
use repertoire_registry::{
    Error,
    store::{Account, Store, TokenAccess},
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
            write,
            expires,
        } => {
            let access = if write {
                TokenAccess::Write
            } else {
                TokenAccess::Read
            };
            create_token(store, &name, access, expires, output)
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
    access: TokenAccess,
    expires: Option<std::time::Duration>,
    output: &Output,
) -> Result<ExitCode> {
    let (token, secret) = repertoire_app::create_token(store, name, access, expires)?;
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
            "{ID}{}{ID:#}  {}  {DIM}made {}{until}{DIM:#}\n",
            token.name,
            token.access.as_str(),
            token.created_at
        ))?;
    }
    if tokens.is_empty() {
        output.print_note("no tokens; `repertoire token create NAME` makes one");
    }
    Ok(ExitCode::SUCCESS)
}
