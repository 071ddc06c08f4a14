//! Denies access to the internal functions of a bus.
//!
//! URIs and prompts name functions of a bus, and some of these are internal to it. The guard
//! checks the fully decoded function id when a prompt is registered and again before every call.

use crate::error::{Error, Result, input_excerpt};

/// Prefixes that belong to the bus itself. Settings can add prefixes but never remove one.
const INTERNAL_PREFIXES: [&str; 17] = [
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

/// Decides which functions may be called.
///
/// ```
/// use repertoire_core::FunctionGuard;
///
/// let guard = FunctionGuard::new(["billing::admin::".to_owned()]);
/// assert!(guard.check_function("billing::invoice").is_ok());
/// assert!(guard.check_function("billing::admin::drop").is_err());
/// assert!(guard.check_function("State::set").unwrap_err().to_string().contains("internal namespace"));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FunctionGuard {
    extra_prefixes: Vec<String>,
}

impl FunctionGuard {
    /// Creates a guard that also denies these prefixes.
    pub fn new(more: impl IntoIterator<Item = String>) -> Self {
        let more = more.into_iter().map(|prefix| prefix.trim().to_lowercase());
        // An empty prefix would match every function, which is never intended.
        Self {
            extra_prefixes: more.filter(|prefix| !prefix.is_empty()).collect(),
        }
    }

    /// The prefixes that are always guarded.
    pub fn built_in_prefixes() -> &'static [&'static str] {
        &INTERNAL_PREFIXES
    }

    /// Refuses a function that belongs to the bus.
    pub fn check_function(&self, function_id: &str) -> Result<()> {
        // Compared without case: a bus may accept its own functions in any case.
        let id = function_id.trim().to_lowercase();
        let prefixes = INTERNAL_PREFIXES
            .into_iter()
            .chain(self.extra_prefixes.iter().map(|p| &**p));
        match prefixes.into_iter().find(|prefix| id.starts_with(prefix)) {
            None => Ok(()),
            Some(prefix) => Err(Error::Internal {
                function: input_excerpt(function_id),
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
        let guard = FunctionGuard::default();
        for prefix in INTERNAL_PREFIXES {
            for id in [
                format!("{prefix}x"),
                prefix.to_owned(),
                prefix.to_uppercase() + "x",
                format!("  {prefix}x"),
                format!("\t{prefix}x::y"),
            ] {
                assert_eq!(
                    guard.check_function(&id).unwrap_err().code(),
                    "internal_namespace"
                );
            }
        }
    }

    #[test]
    fn other_functions_pass_and_settings_only_add_prefixes() {
        let guard = FunctionGuard::new([String::new(), " Ops:: ".to_owned()]);
        for id in [
            "demo::state::get",
            "states::x",
            "state",
            "iiix",
            "my.iii::x",
        ] {
            assert!(guard.check_function(id).is_ok(), "{id}");
        }
        assert!(guard.check_function("ops::x").is_err());
        assert!(guard.check_function("state::x").is_err());
    }
}
