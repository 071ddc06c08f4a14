//! Prepares the record of one execution for storing.

use jiff::Timestamp;
use repertoire_core::markdown::truncate_text;
pub use repertoire_core::{ExecutionRecord, RecordDetails, ResourceUse};

use crate::redact::Redactor;

/// The maximum number of characters of an input or output that a record keeps.
pub const MAX_RECORD_CHARS: usize = 64 * 1024;

/// Returns the current time, RFC 3339 in UTC.
pub(crate) fn now_rfc3339() -> String {
    format!("{:.3}", Timestamp::now())
}

/// Removes secrets, and truncates long texts.
pub(crate) fn redact_and_truncate(record: &mut ExecutionRecord, redactor: &Redactor) {
    let texts = [
        &mut record.rendered_input,
        &mut record.raw_output,
        &mut record.error,
        &mut record.details.printed,
    ];
    for text in texts.into_iter().flatten() {
        *text = truncate_text(&redactor.redact(text), MAX_RECORD_CHARS);
    }
    for warning in &mut record.details.warnings {
        *warning = redactor.redact(warning);
    }
    for verdict in &mut record.details.assertions {
        verdict.explanation = verdict
            .explanation
            .as_deref()
            .map(|why| redactor.redact(why));
    }
}
