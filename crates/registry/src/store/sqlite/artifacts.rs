//! Skills and artifacts as rows, for listing and for finding one.

use repertoire_core::{Artifact, ArtifactKind};
use rusqlite::{Connection, OptionalExtension, Row, params, types::Type};
use uuid::Uuid;

use super::{OptimizedModule, QueryResult, SkillKey, SkillSummary};

const SUMMARY_COLUMNS: &str = "s.id, s.path, s.name, s.description, s.version, s.tags, s.source";
const ARTIFACT_COLUMNS: &str = "a.id, a.kind, a.name, a.ordinal, a.content, a.model_variant, \
                                a.metadata, a.state_blob, a.created_at, a.updated_at";

pub(super) fn list_skills(c: &Connection) -> QueryResult<Vec<SkillSummary>> {
    let sql = format!("SELECT {SUMMARY_COLUMNS} FROM skills s ORDER BY s.name");
    let mut statement = c.prepare_cached(&sql)?;
    let rows = statement.query_map([], summary_from_row)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn find_skill(c: &Connection, key: SkillKey<'_>) -> QueryResult<Option<SkillSummary>> {
    let condition = match key {
        SkillKey::Uuid(_) => "s.id = ?1",
        SkillKey::Id(_) => "s.path = ?1",
        SkillKey::Name(_) => "s.name = ?1",
        SkillKey::Artifact(_) => "s.id = (SELECT skill_id FROM skill_artifacts WHERE id = ?1)",
    };
    let sql = format!("SELECT {SUMMARY_COLUMNS} FROM skills s WHERE {condition}");
    let mut statement = c.prepare_cached(&sql)?;
    let row = statement.query_row([key.to_string()], summary_from_row);
    Ok(row.optional()?)
}

pub(super) fn get_artifacts(
    c: &Connection,
    skill_id: Uuid,
    kinds: &[ArtifactKind],
) -> QueryResult<Vec<Artifact>> {
    let wanted: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    // Only the requested kinds are read.
    let sql = format!(
        "SELECT {ARTIFACT_COLUMNS} FROM skill_artifacts a WHERE a.skill_id = ?1
           AND (?2 = '[]' OR a.kind IN (SELECT value FROM json_each(?2)))
         ORDER BY a.ordinal, a.name, a.model_variant"
    );
    let mut statement = c.prepare_cached(&sql)?;
    let kinds = serde_json::json!(wanted).to_string();
    let rows = statement.query_map(params![skill_id.to_string(), kinds], artifact_from_row)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn get_artifact(c: &Connection, artifact_id: Uuid) -> QueryResult<Option<Artifact>> {
    let sql = format!("SELECT {ARTIFACT_COLUMNS} FROM skill_artifacts a WHERE a.id = ?1");
    let mut statement = c.prepare_cached(&sql)?;
    let row = statement.query_row([artifact_id.to_string()], artifact_from_row);
    Ok(row.optional()?)
}

pub(super) fn optimized_modules(c: &Connection) -> QueryResult<Vec<OptimizedModule>> {
    let sql = format!(
        "SELECT {ARTIFACT_COLUMNS}, s.id, s.path FROM skill_artifacts a
         JOIN skills s ON s.id = a.skill_id
         WHERE a.kind = 'dspy_module' AND a.state_blob IS NOT NULL ORDER BY s.path"
    );
    let mut statement = c.prepare_cached(&sql)?;
    let rows = statement.query_map([], |row| {
        Ok(OptimizedModule {
            skill: parse_column(row, 10)?,
            path: row.get(11)?,
            artifact: artifact_from_row(row)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn summary_from_row(row: &Row<'_>) -> rusqlite::Result<SkillSummary> {
    let tags: Option<String> = row.get(5)?;
    Ok(SkillSummary {
        id: parse_column(row, 0)?,
        path: parse_column(row, 1)?,
        name: row.get(2)?,
        description: row.get(3)?,
        version: row.get(4)?,
        tags: tags
            .and_then(|tags| repertoire_core::json::from_str(&tags).ok())
            .unwrap_or_default(),
        source: row.get(6)?,
    })
}

fn artifact_from_row(row: &Row<'_>) -> rusqlite::Result<Artifact> {
    let metadata: Option<String> = row.get(6)?;
    let metadata = metadata.map(|text| repertoire_core::json::from_str(&text));
    Ok(Artifact {
        id: Some(parse_column(row, 0)?),
        kind: parse_column(row, 1)?,
        name: row.get(2)?,
        ordinal: row.get(3)?,
        content: row.get(4)?,
        file: None,
        model_variant: row.get(5)?,
        metadata: metadata
            .transpose()
            .map_err(|error| invalid_column(6, error))?,
        state_blob: row.get(7)?,
        created_at: row.get(8)?,
        updated_at: row.get(9)?,
    })
}

/// Parses a text column.
pub(super) fn parse_column<T>(row: &Row<'_>, index: usize) -> rusqlite::Result<T>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    let text: String = row.get(index)?;
    text.parse().map_err(|error| invalid_column(index, error))
}

fn invalid_column(
    index: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, Type::Text, Box::new(error))
}
