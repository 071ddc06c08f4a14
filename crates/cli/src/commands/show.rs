//! `show`: one skill with everything a person wants to know before using it.

use std::{fmt::Write as _, process::ExitCode};

use anyhow::Result;
use repertoire_core::{Uri, frontmatter, markdown::one_line, text::terminal_safe};
use repertoire_registry::{Entry, Error, Reference, Registry, Settings as Sources, Trusted};
use serde_json::json;

use super::{Target, list, open, target};
use crate::{
    output::{BOLD, DIM, ID, Output, size},
    settings::Settings,
};

pub(crate) fn run(skill: &str, settings: &Settings, output: &Output) -> Result<ExitCode> {
    let target = target(skill, || open(&[], settings, output))?;
    let (registry, reference) = match target {
        Target::Skill(reference) => (open(&[], settings, output)?, reference),
        Target::Folder(path) => {
            // The folder's own name is its id when it is looked at alone.
            let registry = Registry::open(Sources::of_folders([path.clone()]))?;
            let name = path.canonicalize()?;
            let name = name.file_name().unwrap_or_default().to_string_lossy();
            let reference = name.parse::<Reference>()?;
            let found = registry.snapshot().skill(&reference).is_some();
            if let Some(notice) = registry.notices().into_iter().next().filter(|_| !found) {
                anyhow::bail!(Error::Skipped {
                    code: notice.code,
                    message: notice.message,
                });
            }
            (registry, reference)
        }
    };
    let snapshot = registry.snapshot();
    let entry = snapshot.skill(&reference).ok_or(Error::NotFound {
        what: "skill",
        name: reference.to_string(),
    })?;
    if output.json {
        let mut value = list::to_json(entry);
        value["frontmatter"] = match entry.head.frontmatter.as_deref() {
            Some(text) => repertoire_core::json::from_str(text)?,
            None => json!(null),
        };
        value["resources"] = entry
            .head
            .files
            .iter()
            .map(|file| {
                json!({
                    "uri": Uri::file(&entry.id, &file.path).to_string(),
                    "mimeType": file.mime(),
                    "size": file.size,
                    "digest": file.digest,
                })
            })
            .collect();
        output.print_json(&value)?;
        return Ok(ExitCode::SUCCESS);
    }
    output.print(&render(&registry, entry)?)?;
    Ok(ExitCode::SUCCESS)
}

/// A skill as text for people.
pub(crate) fn render(registry: &Registry, entry: &Entry) -> Result<String> {
    let head = &entry.head;
    let mut text = String::new();
    let title = head.title.as_deref().unwrap_or(entry.id.as_str());
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{BOLD}{}{BOLD:#}", terminal_safe(&one_line(title)));
    if let Some(description) = &head.description {
        let _ = writeln!(text, "{}", terminal_safe(&one_line(description)));
    }
    let _ = writeln!(text);
    let mut fact = |name: &str, value: &str| {
        let _ = writeln!(
            text,
            "{DIM}{name:<13}{DIM:#} {}",
            terminal_safe(&one_line(value))
        );
    };
    fact("id", entry.id.as_str());
    let trusted = match entry.trusted {
        Trusted::Yes => "",
        Trusted::No => " (not trusted)",
    };
    fact("origin", &format!("{}{trusted}", entry.origin));
    if let Some(package) = &head.package {
        let artifacts = crate::output::count(package.artifacts, "artifact");
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
    fact("digest", &head.digest().to_string());
    for file in &head.files {
        let uri = if head.is_skill() {
            Uri::file(&entry.id, &file.path)
        } else {
            Uri::Body(entry.id.clone())
        };
        let _ = writeln!(text, "  {ID}{uri}{ID:#}  {DIM}{}{DIM:#}", size(file.size));
    }
    let body = registry.body(entry)?;
    let body = String::from_utf8_lossy(&body);
    let body = frontmatter::body(&body).trim();
    let _ = writeln!(text, "\n{}", terminal_safe(body));
    Ok(text)
}
