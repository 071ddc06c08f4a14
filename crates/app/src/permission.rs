//! What a caller must be allowed to do.

/// A permission that a tool or a function needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Permission {
    /// List and read skills.
    Read,
    /// Run skills: models and functions may be called, which may cost money.
    Run,
    /// Change what is registered.
    Write,
}
