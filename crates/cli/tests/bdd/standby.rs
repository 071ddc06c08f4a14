//! Sentences about workers that come, go and take over, on a bus of the scenario's own.

use std::time::{Duration, Instant};

use cucumber::{given, then, when};
use repertoire_serve::iii::client::Client;
use serde_json::{Value, json};

use crate::{
    process::{self, Follower, Running, WAIT},
    steps::World,
};

/// A bus that leaves the functions to workers, and who is on it.
pub(crate) struct Own {
    client: Client,
    url: String,
    serving: Option<Running>,
    standby: Option<Running>,
    follower: Option<Follower>,
    _hub: Running,
    home: tempfile::TempDir,
}

impl Own {
    async fn start(flags: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let flags = [&["--hub", "0", "--bare-hub"], flags].concat();
        let (hub, url) = process::serve(home.path(), &flags);
        Self {
            client: Client::connect(&url, None).await.unwrap(),
            url,
            serving: None,
            standby: None,
            follower: None,
            _hub: hub,
            home,
        }
    }

    async fn call(&self, function: &str, payload: Value) -> Result<Value, String> {
        let answer = self.client.ask(function, &payload.to_string(), WAIT).await;
        let answer = answer.map_err(|error| error.to_string())?;
        Ok(serde_json::from_str(&answer).unwrap())
    }

    async fn register(&self, id: &str) -> Result<Value, String> {
        let payload = json!({"id": id, "skill": format!("# {id}")});
        self.call("skills::register", payload).await
    }

    pub(crate) async fn end(self) {
        if let Some(follower) = self.follower {
            follower.client.shutdown_async().await;
        }
    }
}

fn own(world: &mut World) -> &mut Own {
    world.own.as_mut().expect("there is no bus of its own")
}

#[given("a bus whose functions are left to workers")]
async fn bare(world: &mut World) {
    world.own = Some(Own::start(&[]).await);
}

#[given("a bus that does not tell of changes of its state")]
async fn silent(world: &mut World) {
    world.own = Some(Own::start(&["--silent-state"]).await);
}

#[given("a worker that serves on it")]
fn serving(world: &mut World) {
    let own = own(world);
    let worker = process::worker(&own.url, own.home.path());
    worker.says("serving");
    own.serving = Some(worker);
}

#[given("a worker that stands by on it")]
fn standing_by(world: &mut World) {
    let own = own(world);
    let worker = process::worker(&own.url, own.home.path());
    worker.says("standing by");
    own.standby = Some(worker);
}

#[given("a follower on it")]
async fn follower(world: &mut World) {
    let own = own(world);
    let mut follower = process::follow(&own.url, "bdd::follower");
    let start = Instant::now();
    loop {
        // It may need a moment to be known; from then on it hears everything.
        own.register("probe").await.unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(1), follower.hears("probe")).await;
        if heard.is_ok() {
            break;
        }
        assert!(start.elapsed() < WAIT);
    }
    let probe = json!({"id": "probe"});
    own.call("skills::unregister", probe).await.unwrap();
    own.follower = Some(follower);
}

#[when(regex = r#"^the skill "([^"]*)" is registered on it$"#)]
async fn register(world: &mut World, id: String) {
    own(world).register(&id).await.unwrap();
}

#[when("the worker that serves is killed")]
fn kill(world: &mut World) {
    let worker = own(world).serving.take().unwrap();
    worker.signal("-KILL");
}

#[then(regex = r#"^within (\d+) seconds the skill "([^"]*)" can be registered on it$"#)]
async fn registers_within(world: &mut World, seconds: u64, id: String) {
    let start = Instant::now();
    while let Err(error) = own(world).register(&id).await {
        assert!(start.elapsed() < Duration::from_secs(seconds), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(seconds));
}

#[then(regex = r#"^the follower hears of "([^"]*)"$"#)]
async fn hears(world: &mut World, id: String) {
    own(world).follower.as_mut().unwrap().hears(&id).await;
}

#[then(regex = r#"^the worker says "([^"]*)"$"#)]
fn says(world: &mut World, words: String) {
    own(world).serving.as_ref().unwrap().says(&words);
}

#[when(regex = r#"^the row "([^"]*)" of skills is set on it$"#)]
async fn set(world: &mut World, id: String) {
    let value = json!({"id": id, "skill": "# Direct", "registered_at": ""});
    let row = json!({"scope": "skills", "key": id, "value": value});
    own(world).call("state::set", row).await.unwrap();
}

#[when(regex = r#"^the row "([^"]*)" of skills is deleted on it$"#)]
async fn delete(world: &mut World, id: String) {
    let row = json!({"scope": "skills", "key": id});
    own(world).call("state::delete", row).await.unwrap();
}

#[then(regex = r#"^its skills are "([^"]*)"$"#)]
async fn skills(world: &mut World, ids: String) {
    let listed = own(world).call("skills::list", json!({})).await.unwrap();
    let rows = listed["skills"].as_array().unwrap().iter();
    let found: Vec<&str> = rows.map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(found.join(" "), ids);
}
