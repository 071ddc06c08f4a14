//! Characters that are invisible to people but interpreted by machines.
//!
//! Finds them for the lint rules and makes text safe to print on a terminal. Nothing here changes
//! the bytes a skill is served with.

use std::borrow::Cow;

/// Why a character is suspicious.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum HiddenCharacter {
    /// Unicode tag characters and supplementary variation selectors: an invisible alphabet.
    Tag,
    /// Zero-width characters outside of emoji and scripts that need them.
    ZeroWidth,
    /// Characters that reorder what is shown.
    Bidi,
    /// Control characters, terminal escapes among them.
    Control,
    /// A byte order mark.
    Bom,
}

/// Classifies one character, given the one before it.
pub fn classify_hidden(previous: Option<char>, c: char) -> Option<HiddenCharacter> {
    match c {
        '\n' | '\r' | '\t' => None,
        '\u{e0000}'..='\u{e007f}' | '\u{e0100}'..='\u{e01ef}' => Some(HiddenCharacter::Tag),
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}' => {
            Some(HiddenCharacter::Bidi)
        }
        '\u{feff}' => Some(HiddenCharacter::Bom),
        // Joiners hold emoji sequences and several scripts together.
        '\u{200c}' | '\u{200d}' => match previous {
            Some(p) if !p.is_ascii() => None,
            _ => Some(HiddenCharacter::ZeroWidth),
        },
        '\u{200b}'
        | '\u{2060}'..='\u{2064}'
        | '\u{180e}'
        | '\u{ad}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{3164}'
        | '\u{ffa0}' => Some(HiddenCharacter::ZeroWidth),
        c if c.is_control() => Some(HiddenCharacter::Control),
        _ => None,
    }
}

/// Every suspicious character of a text with its line, from 1.
///
/// ```
/// use repertoire_core::text::{HiddenCharacter, find_hidden};
///
/// let found: Vec<_> = find_hidden("a\nb\u{202e}c").collect();
/// assert_eq!(found, [(2, '\u{202e}', HiddenCharacter::Bidi)]);
/// ```
pub fn find_hidden(text: &str) -> impl Iterator<Item = (usize, char, HiddenCharacter)> {
    let mut line = 1;
    let mut previous = None;
    text.chars().filter_map(move |c| {
        let class = classify_hidden(previous, c);
        previous = Some(c);
        let here = line;
        if c == '\n' {
            line += 1;
        }
        class.map(|class| (here, c, class))
    })
}

/// Makes a text safe to print: characters that move the cursor, hide or reorder are escaped.
///
/// ```
/// use repertoire_core::text::terminal_safe;
///
/// assert_eq!(terminal_safe("plain"), "plain");
/// assert_eq!(terminal_safe("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
/// ```
pub fn terminal_safe(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe_to_print) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe_to_print(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

fn is_unsafe_to_print(c: char) -> bool {
    c == '\r' || classify_hidden(Some('é'), c).is_some()
}

/// Converts a human name to a slug: lowercase ASCII letters and digits, single hyphens.
///
/// ```
/// assert_eq!(repertoire_core::text::make_slug("Consistency Checker!"), "consistency-checker");
/// ```
pub fn make_slug(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_alphanumeric() {
            out.push(c.to_ascii_lowercase());
        } else if !out.is_empty() && !out.ends_with('-') {
            out.push('-');
        }
        if out.len() == 64 {
            break;
        }
    }
    out.truncate(out.trim_end_matches('-').len());
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn t8_hidden_characters_are_found_and_ordinary_text_passes() {
        let classes = |t: &str| find_hidden(t).map(|f| f.2).collect::<Vec<_>>();
        assert_eq!(classes("a\u{e0041}"), [HiddenCharacter::Tag]);
        assert_eq!(classes("a\u{200b}b"), [HiddenCharacter::ZeroWidth]);
        assert_eq!(classes("x\u{feff}"), [HiddenCharacter::Bom]);
        assert_eq!(classes("\u{1b}[31m"), [HiddenCharacter::Control]);
        assert_eq!(classes("👩\u{200d}💻 می\u{200c}خواهم é\r\n\tok"), []);
    }

    proptest! {
        #[test]
        fn t8_printed_text_never_holds_an_escape(text in prop::collection::vec(any::<char>(), 0..40)) {
            // `any::<String>()` has no control characters.
            let text: String = text.into_iter().chain(['\u{1b}', '\u{9b}', '\r']).collect();
            let safe = terminal_safe(&text);
            let escapes = ['\u{1b}', '\u{7}', '\u{8}', '\r', '\u{9b}', '\u{202e}'];
            prop_assert!(!safe.contains(escapes));
        }

        #[test]
        fn slugs_are_valid_skill_names_or_empty(text in any::<String>()) {
            let slug = make_slug(&text);
            prop_assert!(slug.is_empty() || slug.parse::<crate::SkillName>().is_ok());
        }
    }
}
