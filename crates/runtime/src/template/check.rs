//! What a template may say.
//!
//! The engine folds constants while it reads a template, without a limit; repeats and joins values
//! within one instruction, without a limit; and its parser recurses over some chains, without a
//! limit. None of that is of use in a prompt, so it is refused here, before the engine looks.

use super::MAX_TEMPLATE;
use crate::error::{Error, Result};

/// The most characters between the braces of one tag.
const MAX_TAG: usize = 2048;
/// The most operators of one sort within one tag.
const MAX_OPERATORS: usize = 32;
/// The statements there are.
const STATEMENTS: [&str; 10] = [
    "for", "endfor", "if", "elif", "else", "endif", "set", "with", "endwith", "raw",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Text,
    Sign(char),
}

/// Refuses a template that could hurt.
pub(super) fn check(template: &str) -> Result<()> {
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
            Some(b'{') => (between(after, "}}"), false),
            Some(b'%') => (between(after, "%}"), true),
            Some(b'#') => {
                // A comment says nothing.
                rest = after.find("#}").map_or("", |end| &after[end + 2..]);
                continue;
            }
            _ => {
                rest = &after[1..];
                continue;
            }
        };
        // The engine says best what is wrong with a tag that does not end.
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

/// What stands between the braces; texts in it may hold braces.
fn between<'a>(from: &'a str, close: &str) -> Option<&'a str> {
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

fn tokens(tag: &str) -> Vec<Token<'_>> {
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
            all.push(Token::Text);
            rest = end.map_or("", |(at, _)| &rest[at + 2..]);
        } else if c.is_alphanumeric() || c == '_' {
            let end = rest.find(|d: char| !d.is_alphanumeric() && d != '_');
            let end = end.unwrap_or(rest.len());
            all.push(Token::Word(&rest[..end]));
            rest = &rest[end..];
        } else {
            all.push(Token::Sign(c));
            rest = &rest[c.len_utf8()..];
        }
    }
    all
}

fn check_tag(tag: &str, statement: bool) -> Result<(), String> {
    if tag.len() > MAX_TAG {
        return Err(format!("a tag has at most {MAX_TAG} characters"));
    }
    let tokens = tokens(tag.trim_matches(['-', '+']));
    let count = |wanted: &[Token<'_>]| tokens.iter().filter(|t| wanted.contains(t)).count();
    if count(&[Token::Sign('*')]) > 0 {
        return Err("`*` is not available in templates".to_owned());
    }
    for (what, wanted) in [
        ("`~` and `+`", &[Token::Sign('~'), Token::Sign('+')][..]),
        ("`-`", &[Token::Sign('-')]),
        ("`not`", &[Token::Word("not")]),
        ("`if`", &[Token::Word("if")]),
        (
            "brackets",
            &[Token::Sign('['), Token::Sign('('), Token::Sign('{')],
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

fn check_statement(tokens: &[Token<'_>]) -> Result<(), String> {
    let Some(Token::Word(name)) = tokens.first() else {
        return Ok(());
    };
    if !STATEMENTS.contains(name) {
        let all = "for, if, set, with and raw";
        return Err(format!(
            "`{name}` is not available in templates: there are {all}"
        ));
    }
    let deepest = literals(tokens);
    match *name {
        // A name that is set again from itself must not grow with it.
        "set" | "with" => {
            if *name == "set" && !tokens.contains(&Token::Sign('=')) {
                return Err("`set` with a block is not available in templates".to_owned());
            }
            let grows = [Token::Sign('~'), Token::Sign('+')];
            if tokens.iter().any(|token| grows.contains(token)) || deepest > 0 || lists(tokens) {
                return Err(format!(
                    "`{name}` takes a value, not one that is put together: no `~`, `+`, lists"
                ));
            }
        }
        "for" => {
            if tokens.contains(&Token::Word("recursive")) {
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

/// How deep lists, tuples and maps are written within each other.
fn literals(tokens: &[Token<'_>]) -> usize {
    let mut open = Vec::new();
    let mut deepest = 0;
    let mut before: Option<Token<'_>> = None;
    for token in tokens {
        match token {
            Token::Sign('[' | '(' | '{') => {
                // Behind a value it is an index or a call.
                let after_value = match before {
                    Some(Token::Word(word)) => !matches!(
                        word,
                        "in" | "if" | "else" | "not" | "and" | "or" | "is" | "set" | "with"
                    ),
                    Some(Token::Sign(']' | ')') | Token::Text) => true,
                    _ => false,
                };
                let literal = !after_value || *token == Token::Sign('{');
                open.push(literal);
                deepest = deepest.max(open.iter().filter(|literal| **literal).count());
            }
            Token::Sign(']' | ')' | '}') => {
                open.pop();
            }
            _ => {}
        }
        before = Some(*token);
    }
    deepest
}

/// Whether what is set is a tuple written without brackets.
fn lists(tokens: &[Token<'_>]) -> bool {
    let mut depth = 0usize;
    let mut value = false;
    for token in tokens {
        match token {
            Token::Sign('[' | '(' | '{') => depth += 1,
            Token::Sign(']' | ')' | '}') => depth = depth.saturating_sub(1),
            Token::Sign('=') if depth == 0 => value = true,
            Token::Sign(',') if depth == 0 && value => {
                // `with` sets several names, one after the other.
                if tokens.first() != Some(&Token::Word("with")) {
                    return true;
                }
                value = false;
            }
            _ => {}
        }
    }
    false
}
