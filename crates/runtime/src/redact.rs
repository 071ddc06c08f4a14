//! Removes secrets from stored text: traces, errors and logs.

use std::sync::{Arc, LazyLock};

use regex::Regex;
use serde_json::Value;

/// The replacement for a secret.
pub(crate) const REDACTED: &str = "[redacted]";
/// The minimum length of a secret; shorter values may be ordinary words.
const MIN_SECRET_LEN: usize = 8;

/// Patterns of common secret formats.
static PATTERNS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let all = [
        r"\bsk-[A-Za-z0-9_-]{16,}",
        r"\b(?:ghp|gho|ghs|ghu|ghr)_[A-Za-z0-9]{20,}",
        r"\bgithub_pat_[A-Za-z0-9_]{20,}",
        r"\bhf_[A-Za-z0-9]{20,}",
        r"\bgsk_[A-Za-z0-9]{20,}",
        r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
        r"\bAKIA[0-9A-Z]{16}\b",
        r"\bAIza[0-9A-Za-z_-]{30,}",
        r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}",
        r"(?i:\bbearer\s+)[A-Za-z0-9._~+/=-]{16,}",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)",
    ];
    // A line break that is written as an escape would otherwise be part of the word.
    let all = all.join("|").replace(r"\b", r"(?:\b|\\[nrt])");
    Regex::new(&all).ok()
});

/// Parts of names of variables that hold secrets.
const SECRET_NAME_PARTS: [&str; 6] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL"];

/// Removes secrets from texts: known ones, and those that match a common format.
///
/// ```
/// use repertoire_runtime::Redactor;
///
/// let redactor = Redactor::new(["correct horse battery".to_owned()]);
/// let text = redactor.redact("my key is sk-abcdefghijklmnop1234, or: correct horse battery");
/// assert_eq!(text, "my key is [redacted], or: [redacted]");
/// ```
#[derive(Clone, Default)]
pub struct Redactor {
    known: Arc<[String]>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redactor")
            .field("known", &self.known.len())
            .finish()
    }
}

impl Redactor {
    /// A redactor for these secrets.
    pub fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let mut known: Vec<String> = secrets
            .into_iter()
            .map(|secret| secret.trim().to_owned())
            .filter(|secret| secret.len() >= MIN_SECRET_LEN)
            .collect();
        // Replace longer secrets first, because they may contain shorter ones.
        // JSON within other text has them with escapes.
        let escaped: Vec<String> = known
            .iter()
            .filter_map(|secret| {
                let quoted = Value::from(secret.as_str()).to_string();
                let inner = quoted.trim_matches('"').to_owned();
                (inner != *secret).then_some(inner)
            })
            .collect();
        known.extend(escaped);
        known.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        known.dedup();
        Self {
            known: known.into(),
        }
    }

    /// A redactor that also knows the secrets in environment variables.
    pub fn with_environment(secrets: impl IntoIterator<Item = String>) -> Self {
        let from_environment = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.to_str()?.to_ascii_uppercase();
            let value = value.to_str()?.to_owned();
            SECRET_NAME_PARTS
                .iter()
                .any(|word| name.contains(word))
                .then_some(value)
        });
        Self::new(secrets.into_iter().chain(from_environment))
    }

    /// Returns the text without secrets. In JSON, the strings are looked at as they are read, because
    /// escapes change how a secret is written.
    pub fn redact(&self, text: &str) -> String {
        if text.trim_start().starts_with(['{', '[', '"'])
            && let Ok(mut value) = repertoire_core::json::from_str::<Value>(text)
        {
            return if self.redact_value(&mut value) {
                value.to_string()
            } else {
                text.to_owned()
            };
        }
        self.redact_plain(text)
    }

    /// Removes secrets from every string and number of a value; returns whether there were any.
    fn redact_value(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => {
                let clean = self.redact(text);
                let is_changed = clean != *text;
                *text = clean;
                is_changed
            }
            Value::Array(items) => {
                let changed = items.iter_mut().filter_map(|item| {
                    let is_changed = self.redact_value(item);
                    is_changed.then_some(())
                });
                changed.count() > 0
            }
            Value::Object(fields) => {
                let mut is_changed = false;
                let clean = std::mem::take(fields).into_iter().map(|(key, mut item)| {
                    let name = self.redact_plain(&key);
                    is_changed |= self.redact_value(&mut item) || name != key;
                    (name, item)
                });
                *fields = clean.collect();
                is_changed
            }
            // A secret of digits is a number where it is not quoted.
            Value::Number(number) => {
                let text = number.to_string();
                let is_secret = self.redact_plain(&text) != text;
                if is_secret {
                    *value = REDACTED.into();
                }
                is_secret
            }
            Value::Null | Value::Bool(_) => false,
        }
    }

    fn redact_plain(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in self.known.iter() {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), REDACTED);
            }
        }
        match &*PATTERNS {
            Some(pattern) => pattern.replace_all(&text, REDACTED).into_owned(),
            None => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_patterns_compile() {
        assert!(PATTERNS.is_some());
    }

    #[test]
    fn longer_secrets_are_redacted_before_their_substrings() {
        let redactor = Redactor::new(["abcdefgh".to_owned(), "abcdefghij".to_owned()]);
        assert_eq!(
            redactor.redact("x abcdefghij y abcdefgh"),
            "x [redacted] y [redacted]"
        );
        // Too short to be distinguished from a word.
        assert_eq!(
            Redactor::new(["key".to_owned()]).redact("the key"),
            "the key"
        );
    }

    #[test]
    fn known_secret_formats_are_redacted() {
        let redactor = Redactor::default();
        let long = format!("sk-made-up-{}", "a1b2".repeat(6));
        for secret in [
            &*long,
            "ghp_abcdefghijklmnopqrstuvwxyz0123",
            "AKIAABCDEFGHIJKLMNOP",
            "Bearer abcdefghijklmnopqrstuvwxyz",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmN",
            "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----\ncut off",
        ] {
            let text = redactor.redact(&format!("a {secret} b"));
            assert!(text.starts_with("a [redacted]"), "{text}");
        }
        // However it is written down.
        for secret in [&*long, "hf_abcdefghijklmnopqrstuvwxyz"] {
            let prompt =
                serde_json::json!({"turns": [{"text": format!("x\n{secret}")}], secret: 1});
            for text in [
                prompt.to_string(),
                serde_json::json!({"inner": prompt.to_string()}).to_string(),
                format!("The arguments were {prompt}."),
            ] {
                let clean = redactor.redact(&text);
                assert!(!clean.contains(secret), "{clean}");
                assert!(clean.contains(REDACTED), "{clean}");
            }
        }
        let redactor = Redactor::new(["correct\"horse\\battery".to_owned()]);
        let value = serde_json::json!({"said": "it is correct\"horse\\battery."});
        let clean = redactor.redact(&value.to_string());
        assert_eq!(clean, r#"{"said":"it is [redacted]."}"#);
        let clean = redactor.redact(&format!("The value is {value}"));
        assert!(!clean.contains("battery"), "{clean}");
        let redactor = Redactor::new(["9081726354".to_owned()]);
        assert_eq!(
            redactor.redact(r#"{"pin": 9081726354, "other": 12}"#),
            r#"{"pin":"[redacted]","other":12}"#
        );
        // What has no secret stays as it was written.
        let text = "{ \"a\" : 1.50 }";
        assert_eq!(redactor.redact(text), text);
        let harmless = "task-force risk-averse skeleton sk-8 bearer of news";
        assert_eq!(redactor.redact(harmless), harmless);
    }
}
