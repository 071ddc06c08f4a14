//! The one format of durations on the command line.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

/// Parses a duration such as `500ms`, `30s`, `12h` or `90d`; a day has 24 hours.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let form = "write a number with a unit, such as 500ms, 30s, 5m, 12h or 30d";
    let span: Span = text.parse().map_err(|_| form)?;
    let relative = SpanRelativeTo::days_are_24_hours();
    let duration = span.to_duration(relative).map_err(|_| form)?;
    let duration = Duration::try_from(duration).map_err(|_| form)?;
    if duration.is_zero() {
        return Err("the time must be greater than zero".to_owned());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_and_are_positive() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("12h", 43_200_000),
            ("1d 2h", 93_600_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
        for text in ["", "5", "0s", "-3h", "soon", "5 parsecs", "99999999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
