//! Stores the conversation of an `ask` session, so that a later message can continue it.
//!
//! Turns are kept as a checkpoint of the session, next to the checkpoints of its scripts. Older
//! turns are dropped, so that what is put before a model stays bounded.

use repertoire_registry::Registry;
use repertoire_runtime::ChatTurn;

use crate::error::Result;

/// The name under which a conversation is stored.
const OWNER: &str = "ask";
const TURNS: &str = "conversation";
/// The session whose id is stored as the last one.
const LAST: &str = "last";
/// The most turns that are kept.
const MAX_TURNS: usize = 20;
/// The most characters that are kept.
const MAX_CHARS: usize = 32 * 1024;

/// Returns the conversation of a session, oldest turn first; empty if there was none.
pub fn load_conversation(registry: &Registry, session: &str) -> Result<Vec<ChatTurn>> {
    let stored = registry.checkpoint(session, OWNER, TURNS)?;
    // A conversation that cannot be read starts anew.
    let turns = stored.and_then(|text| repertoire_core::json::from_str(&text).ok());
    Ok(turns.unwrap_or_default())
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
) -> Result<()> {
    let turns = recent_turns(turns);
    // Serializing texts cannot fail.
    let text = serde_json::to_string(turns).unwrap_or_default();
    registry.put_checkpoint(session, OWNER, TURNS, &text)?;
    registry.put_checkpoint(LAST, OWNER, LAST, session)?;
    Ok(())
}

/// Returns the newest turns within the limits.
pub(crate) fn recent_turns(turns: &[ChatTurn]) -> &[ChatTurn] {
    let mut chars = 0;
    let kept = turns
        .iter()
        .rev()
        .take(MAX_TURNS)
        .take_while(|turn| {
            chars += turn.text.chars().count();
            chars <= MAX_CHARS
        })
        .count();
    &turns[turns.len() - kept..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_long_turns_are_dropped() {
        let many: Vec<ChatTurn> = (0..50).map(|n| ChatTurn::user(n.to_string())).collect();
        let kept = recent_turns(&many);
        assert_eq!(kept.len(), MAX_TURNS);
        assert_eq!(kept.last().map(|turn| &*turn.text), Some("49"));
        let long = [
            ChatTurn::user("x".repeat(MAX_CHARS)),
            ChatTurn::user("now".to_owned()),
        ];
        assert_eq!(recent_turns(&long).len(), 1);
        assert_eq!(recent_turns(&long[..1]).len(), 1);
    }
}
