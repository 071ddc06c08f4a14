//! Any document is parsed within the budget or refused, without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use repertoire_core::{
    Frontmatter,
    validate::{ValidationLevel, validate_skill},
};

fuzz_target!(|bytes: &[u8]| {
    let _ = validate_skill("name", Some(("SKILL.md", bytes)), ValidationLevel::Strict);
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(front) = Frontmatter::from_document(text)
    {
        assert_eq!(front.to_json().len(), front.fields().len());
    }
});
