//! Models: what is asked, what comes back, and what it may cost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Notify;

use crate::error::{Error, Result};

/// Who says something in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The one who asks.
    User,
    /// The model.
    Assistant,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub text: String,
}

impl Turn {
    /// A message to the model.
    pub fn user(text: impl Into<String>) -> Self {
        Self {
            role: Role::User,
            text: text.into(),
        }
    }

    /// A message of the model.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self {
            role: Role::Assistant,
            text: text.into(),
        }
    }
}

/// What a model is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// What it is told before the conversation.
    pub system: Option<String>,
    /// The conversation; the last message is to the model.
    pub turns: Vec<Turn>,
    /// The most tokens of the answer.
    pub max_tokens: u64,
    /// How freely it answers.
    pub temperature: Option<f64>,
    /// The JSON schema the answer has to fit, for models that can be held to one.
    pub schema: Option<Value>,
}

impl Ask {
    /// A question and nothing else.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            system: None,
            turns: vec![Turn::user(text)],
            max_tokens: 1024,
            temperature: None,
            schema: None,
        }
    }

    /// About how many tokens it has: a model that counts says it better, afterwards.
    pub fn estimate(&self) -> u64 {
        let system = self.system.as_deref().map_or(0, str::len);
        let turns: usize = self.turns.iter().map(|turn| turn.text.len()).sum();
        let schema = self
            .schema
            .as_ref()
            .map_or(0, |schema| schema.to_string().len());
        u64::try_from((system + turns + schema).div_ceil(4)).unwrap_or(u64::MAX)
    }
}

/// What calls of models cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens that were read.
    pub input_tokens: Option<u64>,
    /// Tokens that were written.
    pub output_tokens: Option<u64>,
    /// US dollars, where the price is known.
    pub cost: Option<f64>,
}

impl Usage {
    /// Adds what another call cost.
    pub fn add(&mut self, other: Self) {
        fn sum<T: std::ops::Add<Output = T>>(a: Option<T>, b: Option<T>) -> Option<T> {
            match (a, b) {
                (Some(a), Some(b)) => Some(a + b),
                (a, b) => a.or(b),
            }
        }
        self.input_tokens = sum(self.input_tokens, other.input_tokens);
        self.output_tokens = sum(self.output_tokens, other.output_tokens);
        self.cost = sum(self.cost, other.cost);
    }

    /// All tokens.
    pub fn tokens(&self) -> u64 {
        self.input_tokens.unwrap_or(0) + self.output_tokens.unwrap_or(0)
    }
}

/// What a model costs, in US dollars for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// To read.
    pub input: f64,
    /// To write.
    pub output: f64,
}

impl Price {
    /// What so many tokens cost.
    #[allow(clippy::cast_precision_loss, reason = "numbers of tokens are small")]
    pub fn of(self, read: u64, written: u64) -> f64 {
        (read as f64 * self.input + written as f64 * self.output) / 1e6
    }
}

/// What a model answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// The answer.
    pub text: String,
    /// What it cost.
    pub usage: Usage,
    /// Whether the answer ends because it had to.
    pub cut: bool,
}

/// Hears an answer while it is being written.
pub type Listener = Arc<dyn Fn(&str) + Send + Sync>;

/// A model that can be asked.
#[async_trait]
pub trait Model: Send + Sync + std::fmt::Debug {
    /// Its id: the provider, a slash, the model.
    fn id(&self) -> &str;

    /// What it costs, where that is known.
    fn price(&self) -> Option<Price> {
        None
    }

    /// Asks it. A listener hears the answer as it comes.
    async fn ask(&self, ask: &Ask, listener: Option<&Listener>) -> Result<Reply>;
}

/// What one run may cost.
#[derive(Debug, Default)]
pub struct Budget {
    /// The most tokens, read and written.
    pub max_tokens: Option<u64>,
    /// The most US dollars.
    pub max_cost: Option<f64>,
    account: Mutex<Account>,
    settled: Notify,
}

#[derive(Debug, Default, Clone, Copy)]
struct Account {
    used: Usage,
    /// What calls that are under way may still use.
    held: Held,
}

/// What is set aside for a call.
#[derive(Debug, Default, Clone, Copy)]
struct Held {
    calls: usize,
    tokens: u64,
    cost: f64,
}

/// A call that was let through, with the tokens it may answer.
///
/// What was set aside for it is given back when it ends. One that is given up on the way may have
/// been answered and charged for all the same, so that it costs what was set aside.
struct Admitted<'a> {
    budget: &'a Budget,
    held: Held,
    most: u64,
    spent: Option<Usage>,
}

impl Admitted<'_> {
    /// The call ended, and cost this.
    fn settle(mut self, usage: Usage) {
        self.spent = Some(usage);
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let mut account = self.budget.account();
        account.held.calls -= self.held.calls;
        account.held.tokens -= self.held.tokens;
        account.held.cost -= self.held.cost;
        let spent = self.spent.unwrap_or(Usage {
            input_tokens: Some(self.held.tokens.saturating_sub(self.most)),
            output_tokens: Some(self.most),
            cost: (self.held.cost > 0.0).then_some(self.held.cost),
        });
        account.used.add(spent);
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

    /// What was used.
    pub fn used(&self) -> Usage {
        self.account().used
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a call there is nothing left for, and cuts what it may answer to what is left. While
    /// other calls are under way that may leave something, it waits for them.
    async fn admit(&self, ask: &Ask, price: Option<Price>) -> Result<Admitted<'_>> {
        loop {
            // Before the look at the account, so that nothing is missed.
            let settled = self.settled.notified();
            {
                let mut account = self.account();
                let room = self.room(&account, ask, price);
                let tight = !matches!(room, Ok(most) if most == ask.max_tokens);
                if account.held.calls == 0 || !tight {
                    let most = room?;
                    let cost = price.map_or(0.0, |price| price.of(ask.estimate(), most));
                    let held = Held {
                        calls: 1,
                        tokens: ask.estimate().saturating_add(most),
                        cost,
                    };
                    account.held.calls += 1;
                    account.held.tokens += held.tokens;
                    account.held.cost += held.cost;
                    return Ok(Admitted {
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

    /// How many tokens a call may answer.
    fn room(&self, account: &Account, ask: &Ask, price: Option<Price>) -> Result<u64> {
        let Account { used, held } = account;
        let mut most = ask.max_tokens;
        if let Some(limit) = self.max_tokens {
            let left = limit.saturating_sub(used.tokens() + held.tokens);
            let input = ask.estimate();
            if left <= input {
                return Err(Error::Budget(format!(
                    "{} of {limit} tokens were used, and the next call needs more than {input}",
                    used.tokens()
                )));
            }
            most = most.min(left - input);
        }
        if let (Some(limit), Some(price)) = (self.max_cost, price) {
            let input = price.of(ask.estimate(), 0);
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

/// A model within a budget.
#[derive(Debug, Clone)]
pub struct Metered {
    model: Arc<dyn Model>,
    budget: Arc<Budget>,
}

impl Metered {
    /// A model that stops answering when the budget is used up.
    pub fn new(model: Arc<dyn Model>, budget: Arc<Budget>) -> Self {
        Self { model, budget }
    }
}

#[async_trait]
impl Model for Metered {
    fn id(&self) -> &str {
        self.model.id()
    }

    fn price(&self) -> Option<Price> {
        self.model.price()
    }

    async fn ask(&self, ask: &Ask, listener: Option<&Listener>) -> Result<Reply> {
        let price = self.model.price();
        if self.budget.max_cost.is_some() && price.is_none() {
            // A limit nobody can keep is none.
            let id = self.model.id();
            return Err(Error::NoPrice(id.to_owned()));
        }
        let admitted = self.budget.admit(ask, price).await?;
        let mut ask = ask.clone();
        ask.max_tokens = admitted.most;
        let estimate = ask.estimate();
        let mut reply = match self.model.ask(&ask, listener).await {
            Ok(reply) => reply,
            Err(error) => {
                // What was refused as it came was not answered; anything else may have been.
                if error.is_free() {
                    admitted.settle(Usage::default());
                }
                return Err(error);
            }
        };
        // A model that does not count is counted for.
        let usage = &mut reply.usage;
        let written = u64::try_from(reply.text.len().div_ceil(4)).unwrap_or(u64::MAX);
        let (read, written) = (
            *usage.input_tokens.get_or_insert(estimate),
            *usage.output_tokens.get_or_insert(written),
        );
        usage.cost = usage.cost.or(price.map(|price| price.of(read, written)));
        admitted.settle(reply.usage);
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Never answers, fails, or answers without counting.
    #[derive(Debug)]
    enum Odd {
        Silent,
        Refuses,
        BreaksOff,
        Uncounted,
    }

    #[async_trait]
    impl Model for Odd {
        fn id(&self) -> &'static str {
            "test/odd"
        }

        fn price(&self) -> Option<Price> {
            Some(Price {
                input: 1.0,
                output: 2.0,
            })
        }

        async fn ask(&self, _: &Ask, _: Option<&Listener>) -> Result<Reply> {
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
                Self::Uncounted => Ok(Reply {
                    text: "x".repeat(400),
                    usage: Usage::default(),
                    cut: false,
                }),
            }
        }
    }

    async fn used(model: Odd) -> Usage {
        let budget = Arc::new(Budget::new(Some(10_000), Some(1.0)));
        let metered = Metered::new(Arc::new(model), budget.clone());
        let ask = Ask::new("word ".repeat(80));
        let asked = metered.ask(&ask, None);
        let _ = tokio::time::timeout(Duration::from_millis(20), asked).await;
        budget.used()
    }

    #[tokio::test]
    async fn calls_that_are_given_up_are_paid_for() {
        assert_eq!(used(Odd::Silent).await.tokens(), 100 + 1024);
        assert!(used(Odd::Silent).await.cost.unwrap_or(0.0) > 0.0);
        assert_eq!(used(Odd::BreaksOff).await.tokens(), 100 + 1024);
        assert_eq!(used(Odd::Refuses).await.tokens(), 0);
        let uncounted = used(Odd::Uncounted).await;
        assert_eq!(uncounted.tokens(), 200);
        assert_eq!(uncounted.cost, Some(300.0 / 1e6));
    }

    #[tokio::test]
    async fn calls_at_once_share_what_is_left() {
        let budget = Arc::new(Budget::new(Some(700), None));
        let metered = Metered::new(Arc::new(Odd::Uncounted), budget.clone());
        let ask = Ask::new("word ".repeat(80));
        let asked = (0..10).map(|_| metered.ask(&ask, None));
        let answers = futures::future::join_all(asked).await;
        let done = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(done, 3, "{answers:?}");
        assert!(budget.used().tokens() <= 700);
    }
}
