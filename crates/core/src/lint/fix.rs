//! Repairs a document so that hosts list it, where that needs no decision by the author.

use serde_json::{Value, json};

use crate::{
    frontmatter::{self, AmbiguousYaml, Frontmatter},
    id::SkillName,
    listing::{ListingProblem, SkillDocument},
    markdown::truncate_text,
};

/// Repairs the frontmatter of a `SKILL.md` in a folder of this name; `None` if nothing changes.
///
/// Values that YAML does not understand and values that must be text get quotes; a missing name or
/// block is added from the folder and the first paragraph. A result is returned only if hosts would
/// list more of it than before, and the body never changes.
///
/// ```
/// use repertoire_core::lint::fix_document;
///
/// let fixed = fix_document("---\nname: pdf\ndescription: Forms: filled.\n---\n# PDF\n", "pdf");
/// assert_eq!(
///     fixed.as_deref(),
///     Some("---\nname: pdf\ndescription: \"Forms: filled.\"\n---\n# PDF\n")
/// );
/// ```
pub fn fix_document(text: &str, folder: &str) -> Option<String> {
    let read = SkillDocument::read(text).ok()?;
    if read.problem.is_none() {
        return text.strip_prefix('\u{feff}').map(str::to_owned);
    }
    let mut fixed = text.trim_start_matches(['\u{feff}', '\n', '\r']).to_owned();
    if frontmatter::split_document(&fixed).is_err() {
        fixed = add_block(&fixed, folder, read.description.as_deref())?;
    }
    let cut = frontmatter::split_document(&fixed).ok()?;
    let is_crlf = cut.block.contains("\r\n");
    let mut lines: Vec<String> = cut.yaml.lines().map(str::to_owned).collect();
    if Frontmatter::parse(cut.yaml, 2).is_err() {
        for line in &mut lines {
            quote_value(line);
        }
    }
    // A field that is removed can leave another one at the end, which then needs a repair of its own.
    for _ in 0..2 {
        let front = Frontmatter::parse(&(lines.join("\n") + "\n"), 1).ok()?;
        repair_fields(&front, &mut lines, folder);
    }
    let end = if is_crlf { "\r\n" } else { "\n" };
    let mut out = format!("---{end}");
    for line in &lines {
        out.push_str(line);
        out.push_str(end);
    }
    out.push_str("---");
    out.push_str(end);
    out.push_str(cut.body);
    let front = Frontmatter::from_document(&out).ok()?;
    let is_listed = ListingProblem::find_in(&front).is_none();
    // Nothing else may read differently.
    let keeps = read.frontmatter.as_ref().is_none_or(|old| {
        old.fields().iter().all(|field| {
            let is_repaired = matches!(
                field.key.as_str(),
                "name" | "compatibility" | "license" | "metadata" | "description"
            );
            let new = front.get(&field.key);
            // The line break at the end of a block is dropped.
            let is_same = new.is_some_and(|new| {
                let [new, old] = [&new.value, &field.value];
                new == old
                    || new
                        .as_str()
                        .zip(old.as_str())
                        .is_some_and(|(new, old)| Some(new) == old.strip_suffix('\n'))
            });
            is_same || (is_repaired && !(field.value.is_string() && field.key == "description"))
        })
    });
    (is_listed && keeps && out != text).then_some(out)
}

/// Puts a block before a document that has none.
fn add_block(text: &str, folder: &str, description: Option<&str>) -> Option<String> {
    // A block that was begun is not closed at a guess.
    if text.starts_with("---") {
        return None;
    }
    let name: SkillName = folder.parse().ok()?;
    // A few words, a field or a shortened paragraph do not describe a skill.
    let is_sentence = |text: &&str| {
        let first = text.split_whitespace().next().unwrap_or_default();
        text.split_whitespace().count() >= 5 && !first.ends_with(':') && !text.ends_with('…')
    };
    let description = truncate_text(description.filter(is_sentence)?, 1024);
    Some(crate::surface::frontmatter_block(&name, &description) + "\n" + text)
}

/// Quotes a plain value that YAML reads as something else.
fn quote_value(line: &mut String) {
    let Some((key, value)) = line.split_once(':') else {
        return;
    };
    let is_key = key
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    let value = value.trim();
    // A comment after a value would become a part of it.
    let is_structured = value.is_empty()
        || value.starts_with(['"', '\'', '|', '>', '[', '{'])
        || value.contains(" #");
    let is_odd = value.contains(": ") || value.ends_with(':') || value.starts_with(['`', '@', '%']);
    if !key.is_empty() && is_key && !is_structured && is_odd {
        *line = format!("{key}: {}", json!(value));
    }
}

/// Changes fields that hosts refuse.
fn repair_fields(front: &Frontmatter, lines: &mut Vec<String>, folder: &str) {
    let folder_name = folder.parse::<SkillName>().ok();
    let mut inserted = 0;
    let at = |line: usize| line.saturating_sub(1);
    if let Some(field) = front.get("metadata")
        && let Value::Object(map) = &field.value
    {
        for ((key, value), line) in map.iter().zip(&field.child_lines) {
            let is_scalar = value.is_number() || value.is_boolean() || value.is_null();
            if let (true, Some(line)) = (is_scalar, lines.get_mut(at(*line))) {
                quote_scalar(line, key);
            }
        }
    }
    for key in ["license", "compatibility", "description"] {
        if let Some(field) = front.get(key)
            && (field.value.is_number() || field.value.is_boolean())
            && let Some(line) = lines.get_mut(at(field.line))
        {
            quote_scalar(line, key);
        }
    }
    for (line, kind) in front.ambiguous_yaml() {
        let Some(line) = lines.get_mut(at(*line)) else {
            continue;
        };
        match kind {
            AmbiguousYaml::Yaml11Scalar => {
                let key = line.split_once(':').map(|(key, _)| key.trim().to_owned());
                quote_scalar(line, &key.unwrap_or_default());
            }
            AmbiguousYaml::LastLineBreak => {
                if line.trim_end().ends_with(['|', '>']) {
                    line.truncate(line.trim_end().len());
                    line.push('-');
                }
            }
        }
    }
    let name = front.get("name");
    let is_valid = name.is_some_and(|field| {
        field
            .value
            .as_str()
            .is_some_and(|name| name.parse::<SkillName>().is_ok())
    });
    if let (false, Some(folder)) = (is_valid, folder_name) {
        // A name of digits is a number without quotes.
        let plain = format!("name: {folder}");
        let is_text = Frontmatter::parse(&plain, 1).is_ok_and(|front| {
            front
                .get("name")
                .is_some_and(|field| field.value.is_string())
        });
        let line = if is_text {
            plain
        } else {
            format!("name: {}", json!(folder.as_str()))
        };
        if let Some(field) = name {
            let next = lines.get(at(field.line) + 1);
            let is_single = !next.is_some_and(|next| next.starts_with([' ', '\t', '-']));
            if let (true, Some(old)) = (is_single, lines.get_mut(at(field.line))) {
                *old = line;
            }
        } else {
            lines.insert(0, line);
            inserted = 1;
        }
    }
    let is_empty = |key: &str| -> Option<usize> {
        let field = front.get(key)?;
        let value = field
            .value
            .as_str()
            .map_or(field.value.is_null(), str::is_empty);
        value.then(|| at(field.line))
    };
    if let Some(line) = is_empty("compatibility") {
        let line = line + inserted;
        let is_it = lines
            .get(line)
            .is_some_and(|text| text.starts_with("compatibility:"));
        if is_it {
            lines.remove(line);
        }
    }
}

/// Quotes the value of `key: value`.
fn quote_scalar(line: &mut String, key: &str) {
    let Some((before, value)) = line.split_once(':') else {
        return;
    };
    let value = value.split(" #").next().unwrap_or(value).trim();
    if before.trim() == key {
        *line = format!("{before}: {}", json!(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_no_decision_is_repaired() {
        for (folder, before, after) in [
            (
                "colon",
                "---\nname: colon\ndescription: Use: this\n---\n# T\n",
                "---\nname: colon\ndescription: \"Use: this\"\n---\n# T\n",
            ),
            (
                "bare",
                "# Bare\n\nDoes a thing when asked.\n",
                "---\nname: bare\ndescription: \"Does a thing when asked.\"\n---\n\n# Bare\n\nDoes a \
                 thing when asked.\n",
            ),
            (
                "nameless",
                "---\ndescription: d\n---\n",
                "---\nname: nameless\ndescription: d\n---\n",
            ),
            (
                "night-mail",
                "---\nname: Night Mail\ndescription: d\n---\n",
                "---\nname: night-mail\ndescription: d\n---\n",
            ),
            (
                "a",
                "---\nname: a\ndescription: d\nmetadata:\n  version: 1.0 # first\n  ok: true\n---\n",
                "---\nname: a\ndescription: d\nmetadata:\n  version: \"1.0\"\n  ok: \"true\"\n---\n",
            ),
            (
                "a",
                "---\ndescription: d\ncompatibility: ''\n---\n",
                "---\nname: a\ndescription: d\n---\n",
            ),
            (
                "late",
                "\n\n---\nname: late\ndescription: d\n---\n# T\n",
                "---\nname: late\ndescription: d\n---\n# T\n",
            ),
            (
                "marked",
                "\u{feff}---\nname: marked\ndescription: d\n---\n# T\n",
                "---\nname: marked\ndescription: d\n---\n# T\n",
            ),
            (
                "crlf",
                "---\r\nname: Crlf\r\ndescription: d\r\n---\r\n# T\r\n",
                "---\r\nname: crlf\r\ndescription: d\r\n---\r\n# T\r\n",
            ),
        ] {
            let fixed = fix_document(before, folder);
            assert_eq!(fixed.as_deref(), Some(after), "{before:?}");
            assert_eq!(fix_document(after, folder), None, "{after:?}");
        }
    }

    #[test]
    fn texts_that_look_like_fields_stay() {
        let text = "---\ndescription: |\n  First.\n  compatibility: needs python 3\n\
                    compatibility: \"\"\n---\n# B\n";
        let fixed = fix_document(text, "pdf").unwrap();
        assert!(
            fixed.contains("  compatibility: needs python 3\n"),
            "{fixed}"
        );
        assert!(fixed.contains("description: |-\n"), "{fixed}");
        assert!(!fixed.contains("compatibility: \"\""), "{fixed}");
    }

    #[test]
    fn what_needs_a_decision_stays() {
        for text in [
            format!("---\nname: a\ndescription: {}\n---\n", "x".repeat(2000)),
            "---\nname: a\n\n# Never closed\n".to_owned(),
            "---\nname: a\nname: b\ndescription: d\n---\n".to_owned(),
            "---\nname: a\ndescription: d\nmetadata:\n  x: [1]\n---\n".to_owned(),
            "---\nname: a\ndescription: d\n---\n".to_owned(),
            "---\nname:\n  - x\n  - y\ndescription: d\n---\n".to_owned(),
            "# A\n\nToo short.\n".to_owned(),
            "# A\n\nname: a field, not a sentence of five words\n".to_owned(),
            String::new(),
        ] {
            assert_eq!(fix_document(&text, "a"), None, "{text:?}");
        }
    }
}
