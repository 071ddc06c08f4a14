//! Models: requests, replies, prices and budgets.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
pub use repertoire_core::ModelUsage;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::{
    error::{Error, Result},
    spans::CallPurpose,
};

/// The author of a message in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChatRole {
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatTurn {
    /// The author.
    pub role: ChatRole,
    /// The message text.
    pub text: String,
}

impl ChatTurn {
    /// A message of the user.
    pub fn user(text: impl Into<String>) -> Self {
        Self {
            role: ChatRole::User,
            text: text.into(),
        }
    }

    /// A message of the model.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self {
            role: ChatRole::Assistant,
            text: text.into(),
        }
    }
}

/// A request to a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    /// The system prompt.
    pub system: Option<String>,
    /// The conversation; the last message is from the user.
    pub turns: Vec<ChatTurn>,
    /// The maximum number of tokens in the reply.
    pub max_tokens: u64,
    /// The sampling temperature.
    pub temperature: Option<f64>,
    /// The JSON schema the reply must match, for models that support structured output.
    pub schema: Option<Value>,
    /// Why the model is called, for traces.
    pub purpose: CallPurpose,
    /// The span the call is part of; the run if none is named.
    pub parent_span: Option<Uuid>,
}

impl ModelRequest {
    /// A request with one user message and default settings.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            system: None,
            turns: vec![ChatTurn::user(text)],
            max_tokens: 1024,
            temperature: None,
            schema: None,
            purpose: CallPurpose::default(),
            parent_span: None,
        }
    }

    /// Estimates the number of input tokens; the reply has the provider's exact count.
    pub fn estimate_tokens(&self) -> u64 {
        let system = self.system.as_deref().map_or(0, str::len);
        let turns: usize = self.turns.iter().map(|turn| turn.text.len()).sum();
        let schema = self
            .schema
            .as_ref()
            .map_or(0, |schema| schema.to_string().len());
        u64::try_from((system + turns + schema).div_ceil(4)).unwrap_or(u64::MAX)
    }
}

/// Returns the line that encloses a block of data in a prompt.
///
/// It is a digest of the data: a text would have to contain its own digest to close the block, so its
/// author cannot write one that does. The same data always gives the same prompt, so that providers can
/// cache it and runs can be repeated.
pub(crate) fn data_mark(data: &str) -> String {
    let digest = repertoire_core::Digest::hash_bytes(data.as_bytes()).hex_digits();
    digest.chars().take(32).collect()
}

/// The price of a model, in US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// The price of input tokens.
    pub input: f64,
    /// The price of output tokens.
    pub output: f64,
}

impl Price {
    /// Returns the cost of a number of input and output tokens.
    #[allow(clippy::cast_precision_loss, reason = "numbers of tokens are small")]
    pub fn cost_for(self, read: u64, written: u64) -> f64 {
        (read as f64 * self.input + written as f64 * self.output) / 1e6
    }
}

/// A reply of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelReply {
    /// The answer.
    pub text: String,
    /// The usage.
    pub usage: ModelUsage,
    /// Whether the reply was cut at the token limit.
    pub cut: bool,
}

/// Receives the pieces of a reply while it is streamed.
pub type ReplyListener = Arc<dyn Fn(&str) + Send + Sync>;

/// A language model.
#[async_trait]
pub trait Model: Send + Sync + std::fmt::Debug {
    /// Its id: the provider, a slash, the model.
    fn id(&self) -> &str;

    /// Its price, if known.
    fn price(&self) -> Option<Price> {
        None
    }

    /// Sends a request and returns the reply. A listener receives the reply as it is streamed.
    async fn send_request(
        &self,
        ask: &ModelRequest,
        listener: Option<&ReplyListener>,
    ) -> Result<ModelReply>;
}

/// The token and cost limits of one run, with the usage so far.
#[derive(Debug, Default)]
pub struct Budget {
    /// The maximum number of input and output tokens.
    pub max_tokens: Option<u64>,
    /// The maximum cost in US dollars.
    pub max_cost: Option<f64>,
    ledger: Mutex<CostLedger>,
    settled: Notify,
}

#[derive(Debug, Default, Clone, Copy)]
struct CostLedger {
    used: ModelUsage,
    /// The amount reserved for calls in progress.
    held: Reservation,
}

/// The amount reserved for a call.
#[derive(Debug, Default, Clone, Copy)]
struct Reservation {
    calls: usize,
    tokens: u64,
    cost: f64,
}

/// A call that was admitted, with the maximum number of output tokens.
///
/// Its reservation is released when it ends. An abandoned call may still have been answered and
/// charged, so it is charged the whole reservation.
struct AdmittedRequest<'a> {
    budget: &'a Budget,
    held: Reservation,
    most: u64,
    spent: Option<ModelUsage>,
}

impl AdmittedRequest<'_> {
    /// Records the actual usage of a finished call.
    fn settle_usage(mut self, usage: ModelUsage) {
        self.spent = Some(usage);
    }
}

impl Drop for AdmittedRequest<'_> {
    fn drop(&mut self) {
        let mut account = self.budget.lock_ledger();
        account.held.calls -= self.held.calls;
        account.held.tokens -= self.held.tokens;
        account.held.cost -= self.held.cost;
        let spent = self.spent.unwrap_or(ModelUsage {
            input_tokens: Some(self.held.tokens.saturating_sub(self.most)),
            output_tokens: Some(self.most),
            cost: (self.held.cost > 0.0).then_some(self.held.cost),
        });
        account.used.add_usage(spent);
        drop(account);
        self.budget.settled.notify_waiters();
    }
}

impl Budget {
    /// A budget with limits.
    pub fn new(max_tokens: Option<u64>, max_cost: Option<f64>) -> Self {
        Self {
            max_tokens,
            max_cost,
            ..Self::default()
        }
    }

    /// The usage so far.
    pub fn total_usage(&self) -> ModelUsage {
        self.lock_ledger().used
    }

    fn lock_ledger(&self) -> MutexGuard<'_, CostLedger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a call that exceeds the budget and limits its output to the remaining budget. While
    /// calls in progress may still release budget, it waits for them.
    async fn admit_request(
        &self,
        ask: &ModelRequest,
        price: Option<Price>,
    ) -> Result<AdmittedRequest<'_>> {
        loop {
            // Register before reading the ledger, so that no notification is missed.
            let settled = self.settled.notified();
            {
                let mut account = self.lock_ledger();
                let room = self.available_tokens(&account, ask, price);
                let tight = !matches!(room, Ok(most) if most == ask.max_tokens);
                if account.held.calls == 0 || !tight {
                    let most = room?;
                    let cost =
                        price.map_or(0.0, |price| price.cost_for(ask.estimate_tokens(), most));
                    let held = Reservation {
                        calls: 1,
                        tokens: ask.estimate_tokens().saturating_add(most),
                        cost,
                    };
                    account.held.calls += 1;
                    account.held.tokens += held.tokens;
                    account.held.cost += held.cost;
                    return Ok(AdmittedRequest {
                        budget: self,
                        held,
                        most,
                        spent: None,
                    });
                }
            }
            settled.await;
        }
    }

    /// Returns the maximum number of output tokens of a call.
    fn available_tokens(
        &self,
        account: &CostLedger,
        ask: &ModelRequest,
        price: Option<Price>,
    ) -> Result<u64> {
        let CostLedger { used, held } = account;
        let mut most = ask.max_tokens;
        if let Some(limit) = self.max_tokens {
            let left = limit.saturating_sub(used.total_tokens() + held.tokens);
            let input = ask.estimate_tokens();
            if left <= input {
                return Err(Error::Budget(format!(
                    "{} of {limit} tokens were used, and the next call needs more than {input}",
                    used.total_tokens()
                )));
            }
            most = most.min(left - input);
        }
        if let (Some(limit), Some(price)) = (self.max_cost, price) {
            let input = price.cost_for(ask.estimate_tokens(), 0);
            let spent = used.cost.unwrap_or(0.0);
            let left = limit - spent - held.cost - input;
            if left <= 0.0 {
                return Err(Error::Budget(format!(
                    "${spent:.6} of ${limit:.6} were spent, and the next call needs more than \
                     ${input:.6}"
                )));
            }
            if price.output > 0.0 {
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a positive number that is only compared"
                )]
                let affordable = (left * 1e6 / price.output) as u64;
                most = most.min(affordable.max(1));
            }
        }
        Ok(most)
    }
}

/// A model whose calls are limited by a budget.
#[derive(Debug, Clone)]
pub struct MeteredModel {
    model: Arc<dyn Model>,
    budget: Arc<Budget>,
}

impl MeteredModel {
    /// Wraps a model so that calls are refused once the budget is used up.
    pub fn new(model: Arc<dyn Model>, budget: Arc<Budget>) -> Self {
        Self { model, budget }
    }
}

#[async_trait]
impl Model for MeteredModel {
    fn id(&self) -> &str {
        self.model.id()
    }

    fn price(&self) -> Option<Price> {
        self.model.price()
    }

    async fn send_request(
        &self,
        ask: &ModelRequest,
        listener: Option<&ReplyListener>,
    ) -> Result<ModelReply> {
        let price = self.model.price();
        if self.budget.max_cost.is_some() && price.is_none() {
            // Without a price the cost limit cannot be enforced.
            let id = self.model.id();
            return Err(Error::NoPrice(id.to_owned()));
        }
        let admitted = self.budget.admit_request(ask, price).await?;
        let mut ask = ask.clone();
        ask.max_tokens = admitted.most;
        let estimate = ask.estimate_tokens();
        let mut reply = match self.model.send_request(&ask, listener).await {
            Ok(reply) => reply,
            Err(error) => {
                // A refused request is free; any other failure may have been charged.
                if error.is_free() {
                    admitted.settle_usage(ModelUsage::default());
                }
                return Err(error);
            }
        };
        // Estimate the tokens if the model does not report them.
        let usage = &mut reply.usage;
        let written = u64::try_from(reply.text.len().div_ceil(4)).unwrap_or(u64::MAX);
        let (read, written) = (
            *usage.input_tokens.get_or_insert(estimate),
            *usage.output_tokens.get_or_insert(written),
        );
        usage.cost = usage
            .cost
            .or(price.map(|price| price.cost_for(read, written)));
        admitted.settle_usage(reply.usage);
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A model that never answers, fails, or reports no token counts.
    #[derive(Debug)]
    enum FaultyModel {
        Silent,
        Refuses,
        BreaksOff,
        Uncounted,
    }

    #[async_trait]
    impl Model for FaultyModel {
        fn id(&self) -> &'static str {
            "test/odd"
        }

        fn price(&self) -> Option<Price> {
            Some(Price {
                input: 1.0,
                output: 2.0,
            })
        }

        async fn send_request(
            &self,
            _: &ModelRequest,
            _: Option<&ReplyListener>,
        ) -> Result<ModelReply> {
            match self {
                Self::Silent => std::future::pending().await,
                Self::Refuses => Err(Error::Provider {
                    provider: "test".to_owned(),
                    status: Some(400),
                    charged: false,
                    reason: "no".to_owned(),
                }),
                Self::BreaksOff => Err(Error::Provider {
                    provider: "test".to_owned(),
                    status: None,
                    charged: true,
                    reason: "the answer broke off".to_owned(),
                }),
                Self::Uncounted => Ok(ModelReply {
                    text: "x".repeat(400),
                    usage: ModelUsage::default(),
                    cut: false,
                }),
            }
        }
    }

    async fn usage_after_call(model: FaultyModel) -> ModelUsage {
        let budget = Arc::new(Budget::new(Some(10_000), Some(1.0)));
        let metered = MeteredModel::new(Arc::new(model), budget.clone());
        let ask = ModelRequest::new("word ".repeat(80));
        let asked = metered.send_request(&ask, None);
        let _ = tokio::time::timeout(Duration::from_millis(20), asked).await;
        budget.total_usage()
    }

    #[tokio::test]
    async fn abandoned_calls_are_charged() {
        assert_eq!(
            usage_after_call(FaultyModel::Silent).await.total_tokens(),
            100 + 1024
        );
        assert!(
            usage_after_call(FaultyModel::Silent)
                .await
                .cost
                .unwrap_or(0.0)
                > 0.0
        );
        assert_eq!(
            usage_after_call(FaultyModel::BreaksOff)
                .await
                .total_tokens(),
            100 + 1024
        );
        assert_eq!(
            usage_after_call(FaultyModel::Refuses).await.total_tokens(),
            0
        );
        let uncounted = usage_after_call(FaultyModel::Uncounted).await;
        assert_eq!(uncounted.total_tokens(), 200);
        assert_eq!(uncounted.cost, Some(300.0 / 1e6));
    }

    #[tokio::test]
    async fn concurrent_calls_share_the_remaining_budget() {
        let budget = Arc::new(Budget::new(Some(700), None));
        let metered = MeteredModel::new(Arc::new(FaultyModel::Uncounted), budget.clone());
        let ask = ModelRequest::new("word ".repeat(80));
        let asked = (0..10).map(|_| metered.send_request(&ask, None));
        let answers = futures::future::join_all(asked).await;
        let done = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(done, 3, "{answers:?}");
        assert!(budget.total_usage().total_tokens() <= 700);
    }
}
