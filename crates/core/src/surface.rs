//! Renders every byte that Repertoire emits.
//!
//! Surfaces that must agree call the same function. The formats of prompt text and fetch framing
//! are fixed by contract. They are written and never parsed back, so a body that imitates a
//! separator forges nothing (the `forged-separator` lint rule reports it to readers).

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::json;

use crate::{
    error::Result,
    frontmatter::{self, Frontmatter},
    id::{SkillId, SkillName},
    manifest::FileEntry,
    markdown::{MarkdownSummary, to_single_line, truncate_text},
    path::RelPath,
    uri::Uri,
};

/// Renders a skill as one prompt text: the document, then each text file after its label.
///
/// ```
/// use repertoire_core::{RelPath, surface::prompt_text};
///
/// let path: RelPath = "references/a.md".parse()?;
/// assert_eq!(prompt_text("body", [(&path, "more\n")]), "body\n\n--- references/a.md ---\nmore\n");
/// # Ok::<(), repertoire_core::Error>(())
/// ```
pub fn prompt_text<'a>(
    document: &str,
    references: impl IntoIterator<Item = (&'a RelPath, &'a str)>,
) -> String {
    let mut out = String::with_capacity(document.len() + 1);
    push_line(&mut out, document);
    for (path, body) in references {
        // Writing to a string cannot fail.
        let _ = write!(out, "\n--- {path} ---\n");
        push_line(&mut out, body);
    }
    out
}

fn push_line(out: &mut String, text: &str) {
    out.push_str(text);
    if !text.ends_with('\n') {
        out.push('\n');
    }
}

/// Renders several bodies as one markdown document, each under the URI it was read from.
///
/// ```
/// use repertoire_core::surface::fetch_text;
///
/// assert_eq!(fetch_text([("iii://a", "A"), ("iii://b", "B")]), "# iii://a\n\nA\n\n---\n\n# iii://b\n\nB");
/// ```
pub fn fetch_text<'a>(sections: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut out = String::new();
    for (uri, body) in sections {
        if !out.is_empty() {
            out.push_str("\n\n---\n\n");
        }
        let _ = write!(out, "# {uri}\n\n{body}");
    }
    out
}

/// The section of the index in which an entry is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexSection {
    /// Registered skills, at the top.
    Registered,
    /// Skills from files, under `## Custom skills`.
    Custom,
}

/// One entry of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry<'a> {
    /// The skill.
    pub id: &'a SkillId,
    /// Its title; the id is used if there is none.
    pub title: Option<&'a str>,
    /// Its one-line description.
    pub description: Option<&'a str>,
    /// Its section.
    pub section: IndexSection,
}

/// Renders the markdown index of all skills: one bullet each, indented by depth.
///
/// A level that is not a skill itself gets a bullet with its bare name, so that the entries below
/// it remain a list in every markdown parser.
///
/// Titles and descriptions are escaped, so that none of them can forge a link, a heading or
/// another entry. Entries keep the given order; every caller passes them sorted by id.
pub fn render_index<'a>(entries: impl IntoIterator<Item = IndexEntry<'a>>) -> String {
    let mut out = String::from("# Skills\n");
    let mut registered = IndexTree::default();
    let mut custom = IndexTree::default();
    for entry in entries {
        match entry.section {
            IndexSection::Registered => registered.add_entry(&entry),
            IndexSection::Custom => custom.add_entry(&entry),
        }
    }
    let (registered, custom) = (registered.text, custom.text);
    if registered.is_empty() && custom.is_empty() {
        out.push_str("\nNo skills are registered.\n");
    }
    if !registered.is_empty() {
        out.push('\n');
        out.push_str(&registered);
    }
    if !custom.is_empty() {
        out.push_str("\n## Custom skills\n\n");
        out.push_str(&custom);
    }
    out
}

/// Renders the index in at most so many bytes: first without descriptions, then by the first parts of
/// the ids, then cut. A shortened index says how to list the rest.
pub fn render_index_within(entries: &[IndexEntry<'_>], most: usize) -> String {
    let whole = render_index(entries.iter().copied());
    if whole.len() <= most {
        return whole;
    }
    let count = entries.len();
    let note = |what: &str| {
        format!(
            "# Skills\n\n{count} skills, {what}: the list is longer than {most} bytes. Page through all with \
             `skills::list` or `skills/list`.\n"
        )
    };
    let plain = entries.iter().map(|entry| IndexEntry {
        title: None,
        description: None,
        ..*entry
    });
    let plain = render_index(plain);
    let body = plain.strip_prefix("# Skills\n").unwrap_or(&plain);
    let named = note("without descriptions") + body;
    if named.len() <= most {
        return named;
    }
    let mut groups = BTreeMap::<&str, usize>::new();
    for entry in entries {
        let first = entry.id.segments().next().unwrap_or_default();
        *groups.entry(first).or_default() += 1;
    }
    let mut out = note("by the first part of their ids") + "\n";
    let room = most.saturating_sub(64);
    let all = groups.len();
    for (at, (name, count)) in groups.into_iter().enumerate() {
        let line = match count {
            1 => format!("- {name}\n"),
            _ => format!("- {name}/ ({count} skills)\n"),
        };
        if out.len() + line.len() > room {
            let _ = writeln!(out, "- … and {} more", all - at);
            break;
        }
        out.push_str(&line);
    }
    out
}

/// Builds one section of the index.
#[derive(Default)]
struct IndexTree {
    text: String,
    /// The segments of the last bullet.
    last: Vec<String>,
}

impl IndexTree {
    fn add_entry(&mut self, entry: &IndexEntry<'_>) {
        let segments: Vec<String> = entry.id.segments().map(str::to_owned).collect();
        let shared = segments
            .iter()
            .zip(&self.last)
            .take_while(|(new, old)| new == old)
            .count();
        for (depth, name) in segments
            .iter()
            .enumerate()
            .take(entry.id.depth())
            .skip(shared)
        {
            // Writing to a string cannot fail.
            let _ = writeln!(self.text, "{:indent$}- {name}/", "", indent = 2 * depth);
        }
        push_index_line(&mut self.text, entry);
        self.last = segments;
    }
}

fn push_index_line(out: &mut String, entry: &IndexEntry<'_>) {
    let id = entry.id;
    let indent = 2 * id.depth();
    let _ = write!(out, "{:indent$}- [`{id}`](iii://{id}) — ", "");
    let title = entry.title.map(to_single_line).filter(|t| !t.is_empty());
    escape_markdown(out, title.as_deref().unwrap_or(id.as_str()));
    let description = entry
        .description
        .map(to_single_line)
        .filter(|d| !d.is_empty());
    if let Some(description) = description {
        out.push_str(" — ");
        escape_markdown(
            out,
            &truncate_text(&description, crate::markdown::SUMMARY_CHARS),
        );
    }
    out.push('\n');
}

/// Escapes characters that could become markup, and the dash that separates the parts.
fn escape_markdown(out: &mut String, text: &str) {
    let mut rest = text.chars().peekable();
    let mut word = String::new();
    while let Some(c) = rest.next() {
        match c {
            '—' => out.push_str("&#8212;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '&' | '|' | '~' | '@' | '#' | '!'
            | '$' | '^' => {
                out.push('\\');
                out.push(c);
            }
            // Bare addresses turn into links in common dialects.
            ':' if rest.peek() == Some(&'/') => out.push_str("\\:"),
            '.' if word.eq_ignore_ascii_case("www") => out.push_str("\\."),
            _ => out.push(c),
        }
        if c.is_alphanumeric() {
            word.push(c);
        } else {
            word.clear();
        }
    }
}

/// Appends one skill as a JSON object, as `skills/list` and `skills/get` return it.
///
/// `frontmatter` is the document's frontmatter as JSON; `files` are all files of the skill, or
/// `None` where its content is generated when it is read.
///
/// ```
/// use repertoire_core::{FileEntry, RelPath, surface::skill_entry};
///
/// let mut out = String::new();
/// let file = FileEntry::from_bytes(RelPath::document(), b"");
/// skill_entry(&mut out, &"demo".parse()?, "{}", Some([&file]), None);
/// assert!(out.starts_with("{\"uri\":\"skill://demo/SKILL.md\",\"frontmatter\":{},"));
/// # Ok::<(), repertoire_core::Error>(())
/// ```
pub fn skill_entry<'a>(
    out: &mut String,
    id: &SkillId,
    frontmatter: &str,
    files: Option<impl IntoIterator<Item = &'a FileEntry>>,
    untrusted_origin: Option<&str>,
) {
    // URIs and digests hold nothing that JSON would have to escape.
    out.push_str("{\"uri\":\"");
    Uri::push_file(out, id, &RelPath::document());
    out.push_str("\",\"frontmatter\":");
    out.push_str(frontmatter);
    out.push_str(",\"resources\":");
    let Some(files) = files else {
        out.push_str("\"dynamic\"");
        push_untrusted_meta(out, untrusted_origin);
        out.push('}');
        return;
    };
    let mut open = '[';
    for file in files {
        out.push(open);
        open = ',';
        out.push_str("{\"uri\":\"");
        Uri::push_file(out, id, &file.path);
        out.push_str("\",\"digest\":\"sha256:");
        file.digest.push_hex(out);
        // Writing to a string cannot fail.
        let _ = write!(out, "\",\"size\":{}}}", file.size);
    }
    if open == '[' {
        out.push('[');
    }
    out.push(']');
    push_untrusted_meta(out, untrusted_origin);
    out.push('}');
}

/// The `_meta` key that says whether text comes from an untrusted origin.
pub const TRUST_META_KEY: &str = "repertoire/trust";
/// The `_meta` key with the origin of untrusted text.
pub const ORIGIN_META_KEY: &str = "repertoire/origin";

/// Appends the label of an untrusted origin. Trusted ones have none.
pub fn push_untrusted_meta(out: &mut String, untrusted_origin: Option<&str>) {
    if let Some(origin) = untrusted_origin {
        let label = json!({TRUST_META_KEY: "untrusted", ORIGIN_META_KEY: origin});
        // Writing to a string cannot fail.
        let _ = write!(out, ",\"_meta\":{label}");
    }
}

/// The discovery index of the draft surface, `skill://index.json`.
pub fn discovery_index<'a>(
    skills: impl IntoIterator<Item = (&'a SkillId, &'a str, &'a str)>,
) -> String {
    let skills: Vec<_> = skills
        .into_iter()
        .map(|(id, name, description)| {
            json!({
                "name": name,
                "type": "skill-md",
                "description": description,
                "url": Uri::for_document(id).to_string(),
            })
        })
        .collect();
    json!({
        "$schema": "https://schemas.agentskills.io/discovery/0.2.0/schema.json",
        "skills": skills,
    })
    .to_string()
}

/// The frontmatter block generated for a document that has none.
pub fn frontmatter_block(name: &SkillName, description: &str) -> String {
    // A JSON string is a valid double-quoted YAML scalar.
    format!(
        "---\nname: {name}\ndescription: {}\n---\n",
        json!(description)
    )
}

/// The `SKILL.md` of a body registered at run time.
///
/// A body that already is a document of that name is returned unchanged; any other body gets a
/// block with the name and a description taken from it. `None` if the id's last segment is not an
/// Agent Skills name: such a body is served under `iii://` only.
pub fn registered_document(id: &SkillId, body: &str) -> Option<String> {
    registered_document_with(id, body, || MarkdownSummary::from_markdown(body))
}

/// Like [`registered_document`], for callers that already have the summary of the body.
pub fn registered_document_with(
    id: &SkillId,
    body: &str,
    head: impl FnOnce() -> MarkdownSummary,
) -> Option<String> {
    let name = id.skill_name()?;
    if is_document_of(&name, body).unwrap_or(false) {
        return Some(body.to_owned());
    }
    let head = head();
    let description = head
        .summary
        .or(head.title)
        .unwrap_or_else(|| format!("The skill {id}."));
    Some(frontmatter_block(&name, &description) + body)
}

fn is_document_of(name: &SkillName, body: &str) -> Result<bool> {
    let front = Frontmatter::parse(frontmatter::split_document(body)?.yaml, 2)?;
    let described = front
        .get_text("description")
        .is_some_and(|d| !d.trim().is_empty());
    Ok(described && front.get_text("name") == Some(name.as_str()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

    use super::*;

    fn skill_id(text: &str) -> SkillId {
        text.parse().unwrap()
    }

    #[test]
    fn a_long_index_is_shortened_in_steps() {
        let ids: Vec<SkillId> = (0..500)
            .map(|n| skill_id(&format!("team-{}/skill-{n:03}", n % 50)))
            .collect();
        let mut ids: Vec<&SkillId> = ids.iter().collect();
        ids.sort();
        let description = "Does something that takes many words to say.";
        let entries = ids.iter().map(|id| IndexEntry {
            id,
            title: Some("A title"),
            description: Some(description),
            section: IndexSection::Registered,
        });
        let entries: Vec<IndexEntry<'_>> = entries.collect();
        let whole = render_index(entries.iter().copied());
        assert_eq!(render_index_within(&entries, whole.len()), whole);
        let named = render_index_within(&entries, whole.len() - 1);
        assert!(named.len() < whole.len() && !named.contains(description));
        assert!(
            named.starts_with("# Skills\n\n500 skills, without descriptions"),
            "{named}"
        );
        assert!(
            ids.iter()
                .all(|id| named.contains(&format!("(iii://{id})")))
        );
        let grouped = render_index_within(&entries, 2000);
        assert!(
            grouped.len() <= 2000 && grouped.contains("- team-7/ (10 skills)"),
            "{grouped}"
        );
        let cut = render_index_within(&entries, 500);
        assert!(cut.len() <= 500 && cut.ends_with("more\n"), "{cut}");
    }

    #[test]
    fn the_index_is_indented_by_id_depth() {
        let (a, b, c) = (
            skill_id("resend"),
            skill_id("resend/email"),
            skill_id("notes"),
        );
        let text = render_index([
            IndexEntry {
                id: &a,
                title: Some("Resend"),
                description: Some("Email."),
                section: IndexSection::Registered,
            },
            IndexEntry {
                id: &b,
                title: None,
                description: None,
                section: IndexSection::Registered,
            },
            IndexEntry {
                id: &c,
                title: Some("Notes"),
                description: None,
                section: IndexSection::Custom,
            },
        ]);
        assert_eq!(
            text,
            "# Skills\n\n- [`resend`](iii://resend) — Resend — Email.\n  \
             - [`resend/email`](iii://resend/email) — resend/email\n\n\
             ## Custom skills\n\n- [`notes`](iii://notes) — Notes\n"
        );
    }

    /// Parses the index: its headings, and the links and text of each item.
    fn parse_index(index: &str) -> (Vec<String>, Vec<(Vec<String>, String)>) {
        let mut headings = Vec::new();
        let mut items: Vec<(Vec<String>, String)> = Vec::new();
        let mut heading = None;
        let mut in_link = false;
        // All extensions except the one that rewrites quotes and dashes.
        let options = Options::all() - Options::ENABLE_SMART_PUNCTUATION;
        for event in Parser::new_ext(index, options) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => headings.extend(heading.take()),
                Event::Start(Tag::Item) => items.push(Default::default()),
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    in_link = true;
                    if let Some(item) = items.last_mut() {
                        item.0.push(dest_url.to_string());
                    }
                }
                Event::End(TagEnd::Link | TagEnd::Image) => in_link = false,
                Event::Text(text) => match (&mut heading, items.last_mut()) {
                    (Some(h), _) => h.push_str(&text),
                    (None, Some(item)) if !in_link => item.1.push_str(&text),
                    _ => {}
                },
                Event::Code(_) if in_link => {}
                Event::Start(Tag::Paragraph | Tag::List(_)) | Event::End(_) | Event::SoftBreak => {}
                other => panic!("markup forged: {other:?}"),
            }
        }
        (headings, items)
    }

    proptest! {
        #[test]
        fn t10_the_index_reads_back_as_the_same_entries(
            texts in prop::collection::vec(("[^\u{0}]{0,60}", "[^\u{0}]{0,60}"), 1..6),
        ) {
            let ids: Vec<_> = (0..texts.len()).map(|i| skill_id(&format!("s{i}"))).collect();
            let entries = ids.iter().zip(&texts).map(|(id, (t, d))| IndexEntry {
                id, title: Some(t), description: Some(d), section: IndexSection::Registered,
            });
            let (headings, items) = parse_index(&render_index(entries));
            prop_assert_eq!(headings, ["Skills"]);
            prop_assert_eq!(items.len(), texts.len());
            for ((links, text), (id, (title, description))) in items.iter().zip(ids.iter().zip(&texts)) {
                prop_assert_eq!(links, &[format!("iii://{id}")]);
                let title = to_single_line(title);
                let title = if title.is_empty() { id.to_string() } else { title };
                let description = to_single_line(description);
                let want = if description.is_empty() {
                    format!(" — {title}")
                } else {
                    format!(" — {title} — {description}")
                };
                prop_assert_eq!(text.trim_end(), want.trim_end());
            }
        }

        #[test]
        fn prompt_text_contains_every_byte(body in any::<String>(), reference in any::<String>()) {
            let path: RelPath = "references/x.md".parse().unwrap();
            let text = prompt_text(&body, [(&path, reference.as_str())]);
            prop_assert!(text.starts_with(&body));
            prop_assert!(text.trim_end_matches('\n').ends_with(reference.trim_end_matches('\n')));
            prop_assert!(text.ends_with('\n'));
        }

        #[test]
        fn registered_bodies_become_valid_documents(body in any::<String>()) {
            let id = skill_id("worker/guide");
            let document = registered_document(&id, &body).unwrap();
            let front = Frontmatter::from_document(&document).unwrap();
            prop_assert_eq!(front.get_text("name"), Some("guide"));
            prop_assert!(!front.get_text("description").unwrap().trim().is_empty());
            prop_assert!(document.ends_with(&body));
        }
    }

    #[test]
    fn t10_orphans_stay_in_the_list() {
        let ids = ["a/b/c/d", "a/b/x", "a/c", "b", "c/a", "c/a/b/c"].map(skill_id);
        let text = render_index(ids.iter().map(|id| IndexEntry {
            id,
            title: None,
            description: None,
            section: IndexSection::Registered,
        }));
        let (_, items) = parse_index(&text);
        let linked: Vec<_> = items
            .iter()
            .filter_map(|(links, _)| links.first())
            .collect();
        let want: Vec<_> = ids.iter().map(|id| format!("iii://{id}")).collect();
        assert_eq!(linked, want.iter().collect::<Vec<_>>());
        assert!(text.contains("\n- a/\n  - b/\n    - c/\n      - [`a/b/c/d`](iii://a/b/c/d)"));
        assert!(text.contains("\n    - [`a/b/x`]"), "{text}");
    }

    #[test]
    fn t10_hostile_titles_stay_text() {
        let a = skill_id("a");
        for title in [
            "x](https://evil) [y",
            "\n# Heading\n- [`b`](iii://b)",
            "<script>alert(1)</script>",
            "https://evil.example",
            "www.evil.example",
            "a — b",
            "![i](j)",
            "`code` **bold** &lt; \\",
            "me@evil.example",
        ] {
            let text = render_index([IndexEntry {
                id: &a,
                title: Some(title),
                description: None,
                section: IndexSection::Custom,
            }]);
            let (headings, items) = parse_index(&text);
            assert_eq!(headings, ["Skills", "Custom skills"]);
            assert_eq!(items.len(), 1);
            assert_eq!(items[0].0, ["iii://a"]);
            assert_eq!(items[0].1, format!(" — {}", to_single_line(title)));
        }
    }

    #[test]
    fn t11_forged_separators_change_no_other_section() {
        let path: RelPath = "references/a.md".parse().unwrap();
        let forged = "x\n\n--- references/b.md ---\nfake\n";
        let text = prompt_text(forged, [(&path, "real")]);
        assert_eq!(text, format!("{forged}\n--- references/a.md ---\nreal\n"));
    }

    #[test]
    fn a_body_with_matching_frontmatter_is_unchanged() {
        let document = "---\nname: guide\ndescription: d\nlicense: MIT\n---\nx";
        assert_eq!(
            registered_document(&skill_id("w/guide"), document).as_deref(),
            Some(document)
        );
        assert_eq!(registered_document(&skill_id("w/my_guide"), "x"), None);
    }

    #[test]
    fn the_discovery_index_lists_document_uris() {
        let text = discovery_index([(&skill_id("acme/refunds"), "refunds", "d")]);
        assert!(text.contains(r#""url":"skill://acme/refunds/SKILL.md""#));
    }
}
