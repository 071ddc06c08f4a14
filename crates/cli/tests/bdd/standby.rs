//! Steps about workers that start, stop and take over, on the scenario's own bus.

use std::time::{Duration, Instant};

use cucumber::{given, then, when};
use repertoire_serve::iii::bus_client::BusClient;
use serde_json::{Value, json};

use crate::{
    bus,
    process::{self, ChangeSubscriber, TestProcess, WAIT},
    quirky_bus::QuirkyBus,
    steps::World,
};

/// A bus whose functions are provided by workers, with its workers and subscriber.
pub(crate) struct WorkerBus {
    client: BusClient,
    url: String,
    serving: Option<TestProcess>,
    standby: Option<TestProcess>,
    follower: Option<ChangeSubscriber>,
    namespace: Option<String>,
    _hub: TestProcess,
    home: tempfile::TempDir,
}

impl WorkerBus {
    async fn start(flags: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let flags = [&["--hub", "0", "--bare-hub"], flags].concat();
        let (hub, mut url) = process::start_server(home.path(), &flags);
        if bus::has_quirks() {
            url = QuirkyBus::start(&url).await.url;
        }
        Self {
            namespace: None,
            client: BusClient::connect(&url, None).await.unwrap(),
            url,
            serving: None,
            standby: None,
            follower: None,
            _hub: hub,
            home,
        }
    }

    async fn call_function(&self, function: &str, payload: Value) -> Result<Value, String> {
        let namespace = self.namespace.as_deref();
        let answer = self
            .client
            .call_json_in(namespace, function, &payload.to_string(), WAIT)
            .await;
        let answer = answer.map_err(|error| error.to_string())?;
        Ok(serde_json::from_str(&answer).unwrap())
    }

    async fn register_skill(&self, id: &str) -> Result<Value, String> {
        let payload = json!({"id": id, "skill": format!("# {id}")});
        self.call_function("skills::register", payload).await
    }

    pub(crate) async fn shut_down(self) {
        if let Some(follower) = self.follower {
            follower.client.shutdown_async().await;
        }
    }
}

fn worker_bus(world: &mut World) -> &mut WorkerBus {
    world
        .worker_bus
        .as_mut()
        .expect("the scenario has no bus of its own")
}

#[given("a bus whose functions are left to workers")]
async fn start_bare_bus(world: &mut World) {
    world.worker_bus = Some(WorkerBus::start(&[]).await);
}

#[given("a bus that does not tell of changes of its state")]
async fn start_silent_bus(world: &mut World) {
    world.worker_bus = Some(WorkerBus::start(&["--silent-state"]).await);
}

#[given("a worker that serves on it")]
fn start_serving_worker(world: &mut World) {
    let own = worker_bus(world);
    let worker = process::start_worker(&own.url, own.home.path());
    worker.wait_for_stderr("serving");
    own.serving = Some(worker);
}

#[given("a worker that stands by on it")]
fn start_standby_worker(world: &mut World) {
    let own = worker_bus(world);
    let worker = process::start_worker(&own.url, own.home.path());
    worker.wait_for_stderr("standing by");
    own.standby = Some(worker);
}

#[given("a follower on it")]
async fn start_follower(world: &mut World) {
    let own = worker_bus(world);
    let mut follower = process::subscribe_to_changes(&own.url, "bdd::follower");
    let start = Instant::now();
    loop {
        // A subscription takes a moment to register; from then on it gets every change.
        own.register_skill("probe").await.unwrap();
        let heard =
            tokio::time::timeout(Duration::from_secs(1), follower.wait_for_change("probe")).await;
        if heard.is_ok() {
            break;
        }
        assert!(start.elapsed() < WAIT);
    }
    let probe = json!({"id": "probe"});
    own.call_function("skills::unregister", probe)
        .await
        .unwrap();
    own.follower = Some(follower);
}

#[when(regex = r#"^the skill "([^"]*)" is registered on it$"#)]
async fn register_skill(world: &mut World, id: String) {
    worker_bus(world).register_skill(&id).await.unwrap();
}

#[when("the worker that serves is killed")]
fn kill_serving_worker(world: &mut World) {
    let worker = worker_bus(world).serving.take().unwrap();
    worker.send_signal("-KILL");
}

#[when("the worker that serves is stopped")]
fn stop_serving_worker(world: &mut World) {
    worker_bus(world)
        .serving
        .as_ref()
        .unwrap()
        .send_signal("-STOP");
}

#[when("the connection of the worker that serves freezes")]
async fn freeze_connection(world: &mut World) {
    let own = worker_bus(world);
    own.call_function("quirks::freeze-worker", json!({}))
        .await
        .unwrap();
}

#[when("the worker that serves goes on")]
fn resume_serving_worker(world: &mut World) {
    worker_bus(world)
        .serving
        .as_ref()
        .unwrap()
        .send_signal("-CONT");
}

#[given(regex = r#"^a worker that serves on it in the namespace "([^"]*)"$"#)]
fn start_worker_in_namespace(world: &mut World, namespace: String) {
    let own = worker_bus(world);
    let worker = process::start_worker_in(&own.url, own.home.path(), &namespace);
    worker.wait_for_stderr("serving");
    own.serving = Some(worker);
    own.namespace = Some(namespace);
}

#[then(regex = r#"^the skill "([^"]*)" cannot be registered outside of the namespace$"#)]
async fn default_namespace_has_no_functions(world: &mut World, id: String) {
    let own = worker_bus(world);
    let namespace = own.namespace.take();
    let refused = own.register_skill(&id).await;
    own.namespace = namespace;
    assert!(refused.is_err(), "{refused:?}");
}

#[then(regex = r#"^the worker that stands by has said "([^"]*)" at most (\d+) times?$"#)]
fn standby_is_quiet(world: &mut World, words: String, most: usize) {
    let standby = worker_bus(world).standby.as_ref().unwrap();
    let said = standby.stderr.lock().unwrap();
    assert!(said.matches(&words).count() <= most, "{said}");
}

#[then(regex = r#"^within (\d+) seconds the skill "([^"]*)" can be registered on it$"#)]
async fn registers_skill_within(world: &mut World, seconds: u64, id: String) {
    let start = Instant::now();
    while let Err(error) = worker_bus(world).register_skill(&id).await {
        assert!(start.elapsed() < Duration::from_secs(seconds), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(seconds));
}

#[then(regex = r#"^the follower hears of "([^"]*)"$"#)]
async fn follower_is_notified(world: &mut World, id: String) {
    worker_bus(world)
        .follower
        .as_mut()
        .unwrap()
        .wait_for_change(&id)
        .await;
}

#[then(regex = r#"^the worker says "([^"]*)"$"#)]
fn worker_logs(world: &mut World, words: String) {
    worker_bus(world)
        .serving
        .as_ref()
        .unwrap()
        .wait_for_stderr(&words);
}

#[when(regex = r#"^the row "([^"]*)" of skills is set on it$"#)]
async fn set_skill_row(world: &mut World, id: String) {
    let value = json!({"id": id, "skill": "# Direct", "registered_at": ""});
    let row = json!({"scope": "skills", "key": id, "value": value});
    worker_bus(world)
        .call_function("state::set", row)
        .await
        .unwrap();
}

#[when(regex = r#"^the row "([^"]*)" of skills is deleted on it$"#)]
async fn delete_skill_row(world: &mut World, id: String) {
    let row = json!({"scope": "skills", "key": id});
    worker_bus(world)
        .call_function("state::delete", row)
        .await
        .unwrap();
}

#[then(regex = r#"^its skills are "([^"]*)"$"#)]
async fn skills_are(world: &mut World, ids: String) {
    let listed = worker_bus(world)
        .call_function("skills::list", json!({}))
        .await
        .unwrap();
    let rows = listed["skills"].as_array().unwrap().iter();
    let found: Vec<&str> = rows.map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(found.join(" "), ids);
}
