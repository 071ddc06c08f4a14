//! Checks templates before the engine parses them.
//!
//! Without limits, the engine folds constants while it parses a template, repeats and joins values
//! within one instruction, and recurses over some chains in its parser. Prompts need none of that,
//! so it is refused here.

use super::MAX_TEMPLATE;
use crate::error::{Error, Result};

/// The maximum characters between the braces of one tag.
const MAX_TAG: usize = 2048;
/// The maximum number of operators of one kind within one tag.
const MAX_OPERATORS: usize = 32;
/// The allowed statements.
const STATEMENTS: [&str; 10] = [
    "for", "endfor", "if", "elif", "else", "endif", "set", "with", "endwith", "raw",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TagToken<'a> {
    Word(&'a str),
    Text,
    Sign(char),
}

/// Refuses a template that could use unbounded resources.
pub(super) fn check_template(template: &str) -> Result<()> {
    if template.len() > MAX_TEMPLATE {
        let size = template.len();
        return Err(Error::TemplateLimit(format!(
            "has {size} bytes: at most {MAX_TEMPLATE}"
        )));
    }
    let mut rest = template;
    while let Some(start) = rest.find('{') {
        let at = template.len() - rest.len() + start;
        let line = template[..at].matches('\n').count() + 1;
        let after = &rest[start..];
        let (tag, statement) = match after.as_bytes().get(1) {
            Some(b'{') => (tag_body(after, "}}"), false),
            Some(b'%') => (tag_body(after, "%}"), true),
            Some(b'#') => {
                // Skip comments.
                rest = after.find("#}").map_or("", |end| &after[end + 2..]);
                continue;
            }
            _ => {
                rest = &after[1..];
                continue;
            }
        };
        // For an unclosed tag, the engine reports the better error.
        let Some(tag) = tag else { return Ok(()) };
        let refuse = |reason: String| Error::Template {
            line: Some(line),
            reason,
        };
        check_tag(tag, statement).map_err(refuse)?;
        rest = &after[tag.len() + 4..];
        let word = tag.trim_matches(['-', '+']).trim();
        if statement && word == "raw" {
            rest = end_of_raw(rest);
        }
    }
    Ok(())
}

/// Returns the text between the braces; strings in it may contain braces.
fn tag_body<'a>(from: &'a str, close: &str) -> Option<&'a str> {
    let inner = &from[2..];
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in inner.char_indices() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, _) if inner[at..].starts_with(close) => return Some(&inner[..at]),
            _ => {}
        }
    }
    None
}

fn end_of_raw(rest: &str) -> &str {
    let mut from = 0;
    while let Some(at) = rest[from..].find("{%").map(|at| from + at) {
        let inner = rest[at + 2..].trim_start_matches(['-', '+']).trim_start();
        if inner.starts_with("endraw") {
            return rest[at..]
                .find("%}")
                .map_or("", |end| &rest[at + end + 2..]);
        }
        from = at + 2;
    }
    ""
}

fn split_tokens(tag: &str) -> Vec<TagToken<'_>> {
    let mut all = Vec::new();
    let mut rest = tag;
    while let Some(c) = rest.chars().next() {
        if c.is_whitespace() {
            rest = &rest[c.len_utf8()..];
        } else if c == '"' || c == '\'' {
            let mut escaped = false;
            let end = rest[1..].char_indices().find(|(_, d)| {
                let closes = *d == c && !escaped;
                escaped = *d == '\\' && !escaped;
                closes
            });
            all.push(TagToken::Text);
            rest = end.map_or("", |(at, _)| &rest[at + 2..]);
        } else if c.is_alphanumeric() || c == '_' {
            let end = rest.find(|d: char| !d.is_alphanumeric() && d != '_');
            let end = end.unwrap_or(rest.len());
            all.push(TagToken::Word(&rest[..end]));
            rest = &rest[end..];
        } else {
            all.push(TagToken::Sign(c));
            rest = &rest[c.len_utf8()..];
        }
    }
    all
}

fn check_tag(tag: &str, statement: bool) -> Result<(), String> {
    if tag.len() > MAX_TAG {
        return Err(format!("a tag has at most {MAX_TAG} characters"));
    }
    let tokens = split_tokens(tag.trim_matches(['-', '+']));
    let count = |wanted: &[TagToken<'_>]| tokens.iter().filter(|t| wanted.contains(t)).count();
    if count(&[TagToken::Sign('*')]) > 0 {
        return Err("`*` is not available in templates".to_owned());
    }
    for (what, wanted) in [
        (
            "`~` and `+`",
            &[TagToken::Sign('~'), TagToken::Sign('+')][..],
        ),
        ("`-`", &[TagToken::Sign('-')]),
        ("`not`", &[TagToken::Word("not")]),
        ("`if`", &[TagToken::Word("if")]),
        (
            "brackets",
            &[
                TagToken::Sign('['),
                TagToken::Sign('('),
                TagToken::Sign('{'),
            ],
        ),
    ] {
        if count(wanted) > MAX_OPERATORS {
            return Err(format!("more than {MAX_OPERATORS} times {what} in one tag"));
        }
    }
    if statement {
        return check_statement(&tokens);
    }
    Ok(())
}

fn check_statement(tokens: &[TagToken<'_>]) -> Result<(), String> {
    let Some(TagToken::Word(name)) = tokens.first() else {
        return Ok(());
    };
    if !STATEMENTS.contains(name) {
        let all = "for, if, set, with and raw";
        return Err(format!(
            "`{name}` is not available in templates: there are {all}"
        ));
    }
    let deepest = literal_depth(tokens);
    match *name {
        // A variable that is assigned from itself must not grow each time.
        "set" | "with" => {
            if *name == "set" && !tokens.contains(&TagToken::Sign('=')) {
                return Err("`set` with a block is not available in templates".to_owned());
            }
            let grows = [TagToken::Sign('~'), TagToken::Sign('+')];
            if tokens.iter().any(|token| grows.contains(token))
                || deepest > 0
                || has_bare_tuple(tokens)
            {
                return Err(format!(
                    "`{name}` takes a value, not one that is put together: no `~`, `+`, lists"
                ));
            }
        }
        "for" => {
            if tokens.contains(&TagToken::Word("recursive")) {
                return Err("`recursive` is not available in templates".to_owned());
            }
            if deepest > 1 {
                return Err("a list within a list cannot be looped over here".to_owned());
            }
        }
        _ => {}
    }
    Ok(())
}

/// The nesting depth of list, tuple and map literals.
fn literal_depth(tokens: &[TagToken<'_>]) -> usize {
    let mut open = Vec::new();
    let mut deepest = 0;
    let mut before: Option<TagToken<'_>> = None;
    for token in tokens {
        match token {
            TagToken::Sign('[' | '(' | '{') => {
                // After a value it is an index or a call.
                let after_value = match before {
                    Some(TagToken::Word(word)) => !matches!(
                        word,
                        "in" | "if" | "else" | "not" | "and" | "or" | "is" | "set" | "with"
                    ),
                    Some(TagToken::Sign(']' | ')') | TagToken::Text) => true,
                    _ => false,
                };
                let literal = !after_value || *token == TagToken::Sign('{');
                open.push(literal);
                deepest = deepest.max(open.iter().filter(|literal| **literal).count());
            }
            TagToken::Sign(']' | ')' | '}') => {
                open.pop();
            }
            _ => {}
        }
        before = Some(*token);
    }
    deepest
}

/// Whether the assigned value is a tuple without brackets.
fn has_bare_tuple(tokens: &[TagToken<'_>]) -> bool {
    let mut depth = 0usize;
    let mut value = false;
    for token in tokens {
        match token {
            TagToken::Sign('[' | '(' | '{') => depth += 1,
            TagToken::Sign(']' | ')' | '}') => depth = depth.saturating_sub(1),
            TagToken::Sign('=') if depth == 0 => value = true,
            TagToken::Sign(',') if depth == 0 && value => {
                // `with` assigns several names, separated by commas.
                if tokens.first() != Some(&TagToken::Word("with")) {
                    return true;
                }
                value = false;
            }
            _ => {}
        }
    }
    false
}
