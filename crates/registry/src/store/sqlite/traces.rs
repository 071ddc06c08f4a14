//! Traces: one row for each execution of an artifact.

use repertoire_core::{ExecutionRecord, RecordDetails};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;

use super::{QueryResult, TraceFilter, artifacts::parse_column, now_rfc3339};
use crate::error::Error;

/// How many rows are kept.
const MAX_TRACES: i64 = 100_000;
const TRACE_COLUMNS: &str = "id, session_id, skill_id, artifact_id, artifact_kind, rendered_input, \
                       raw_output, error, started_at, completed_at, duration_ms, input_tokens, \
                       output_tokens, model_id, estimated_cost, assertions_run, \
                       assertions_passed, details";

fn trace_from_row(row: &Row<'_>) -> rusqlite::Result<ExecutionRecord> {
    let number = |index: usize| -> rusqlite::Result<Option<u64>> {
        let number: Option<i64> = row.get(index)?;
        Ok(number.map(|number| u64::try_from(number).unwrap_or(0)))
    };
    let details: Option<String> = row.get(17)?;
    let details = details.map(|text| parse_details(&text));
    Ok(ExecutionRecord {
        id: parse_column(row, 0)?,
        session_id: row.get(1)?,
        skill_id: row.get(2)?,
        artifact_id: row.get(3)?,
        artifact_kind: parse_column(row, 4)?,
        rendered_input: row.get(5)?,
        raw_output: row.get(6)?,
        error: row.get(7)?,
        started_at: row.get(8)?,
        completed_at: row.get(9)?,
        duration_ms: number(10)?,
        input_tokens: number(11)?,
        output_tokens: number(12)?,
        model_id: row.get(13)?,
        estimated_cost: row.get(14)?,
        assertions_run: number(15)?.unwrap_or(0),
        assertions_passed: number(16)?.unwrap_or(0),
        details: details.unwrap_or_default(),
    })
}

/// Parses details; those of another version are read as far as they are known.
fn parse_details(text: &str) -> RecordDetails {
    repertoire_core::json::from_str(text).unwrap_or_else(|_| {
        let details: Value = repertoire_core::json::from_str(text).unwrap_or_default();
        let text = |key: &str| details[key].as_str().unwrap_or_default().to_owned();
        RecordDetails {
            skill: text("skill"),
            artifact: text("artifact"),
            values: text("values"),
            ..RecordDetails::default()
        }
    })
}

/// Leaves out rows that this version cannot read, so that one of them does not hide all others.
pub(super) fn readable_rows<T>(
    rows: impl Iterator<Item = rusqlite::Result<T>>,
) -> rusqlite::Result<Vec<T>> {
    let readable = rows.filter(|row| match row {
        Err(error @ rusqlite::Error::FromSqlConversionFailure(..)) => {
            tracing::warn!(%error, "a trace cannot be read and is left out");
            false
        }
        _ => true,
    });
    readable.collect()
}

/// Returns traces, newest first.
pub(super) fn traces(c: &Connection, filter: &TraceFilter) -> QueryResult<Vec<ExecutionRecord>> {
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
    Ok(readable_rows(rows)?)
}

/// Finds one trace by its id or a prefix of it.
pub(super) fn find_trace(c: &Connection, id: &str) -> QueryResult<Option<ExecutionRecord>> {
    let sql = format!(
        "SELECT {TRACE_COLUMNS} FROM skill_execution_traces
         WHERE id >= ?1 AND substr(id, 1, length(?1)) = ?1 ORDER BY id LIMIT 2"
    );
    let mut statement = c.prepare_cached(&sql)?;
    let rows = statement.query_map([id], trace_from_row)?;
    let mut found = readable_rows(rows)?;
    if found.len() > 1 && found[0].id.to_string() != id {
        return Err(Error::AmbiguousTrace(id.to_owned()).into());
    }
    Ok((!found.is_empty()).then(|| found.swap_remove(0)))
}

/// Deletes spans that began before a time; returns how many.
pub(super) fn delete_spans(c: &Connection, before: &str) -> QueryResult<usize> {
    Ok(c.execute("DELETE FROM trace_spans WHERE started_at < ?1", [before])?)
}

/// Deletes traces and spans that began before a time; returns how many traces.
pub(super) fn delete_traces(c: &Connection, before: &str) -> QueryResult<usize> {
    delete_spans(c, before)?;
    let sql = "DELETE FROM skill_execution_traces WHERE started_at < ?1";
    Ok(c.execute(sql, [before])?)
}

pub(super) fn put_trace(c: &Connection, trace: &ExecutionRecord) -> QueryResult<()> {
    c.prepare_cached(&format!(
        "INSERT INTO skill_execution_traces ({TRACE_COLUMNS}, created_at) VALUES
             (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)"
    ))?
    .execute(params![
        trace.id.to_string(),
        trace.session_id,
        trace.skill_id,
        trace.artifact_id,
        trace.artifact_kind.as_str(),
        trace.rendered_input,
        trace.raw_output,
        trace.error,
        trace.started_at,
        trace.completed_at,
        trace.duration_ms.map(to_column),
        trace.input_tokens.map(to_column),
        trace.output_tokens.map(to_column),
        trace.model_id,
        trace.estimated_cost,
        to_column(trace.assertions_run),
        to_column(trace.assertions_passed),
        serde_json::json!(trace.details).to_string(),
        now_rfc3339(),
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

pub(super) fn to_column(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
