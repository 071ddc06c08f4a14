//! The event log. Scopes and the user's local data share it; each reads its own kinds.

use rusqlite::{Connection, params};

use super::{EventBatch, EventCursor, QueryResult, now_rfc3339};
use crate::store::{EventId, StoreEvent, StoreItem};

/// How many events are kept. A follower that is further behind reads everything again.
const MAX_EVENTS: i64 = 100_000;
/// What the kind of a state event begins with; the scope follows.
const STATE_PREFIX: &str = "state:";

/// What an event is about, as stored in its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventKind<'a> {
    Skill,
    State(&'a str),
    /// A server of the user, or its listing.
    Remote,
    /// An approval by the user.
    Approval,
}

impl EventKind<'_> {
    fn to_column(self) -> String {
        match self {
            Self::Skill => "skill".to_owned(),
            Self::State(scope) => format!("{STATE_PREFIX}{scope}"),
            Self::Remote => "remote".to_owned(),
            Self::Approval => "approval".to_owned(),
        }
    }
}

impl<'a> EventKind<'a> {
    /// Parses a column; a kind of a later version is skipped.
    fn from_column(text: &'a str) -> Option<Self> {
        match text {
            "skill" => Some(Self::Skill),
            "remote" => Some(Self::Remote),
            "approval" => Some(Self::Approval),
            other => other.strip_prefix(STATE_PREFIX).map(Self::State),
        }
    }
}

/// Whether an event reports a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventOp {
    Put,
    Remove,
}

/// Records a change in the same transaction that makes it.
pub(super) fn record_event(
    c: &Connection,
    op: EventOp,
    kind: EventKind<'_>,
    id: &str,
) -> QueryResult<EventId> {
    let op = match op {
        EventOp::Put => "put",
        EventOp::Remove => "remove",
    };
    c.prepare_cached("INSERT INTO events (op, kind, id, at) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![op, kind.to_column(), id, now_rfc3339()])?;
    let seq = c.last_insert_rowid();
    // Pruning only every 1024 events keeps its cost out of most writes.
    if seq % 1024 == 0 {
        c.prepare_cached("DELETE FROM events WHERE seq <= ?1")?
            .execute([seq - MAX_EVENTS])?;
    }
    Ok(EventId(seq))
}

/// Returns the number of the newest event that ever was.
pub(super) fn newest_seq(c: &Connection) -> QueryResult<i64> {
    let sql = "SELECT coalesce(max(seq), 0) FROM main.sqlite_sequence WHERE name = 'events'";
    Ok(c.query_row(sql, [], |row| row.get(0))?)
}

/// Forgets all events and goes on after a number, so that a follower up to there reads
/// everything again.
pub(super) fn restart_after(c: &Connection, newest: i64) -> QueryResult<()> {
    c.execute("DELETE FROM events", [])?;
    c.execute(
        "INSERT INTO events (seq, op, kind, id, at) VALUES (?1, 'put', 'restored', '', ?2)",
        params![newest.saturating_add(2), now_rfc3339()],
    )?;
    Ok(())
}

/// Returns the cursor after the newest event.
pub(super) fn cursor(c: &Connection) -> QueryResult<EventCursor> {
    let last: i64 = c
        .prepare_cached("SELECT coalesce(max(seq), 0) FROM events")?
        .query_row([], |row| row.get(0))?;
    Ok(EventCursor::new(last.to_string()))
}

/// Returns the events of the scope after a cursor.
pub(super) fn events_since(
    c: &Connection,
    cursor: &EventCursor,
) -> QueryResult<Option<EventBatch>> {
    let mut events = Vec::new();
    let cursor = read_events(c, cursor, |id, removed, kind, name| {
        let item = match kind {
            EventKind::Skill => StoreItem::Skill(name),
            EventKind::State(scope) => StoreItem::State {
                scope: scope.to_owned(),
                key: name,
            },
            EventKind::Remote | EventKind::Approval => return,
        };
        events.push(StoreEvent { id, item, removed });
    })?;
    Ok(cursor.map(|cursor| EventBatch { events, cursor }))
}

/// Whether the user's local data changed after a cursor, and the cursor to go on with; `None` if
/// some events are no longer kept.
pub(super) fn local_events_since(
    c: &Connection,
    cursor: &EventCursor,
) -> QueryResult<Option<(bool, EventCursor)>> {
    let mut changed = false;
    let cursor = read_events(c, cursor, |_, _, kind, _| {
        changed |= matches!(kind, EventKind::Remote | EventKind::Approval);
    })?;
    Ok(cursor.map(|cursor| (changed, cursor)))
}

/// Reads the events after a cursor. In SQLite writers commit one after the other, so the sequence
/// numbers are the order of the commits.
fn read_events(
    c: &Connection,
    cursor: &EventCursor,
    mut handle: impl FnMut(EventId, bool, EventKind<'_>, String),
) -> QueryResult<Option<EventCursor>> {
    let Ok(seen) = cursor.as_str().parse::<i64>() else {
        return Ok(None);
    };
    let oldest: Option<i64> = c
        .prepare_cached("SELECT min(seq) FROM events")?
        .query_row([], |row| row.get(0))?;
    if oldest.is_some_and(|oldest| oldest > seen.saturating_add(1)) {
        return Ok(None);
    }
    let sql = "SELECT seq, kind, id, op FROM events WHERE seq > ?1 ORDER BY seq";
    let mut statement = c.prepare_cached(sql)?;
    let mut rows = statement.query([seen])?;
    let mut last = seen;
    while let Some(row) = rows.next()? {
        last = row.get(0)?;
        let removed = row.get_ref(3)?.as_str().is_ok_and(|op| op == "remove");
        let kind: String = row.get(1)?;
        if let Some(kind) = EventKind::from_column(&kind) {
            handle(EventId(last), removed, kind, row.get(2)?);
        }
    }
    Ok(Some(EventCursor::new(last.to_string())))
}
