//! Answers a message: finds skills that fit, lets a model decide, and carries the decision out.

use std::{fmt, sync::Arc};

use repertoire_core::{SkillId, SpanKind, markdown::to_single_line};
use repertoire_registry::{
    Snapshot, Trusted,
    search::{ModelKind, Recommendation, SearchOutcome, SearchRequest, SkillIndex, Vector},
};
use repertoire_runtime::{
    ArtifactOutput, CallPurpose, ChatTurn, Error as RunError, ExecutionContext, LoadableSkill,
    Model, ModelRequest, ModelUsage,
    model::ReplyListener,
    orchestrate::{
        Decision, DecisionOutcome, SkillCandidate, decide_action, fill_missing_values,
        research_request,
    },
    run::RunReport,
    spans::OpenSpan,
};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::{
    conversation::{load_conversation, recent_turns, save_conversation},
    error::{Error, Result},
    runner::{RunRequest, Runner},
    runtime_adapter::RunnableSkill,
    search_usage::{LOCAL_OWNER, UseRecorder, uses_of},
};

/// How many times as many skills are looked at as are shown, because some cannot be run.
const SPARE_CANDIDATES: usize = 3;
/// How many untrusted skills a search reports.
const MAX_UNTRUSTED: usize = 20;

/// A message to answer.
#[derive(Clone, Default)]
pub struct AskRequest {
    /// The message of the user.
    pub message: String,
    /// The conversation before the message, oldest turn first. It follows the stored
    /// conversation of the session, if one is continued.
    pub conversation: Vec<ChatTurn>,
    /// The session to continue.
    pub session: Option<String>,
    /// Values for the templates of a skill.
    pub values: Map<String, Value>,
    /// Receives answers as they are streamed.
    pub listener: Option<ReplyListener>,
    /// Cancels the request; traces are still stored.
    pub stop: CancellationToken,
}

impl fmt::Debug for AskRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskRequest")
            .field("message", &self.message)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

/// The skills a model may choose from.
#[derive(Debug, Default)]
pub struct SkillShortlist {
    /// The skills that fit and can be run, best first.
    pub recommendations: Vec<Recommendation>,
    /// Why a skill that fits cannot be run.
    pub refused: Vec<repertoire_registry::Error>,
    /// What the search among trusted skills found.
    pub search: Option<SearchOutcome>,
    /// Untrusted skills that would fit; they are reported, and never shown to the model.
    pub untrusted: Vec<Recommendation>,
    skills: Vec<(RunnableSkill, String)>,
    /// The embedding of the message, if there is an encoder.
    vector: Option<(ModelKind, Vector)>,
}

/// What happens while a message is answered.
#[derive(Debug)]
#[non_exhaustive]
pub enum AskProgress<'a> {
    /// The model has decided.
    Decided(&'a DecisionOutcome),
    /// Pages of the workspace were read for the answer.
    PagesRead(usize),
}

/// The answer to a message.
#[derive(Debug)]
pub struct AskOutcome {
    /// The decision of the model.
    pub decided: DecisionOutcome,
    /// The answer, with the records of the skill if one was run.
    pub report: RunReport,
    /// The usage of the decision, of filled-in values and of the answer.
    pub usage: ModelUsage,
}

impl Runner {
    /// First phase: finds the skills that fit a message and can be run, without a model.
    pub fn shortlist(
        &self,
        index: &SkillIndex,
        snapshot: &Snapshot,
        message: &str,
        limit: usize,
    ) -> Result<SkillShortlist> {
        let is_trusted = |id: &SkillId| {
            let entry = snapshot.get(id);
            entry.is_some_and(|entry| entry.trusted == Trusted::Yes)
        };
        let encoder = index.encoder();
        let uses = uses_of(
            &self.registry,
            encoder.as_deref(),
            LOCAL_OWNER,
            self.settings.usage,
        );
        let vector = encoder.map(|encoder| (encoder.kind(), encoder.encode_message(message)));
        let request = SearchRequest {
            uses: &uses,
            vector: vector.as_ref().map(|(_, vector)| vector),
            ..SearchRequest::new(message, limit.saturating_mul(SPARE_CANDIDATES))
        };
        // Untrusted skills are reported, and take no place from trusted ones.
        let trusted = index.search(&request.among(&is_trusted));
        let is_untrusted = |id: &SkillId| !is_trusted(id);
        let untrusted = index.search(&SearchRequest {
            limit: MAX_UNTRUSTED,
            ..request.among(&is_untrusted)
        });
        let mut list = SkillShortlist {
            untrusted: untrusted.fitting().to_vec(),
            ..SkillShortlist::default()
        };
        for one in trusted.fitting() {
            if list.skills.len() >= limit {
                break;
            }
            let Some(entry) = snapshot.get(&one.id) else {
                continue;
            };
            // A skill that cannot be run takes no place from one that can.
            match RunnableSkill::new(&self.registry, entry) {
                Ok(skill) => {
                    let about = entry.metadata.description.as_deref();
                    let about = about.map(to_single_line).unwrap_or_default();
                    list.skills.push((skill, about));
                    list.recommendations.push(one.clone());
                }
                Err(error) => list.refused.push(error),
            }
        }
        for one in &list.untrusted {
            let entry = snapshot.get(&one.id);
            let refused = entry.map(|entry| RunnableSkill::new(&self.registry, entry));
            list.refused
                .extend(refused.and_then(std::result::Result::err));
        }
        list.vector = vector;
        list.search = Some(trusted);
        Ok(list)
    }

    /// Second phase: lets the model decide what to do, without doing it.
    pub async fn decide(
        &self,
        shortlist: &SkillShortlist,
        request: &AskRequest,
    ) -> Result<DecisionOutcome> {
        let context = self.ask_context(request);
        let conversation = self.conversation(request)?;
        let span = begin_ask(&context, &request.message);
        let decided = self
            .decide_in(&context, shortlist, request, &conversation)
            .await;
        finish_ask(span, decided.as_ref().map(|decided| &*decided.reason));
        decided
    }

    /// Decides, carries the decision out and stores the conversation.
    pub async fn ask(
        &self,
        shortlist: SkillShortlist,
        request: AskRequest,
        progress: &mut (dyn FnMut(AskProgress<'_>) + Send),
    ) -> Result<AskOutcome> {
        let context = self.ask_context(&request);
        let conversation = self.conversation(&request)?;
        let span = begin_ask(&context, &request.message);
        let work = self.ask_in(&context, shortlist, request, conversation, progress);
        let outcome = work.await;
        match &outcome {
            Ok(outcome) => match &outcome.report.outcome {
                Ok(output) => span.finish(Ok(&output.text)),
                Err(error) => span.finish(Err(error)),
            },
            Err(error) => finish_ask(span, Err(error)),
        }
        context.spans.flush();
        outcome
    }

    async fn ask_in(
        &self,
        context: &ExecutionContext,
        shortlist: SkillShortlist,
        request: AskRequest,
        mut conversation: Vec<ChatTurn>,
        progress: &mut (dyn FnMut(AskProgress<'_>) + Send),
    ) -> Result<AskOutcome> {
        let session = context.session_id.clone();
        let decided = self
            .decide_in(context, &shortlist, &request, &conversation)
            .await?;
        progress(AskProgress::Decided(&decided));
        let mut usage = decided.usage;
        let report = match &decided.decision {
            Decision::Activate { skill, artifacts } => {
                let chosen = shortlist
                    .skills
                    .into_iter()
                    .find(|(one, _)| one.outline().skill == *skill);
                let Some((chosen, _)) = chosen else {
                    let reason = format!("{skill:?} is not one of the skills");
                    return Err(RunError::Decision(reason).into());
                };
                if let Some((model, vector)) = &shortlist.vector
                    && let Ok(id) = skill.parse()
                {
                    let uses = UseRecorder::new(&self.registry, self.settings.usage);
                    uses.record(LOCAL_OWNER, &id, &request.message, *model, vector);
                }
                let run = RunRequest {
                    artifacts: artifacts.clone(),
                    values: request.values.clone(),
                    message: Some(request.message.clone()),
                    listener: request.listener.clone(),
                    stop: request.stop.clone(),
                    resume: None,
                };
                let mut run = self.plan_skill(chosen, &run)?;
                run.context.session_id.clone_from(&session);
                run.context.spans = context.spans.clone();
                run.context.place.parent = Some(context.place.id);
                // Both phases spend from one budget.
                run.context.model.clone_from(&context.model);
                let model = require_model(context)?;
                let engine = run.context.engine.clone();
                let filled = fill_missing_values(
                    &model,
                    &run.skill,
                    &self.settings.dispatcher,
                    &run.plan,
                    &request.message,
                    &engine,
                    &mut run.context.values,
                );
                usage.add_usage(cancellable(&request.stop, filled).await?);
                // Checkpoints of the session belong to the values they were made for.
                run.context.checkpoint_scope = format!("{}>", run.context.fingerprint());
                run.execute().await
            }
            Decision::Clarify { question } => text_report(context, question),
            Decision::Respond => {
                let mut ask = ModelRequest::new(request.message.as_str());
                ask.purpose = CallPurpose::Answer;
                let (report, spent) = answer(context, ask, &conversation).await?;
                usage.add_usage(spent);
                report
            }
            Decision::Research { query } => {
                let (ask, pages) = self.research(context, query, &request.message).await?;
                progress(AskProgress::PagesRead(pages));
                let (report, spent) = answer(context, ask, &conversation).await?;
                usage.add_usage(spent);
                report
            }
        };
        usage.add_usage(report.usage());
        if let Ok(output) = &report.outcome {
            conversation.push(ChatTurn::user(request.message));
            conversation.push(ChatTurn::assistant(output.text.clone()));
            let redactor = &context.redactor;
            let stored = save_conversation(&self.registry, &session, &conversation, redactor);
            if let Err(error) = stored {
                tracing::warn!(%error, "the conversation could not be stored");
            }
        }
        Ok(AskOutcome {
            decided,
            report,
            usage,
        })
    }

    fn ask_context(&self, request: &AskRequest) -> ExecutionContext {
        let run = RunRequest {
            values: request.values.clone(),
            message: Some(request.message.clone()),
            listener: request.listener.clone(),
            stop: request.stop.clone(),
            ..RunRequest::default()
        };
        self.new_context(&run, request.session.as_deref())
    }

    /// The stored conversation of the session, then the one of the request.
    fn conversation(&self, request: &AskRequest) -> Result<Vec<ChatTurn>> {
        let mut turns = match &request.session {
            Some(session) => {
                let turns = load_conversation(&self.registry, session)?;
                turns.ok_or_else(|| Error::UnknownSession {
                    skill: "ask".to_owned(),
                    session: session.clone(),
                })?
            }
            None => Vec::new(),
        };
        turns.extend(request.conversation.iter().cloned());
        Ok(recent_turns(&turns))
    }

    async fn decide_in(
        &self,
        context: &ExecutionContext,
        shortlist: &SkillShortlist,
        request: &AskRequest,
        conversation: &[ChatTurn],
    ) -> Result<DecisionOutcome> {
        let model = require_model(context)?;
        let candidates: Vec<SkillCandidate<'_>> = shortlist
            .skills
            .iter()
            .map(|(skill, about)| SkillCandidate {
                skill,
                about: about.clone(),
                confidence: shortlist
                    .search
                    .as_ref()
                    .map(|search| search.decision.confidence),
            })
            .collect();
        let decided = decide_action(
            &model,
            &self.settings.dispatcher,
            conversation,
            &request.message,
            &candidates,
        );
        cancellable(&request.stop, decided).await
    }

    /// Searches the workspace and builds the request that answers from its pages.
    async fn research(
        &self,
        context: &ExecutionContext,
        query: &str,
        message: &str,
    ) -> Result<(ModelRequest, usize)> {
        let Some(workspace) = context.engine.workspace().cloned() else {
            let none = "there are no pages to search";
            return Err(RunError::Workspace(none.to_owned()).into());
        };
        let (query, message) = (query.to_owned(), message.to_owned());
        let search =
            tokio::task::spawn_blocking(move || research_request(&*workspace, &query, &message));
        let found = search.await.map_err(|_| RunError::Interrupted)?;
        Ok(found?)
    }
}

/// Begins the span of a message.
fn begin_ask(context: &ExecutionContext, message: &str) -> OpenSpan {
    let mut span = context
        .spans
        .begin_span(context.place, SpanKind::Run, "ask");
    span.set_input(message);
    span
}

fn finish_ask(span: OpenSpan, outcome: std::result::Result<&str, &Error>) {
    match outcome {
        Ok(text) => span.finish(Ok(text)),
        Err(Error::Run(error)) => span.finish(Err(error)),
        Err(other) => span.finish(Err(&RunError::Decision(other.to_string()))),
    }
}

/// The model of a request that cannot do without.
fn require_model(context: &ExecutionContext) -> Result<Arc<dyn Model>> {
    let none = || RunError::Model("this asks a model, and none is configured".to_owned());
    Ok(context.model.clone().ok_or_else(none)?)
}

/// Waits for a result, or until the request is cancelled.
async fn cancellable<T>(
    stop: &CancellationToken,
    work: impl Future<Output = repertoire_runtime::Result<T>>,
) -> Result<T> {
    tokio::select! {
        result = work => Ok(result?),
        () = stop.cancelled() => Err(RunError::Interrupted.into()),
    }
}

/// Asks the model without a skill.
async fn answer(
    context: &ExecutionContext,
    mut ask: ModelRequest,
    conversation: &[ChatTurn],
) -> Result<(RunReport, ModelUsage)> {
    let model = require_model(context)?;
    ask.max_tokens = context.max_tokens;
    ask.turns.splice(0..0, conversation.iter().cloned());
    let reply = cancellable(
        &context.stop,
        model.send_request(&ask, context.listener.as_ref()),
    )
    .await?;
    Ok((text_report(context, &reply.text), reply.usage))
}

fn text_report(context: &ExecutionContext, text: &str) -> RunReport {
    RunReport {
        session_id: context.session_id.clone(),
        records: Vec::new(),
        outcome: Ok(ArtifactOutput::from_text(text)),
        warnings: Vec::new(),
        skipped: Vec::new(),
    }
}
