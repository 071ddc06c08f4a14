//! Title and summary of a markdown text, read as markdown.
//!
//! The title is the first level-one heading, the summary the first paragraph; neither is ever
//! found inside code, a quote's fence or an HTML comment, because a real parser decides.

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use crate::frontmatter;

/// The most characters a summary has.
pub const SUMMARY_CHARS: usize = 140;

/// What a listing shows of a markdown text.
///
/// ```
/// use repertoire_core::markdown::Head;
///
/// let head = Head::of("# Refunds\n\nHow a *refund* is made.\n");
/// assert_eq!(head.title.as_deref(), Some("Refunds"));
/// assert_eq!(head.summary.as_deref(), Some("How a refund is made."));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Head {
    /// Text of the first level-one heading.
    pub title: Option<String>,
    /// Text of the first paragraph, at most [`SUMMARY_CHARS`] characters.
    pub summary: Option<String>,
}

impl Head {
    /// Reads the head of a markdown text, skipping frontmatter.
    pub fn of(text: &str) -> Self {
        // Nearly every text says what it is in its first lines; only the others are read whole.
        const PROBE: usize = 1024;
        let body = frontmatter::body(text);
        if body.len() > PROBE {
            let end = body[..body.floor_char_boundary(PROBE)].rfind("\n\n");
            let head = Self::scan(&body[..end.unwrap_or(0)]);
            if head.title.is_some() && head.summary.is_some() {
                return head;
            }
        }
        Self::scan(body)
    }

    fn scan(body: &str) -> Self {
        let mut head = Self::default();
        let mut open: Option<(TagEnd, String)> = None;
        for event in Parser::new_ext(body, Options::empty()) {
            match event {
                Event::Start(Tag::Heading {
                    level: HeadingLevel::H1,
                    ..
                }) if head.title.is_none() => {
                    open = Some((TagEnd::Heading(HeadingLevel::H1), String::new()));
                }
                Event::Start(Tag::Paragraph) if head.summary.is_none() => {
                    open = Some((TagEnd::Paragraph, String::new()));
                }
                Event::Text(text) | Event::Code(text) => {
                    if let Some((_, buffer)) = &mut open {
                        buffer.push_str(&text);
                    }
                }
                Event::SoftBreak | Event::HardBreak => {
                    if let Some((_, buffer)) = &mut open {
                        buffer.push(' ');
                    }
                }
                Event::End(end) => {
                    if let Some((_, buffer)) = open.take_if(|(tag, _)| *tag == end) {
                        let line = one_line(&buffer);
                        let place = match end {
                            TagEnd::Paragraph => &mut head.summary,
                            _ => &mut head.title,
                        };
                        if !line.is_empty() {
                            *place = Some(cut(&line, SUMMARY_CHARS));
                        }
                        if head.title.is_some() && head.summary.is_some() {
                            break;
                        }
                    }
                }
                _ => {}
            }
        }
        head
    }
}

/// Folds every run of white space and control characters into one space.
pub fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()) {
        if !word.is_empty() {
            if !out.is_empty() {
                out.push(' ');
            }
            out.push_str(word);
        }
    }
    out
}

/// Cuts to at most `max` characters; a cut text ends in `…`.
pub fn cut(text: &str, max: usize) -> String {
    if text.chars().nth(max).is_none() {
        return text.to_owned();
    }
    let kept: String = text.chars().take(max.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head(text: &str) -> (Option<String>, Option<String>) {
        let head = Head::of(text);
        (head.title, head.summary)
    }

    #[test]
    fn code_is_never_a_title() {
        let text =
            "```\n# not this\n```\n\n    # nor this\n\n<!-- # hidden -->\n\n# This\n\nAnd this.\n";
        assert_eq!(head(text), (Some("This".into()), Some("And this.".into())));
    }

    #[test]
    fn frontmatter_is_not_text() {
        let text = "---\nname: a\n# comment: x\n---\nFirst.\n\n# Later\n";
        assert_eq!(head(text), (Some("Later".into()), Some("First.".into())));
    }

    #[test]
    fn setext_and_links_and_breaks() {
        let text = "Big *Title*\n===\n\nSee [`x`](y)\nand more.\n";
        assert_eq!(
            head(text),
            (Some("Big Title".into()), Some("See x and more.".into()))
        );
        assert_eq!(head("## Only two\n"), (None, None));
    }

    #[test]
    fn a_late_title_is_found_in_a_long_text() {
        let text = format!("para\n\n{}# Late\n", "- item\n\n".repeat(3000));
        assert_eq!(head(&text).0.as_deref(), Some("Late"));
    }

    proptest! {
        #[test]
        fn summaries_are_bounded_and_single_line(text in any::<String>()) {
            let head = Head::of(&text);
            for part in [head.title, head.summary].into_iter().flatten() {
                prop_assert!(part.chars().count() <= SUMMARY_CHARS);
                prop_assert!(!part.contains(['\n', '\r']));
            }
        }

        #[test]
        fn cuts_fall_on_characters(text in "[aé漢🦀 ]{0,300}", max in 1usize..200) {
            let short = cut(&text, max);
            prop_assert!(short.chars().count() <= max);
            prop_assert!(text.starts_with(short.trim_end_matches('…')));
        }
    }
}
