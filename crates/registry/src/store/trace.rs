//! A filter for traces.

/// Which traces are returned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceFilter {
    /// Only those of a skill, by its UUID or its id in the catalogue.
    pub skill: Option<String>,
    /// Only those of a run.
    pub session: Option<String>,
    /// Only those that began at this time or later, RFC 3339.
    pub since: Option<String>,
    /// The maximum number of traces; the newest are returned.
    pub limit: Option<usize>,
}
