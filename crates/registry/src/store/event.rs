//! Events, by which several processes on one store follow each other's changes.

/// A position in the events of a store, as [`Store::event_cursor`](super::Store::event_cursor)
/// returned it. Only the store that made it can read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventCursor(String);

impl EventCursor {
    /// Creates a cursor from the store's own text for it.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the store's own text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Identifies one event of a store. Ids are unique; their order means nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventId(pub i64);

/// One change of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreEvent {
    /// Its id.
    pub id: EventId,
    /// What changed.
    pub item: StoreItem,
    /// Whether it was removed; otherwise it was added or changed.
    pub removed: bool,
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreItem {
    /// A skill or package, by its id.
    Skill(String),
    /// A value of the key-value state.
    State {
        /// The scope of the value.
        scope: String,
        /// Its key.
        key: String,
    },
}

/// Events, and the cursor after them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventBatch {
    /// The events.
    pub events: Vec<StoreEvent>,
    /// Where to go on.
    pub cursor: EventCursor,
}
