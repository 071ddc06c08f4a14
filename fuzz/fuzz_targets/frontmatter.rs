//! Any document is answered: parsed within the budget, or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use repertoire_core::{
    Frontmatter,
    validate::{Level, validate},
};

fuzz_target!(|bytes: &[u8]| {
    let _ = validate("name", Some(("SKILL.md", bytes)), Level::Strict);
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(front) = Frontmatter::of(text)
    {
        assert_eq!(front.to_json().len(), front.fields().len());
    }
});
