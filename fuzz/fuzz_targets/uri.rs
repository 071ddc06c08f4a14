//! Any accepted URI has exactly one spelling.
#![no_main]

use libfuzzer_sys::fuzz_target;
use repertoire_core::{RelPath, SkillId, Uri};

fuzz_target!(|text: &str| {
    let _ = text.parse::<SkillId>();
    if let Ok(path) = text.parse::<RelPath>() {
        assert!(!path.segments().any(|s| s == ".." || s.is_empty()));
    }
    for uri in [text.to_owned(), format!("skill://{text}"), format!("iii://{text}")] {
        if let Ok(parsed) = uri.parse::<Uri>() {
            let shown = parsed.to_string();
            assert_eq!(shown.parse::<Uri>().unwrap(), parsed);
        }
    }
});
