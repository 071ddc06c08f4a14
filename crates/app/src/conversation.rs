//! Stores the conversation of an `ask` session, so that a later message can continue it.
//!
//! Turns are kept as a checkpoint of the session, next to the checkpoints of its scripts. Older
//! turns are dropped, so that what is put before a model stays bounded.

use repertoire_core::markdown::truncate_text;
use repertoire_registry::Registry;
use repertoire_runtime::{ChatTurn, Redactor};

use crate::error::Result;

/// The name under which a conversation is stored.
const OWNER: &str = "ask";
const TURNS: &str = "conversation";
/// The session whose id is stored as the last one.
const LAST: &str = "last";
/// The most turns that are kept.
const MAX_TURNS: usize = 20;
/// The most characters of one turn that are kept.
const MAX_TURN_CHARS: usize = 8 * 1024;
/// The most characters of all turns that are kept.
const MAX_CHARS: usize = 4 * MAX_TURN_CHARS;

/// Returns the conversation of a session, oldest turn first; `None` if there was none.
pub fn load_conversation(registry: &Registry, session: &str) -> Result<Option<Vec<ChatTurn>>> {
    let stored = registry.checkpoint(session, OWNER, TURNS)?;
    // A conversation that cannot be read starts anew.
    let read = |text: String| repertoire_core::json::from_str(&text).unwrap_or_default();
    Ok(stored.map(read))
}

/// Returns the session of the last stored conversation.
pub fn last_session(registry: &Registry) -> Result<Option<String>> {
    Ok(registry.checkpoint(LAST, OWNER, LAST)?)
}

/// Stores the conversation of a session and remembers it as the last one.
pub(crate) fn save_conversation(
    registry: &Registry,
    session: &str,
    turns: &[ChatTurn],
    redactor: &Redactor,
) -> Result<()> {
    let mut turns = recent_turns(turns);
    // Like traces, conversations outlive the run and hold no secret.
    for turn in &mut turns {
        turn.text = redactor.redact(&turn.text);
    }
    // Serializing texts cannot fail.
    let text = serde_json::to_string(&turns).unwrap_or_default();
    registry.put_checkpoint(session, OWNER, TURNS, &text)?;
    registry.put_checkpoint(LAST, OWNER, LAST, session)?;
    Ok(())
}

/// Returns the newest turns within the limits; a long turn is shortened, never dropped for its
/// length alone.
pub(crate) fn recent_turns(turns: &[ChatTurn]) -> Vec<ChatTurn> {
    let mut chars = 0;
    let mut kept: Vec<ChatTurn> = turns
        .iter()
        .rev()
        .take(MAX_TURNS)
        .map(|turn| ChatTurn {
            text: truncate_text(&turn.text, MAX_TURN_CHARS),
            ..turn.clone()
        })
        .take_while(|turn| {
            chars += turn.text.chars().count();
            chars <= MAX_CHARS
        })
        .collect();
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_turns_are_dropped_and_long_ones_shortened() {
        let many: Vec<ChatTurn> = (0..50).map(|n| ChatTurn::user(n.to_string())).collect();
        let kept = recent_turns(&many);
        assert_eq!(kept.len(), MAX_TURNS);
        assert_eq!(kept.last().map(|turn| &*turn.text), Some("49"));
        let long = ChatTurn::assistant("x".repeat(10 * MAX_CHARS));
        let kept = recent_turns(&[ChatTurn::user("why?"), long]);
        assert_eq!(kept.len(), 2);
        assert!(kept[1].text.chars().count() <= MAX_TURN_CHARS);
    }
}
