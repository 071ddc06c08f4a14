//! Which of several workers serves: offering functions, standing by, and taking over.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use repertoire_app::WorkerRecord;
use serde_json::{Value, json};

use super::{SkillsWorker, send};
use crate::{
    iii::{
        bus::{Bus as _, CallError},
        bus_client::{BusClient, WorkerIdentity},
        functions::{self, TRIGGER_TYPES, is_tool},
    },
    peer_owner::PeerOwner,
    service::FunctionTool,
};

/// Counts the calls that the leader did not answer.
#[derive(Debug, Default)]
pub(super) struct LeaderProbe {
    silent: u32,
}

impl LeaderProbe {
    /// How long a leader may take for an answer.
    pub(super) const PATIENCE: Duration = Duration::from_secs(1);
    /// So many calls without an answer, one after the other, and the leader counts as stopped.
    const LIMIT: u32 = 2;

    /// Records a call; returns whether the leader counts as stopped.
    pub(super) fn record(&mut self, is_silent: bool) -> bool {
        self.silent = if is_silent { self.silent + 1 } else { 0 };
        self.silent >= Self::LIMIT
    }
}

/// The role of this process on the bus.
pub(super) enum WorkerRole {
    /// Not known yet.
    Unknown,
    /// This process has offered the functions.
    Serving(OfferedFunctions),
    /// Another worker serves.
    Standby,
}

/// The functions and trigger types that this process has offered.
#[derive(Default)]
pub(super) struct OfferedFunctions {
    functions: BTreeSet<&'static str>,
    /// Whether the trigger types were offered.
    types_offered: bool,
    /// Whether the bus has listed this process as the owner of the functions.
    confirmed: bool,
}

/// A function that answers without reading anything.
pub(super) const LEADER_PROBE_FUNCTION: &str = "skills::resources-templates";

/// The worker that owns this function serves.
const LEADER_FUNCTION: &str = "skills::register";

/// The owners of the functions and trigger types.
#[derive(Debug)]
pub(super) struct FunctionOwners {
    pub(super) leader: LeaderStatus,
    /// Functions without an owner.
    pub(super) free: Vec<&'static str>,
    /// Whether a trigger type has no provider.
    pub(super) types_lost: bool,
}

/// Which worker serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaderStatus {
    Absent,
    ThisWorker,
    OtherWorker,
}

impl SkillsWorker {
    /// Takes the place of a leader that answers no calls any more, such as a stopped process: the bus
    /// keeps its connection, and with it the functions.
    pub(super) async fn check_leader(&self, client: &BusClient, probe: &mut LeaderProbe) {
        let namespace = self.bus.namespace();
        let namespace = namespace.as_deref();
        let patience = LeaderProbe::PATIENCE;
        let call = client.call_json_in(namespace, LEADER_PROBE_FUNCTION, "{}", patience);
        let is_silent = matches!(call.await, Err(error) if error.code == "timeout");
        if !probe.record(is_silent) {
            return;
        }
        // The identity is a secret, so it is sent to no bus of another user.
        let is_own_bus = !PeerOwner::is_other_user(&self.options.url);
        let record = self.leader_record().filter(|_| is_own_bus);
        let Some(leader) = record.and_then(|record| record.read()) else {
            tracing::warn!(
                "the worker that serves does not answer, and it is not one of this user"
            );
            return;
        };
        tracing::warn!("the worker that serves does not answer: taking its place");
        let _ = client.send_text(WorkerIdentity::from(leader).reattach_message());
    }

    pub(super) fn leader_record(&self) -> Option<WorkerRecord> {
        let account = self.options.account.as_ref()?;
        let namespace = self.bus.namespace();
        let namespace = namespace.as_deref();
        Some(WorkerRecord::new(account, &self.options.url, namespace))
    }

    /// Updates the role according to the owners of the functions.
    ///
    /// The owner of `skills::register` serves. It takes functions and trigger types that it lost,
    /// or that another worker owned before, as soon as they are free.
    pub(super) async fn update_role(
        self: &Arc<Self>,
        client: &BusClient,
        role: WorkerRole,
        owners: FunctionOwners,
    ) -> WorkerRole {
        match (owners.leader, role) {
            (LeaderStatus::Absent, WorkerRole::Unknown | WorkerRole::Standby) => {
                let serving = WorkerRole::Serving(self.offer_functions(client));
                // Ownership is known immediately; calls wait for the remaining steps.
                match self.fetch_owners().await {
                    Ok(owners) if owners.leader != LeaderStatus::Absent => {
                        Box::pin(self.update_role(client, serving, owners)).await
                    }
                    _ => serving,
                }
            }
            (LeaderStatus::Absent | LeaderStatus::ThisWorker, WorkerRole::Serving(mut serving)) => {
                for id in owners.free {
                    self.offer_function(client, &mut serving, id);
                }
                if owners.leader == LeaderStatus::ThisWorker {
                    if !serving.confirmed {
                        let namespace =
                            self.bus.namespace().unwrap_or_else(|| "default".to_owned());
                        tracing::info!(namespace, "serving: skills and prompts are on the bus");
                        serving.confirmed = true;
                        if let Some(record) = self.leader_record()
                            && let Err(error) = record.write(&client.identity().into())
                        {
                            tracing::warn!(%error, "another worker cannot take over from this one");
                        }
                    }
                    // Only now: offering a type takes it away from its current provider.
                    if !serving.types_offered || owners.types_lost {
                        Self::offer_trigger_types(client);
                        serving.types_offered = true;
                    }
                    if !*self.ready.borrow() {
                        // The bus sends the subscriptions before it answers these two calls.
                        self.round_trip().await;
                        self.round_trip().await;
                        self.ready.send_replace(true);
                    }
                }
                WorkerRole::Serving(serving)
            }
            (LeaderStatus::ThisWorker, role) => role,
            (LeaderStatus::OtherWorker, WorkerRole::Serving(serving)) => {
                tracing::warn!("another worker has the functions: standing by");
                self.withdraw_functions(client, serving).await;
                WorkerRole::Standby
            }
            (LeaderStatus::OtherWorker, WorkerRole::Unknown) => {
                tracing::info!("another worker serves: standing by");
                WorkerRole::Standby
            }
            (LeaderStatus::OtherWorker, WorkerRole::Standby) => WorkerRole::Standby,
        }
    }

    /// Returns the owners of the functions and the trigger types.
    pub(super) async fn fetch_owners(&self) -> Result<FunctionOwners, CallError> {
        let deadline = Duration::from_secs(5);
        let listed = self
            .bus
            .call_function("engine::functions::list", json!({}), deadline);
        let listed: Value = repertoire_core::json::from_str(&listed.await?).unwrap_or_default();
        let none = Vec::new();
        let namespace = self.bus.namespace();
        let namespace = namespace.as_deref().unwrap_or("default");
        let is_here = |row: &&Value| {
            let of = row["namespace"].as_str();
            of.is_none_or(|of| of == namespace)
        };
        let rows = listed["functions"].as_array().unwrap_or(&none);
        let rows: Vec<&Value> = rows.iter().filter(is_here).collect();
        let content = rows.iter().filter(|row| row["metadata"]["content"] == true);
        let content = content.filter_map(|row| row["function_id"].as_str());
        self.service
            .set_content_functions(content.map(str::to_owned).collect());
        if !self.options.tools.is_empty() {
            self.offer_tools(&rows);
        }
        let find = |id: &str| rows.iter().find(|row| row["function_id"] == id);
        let leader = match find(LEADER_FUNCTION) {
            None => LeaderStatus::Absent,
            Some(row) if row["metadata"]["instance"] == self.instance.as_str() => {
                LeaderStatus::ThisWorker
            }
            Some(_) => LeaderStatus::OtherWorker,
        };
        let free = functions::all_functions().iter().map(|f| f.id);
        let free = free.filter(|id| find(id).is_none()).collect();
        // A bus that lists subscriptions under this name, or nothing, tells of no lost types.
        let types = self
            .bus
            .call_function("engine::triggers::list", json!({}), deadline);
        let types: Value = match types.await {
            Ok(types) => repertoire_core::json::from_str(&types).unwrap_or_default(),
            Err(_) => Value::Null,
        };
        let own_name = find(LEADER_FUNCTION).and_then(|row| row["worker_name"].as_str());
        let types = types["triggers"].as_array().unwrap_or(&none);
        let is_type = |row: &&Value| row["trigger_type"].is_null() && is_here(row);
        let types: Vec<&Value> = types.iter().filter(is_type).collect();
        let is_held = |id: &str| {
            types.iter().any(|kind| {
                let owner = kind["worker_name"].as_str();
                kind["id"] == id && owner.is_none_or(|owner| Some(owner) == own_name)
            })
        };
        let types_lost = !types.is_empty() && TRIGGER_TYPES.iter().any(|kind| !is_held(kind.id));
        Ok(FunctionOwners {
            leader,
            free,
            types_lost,
        })
    }

    /// Offers the functions of other workers as MCP tools.
    pub(super) fn offer_tools(&self, rows: &[&Value]) {
        let guard = &self.options.functions.guard;
        let schema = |value: &Value| Some(value.clone()).filter(|value| !value.is_null());
        let tools = rows.iter().filter_map(|row| {
            let id = row["function_id"].as_str()?;
            is_tool(&self.options.tools, guard, id).then(|| FunctionTool {
                function_id: id.to_owned(),
                description: row["description"].as_str().map(str::to_owned),
                request: schema(&row["request_format"]),
                response: schema(&row["response_format"]),
            })
        });
        self.service.offer_tools(tools);
    }

    /// Offers the functions.
    pub(super) fn offer_functions(self: &Arc<Self>, client: &BusClient) -> OfferedFunctions {
        let mut serving = OfferedFunctions::default();
        for described in functions::all_functions() {
            self.offer_function(client, &mut serving, described.id);
        }
        serving
    }

    /// Offers one function; replaces an earlier offer of the same function.
    pub(super) fn offer_function(
        self: &Arc<Self>,
        client: &BusClient,
        serving: &mut OfferedFunctions,
        id: &'static str,
    ) {
        let Some(described) = functions::all_functions().iter().find(|f| f.id == id) else {
            return;
        };
        if !serving.functions.insert(id) {
            send(client, &json!({"type": "unregisterfunction", "id": id}));
        }
        send(
            client,
            &json!({
                "type": "registerfunction", "id": id, "description": described.about,
                "metadata": {"instance": self.instance},
                "request_format": described.request, "response_format": described.response,
            }),
        );
    }

    /// Offers the trigger types.
    pub(super) fn offer_trigger_types(client: &BusClient) {
        for kind in TRIGGER_TYPES {
            send(
                client,
                &json!({
                    "type": "registertriggertype", "id": kind.id, "description": kind.about,
                }),
            );
        }
    }

    /// Withdraws the functions and trigger types of this process.
    pub(super) async fn withdraw_functions(&self, client: &BusClient, serving: OfferedFunctions) {
        if let Some(record) = self.leader_record() {
            record.remove_of(&client.identity().into());
        }
        for id in serving.functions {
            send(client, &json!({"type": "unregisterfunction", "id": id}));
        }
        // Engines do not know this message: they forget the types when the connection ends.
        if serving.types_offered && client.is_hub() {
            for kind in TRIGGER_TYPES {
                send(
                    client,
                    &json!({"type": "unregistertriggertype", "id": kind.id}),
                );
            }
        }
        self.subscribers.lock().clear();
        self.ready.send_replace(false);
        // Closing the connection drops queued messages; an answer shows that they were sent.
        self.round_trip().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_calls_in_a_row_without_an_answer_end_a_leader() {
        let mut probe = LeaderProbe::default();
        let seen = [true, false, true, true].map(|is_silent| probe.record(is_silent));
        assert_eq!(seen, [false, false, false, true]);
    }
}
