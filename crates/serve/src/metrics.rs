//! Metrics of the server in Prometheus format.

use std::time::Duration;

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// The methods counted by name; all other methods are counted as `other`.
const COUNTED_METHODS: [&str; 16] = [
    "initialize",
    "server/discover",
    "skills/list",
    "skills/get",
    "resources/directory/read",
    "resources/list",
    "resources/read",
    "resources/templates/list",
    "resources/subscribe",
    "resources/unsubscribe",
    "subscriptions/listen",
    "prompts/list",
    "prompts/get",
    "tools/list",
    "tools/call",
    "completion/complete",
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabels {
    method: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FunctionLabels {
    function: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabels {
    status: u16,
}

/// Counters of one server.
#[derive(Debug)]
pub(crate) struct Metrics {
    calls: Family<RequestLabels, Counter>,
    seconds: Family<MethodLabels, Histogram>,
    responses: Family<StatusLabels, Counter>,
    functions: Family<FunctionLabels, Counter>,
    function_seconds: Histogram,
    pub(crate) workers: Gauge,
    notifications: Counter,
    pub(crate) in_flight: Gauge,
    pub(crate) connections: Gauge,
    skills: Gauge,
    prompts: Gauge,
    registry: Registry,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            calls: Family::default(),
            seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.000_1, 4.0, 9))
            }),
            responses: Family::default(),
            functions: Family::default(),
            function_seconds: Histogram::new(exponential_buckets(0.000_01, 4.0, 10)),
            workers: Gauge::default(),
            notifications: Counter::default(),
            in_flight: Gauge::default(),
            connections: Gauge::default(),
            skills: Gauge::default(),
            prompts: Gauge::default(),
            registry: Registry::with_prefix("repertoire"),
        };
        let registry = &mut metrics.registry;
        registry.register("mcp_requests", "MCP requests", metrics.calls.clone());
        registry.register(
            "mcp_request_seconds",
            "Time to answer an MCP request",
            metrics.seconds.clone(),
        );
        registry.register(
            "mcp_notifications",
            "Notifications sent",
            metrics.notifications.clone(),
        );
        registry.register(
            "http_responses",
            "HTTP responses",
            metrics.responses.clone(),
        );
        registry.register(
            "http_requests_in_flight",
            "HTTP requests being answered",
            metrics.in_flight.clone(),
        );
        registry.register(
            "http_connections",
            "Open HTTP connections",
            metrics.connections.clone(),
        );
        registry.register(
            "iii_calls",
            "Calls of the functions of this server",
            metrics.functions.clone(),
        );
        registry.register(
            "iii_call_seconds",
            "Time to answer a call of a function of this server",
            metrics.function_seconds.clone(),
        );
        registry.register("iii_workers", "Workers on the hub", metrics.workers.clone());
        registry.register("skills", "Visible skills", metrics.skills.clone());
        registry.register("prompts", "Visible prompts", metrics.prompts.clone());
        metrics
    }
}

impl Metrics {
    /// Counts one answered request.
    pub(crate) fn count_request(&self, method: &str, ok: bool, time: Duration) {
        let method = COUNTED_METHODS.into_iter().find(|known| *known == method);
        let method = method.unwrap_or("other");
        let outcome = if ok { "ok" } else { "error" };
        self.calls
            .get_or_create(&RequestLabels { method, outcome })
            .inc();
        let seconds = self.seconds.get_or_create(&MethodLabels { method });
        seconds.observe(time.as_secs_f64());
    }

    /// Counts one call of a function of this server.
    pub(crate) fn count_call(&self, function: &str, ok: bool, time: Duration) {
        let outcome = if ok { "ok" } else { "error" };
        let function = function.to_owned();
        self.functions
            .get_or_create(&FunctionLabels { function, outcome })
            .inc();
        self.function_seconds.observe(time.as_secs_f64());
    }

    /// Counts one HTTP response.
    pub(crate) fn count_response(&self, status: u16) {
        self.responses.get_or_create(&StatusLabels { status }).inc();
    }

    /// Counts one notification.
    pub(crate) fn count_notification(&self) {
        self.notifications.inc();
    }

    /// Renders all metrics in Prometheus format.
    pub(crate) fn render_prometheus(
        &self,
        snapshot: Option<&repertoire_registry::Snapshot>,
    ) -> String {
        if let Some(snapshot) = snapshot {
            let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
            self.skills.set(count(snapshot.len()));
            self.prompts.set(count(snapshot.prompts().count()));
        }
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut out, &self.registry);
        out
    }
}
