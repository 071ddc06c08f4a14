//! Spans of runs: everything of a run but its artifacts, which are traces.

use repertoire_core::{CallGroup, ModelUsage, SkillVersion, Span};
use rusqlite::{Connection, Row, params};

use super::{QueryResult, TraceFilter, artifacts::parse_column};
use crate::error::Error;

/// How many rows are kept.
const MAX_SPANS: i64 = 200_000;
const SPAN_COLUMNS: &str = "id, session_id, parent_id, kind, name, skill, digest, revision, \
                      started_at, completed_at, duration_ms, input, output, error, code, model_id, \
                      input_tokens, output_tokens, estimated_cost";

fn span_from_row(row: &Row<'_>) -> rusqlite::Result<Span> {
    let number = |index: usize| -> rusqlite::Result<Option<u64>> {
        let number: Option<i64> = row.get(index)?;
        Ok(number.map(|number| u64::try_from(number).unwrap_or(0)))
    };
    let parent: Option<String> = row.get(2)?;
    Ok(Span {
        id: parse_column(row, 0)?,
        session_id: row.get(1)?,
        parent: parent.map(|_| parse_column(row, 2)).transpose()?,
        kind: parse_column(row, 3)?,
        name: row.get(4)?,
        skill: row.get(5)?,
        version: SkillVersion {
            digest: row.get(6)?,
            revision: row.get(7)?,
        },
        started_at: row.get(8)?,
        completed_at: row.get(9)?,
        duration_ms: number(10)?.unwrap_or(0),
        input: row.get(11)?,
        output: row.get(12)?,
        error: row.get(13)?,
        code: row.get(14)?,
        model_id: row.get(15)?,
        usage: ModelUsage {
            input_tokens: number(16)?,
            output_tokens: number(17)?,
            cost: row.get(18)?,
        },
    })
}

/// Returns spans, newest first.
pub(super) fn spans(c: &Connection, filter: &TraceFilter) -> QueryResult<Vec<Span>> {
    let sql = format!(
        "SELECT {SPAN_COLUMNS} FROM trace_spans
         WHERE (?1 IS NULL OR skill = ?1)
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
        span_from_row,
    )?;
    Ok(super::traces::readable_rows(rows)?)
}

/// Returns the model calls whose parent is no stored execution of an artifact, in groups.
pub(super) fn model_calls(c: &Connection, filter: &TraceFilter) -> QueryResult<Vec<CallGroup>> {
    // Numbers are bounded, so that no row of a damaged store makes the sums overflow.
    let sql = "SELECT s.session_id, s.parent_id, ifnull(r.name, 'unfinished'), s.name,
             max(s.model_id), min(s.started_at), sum(s.error IS NOT NULL),
             json_group_array(max(0, min(s.duration_ms, 1000000000))),
             sum(min(s.input_tokens, 1000000000000)), sum(min(s.output_tokens, 1000000000000)),
             sum(s.estimated_cost)
         FROM trace_spans s LEFT JOIN trace_spans r ON r.id = s.parent_id
         WHERE s.kind = 'model_call'
           AND NOT EXISTS (SELECT 1 FROM skill_execution_traces t WHERE t.id = s.parent_id)
           AND (?1 IS NULL
                OR s.session_id IN (SELECT session_id FROM trace_spans WHERE skill = ?1))
           AND (?2 IS NULL OR s.session_id = ?2)
           AND (?3 IS NULL OR s.started_at >= ?3)
         GROUP BY s.session_id, s.parent_id, s.name
         ORDER BY min(s.started_at) DESC LIMIT ?4";
    let limit = filter
        .limit
        .and_then(|limit| i64::try_from(limit).ok())
        .unwrap_or(-1);
    let mut statement = c.prepare_cached(sql)?;
    let rows = statement.query_map(
        params![filter.skill, filter.session, filter.since, limit],
        |row| {
            let number = |index: usize| -> rusqlite::Result<Option<u64>> {
                let number: Option<i64> = row.get(index)?;
                Ok(number.map(|number| u64::try_from(number).unwrap_or(0)))
            };
            let parent: Option<String> = row.get(1)?;
            let durations: String = row.get(7)?;
            Ok(CallGroup {
                session_id: row.get(0)?,
                parent: parent.and_then(|id| id.parse().ok()),
                run: row.get(2)?,
                purpose: row.get(3)?,
                model_id: row.get(4)?,
                started_at: row.get(5)?,
                errors: usize::try_from(row.get::<_, i64>(6)?).unwrap_or(0),
                durations: repertoire_core::json::from_str(&durations).unwrap_or_default(),
                usage: ModelUsage {
                    input_tokens: number(8)?,
                    output_tokens: number(9)?,
                    cost: row.get(10)?,
                },
            })
        },
    )?;
    Ok(super::traces::readable_rows(rows)?)
}

/// Finds the session of a span or trace: by the session's id, the id of one of its spans or traces, or
/// a prefix of one of these.
pub(super) fn find_session(c: &Connection, id: &str) -> QueryResult<Option<String>> {
    let sql = "SELECT DISTINCT session_id FROM (
             SELECT id, session_id FROM trace_spans
             UNION ALL SELECT id, session_id FROM skill_execution_traces)
         WHERE substr(session_id, 1, length(?1)) = ?1 OR substr(id, 1, length(?1)) = ?1
         ORDER BY session_id LIMIT 2";
    let mut statement = c.prepare_cached(sql)?;
    let rows = statement.query_map([id], |row| row.get(0))?;
    let mut found: Vec<String> = rows.collect::<rusqlite::Result<_>>()?;
    if found.len() > 1 && found[0] != id {
        return Err(Error::AmbiguousTrace(id.to_owned()).into());
    }
    Ok((!found.is_empty()).then(|| found.swap_remove(0)))
}

pub(super) fn put_spans(c: &Connection, spans: &[Span]) -> QueryResult<()> {
    let mut insert = c.prepare_cached(&format!(
        "INSERT OR REPLACE INTO trace_spans ({SPAN_COLUMNS}) VALUES
             (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)"
    ))?;
    for span in spans {
        insert.execute(params![
            span.id.to_string(),
            span.session_id,
            span.parent.map(|id| id.to_string()),
            span.kind.as_str(),
            span.name,
            span.skill,
            span.version.digest,
            span.version.revision,
            span.started_at,
            span.completed_at,
            super::traces::to_column(span.duration_ms),
            span.input,
            span.output,
            span.error,
            span.code,
            span.model_id,
            span.usage.input_tokens.map(super::traces::to_column),
            span.usage.output_tokens.map(super::traces::to_column),
            span.usage.cost,
        ])?;
    }
    c.prepare_cached(
        "DELETE FROM trace_spans WHERE rowid <= (SELECT max(rowid) FROM trace_spans) - ?1",
    )?
    .execute([MAX_SPANS])?;
    Ok(())
}
