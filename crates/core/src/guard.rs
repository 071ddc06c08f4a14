//! Functions that content and prompts must never reach.
//!
//! A URI or a prompt names a function of a bus; some of a bus's functions are its plumbing. The
//! guard looks at the function's id as the bus would see it, after every decoding, and is asked
//! when a prompt is registered and again whenever a function is about to be called.

use crate::error::{Error, Result, excerpt};

/// What belongs to a bus itself. Settings can add to it and never take away.
const INTERNAL: [&str; 17] = [
    "engine::",
    "state::",
    "stream::",
    "iii::",
    "iii.",
    "mcp::",
    "a2a::",
    "skills::",
    "prompts::",
    "skill::",
    "configuration::",
    "worker::",
    "compose::",
    "sandbox::",
    "directory::",
    "shell::",
    "bridge.",
];

/// Says which functions may be reached.
///
/// ```
/// use repertoire_core::Guard;
///
/// let guard = Guard::new(["billing::admin::".to_owned()]);
/// assert!(guard.check("billing::invoice").is_ok());
/// assert!(guard.check("billing::admin::drop").is_err());
/// assert!(guard.check("State::set").unwrap_err().to_string().contains("internal namespace"));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guard {
    more: Vec<String>,
}

impl Guard {
    /// A guard over these prefixes too.
    pub fn new(more: impl IntoIterator<Item = String>) -> Self {
        let more = more.into_iter().map(|prefix| prefix.trim().to_lowercase());
        // An empty prefix is every function, and nobody means that.
        Self {
            more: more.filter(|prefix| !prefix.is_empty()).collect(),
        }
    }

    /// The prefixes that are always guarded.
    pub fn built_in() -> &'static [&'static str] {
        &INTERNAL
    }

    /// Refuses a function that belongs to the bus.
    pub fn check(&self, function_id: &str) -> Result<()> {
        // No bus tells letters apart by their case for its own; neither does this.
        let id = function_id.trim().to_lowercase();
        let prefixes = INTERNAL.into_iter().chain(self.more.iter().map(|p| &**p));
        match prefixes.into_iter().find(|prefix| id.starts_with(prefix)) {
            None => Ok(()),
            Some(prefix) => Err(Error::Internal {
                function: excerpt(function_id),
                prefix: prefix.to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t12_every_internal_prefix_is_refused_in_every_spelling() {
        let guard = Guard::default();
        for prefix in INTERNAL {
            for id in [
                format!("{prefix}x"),
                prefix.to_owned(),
                prefix.to_uppercase() + "x",
                format!("  {prefix}x"),
                format!("\t{prefix}x::y"),
            ] {
                assert_eq!(guard.check(&id).unwrap_err().code(), "internal_namespace");
            }
        }
    }

    #[test]
    fn others_pass_and_the_list_only_grows() {
        let guard = Guard::new([String::new(), " Ops:: ".to_owned()]);
        for id in [
            "demo::state::get",
            "states::x",
            "state",
            "iiix",
            "my.iii::x",
        ] {
            assert!(guard.check(id).is_ok(), "{id}");
        }
        assert!(guard.check("ops::x").is_err());
        assert!(guard.check("state::x").is_err());
    }
}
