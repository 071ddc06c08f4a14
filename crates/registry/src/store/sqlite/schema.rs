//! The tables, version by version.
//!
//! Invariant: each migration runs in one transaction, and a file whose schema is not exactly what
//! its version says is refused, so that a planted view or trigger is never run.

use rusqlite::{Connection, Result};

/// The newest schema this version knows.
pub(super) const VERSION: i64 = 11;
/// `RPTR`: identifies a file as a Repertoire store.
pub(super) const APPLICATION_ID: i64 = 0x5250_5452;

/// The migrations; the one at index `n` upgrades version `n` to `n + 1`.
const MIGRATIONS: [&str; 11] = [V1, V2, V3, V4, V5, V6, V7, V8, V9, V10, V11];

const V1: &str = r"
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE skills (
    id              TEXT PRIMARY KEY,
    name            TEXT NOT NULL UNIQUE,
    description     TEXT NOT NULL,
    version         TEXT NOT NULL DEFAULT '1.0.0',
    tags            TEXT,
    source          TEXT NOT NULL DEFAULT 'user',
    author          TEXT,
    created_at      TEXT NOT NULL DEFAULT (datetime('now')),
    updated_at      TEXT NOT NULL DEFAULT (datetime('now')),
    intent_patterns TEXT,
    trigger_phrases TEXT,
    marketplace_id  TEXT,
    sync_etag       TEXT,
    path            TEXT NOT NULL UNIQUE,
    head            TEXT NOT NULL
);
CREATE INDEX idx_skills_source ON skills(source);
CREATE INDEX idx_skills_name ON skills(name);

CREATE TABLE skill_artifacts (
    id            TEXT PRIMARY KEY,
    skill_id      TEXT NOT NULL REFERENCES skills(id) ON DELETE CASCADE,
    kind          TEXT NOT NULL,
    name          TEXT NOT NULL,
    ordinal       INTEGER NOT NULL DEFAULT 0,
    content       TEXT NOT NULL,
    model_variant TEXT,
    metadata      TEXT,
    state_blob    BLOB,
    created_at    TEXT NOT NULL DEFAULT (datetime('now')),
    updated_at    TEXT NOT NULL DEFAULT (datetime('now'))
);
CREATE INDEX idx_skill_artifacts_skill_id ON skill_artifacts(skill_id);
CREATE INDEX idx_skill_artifacts_kind ON skill_artifacts(kind);
-- NULLs are distinct to UNIQUE, and two default variants must not be.
CREATE UNIQUE INDEX idx_skill_artifacts_place
    ON skill_artifacts(skill_id, name, coalesce(model_variant, ''));

CREATE TABLE skill_execution_traces (
    id                TEXT PRIMARY KEY,
    session_id        TEXT NOT NULL,
    skill_id          TEXT NOT NULL,
    artifact_id       TEXT NOT NULL,
    artifact_kind     TEXT NOT NULL,
    rendered_input    TEXT,
    raw_output        TEXT,
    error             TEXT,
    started_at        TEXT NOT NULL,
    completed_at      TEXT,
    duration_ms       INTEGER,
    input_tokens      INTEGER,
    output_tokens     INTEGER,
    model_id          TEXT,
    estimated_cost    REAL,
    assertions_run    INTEGER DEFAULT 0,
    assertions_passed INTEGER DEFAULT 0,
    created_at        TEXT NOT NULL DEFAULT (datetime('now'))
);
CREATE INDEX idx_traces_session_id ON skill_execution_traces(session_id);
CREATE INDEX idx_traces_skill_id ON skill_execution_traces(skill_id);
CREATE INDEX idx_traces_artifact_id ON skill_execution_traces(artifact_id);

CREATE TABLE blobs (
    digest  BLOB PRIMARY KEY,
    content BLOB NOT NULL
);

CREATE TABLE skill_files (
    skill_id TEXT NOT NULL REFERENCES skills(id) ON DELETE CASCADE,
    path     TEXT NOT NULL,
    size     INTEGER NOT NULL,
    digest   BLOB NOT NULL REFERENCES blobs(digest),
    PRIMARY KEY (skill_id, path)
) WITHOUT ROWID;
CREATE INDEX idx_skill_files_digest ON skill_files(digest);

CREATE TABLE revisions (
    path     TEXT NOT NULL,
    revision INTEGER NOT NULL,
    op       TEXT NOT NULL,
    at       TEXT NOT NULL,
    version  TEXT,
    files    TEXT NOT NULL,
    PRIMARY KEY (path, revision)
) WITHOUT ROWID;

CREATE TABLE revision_blobs (
    digest   BLOB NOT NULL REFERENCES blobs(digest),
    path     TEXT NOT NULL,
    revision INTEGER NOT NULL,
    PRIMARY KEY (digest, path, revision)
) WITHOUT ROWID;

CREATE TABLE prompts (
    name          TEXT PRIMARY KEY,
    definition    TEXT NOT NULL,
    body          TEXT,
    registered_at TEXT NOT NULL
);

-- `head` stands before `value`, so that reading it never walks a large value's pages.
CREATE TABLE state (
    scope      TEXT NOT NULL,
    key        TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    head       TEXT,
    value      TEXT NOT NULL,
    PRIMARY KEY (scope, key)
);

CREATE TABLE events (
    seq  INTEGER PRIMARY KEY AUTOINCREMENT,
    op   TEXT NOT NULL,
    kind TEXT NOT NULL,
    id   TEXT NOT NULL,
    at   TEXT NOT NULL
);

CREATE TABLE approvals (
    kind       TEXT NOT NULL,
    subject    TEXT NOT NULL,
    binding    TEXT NOT NULL,
    granted_at TEXT NOT NULL,
    PRIMARY KEY (kind, subject)
) WITHOUT ROWID;
";

/// Tokens for HTTP clients, and other servers to read from.
const V2: &str = r"
CREATE TABLE tokens (
    name       TEXT PRIMARY KEY,
    hash       BLOB NOT NULL UNIQUE,
    access     TEXT NOT NULL,
    created_at TEXT NOT NULL,
    expires_at TEXT
) WITHOUT ROWID;

CREATE TABLE remotes (
    label     TEXT PRIMARY KEY,
    target    TEXT NOT NULL,
    added_at  TEXT NOT NULL,
    listed_at TEXT,
    listing   TEXT
);
";

/// Prompts become state rows, as on every bus.
const V3: &str = r"
INSERT OR IGNORE INTO state (scope, key, updated_at, head, value)
SELECT 'prompts', name, registered_at, NULL, json_object(
    'name', name,
    'description', definition ->> 'description',
    'arguments', json(definition -> 'arguments'),
    'function_id', definition ->> '$.body.function',
    'body', body,
    'registered_at', registered_at)
FROM prompts;
DROP TABLE prompts;
";

/// Traces get more details, and an index for listing and deleting by time.
const V4: &str = r"
ALTER TABLE skill_execution_traces ADD COLUMN details TEXT;
CREATE INDEX idx_traces_started_at ON skill_execution_traces(started_at);
";

/// Embeddings, by the digest of the text and of the embedding method.
const V5: &str = r"
CREATE TABLE vectors (
    digest BLOB PRIMARY KEY,
    vector BLOB NOT NULL
) WITHOUT ROWID;
";

/// Values stored by running scripts.
const V6: &str = r"
CREATE TABLE checkpoints (
    session_id TEXT NOT NULL,
    artifact   TEXT NOT NULL,
    name       TEXT NOT NULL,
    value      TEXT NOT NULL,
    at         TEXT NOT NULL,
    PRIMARY KEY (session_id, artifact, name)
);
CREATE INDEX idx_checkpoints_at ON checkpoints(at);
";

/// Tokens have independent permissions; those of earlier versions cannot run anything.
const V7: &str = r"
ALTER TABLE tokens ADD COLUMN prefixes TEXT NOT NULL DEFAULT '';
ALTER TABLE tokens ADD COLUMN tools TEXT NOT NULL DEFAULT '';
ALTER TABLE tokens ADD COLUMN lost_run INTEGER NOT NULL DEFAULT 0;
UPDATE tokens SET lost_run = 1;
UPDATE tokens SET access = 'read,write' WHERE access = 'write';
";

/// Earlier values of registered content, how much each scope of the state holds, and when embeddings
/// were last used.
const V8: &str = r"
CREATE TABLE state_revisions (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    scope    TEXT NOT NULL,
    key      TEXT NOT NULL,
    revision INTEGER NOT NULL,
    at       TEXT NOT NULL,
    value    TEXT
);
CREATE UNIQUE INDEX idx_state_revisions_key ON state_revisions(scope, key, revision);

CREATE TABLE state_usage (
    scope TEXT PRIMARY KEY,
    rows  INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO state_usage
SELECT scope, count(*), sum(octet_length(key) + octet_length(value)) FROM state GROUP BY scope;

ALTER TABLE vectors ADD COLUMN used_day INTEGER NOT NULL DEFAULT 0;
CREATE INDEX idx_vectors_used_day ON vectors(used_day);
UPDATE vectors SET used_day = unixepoch() / 86400;
";

/// The parts of runs that are not executions of artifacts.
const V9: &str = r"
CREATE TABLE trace_spans (
    id             TEXT PRIMARY KEY,
    session_id     TEXT NOT NULL,
    parent_id      TEXT,
    kind           TEXT NOT NULL,
    name           TEXT NOT NULL,
    skill          TEXT,
    digest         TEXT,
    revision       INTEGER,
    started_at     TEXT NOT NULL,
    completed_at   TEXT NOT NULL,
    duration_ms    INTEGER NOT NULL,
    input          TEXT,
    output         TEXT,
    error          TEXT,
    code           TEXT,
    model_id       TEXT,
    input_tokens   INTEGER,
    output_tokens  INTEGER,
    estimated_cost REAL
);
CREATE INDEX idx_trace_spans_session_id ON trace_spans(session_id);
CREATE INDEX idx_trace_spans_started_at ON trace_spans(started_at);
";

/// Example messages of skills, by the digest of the texts they were written from, and the skills that
/// each client chose for its messages.
const V10: &str = r"
CREATE TABLE example_messages (
    digest     BLOB PRIMARY KEY,
    skill      TEXT NOT NULL,
    model      TEXT NOT NULL,
    messages   TEXT NOT NULL,
    written_at TEXT NOT NULL,
    is_ready   INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE skill_uses (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    owner    TEXT NOT NULL,
    skill    TEXT NOT NULL,
    model    TEXT NOT NULL,
    vector   BLOB NOT NULL,
    message  TEXT,
    used_day INTEGER NOT NULL
);
CREATE INDEX idx_skill_uses_owner ON skill_uses(owner, seq);
CREATE INDEX idx_skill_uses_used_day ON skill_uses(used_day);
";

/// Where installed skills came from, and the files that were installed.
const V11: &str = r"
CREATE TABLE installed_skills (
    path   TEXT PRIMARY KEY,
    origin TEXT NOT NULL,
    digest BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE installed_blobs (
    digest BLOB NOT NULL REFERENCES blobs(digest),
    path   TEXT NOT NULL,
    PRIMARY KEY (digest, path)
) WITHOUT ROWID;
CREATE INDEX idx_installed_blobs_path ON installed_blobs(path);

-- Where the content of a revision was installed from.
ALTER TABLE revisions ADD COLUMN origin TEXT;
";

/// Migrates a file to the newest version, one transaction per step.
pub(super) fn migrate_schema(connection: &mut Connection, from: i64) -> Result<()> {
    for (step, sql) in (0..).zip(MIGRATIONS) {
        if step < from {
            continue;
        }
        let transaction =
            connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        // Two processes may open a new store at once; the second one skips the finished step.
        let now: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if now == step {
            transaction.execute_batch(sql)?;
            transaction.execute(
                "INSERT OR IGNORE INTO meta VALUES ('store_id', ?1)",
                [uuid::Uuid::new_v4().to_string()],
            )?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", step + 1)?;
        }
        transaction.commit()?;
    }
    Ok(())
}

/// Returns every object that a file of this version may hold, as SQLite writes their definitions.
pub(super) fn expected_objects(version: i64) -> Result<Vec<(String, String, String)>> {
    let model = Connection::open_in_memory()?;
    for sql in MIGRATIONS
        .iter()
        .take(usize::try_from(version).unwrap_or(0))
    {
        model.execute_batch(sql)?;
    }
    schema_objects(&model)
}

/// Returns the objects of a file: type, name, definition.
pub(super) fn schema_objects(connection: &Connection) -> Result<Vec<(String, String, String)>> {
    let mut statement = connection.prepare(
        "SELECT type, name, coalesce(sql, '') FROM sqlite_schema
         WHERE name NOT LIKE 'sqlite_stat%' ORDER BY type, name",
    )?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t40_tokens_of_earlier_versions_can_run_nothing_and_are_marked() {
        let mut connection = Connection::open_in_memory().unwrap();
        for sql in &MIGRATIONS[..6] {
            connection.execute_batch(sql).unwrap();
        }
        connection.pragma_update(None, "user_version", 6).unwrap();
        connection
            .execute_batch(
                "INSERT INTO tokens (name, hash, access, created_at) VALUES
                 ('old-writer', 'h1', 'write', '2026-01-01'), ('old-reader', 'h2', 'read', '2026-01-01')",
            )
            .unwrap();
        migrate_schema(&mut connection, 6).unwrap();
        let mut statement = connection
            .prepare("SELECT name, access, lost_run FROM tokens ORDER BY name")
            .unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        let rows: Vec<(String, String, bool)> = rows.unwrap().map(Result::unwrap).collect();
        let row = |name: &str, access: &str| (name.to_owned(), access.to_owned(), true);
        assert_eq!(
            rows,
            [row("old-reader", "read"), row("old-writer", "read,write")]
        );
    }

    #[test]
    fn migration_moves_prompts_of_older_stores_into_state() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(V1).unwrap();
        connection.execute_batch(V2).unwrap();
        connection.pragma_update(None, "user_version", 2).unwrap();
        let prompts = r#"
            INSERT INTO prompts VALUES ('greet',
                '{"name":"greet","description":"d","arguments":[{"name":"who","required":true}],
                  "body":{"function":"demo::greet"}}', NULL, '2026-01-01T00:00:00.000Z');
            INSERT INTO prompts VALUES ('note',
                '{"name":"note","description":"d","arguments":[],"body":"static"}', 'Text.',
                '2026-01-01T00:00:00.000Z');"#;
        connection.execute_batch(prompts).unwrap();
        migrate_schema(&mut connection, 2).unwrap();
        let row = |key: &str| -> String {
            let sql = "SELECT value FROM state WHERE scope = 'prompts' AND key = ?1";
            connection.query_row(sql, [key], |row| row.get(0)).unwrap()
        };
        let greet = crate::registered::parse_prompt_row("greet", &row("greet")).unwrap();
        assert_eq!(greet.prompt.arguments[0].name, "who");
        assert_eq!((greet.body, &*greet.at), (None, "2026-01-01T00:00:00.000Z"));
        let note = crate::registered::parse_prompt_row("note", &row("note")).unwrap();
        assert_eq!(note.body.as_deref(), Some("Text."));
        assert_eq!(
            schema_objects(&connection).unwrap(),
            expected_objects(VERSION).unwrap()
        );
    }
}
