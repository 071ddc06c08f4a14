//! Reads the content of a URI from files, stores, other servers or functions on the bus.
//!
//! Content made by a function is served unchanged: links and addresses in it are not followed.
//! Every call on the bus has a deadline and a size limit.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use repertoire_core::{PromptBody, Uri, surface};
use repertoire_registry::{PromptEntry, Registry, ServedContent, SkillEntry, Snapshot, registered};
use serde_json::{Map, Value, json};

use crate::{
    error::{Error, Result},
    iii::{
        CallError,
        functions::{PromptContent, parse_prompt_content},
    },
    service::{BusBinding, SkillService},
};

/// The maximum size of content made by a function, in bytes.
const MAX_CONTENT_BYTES: usize = 4 * 1024 * 1024;
/// Files up to this size are read inline; larger ones on a blocking thread.
pub(crate) const MAX_INLINE_READ: u64 = 256 * 1024;

impl SkillService {
    /// Reads the content of a URI in a snapshot, which may be a part of the catalogue.
    pub(crate) async fn read_uri(
        &self,
        registry: &Arc<Registry>,
        snapshot: &Arc<Snapshot>,
        uri: &Uri,
    ) -> Result<ServedContent> {
        let slow = match uri {
            Uri::Function(id) => return self.function_content(id.as_str()).await,
            Uri::Skill(path) => match snapshot.locate_file(path) {
                Some((entry, _)) if entry.is_on_bus() => {
                    return self.registered_content(&entry, uri).await;
                }
                Some((entry, path)) => {
                    entry.is_remote()
                        || entry
                            .metadata
                            .find_file(&path)
                            .is_none_or(|f| f.size > MAX_INLINE_READ)
                }
                None => false,
            },
            Uri::Body(id) => match snapshot.get(id) {
                Some(entry) if entry.is_on_bus() => {
                    return self.registered_content(entry, uri).await;
                }
                Some(entry) => entry.is_remote() || entry.metadata.total_size() > MAX_INLINE_READ,
                None => false,
            },
            Uri::Index => !registry.has_index(snapshot) && snapshot.len() > 1000,
            Uri::DiscoveryIndex => snapshot.len() > 1000,
        };
        if !slow {
            return Ok(registry.read_uri_in(snapshot, uri)?);
        }
        let (registry, snapshot, uri) = (registry.clone(), snapshot.clone(), uri.clone());
        run_blocking(move || registry.read_uri_in(&snapshot, &uri)).await
    }

    /// Reads the content that a function makes for its URI.
    async fn function_content(&self, function_id: &str) -> Result<ServedContent> {
        let made = self.call_for_content(function_id, json!({})).await?;
        let content = |mime: &'static str, text: String| ServedContent {
            mime: mime.into(),
            bytes: text.into(),
        };
        Ok(match repertoire_core::json::from_str::<Value>(&made) {
            Ok(Value::String(text)) => content("text/markdown", text),
            Ok(Value::Object(mut object))
                if object.get("content").is_some_and(Value::is_string) =>
            {
                match object.remove("content") {
                    Some(Value::String(text)) => content("text/markdown", text),
                    _ => content("text/markdown", String::new()),
                }
            }
            Ok(other) => content(
                "application/json",
                serde_json::to_string_pretty(&other).unwrap_or(made),
            ),
            Err(_) => content("application/json", made),
        })
    }

    /// Calls a function for content or a prompt, with guard, deadline and size limit.
    async fn call_for_content(&self, function_id: &str, payload: Value) -> Result<String> {
        let Some(binding) = self.bus() else {
            let message = format!("{function_id} cannot be called: no bus is connected");
            return Err(CallError::new("no_bus", message).into());
        };
        let options = &binding.options;
        options.guard.check_function(function_id)?;
        let _making = ContentCall::begin(self, function_id, options.limits.content_calls)?;
        let made = binding
            .bus()?
            .call_function(function_id, payload, options.deadline)
            .await?;
        if made.len() > MAX_CONTENT_BYTES {
            let message = format!("{function_id}: too large: more than {MAX_CONTENT_BYTES} bytes");
            return Err(CallError::new("too_large", message).into());
        }
        Ok(made)
    }

    /// Reads a row of the bus's state store.
    async fn read_state_row(
        &self,
        scope: impl FnOnce(&BusBinding) -> &str,
        key: &str,
    ) -> Result<Option<String>> {
        let Some(on) = self.bus() else {
            return Ok(None);
        };
        let payload = json!({"scope": scope(on), "key": key});
        let deadline = on.options.deadline;
        let row = on
            .bus()?
            .call_function("state::get", payload, deadline)
            .await?;
        Ok(Some(row).filter(|row| row != "null"))
    }

    pub(crate) async fn registered_body(&self, entry: &SkillEntry) -> Result<String> {
        let row = self
            .read_state_row(|on| &on.options.skills, entry.id.as_str())
            .await?;
        let body = row.as_deref().and_then(registered::row_body);
        body.ok_or_else(|| {
            Error::from(repertoire_registry::Error::NotFound {
                what: "skill",
                name: entry.id.to_string(),
            })
        })
    }

    /// Returns the content of a URI whose body is stored on the bus.
    async fn registered_content(&self, entry: &SkillEntry, uri: &Uri) -> Result<ServedContent> {
        let body = self.registered_body(entry).await?;
        let text = match uri {
            Uri::Skill(_) => surface::registered_document(&entry.id, &body).unwrap_or(body),
            _ => body,
        };
        Ok(ServedContent {
            mime: "text/markdown".into(),
            bytes: text.into(),
        })
    }

    /// Returns a skill as one prompt text.
    pub(crate) async fn prompt_text(
        &self,
        registry: &Arc<Registry>,
        entry: Arc<SkillEntry>,
    ) -> Result<String> {
        if entry.is_on_bus() {
            let body = self.registered_body(&entry).await?;
            let document = surface::registered_document(&entry.id, &body).unwrap_or(body);
            return Ok(surface::prompt_text(&document, []));
        }
        let registry = registry.clone();
        // Reading blocks: a skill may have 16 MiB in 500 files.
        run_blocking(move || registry.prompt_text(&entry)).await
    }

    /// Renders a prompt with its arguments.
    pub(crate) async fn render_prompt(
        &self,
        registry: &Arc<Registry>,
        entry: &Arc<PromptEntry>,
        arguments: Map<String, Value>,
    ) -> Result<PromptContent> {
        let name = entry.prompt.name.as_str();
        let missing = || {
            Error::from(repertoire_registry::Error::NotFound {
                what: "prompt",
                name: name.to_owned(),
            })
        };
        match &entry.prompt.body {
            PromptBody::Function(id) => {
                let made = self.call_for_content(id, Value::Object(arguments)).await?;
                Ok(parse_prompt_content(id, &made)?)
            }
            PromptBody::Static if entry.is_on_bus() => {
                let row = self.read_state_row(|on| &on.options.prompts, name).await?;
                let row: Value = row
                    .and_then(|row| repertoire_core::json::from_str(&row).ok())
                    .unwrap_or_default();
                let text = row
                    .get("body")
                    .and_then(Value::as_str)
                    .ok_or_else(missing)?;
                Ok(PromptContent::Text(text.to_owned()))
            }
            PromptBody::Static => {
                if !arguments.is_empty() {
                    tracing::debug!(prompt = name, "fixed text: the arguments are ignored");
                }
                let (registry, entry) = (registry.clone(), entry.clone());
                let text = run_blocking(move || registry.prompt_body(&entry)).await?;
                text.map(PromptContent::Text).ok_or_else(missing)
            }
        }
    }

    /// Calls a function as a tool.
    pub(crate) async fn call_tool(&self, function_id: &str, arguments: Value) -> Result<String> {
        /// Longer than for content, because tools may do real work.
        const TOOL_TIMEOUT: Duration = Duration::from_mins(1);
        let Some(binding) = self.bus() else {
            return Err(CallError::function_not_found(function_id).into());
        };
        binding.options.guard.check_function(function_id)?;
        Ok(binding
            .bus()?
            .call_function(function_id, arguments, TOOL_TIMEOUT)
            .await?)
    }
}

/// A running content call of a function.
struct ContentCall<'a> {
    service: &'a SkillService,
    function_id: &'a str,
}

impl<'a> ContentCall<'a> {
    /// Refuses a call beyond the limit, which stops functions that read their own URI.
    fn begin(service: &'a SkillService, function_id: &'a str, most: usize) -> Result<Self> {
        let mut making = service
            .content_calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now = making.entry(function_id.to_owned()).or_default();
        if *now >= most {
            let message = format!(
                "{function_id} is being called {most} times already; does it read its own address?"
            );
            return Err(CallError::new("busy", message).into());
        }
        *now += 1;
        Ok(Self {
            service,
            function_id,
        })
    }
}

impl Drop for ContentCall<'_> {
    fn drop(&mut self) {
        let mut making = self
            .service
            .content_calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = making.get_mut(self.function_id) {
            *now = now.saturating_sub(1);
            if *now == 0 {
                making.remove(self.function_id);
            }
        }
    }
}

/// Runs blocking work, such as disk or network reads, on a blocking thread.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> repertoire_registry::Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(Error::Transport("the read task failed".to_owned())),
    }
}
