//! Title and summary of a markdown text, read as markdown.
//!
//! The title is the first level-one heading, the summary the first paragraph; neither is ever
//! found inside code, a quote's fence or an HTML comment, because a real parser decides.

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use crate::frontmatter;

/// The most characters a summary has.
pub const SUMMARY_CHARS: usize = 140;

/// Title and summary of a markdown text, as listings show them.
///
/// ```
/// use repertoire_core::markdown::MarkdownSummary;
///
/// let head = MarkdownSummary::from_markdown("# Refunds\n\nHow a *refund* is made.\n");
/// assert_eq!(head.title.as_deref(), Some("Refunds"));
/// assert_eq!(head.summary.as_deref(), Some("How a refund is made."));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MarkdownSummary {
    /// Text of the first level-one heading.
    pub title: Option<String>,
    /// Text of the first paragraph, at most [`SUMMARY_CHARS`] characters.
    pub summary: Option<String>,
}

impl MarkdownSummary {
    /// Extracts title and summary from a markdown text, skipping frontmatter.
    pub fn from_markdown(text: &str) -> Self {
        // Most texts have both in their first lines; only the others are parsed whole.
        const PROBE: usize = 1024;
        let body = frontmatter::strip_frontmatter(text);
        if body.len() > PROBE {
            let end = body[..body.floor_char_boundary(PROBE)].rfind("\n\n");
            let head = Self::scan_body(&body[..end.unwrap_or(0)]);
            if head.title.is_some() && head.summary.is_some() {
                return head;
            }
        }
        Self::scan_body(body)
    }

    fn scan_body(body: &str) -> Self {
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
                        let line = to_single_line(&buffer);
                        let place = match end {
                            TagEnd::Paragraph => &mut head.summary,
                            _ => &mut head.title,
                        };
                        if !line.is_empty() {
                            *place = Some(truncate_text(&line, SUMMARY_CHARS));
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
pub fn to_single_line(text: &str) -> String {
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

/// Truncates to at most `max` characters; a truncated text ends in `…`.
pub fn truncate_text(text: &str, max: usize) -> String {
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

    fn title_and_summary(text: &str) -> (Option<String>, Option<String>) {
        let head = MarkdownSummary::from_markdown(text);
        (head.title, head.summary)
    }

    #[test]
    fn code_and_comments_are_never_a_title() {
        let text =
            "```\n# not this\n```\n\n    # nor this\n\n<!-- # hidden -->\n\n# This\n\nAnd this.\n";
        assert_eq!(
            title_and_summary(text),
            (Some("This".into()), Some("And this.".into()))
        );
    }

    #[test]
    fn frontmatter_is_skipped() {
        let text = "---\nname: a\n# comment: x\n---\nFirst.\n\n# Later\n";
        assert_eq!(
            title_and_summary(text),
            (Some("Later".into()), Some("First.".into()))
        );
    }

    #[test]
    fn setext_headings_links_and_breaks_become_plain_text() {
        let text = "Big *Title*\n===\n\nSee [`x`](y)\nand more.\n";
        assert_eq!(
            title_and_summary(text),
            (Some("Big Title".into()), Some("See x and more.".into()))
        );
        assert_eq!(title_and_summary("## Only two\n"), (None, None));
    }

    #[test]
    fn a_late_title_is_found_in_a_long_text() {
        let text = format!("para\n\n{}# Late\n", "- item\n\n".repeat(3000));
        assert_eq!(title_and_summary(&text).0.as_deref(), Some("Late"));
    }

    proptest! {
        #[test]
        fn summaries_are_bounded_and_single_line(text in any::<String>()) {
            let head = MarkdownSummary::from_markdown(&text);
            for part in [head.title, head.summary].into_iter().flatten() {
                prop_assert!(part.chars().count() <= SUMMARY_CHARS);
                prop_assert!(!part.contains(['\n', '\r']));
            }
        }

        #[test]
        fn truncation_keeps_whole_characters(text in "[aé漢🦀 ]{0,300}", max in 1usize..200) {
            let short = truncate_text(&text, max);
            prop_assert!(short.chars().count() <= max);
            prop_assert!(text.starts_with(short.trim_end_matches('…')));
        }
    }
}
