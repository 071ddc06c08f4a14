//! Reading whatever a URI names, wherever it is: files, stores, other servers, the bus.
//!
//! What a function makes is served as it is: no link in it is followed, and no address. Whatever
//! is asked of the bus has a deadline and a size.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use repertoire_core::{PromptBody, Uri, surface};
use repertoire_registry::{Content, Entry, PromptEntry, Registry, registered};
use serde_json::{Map, Value, json};

use crate::{
    engine::{Engine, OnBus},
    error::{Error, Result},
    iii::{
        CallError,
        functions::{Said, normalise},
    },
};

/// The most bytes of what a function makes.
const MAX_MADE: usize = 4 * 1024 * 1024;
/// How often one function may be making content at a time.
const MAX_MAKING: usize = 64;
/// Files up to this size are read on the spot; larger ones where they keep nobody waiting.
pub(crate) const SMALL: u64 = 256 * 1024;

impl Engine {
    /// Reads what a URI names.
    pub(crate) async fn read(&self, registry: &Arc<Registry>, uri: &Uri) -> Result<Content> {
        let snapshot = registry.snapshot();
        let slow = match uri {
            Uri::Function(id) => return self.section(id.as_str()).await,
            Uri::Skill(path) => match snapshot.locate(path) {
                Some((entry, _)) if entry.is_on_bus() => return self.kept(&entry, uri).await,
                Some((entry, path)) => {
                    entry.is_remote() || entry.head.file(&path).is_none_or(|f| f.size > SMALL)
                }
                None => false,
            },
            Uri::Body(id) => match snapshot.get(id) {
                Some(entry) if entry.is_on_bus() => return self.kept(entry, uri).await,
                Some(entry) => entry.is_remote() || entry.head.size() > SMALL,
                None => false,
            },
            Uri::Index => snapshot.len() > 1000 && !registry.has_index(),
            Uri::DiscoveryIndex => snapshot.len() > 1000,
        };
        if !slow {
            return Ok(registry.read(uri)?);
        }
        let (registry, uri) = (registry.clone(), uri.clone());
        blocking(move || registry.read(&uri)).await
    }

    /// What a function makes for whoever reads its URI.
    async fn section(&self, function_id: &str) -> Result<Content> {
        let made = self.call(function_id, json!({})).await?;
        let content = |mime: &'static str, text: String| Content {
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

    /// Calls a function for content or a prompt: none of the bus's own, in time, within bounds.
    async fn call(&self, function_id: &str, payload: Value) -> Result<String> {
        let Some(OnBus { bus, options }) = self.bus() else {
            let message = format!("{function_id} cannot be called: there is no bus here");
            return Err(CallError::new("no_bus", message).into());
        };
        options.guard.check(function_id)?;
        let _making = Making::begin(self, function_id)?;
        let made = bus.call(function_id, payload, options.deadline).await?;
        if made.len() > MAX_MADE {
            let message = format!("{function_id}: too large: more than {MAX_MADE} bytes");
            return Err(CallError::new("too_large", message).into());
        }
        Ok(made)
    }

    /// A row that the bus keeps.
    async fn row(&self, scope: impl FnOnce(&OnBus) -> &str, key: &str) -> Result<Option<String>> {
        let Some(on) = self.bus() else {
            return Ok(None);
        };
        let payload = json!({"scope": scope(on), "key": key});
        let deadline = on.options.deadline;
        let row = on.bus.call("state::get", payload, deadline).await?;
        Ok(Some(row).filter(|row| row != "null"))
    }

    async fn body(&self, entry: &Entry) -> Result<String> {
        let row = self.row(|on| &on.options.skills, entry.id.as_str()).await?;
        let body = row.as_deref().and_then(registered::body_of);
        body.ok_or_else(|| {
            Error::from(repertoire_registry::Error::NotFound {
                what: "skill",
                name: entry.id.to_string(),
            })
        })
    }

    /// What a URI serves of a body that the bus keeps.
    async fn kept(&self, entry: &Entry, uri: &Uri) -> Result<Content> {
        let body = self.body(entry).await?;
        let text = match uri {
            Uri::Skill(_) => surface::registered_document(&entry.id, &body).unwrap_or(body),
            _ => body,
        };
        Ok(Content {
            mime: "text/markdown".into(),
            bytes: text.into(),
        })
    }

    /// A skill as one prompt text.
    pub(crate) async fn prompt_text(
        &self,
        registry: &Arc<Registry>,
        entry: Arc<Entry>,
    ) -> Result<String> {
        if entry.is_on_bus() {
            let body = self.body(&entry).await?;
            let document = surface::registered_document(&entry.id, &body).unwrap_or(body);
            return Ok(surface::prompt_text(&document, []));
        }
        let registry = registry.clone();
        // A skill may be sixteen mebibytes in five hundred files.
        blocking(move || registry.prompt_text(&entry)).await
    }

    /// What a prompt says, given its arguments.
    pub(crate) async fn render(
        &self,
        registry: &Arc<Registry>,
        entry: &Arc<PromptEntry>,
        arguments: Map<String, Value>,
    ) -> Result<Said> {
        let name = entry.prompt.name.as_str();
        let missing = || {
            Error::from(repertoire_registry::Error::NotFound {
                what: "prompt",
                name: name.to_owned(),
            })
        };
        match &entry.prompt.body {
            PromptBody::Function(id) => {
                let made = self.call(id, Value::Object(arguments)).await?;
                Ok(normalise(id, &made)?)
            }
            PromptBody::Static if entry.is_on_bus() => {
                let row = self.row(|on| &on.options.prompts, name).await?;
                let row: Value = row
                    .and_then(|row| repertoire_core::json::from_str(&row).ok())
                    .unwrap_or_default();
                let text = row
                    .get("body")
                    .and_then(Value::as_str)
                    .ok_or_else(missing)?;
                Ok(Said::Text(text.to_owned()))
            }
            PromptBody::Static => {
                if !arguments.is_empty() {
                    tracing::debug!(prompt = name, "has a fixed text: its arguments are ignored");
                }
                let (registry, entry) = (registry.clone(), entry.clone());
                let text = blocking(move || registry.prompt_body(&entry)).await?;
                text.map(Said::Text).ok_or_else(missing)
            }
        }
    }

    /// Calls a function as a tool.
    pub(crate) async fn call_tool(&self, function_id: &str, arguments: Value) -> Result<String> {
        /// Tools may do real work.
        const PATIENCE: Duration = Duration::from_mins(1);
        let Some(OnBus { bus, options }) = self.bus() else {
            return Err(CallError::no_function(function_id).into());
        };
        options.guard.check(function_id)?;
        Ok(bus.call(function_id, arguments, PATIENCE).await?)
    }
}

/// One piece of content that a function is making.
struct Making<'a> {
    engine: &'a Engine,
    function_id: &'a str,
}

impl<'a> Making<'a> {
    /// Refuses one more of too many: a function that reads its own address would never end.
    fn begin(engine: &'a Engine, function_id: &'a str) -> Result<Self> {
        let mut making = engine.making.lock().unwrap_or_else(PoisonError::into_inner);
        let now = making.entry(function_id.to_owned()).or_default();
        if *now >= MAX_MAKING {
            let message = format!(
                "{function_id} is being asked {MAX_MAKING} times already; does it read its own \
                 address?"
            );
            return Err(CallError::new("busy", message).into());
        }
        *now += 1;
        Ok(Self {
            engine,
            function_id,
        })
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut making = self
            .engine
            .making
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

/// Runs work that waits for a disk or another server where it keeps nobody waiting.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> repertoire_registry::Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(Error::Transport("the reader failed".to_owned())),
    }
}
