//! Traces: one row for each artifact that was executed.

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Store;
use crate::error::{Error, Result};

/// How many rows are kept.
const MAX_TRACES: i64 = 100_000;
const TRACE_COLUMNS: &str = "id, session_id, skill_id, artifact_id, artifact_kind, rendered_input, \
                       raw_output, error, started_at, completed_at, duration_ms, input_tokens, \
                       output_tokens, model_id, estimated_cost, assertions_run, \
                       assertions_passed, details";

/// One execution of one artifact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceRecord {
    /// A UUID.
    pub id: String,
    /// The run it is part of.
    pub session_id: String,
    /// The UUID of the skill.
    pub skill_id: String,
    /// The UUID of the artifact.
    pub artifact_id: String,
    /// The artifact's kind.
    pub artifact_kind: String,
    /// The input.
    pub rendered_input: Option<String>,
    /// The output.
    pub raw_output: Option<String>,
    /// The error, if it failed.
    pub error: Option<String>,
    /// When it began, RFC 3339.
    pub started_at: String,
    /// When it ended, RFC 3339.
    pub completed_at: Option<String>,
    /// How long it took.
    pub duration_ms: Option<i64>,
    /// The number of input tokens.
    pub input_tokens: Option<i64>,
    /// The number of output tokens.
    pub output_tokens: Option<i64>,
    /// The model that was called.
    pub model_id: Option<String>,
    /// The estimated cost in US dollars.
    pub estimated_cost: Option<f64>,
    /// How many assertions were checked.
    pub assertions_run: i64,
    /// How many of them passed.
    pub assertions_passed: i64,
    /// Further fields without a column of their own.
    pub details: Value,
}

/// A filter for traces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceFilter {
    /// Only those of a skill, by its UUID or its id in the catalogue.
    pub skill: Option<String>,
    /// Only those of a run.
    pub session: Option<String>,
    /// Only those that began at this time or later, RFC 3339.
    pub since: Option<String>,
    /// The maximum number of traces; the newest are returned.
    pub limit: Option<usize>,
}

fn trace_from_row(row: &Row<'_>) -> rusqlite::Result<TraceRecord> {
    let details: Option<String> = row.get(17)?;
    Ok(TraceRecord {
        id: row.get(0)?,
        session_id: row.get(1)?,
        skill_id: row.get(2)?,
        artifact_id: row.get(3)?,
        artifact_kind: row.get(4)?,
        rendered_input: row.get(5)?,
        raw_output: row.get(6)?,
        error: row.get(7)?,
        started_at: row.get(8)?,
        completed_at: row.get(9)?,
        duration_ms: row.get(10)?,
        input_tokens: row.get(11)?,
        output_tokens: row.get(12)?,
        model_id: row.get(13)?,
        estimated_cost: row.get(14)?,
        assertions_run: row.get::<_, Option<i64>>(15)?.unwrap_or(0),
        assertions_passed: row.get::<_, Option<i64>>(16)?.unwrap_or(0),
        details: details
            .and_then(|text| repertoire_core::json::from_str(&text).ok())
            .unwrap_or_default(),
    })
}

impl Store {
    /// Stores a trace; the oldest traces are deleted when there are too many.
    pub fn put_trace(&self, trace: TraceRecord) -> Result<()> {
        self.write_durable(move |c| insert_trace(c, &trace))
    }

    /// Returns traces, newest first.
    pub fn traces(&self, filter: &TraceFilter) -> Result<Vec<TraceRecord>> {
        self.with_reader(|c| {
            let sql = format!(
                "SELECT {TRACE_COLUMNS} FROM skill_execution_traces
                 WHERE (?1 IS NULL OR skill_id = ?1 OR details ->> 'skill' = ?1)
                   AND (?2 IS NULL OR session_id = ?2)
                   AND (?3 IS NULL OR started_at >= ?3)
                 ORDER BY started_at DESC, rowid DESC LIMIT ?4"
            );
            let limit = filter
                .limit
                .and_then(|limit| i64::try_from(limit).ok())
                .unwrap_or(-1);
            let mut statement = c.prepare_cached(&sql)?;
            let rows = statement.query_map(
                params![filter.skill, filter.session, filter.since, limit],
                trace_from_row,
            )?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Finds one trace by its id or a prefix of it.
    pub fn find_trace(&self, id: &str) -> Result<Option<TraceRecord>> {
        self.with_reader(|c| {
            let sql = format!(
                "SELECT {TRACE_COLUMNS} FROM skill_execution_traces
                 WHERE id >= ?1 AND substr(id, 1, length(?1)) = ?1 ORDER BY id LIMIT 2"
            );
            let mut statement = c.prepare_cached(&sql)?;
            let rows = statement.query_map([id], trace_from_row)?;
            let mut found = rows.collect::<rusqlite::Result<Vec<TraceRecord>>>()?;
            if found.len() > 1 && found[0].id != id {
                let rule = format!("trace {id:?}: more than one id has this prefix");
                return Err(Error::Conflict(rule));
            }
            Ok((!found.is_empty()).then(|| found.swap_remove(0)))
        })
    }

    /// Deletes traces that began before a time; returns how many.
    pub fn delete_traces(&self, before: &str) -> Result<usize> {
        let before = before.to_owned();
        self.write_durable(move |c| {
            let sql = "DELETE FROM skill_execution_traces WHERE started_at < ?1";
            Ok(c.execute(sql, [&before])?)
        })
    }
}

fn insert_trace(c: &Connection, trace: &TraceRecord) -> Result<()> {
    c.prepare_cached(&format!(
        "INSERT INTO skill_execution_traces ({TRACE_COLUMNS}, created_at) VALUES
             (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)"
    ))?
    .execute(params![
        trace.id,
        trace.session_id,
        trace.skill_id,
        trace.artifact_id,
        trace.artifact_kind,
        trace.rendered_input,
        trace.raw_output,
        trace.error,
        trace.started_at,
        trace.completed_at,
        trace.duration_ms,
        trace.input_tokens,
        trace.output_tokens,
        trace.model_id,
        trace.estimated_cost,
        trace.assertions_run,
        trace.assertions_passed,
        trace.details.to_string(),
        super::now_rfc3339(),
    ])?;
    let newest: Option<i64> = c
        .prepare_cached("SELECT max(rowid) FROM skill_execution_traces")?
        .query_row([], |row| row.get(0))
        .optional()?
        .flatten();
    c.prepare_cached("DELETE FROM skill_execution_traces WHERE rowid <= ?1")?
        .execute([newest.unwrap_or(0) - MAX_TRACES])?;
    Ok(())
}
