//! `show`: prints one skill with its metadata, files and text.

use std::{fmt::Write as _, process::ExitCode};

use anyhow::Result;
use repertoire_app::SkillQuery;
use repertoire_core::{Uri, frontmatter, markdown::to_single_line, text::terminal_safe};
use repertoire_registry::{Registry, SkillEntry, Trusted};
use repertoire_remote::{SkillSource, SourcePlace};
use serde_json::json;

use super::{add_remote, find_entry, list, open_skill_to_read, resolve_target};
use crate::{
    failure::UsageError,
    output::{BOLD, DIM, ID, Output, format_size},
    settings::CliSettings,
};

pub(crate) fn run(skill: &str, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    if let Some(source) = parse_source(skill) {
        return add_remote::show_source(&source, settings, output);
    }
    let query = skill.parse().map_err(|error| {
        UsageError(format!(
            "invalid value '{}' for '<SKILL>': {error}",
            terminal_safe(skill)
        ))
    })?;
    show_skill(&query, settings, output)
}

/// Parses what can only be a source: ids have neither an address nor a version.
fn parse_source(text: &str) -> Option<SkillSource> {
    let is_path = text.starts_with(['.', '/', '~']);
    let is_source = text.contains("://")
        || text.starts_with("clawhub:")
        || (text.contains('/') && text.contains(['@', '#']));
    let source: SkillSource = (is_source || is_path).then(|| text.parse().ok())??;
    match source.place() {
        SourcePlace::Folder(_) => None,
        _ => Some(source),
    }
}

fn show_skill(skill: &SkillQuery, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let target = resolve_target(skill, settings, output)?;
    let (registry, reference) = open_skill_to_read(&target, settings, output)?;
    let entry = &find_entry(&registry, &reference)?;
    if output.json {
        let mut value = list::entry_to_json(entry);
        value["frontmatter"] = match entry.metadata.frontmatter.as_deref() {
            Some(text) => repertoire_core::json::from_str(text)?,
            None => json!(null),
        };
        value["resources"] = entry
            .metadata
            .files
            .iter()
            .map(|file| {
                json!({
                    "uri": Uri::for_file(&entry.id, &file.path).to_string(),
                    "mimeType": file.mime_type(),
                    "size": file.size,
                    "digest": file.digest,
                })
            })
            .collect();
        output.print_json(&value)?;
        return Ok(ExitCode::SUCCESS);
    }
    output.print_text(&render_skill(&registry, entry)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Formats a skill as text.
pub(crate) fn render_skill(registry: &Registry, entry: &SkillEntry) -> Result<String> {
    let head = &entry.metadata;
    let mut text = String::new();
    let title = head.title.as_deref().unwrap_or(entry.id.as_str());
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{BOLD}{}{BOLD:#}",
        terminal_safe(&to_single_line(title))
    );
    if let Some(description) = &head.description {
        let _ = writeln!(text, "{}", terminal_safe(&to_single_line(description)));
    }
    let _ = writeln!(text);
    let mut fact = |name: &str, value: &str| {
        let _ = writeln!(
            text,
            "{DIM}{name:<13}{DIM:#} {}",
            terminal_safe(&to_single_line(value))
        );
    };
    fact("id", entry.id.as_str());
    let trusted = match entry.trusted {
        Trusted::Yes => "",
        Trusted::No => " (not trusted)",
    };
    fact("origin", &format!("{}{trusted}", entry.origin));
    if let Some(path) = entry.path().filter(|_| entry.is_linked()) {
        fact("linked to", &path.to_string_lossy());
    }
    if let Some(package) = &head.package {
        let artifacts = crate::output::format_count(package.artifacts, "artifact");
        fact(
            "package",
            &format!("{} {}, {artifacts}", package.name, package.version),
        );
        if !package.tags.is_empty() {
            fact("tags", &package.tags.join(", "));
        }
    }
    if let Some(text) = head.frontmatter.as_deref() {
        let fields: serde_json::Map<String, serde_json::Value> =
            repertoire_core::json::from_str(text)?;
        for (key, value) in fields {
            if key != "name" && key != "description" {
                let shown = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                fact(&key, &shown);
            }
        }
    }
    if let Some(problem) = &head.unlisted {
        fact("skills/list", &format!("not there: {problem}"));
    }
    fact("digest", &head.digest().to_string());
    for file in &head.files {
        let uri = if entry.has_files() {
            Uri::for_file(&entry.id, &file.path)
        } else {
            Uri::Body(entry.id.clone())
        };
        let _ = writeln!(
            text,
            "  {ID}{uri}{ID:#}  {DIM}{}{DIM:#}",
            format_size(file.size)
        );
    }
    let body = registry.read_body(entry)?;
    let body = String::from_utf8_lossy(&body);
    let body = frontmatter::strip_frontmatter(&body).trim();
    let _ = writeln!(text, "\n{}", terminal_safe(body));
    Ok(text)
}
