//! The table of lint rules and the functions that check them.

use pulldown_cmark::{Event, Options, Parser, Tag};

use super::{LintFinding, LintRule, LintSeverity, LintSubject, shell};
use crate::{
    frontmatter::{self, Frontmatter, UnsupportedYaml},
    listing::SkillDocument,
    markdown::{MarkdownSummary, truncate_text},
    text::{HiddenCharacter, find_hidden},
};

macro_rules! table {
    ($($name:ident: $id:literal, $severity:ident, $about:literal, $remedy:literal;)*) => {
        $(pub(super) static $name: LintRule = LintRule {
            id: $id, severity: LintSeverity::$severity, about: $about, remedy: $remedy,
        };)*
        pub(super) static ALL: &[&LintRule] = &[$(&$name),*];
    };
}

table! {
    NOT_A_DOCUMENT: "not-a-document", Error,
        "a SKILL.md that no host can read",
        "`repertoire validate` lists everything that is wrong with it";
    NOT_LISTED: "not-listed", Warning,
        "a SKILL.md that hosts refuse in a listing, so that it is only read by name",
        "`repertoire lint --fix` repairs some of this; what it leaves needs a decision of the author";
    YAML_SUBSET: "yaml-subset", Warning,
        "YAML in the frontmatter that some hosts refuse: anchors and aliases",
        "write the value out";
    GARBLED_TEXT: "garbled-text", Warning,
        "characters that are left when text is decoded wrongly",
        "restore the text from where it came from";
    BROKEN_LINK: "broken-link", Warning,
        "a relative link to a file the skill does not have",
        "correct the path or add the file";
    DEEP_REFERENCE: "deep-reference", Info,
        "a supporting file that links on to another supporting file",
        "link every file from SKILL.md, so that a reader needs one step";
    LONG_BODY: "long-body", Warning,
        "a body of more than 500 lines or about 5000 tokens",
        "move details into supporting files and link them";
    VAGUE_DESCRIPTION: "vague-description", Warning,
        "a description that does not say what the skill does and when to use it",
        "say both, for example: `Fills PDF forms. Use when the user wants a form completed.`";
    TAG_CHARACTERS: "tag-characters", Error,
        "Unicode tag characters, an alphabet people cannot see",
        "delete them; they have no legitimate use in a skill";
    HIDDEN_UNICODE: "hidden-unicode", Warning,
        "zero-width characters",
        "delete them";
    BIDI_UNICODE: "bidi-unicode", Error,
        "characters that change the order in which text is shown",
        "delete them; write right-to-left text without overrides";
    CONTROL_CHARACTERS: "control-characters", Error,
        "control characters and terminal escapes",
        "delete them";
    STRAY_BOM: "stray-bom", Warning,
        "a byte order mark",
        "save the file as UTF-8 without one";
    HIDDEN_COMMENT: "hidden-comment", Warning,
        "an HTML comment: a model reads it, a person sees nothing",
        "write it as visible text or delete it";
    METADATA_INSTRUCTIONS: "metadata-instructions", Error,
        "instructions to the model in a name, description, title or tag",
        "describe the skill; put instructions into the body";
    OVERRIDE_INSTRUCTIONS: "override-instructions", Warning,
        "text that tells a model to drop its instructions or to hide something",
        "delete it, unless the skill is about such text";
    PIPED_DOWNLOAD: "piped-download", Error,
        "a download that is run without inspection",
        "download to a file, check its digest, then run it";
    PERSISTENCE: "persistence", Warning,
        "a command that installs something permanently on the machine",
        "ask the user to do it, and say why";
    FORGED_SEPARATOR: "forged-separator", Warning,
        "a line that looks like the separator between files in prompt text",
        "write the line differently";
    OLD_FUNCTION_LINK: "old-function-link", Warning,
        "a link of the form `iii://x/worker::fn`, which no longer calls a function",
        "write `iii://fn/worker/fn`; `repertoire lint --fix` does it";
    MISSING_FALLBACK: "missing-fallback", Warning,
        "a dspy_module without a fallback_artifact",
        "name a prompt_template in `metadata.fallback_artifact`";
}

fn push_finding(
    out: &mut Vec<LintFinding>,
    rule: &'static LintRule,
    path: &str,
    line: usize,
    reason: String,
) {
    out.push(LintFinding {
        rule,
        path: path.to_owned(),
        line,
        reason,
    });
}

pub(super) fn report_unlisted(
    path: &str,
    problem: &crate::listing::ListingProblem,
    out: &mut Vec<LintFinding>,
) {
    push_finding(out, &NOT_LISTED, path, 1, problem.to_string());
}

pub(super) fn report_invalid_document(
    path: &str,
    line: usize,
    reason: String,
    out: &mut Vec<LintFinding>,
) {
    push_finding(out, &NOT_A_DOCUMENT, path, line, reason);
}

pub(super) fn check_hidden_characters(path: &str, text: &str, out: &mut Vec<LintFinding>) {
    let mut last = None;
    for (line, c, class) in find_hidden(text) {
        // One finding per line and class, so a hidden sentence is reported once.
        if last.replace((line, class)) == Some((line, class)) {
            continue;
        }
        let rule = match class {
            HiddenCharacter::Tag => &TAG_CHARACTERS,
            HiddenCharacter::ZeroWidth => &HIDDEN_UNICODE,
            HiddenCharacter::Bidi => &BIDI_UNICODE,
            // These begin a sequence that a terminal obeys; the others are remains of wrong decoding.
            HiddenCharacter::Control if matches!(c, '\u{80}'..='\u{9f}') => match c {
                '\u{90}' | '\u{9b}' | '\u{9d}' => &CONTROL_CHARACTERS,
                _ => &GARBLED_TEXT,
            },
            HiddenCharacter::Control => &CONTROL_CHARACTERS,
            HiddenCharacter::Bom => &STRAY_BOM,
        };
        push_finding(out, rule, path, line, format!("U+{:04X}", u32::from(c)));
    }
}

/// Checks the rules that apply to single lines of any text file.
pub(super) fn check_lines(path: &str, text: &str, out: &mut Vec<LintFinding>) {
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if is_file_separator(line) {
            let reason = format!("`{}`", truncate_text(line, 60));
            push_finding(out, &FORGED_SEPARATOR, path, number, reason);
        }
        for old in find_old_links(line) {
            let reason = format!(
                "`{}` is now `{}`",
                truncate_text(old.text, 80),
                truncate_text(&old.new, 80)
            );
            push_finding(out, &OLD_FUNCTION_LINK, path, number, reason);
        }
        // Offsets stay the same.
        let lower = line.to_ascii_lowercase();
        for (rule, found) in [
            (&PIPED_DOWNLOAD, shell::find_piped_download(line)),
            (&PERSISTENCE, find_phrase(&lower, &PERSISTENCE_PATTERNS)),
            (
                &OVERRIDE_INSTRUCTIONS,
                find_phrase(&lower, &OVERRIDE_PHRASES),
            ),
        ] {
            if let Some(part) = found {
                push_finding(out, rule, path, number, excerpt(line, &part));
            }
        }
    }
}

/// A function link in the scheme used before `iii://fn/`.
struct OldFunctionLink<'a> {
    at: usize,
    text: &'a str,
    new: String,
}

/// Finds the links `iii://<anything>/<worker>::<function>` in a text.
fn find_old_links(text: &str) -> Vec<OldFunctionLink<'_>> {
    let mut links = Vec::new();
    for (at, scheme) in text.match_indices("iii://") {
        let rest = &text[at + scheme.len()..];
        let part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let Some((first, function)) = rest.split_once('/') else {
            continue;
        };
        let end = function
            .find(|c| !part(c) && c != ':')
            .unwrap_or(function.len());
        let function = function[..end].trim_end_matches(':');
        let is_old = !first.is_empty()
            && first.chars().all(part)
            && function.contains("::")
            && function.parse::<crate::FunctionId>().is_ok();
        if is_old {
            links.push(OldFunctionLink {
                at,
                text: &text[at..at + scheme.len() + first.len() + 1 + function.len()],
                new: format!("iii://fn/{}", function.replace("::", "/")),
            });
        }
    }
    links
}

/// Rewrites every link of the old scheme; returns `None` if there is none.
pub(super) fn fix_old_links(text: &str) -> Option<String> {
    let links = find_old_links(text);
    if links.is_empty() {
        return None;
    }
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for link in links {
        out.push_str(&text[done..link.at]);
        out.push_str(&link.new);
        done = link.at + link.text.len();
    }
    out.push_str(&text[done..]);
    Some(out)
}

const PERSISTENCE_PATTERNS: [&str; 9] = [
    "crontab -",
    ">> ~/.bashrc",
    ">> ~/.zshrc",
    ">> ~/.profile",
    "authorized_keys",
    "/etc/cron",
    "launchagents",
    "systemctl enable",
    "/etc/ld.so.preload",
];

const OVERRIDE_PHRASES: [&str; 9] = [
    "ignore previous instructions",
    "ignore all previous",
    "ignore the above",
    "disregard previous",
    "disregard all",
    "forget your instructions",
    "do not tell the user",
    "don't tell the user",
    "without telling the user",
];

const METADATA_PHRASES: [&str; 9] = [
    "you must",
    "system prompt",
    "always use this",
    "always call",
    "always load",
    "before any other",
    "instead of any other",
    "<system",
    "[system",
];

fn is_file_separator(line: &str) -> bool {
    line.strip_prefix("--- ")
        .and_then(|rest| rest.strip_suffix(" ---"))
        .is_some_and(|path| !path.is_empty())
        || line.starts_with("# iii://")
        || line.starts_with("# skill://")
}

/// Quotes a line as it is, around a part of it.
fn excerpt(line: &str, part: &std::ops::Range<usize>) -> String {
    const BEFORE: usize = 12;
    let start = line.floor_char_boundary(part.start.saturating_sub(BEFORE));
    let text = line[start..].trim();
    let dots = if line[..start].trim().is_empty() {
        ""
    } else {
        "…"
    };
    format!("`{dots}{}`", truncate_text(text, 80))
}

/// Finds the first of some phrases, in any case.
fn find_phrase(lower: &str, phrases: &[&str]) -> Option<std::ops::Range<usize>> {
    phrases.iter().find_map(|phrase| {
        let at = lower.find(phrase)?;
        Some(at..at + phrase.len())
    })
}

/// Checks that the relative links of a markdown file exist and are one step from `SKILL.md`.
pub(super) fn check_links(
    subject: &LintSubject<'_>,
    path: &str,
    text: &str,
    out: &mut Vec<LintFinding>,
) {
    let body = frontmatter::strip_frontmatter(text);
    let offset = text.len() - body.len();
    let line_of = |at: usize| text[..offset + at].matches('\n').count() + 1;
    for (event, range) in Parser::new_ext(body, Options::empty()).into_offset_iter() {
        let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event else {
            continue;
        };
        let target = dest_url.split(['#', '?']).next().unwrap_or_default();
        let has_scheme = target
            .split('/')
            .next()
            .is_some_and(|first| first.contains(':'));
        if target.is_empty() || has_scheme || target.starts_with('/') {
            continue;
        }
        let line = line_of(range.start);
        match resolve_link(path, target) {
            Some(resolved) if subject.has_file(&resolved) => {
                if path != crate::path::DOCUMENT && resolved != crate::path::DOCUMENT {
                    let reason = format!("leads on to {resolved}");
                    push_finding(out, &DEEP_REFERENCE, path, line, reason);
                }
            }
            Some(_) => push_finding(
                out,
                &BROKEN_LINK,
                path,
                line,
                format!("`{target}` does not exist"),
            ),
            None => {
                let reason = format!("`{target}` leads out of the skill");
                push_finding(out, &BROKEN_LINK, path, line, reason);
            }
        }
    }
}

/// Resolves a relative link to a path; returns `None` if it leaves the skill.
fn resolve_link(from: &str, target: &str) -> Option<String> {
    let decoded = target.replace("%20", " ");
    let mut segments: Vec<&str> = from.split('/').collect();
    segments.pop();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop()?;
            }
            _ => segments.push(segment),
        }
    }
    Some(segments.join("/"))
}

/// Checks the rules for the document as a whole.
pub(super) fn check_document(path: &str, text: &str, out: &mut Vec<LintFinding>) {
    let body = frontmatter::strip_frontmatter(text);
    let first = text[..text.len() - body.len()].matches('\n').count() + 1;
    let lines = body.lines().count();
    // Four characters a token is the usual rule of thumb for English.
    let tokens = body.chars().count() / 4;
    if lines > 500 || tokens > 5000 {
        let reason = format!("{lines} lines, about {tokens} tokens");
        push_finding(out, &LONG_BODY, path, first, reason);
    }
    for (event, range) in Parser::new_ext(body, Options::empty()).into_offset_iter() {
        if let Event::Html(html) | Event::InlineHtml(html) = event
            && html.contains("<!--")
        {
            let line = first + body[..range.start].matches('\n').count();
            let reason = format!("`{}`", truncate_text(html.trim(), 60));
            push_finding(out, &HIDDEN_COMMENT, path, line, reason);
        }
    }
}

/// Checks whether hosts list a skill with this document.
pub(super) fn check_listing(path: &str, text: &str, out: &mut Vec<LintFinding>) {
    match SkillDocument::read(text) {
        Err(error) => push_finding(out, &NOT_A_DOCUMENT, path, 1, error.to_string()),
        Ok(document) => {
            if let Some(problem) = document.problem {
                report_unlisted(path, &problem, out);
            }
            let front = document.frontmatter.iter();
            let odd = front.flat_map(Frontmatter::unsupported_yaml);
            for (line, _) in odd.filter(|(_, kind)| *kind == UnsupportedYaml::Anchor) {
                push_finding(
                    out,
                    &YAML_SUBSET,
                    path,
                    *line,
                    "an anchor or alias".to_owned(),
                );
            }
        }
    }
}

/// Checks the rules for frontmatter and title.
pub(super) fn check_metadata(
    path: &str,
    front: &Frontmatter,
    text: &str,
    out: &mut Vec<LintFinding>,
) {
    for field in front.fields() {
        check_instructions(path, field.line, &field.value.to_string(), out);
    }
    if let Some(title) = MarkdownSummary::from_markdown(text).title {
        let line = text
            .lines()
            .position(|l| l.contains(&title))
            .map_or(1, |i| i + 1);
        check_instructions(path, line, &title, out);
    }
    let Some(field) = front.get("description") else {
        return;
    };
    let description = field.text.as_deref().unwrap_or_default().to_lowercase();
    let words = description.split_whitespace().count();
    let says_when = [
        "when", "use for", "use to", "for ", "if ", "after ", "before ",
    ]
    .iter()
    .any(|w| description.contains(w));
    if words < 4 || !says_when {
        let reason = if words < 4 {
            format!("only {words} word{}", if words == 1 { "" } else { "s" })
        } else {
            "does not say when to use the skill".to_owned()
        };
        push_finding(out, &VAGUE_DESCRIPTION, path, field.line, reason);
    }
}

fn check_instructions(path: &str, line: usize, text: &str, out: &mut Vec<LintFinding>) {
    let lower = text.to_lowercase();
    let phrase = METADATA_PHRASES
        .iter()
        .chain(&OVERRIDE_PHRASES)
        .find(|p| lower.contains(**p));
    if let Some(phrase) = phrase {
        push_finding(
            out,
            &METADATA_INSTRUCTIONS,
            path,
            line,
            format!("\"{phrase}\""),
        );
    }
}

/// Checks the rules for the package file: its tags, patterns and fallbacks.
pub(super) fn check_package(path: &str, text: &str, out: &mut Vec<LintFinding>) {
    let Ok(value) = crate::json::from_str::<serde_json::Value>(text) else {
        return;
    };
    let line_of = |needle: &str| {
        text.lines()
            .position(|l| l.contains(needle))
            .map_or(1, |i| i + 1)
    };
    for key in [
        "name",
        "description",
        "tags",
        "intent_patterns",
        "trigger_phrases",
    ] {
        if let Some(field) = value.get(key) {
            check_instructions(
                path,
                line_of(&format!("\"{key}\"")),
                &field.to_string(),
                out,
            );
        }
    }
    let artifacts = value.get("artifacts").and_then(|a| a.as_array());
    for artifact in artifacts.into_iter().flatten() {
        let is_module = artifact.get("kind").is_some_and(|k| k == "dspy_module");
        if is_module && artifact.pointer("/metadata/fallback_artifact").is_none() {
            let name = artifact
                .get("name")
                .and_then(|n| n.as_str())
                .unwrap_or_default();
            let reason = format!("artifact {name:?}");
            push_finding(out, &MISSING_FALLBACK, path, line_of(name), reason);
        }
    }
}
