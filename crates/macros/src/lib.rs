//! Embeds a skill folder in a program and validates it at compile time.
//!
//! Use it through `repertoire_serve::embed_skill!`, which names the crate the skill's type comes
//! from. Every file is included by its path, so a program is built again when one of them
//! changes or is removed. A file that is *added* is found at the next build of the crate; a build
//! script that prints `cargo:rerun-if-changed=<folder>` triggers that build.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use proc_macro::{Group, TokenStream, TokenTree};
use repertoire_core::{
    DOCUMENT, ManifestBuilder, RelPath, mime,
    path::is_ignored,
    validate::{ValidationLevel, validate_skill},
};

/// `embed!(path::to::crate "folder")`: the skill in a folder, relative to the crate's manifest.
#[proc_macro]
pub fn embed(input: TokenStream) -> TokenStream {
    let expanded = parse_input(input).and_then(|(krate, folder)| {
        let code = expand_skill(&folder)?.parse::<TokenStream>();
        let code = code.map_err(|error| format!("{folder}: {error}"))?;
        Ok(substitute_crate(&krate, code))
    });
    expanded.unwrap_or_else(|message| {
        let code = format!("::core::compile_error!({message:?})");
        code.parse().unwrap_or_default()
    })
}

/// Placeholder for the crate's path in generated source text: `$crate` has no text form.
const KRATE: &str = "__repertoire_crate";

/// Replaces the placeholder with the crate's path.
fn substitute_crate(krate: &TokenStream, code: TokenStream) -> TokenStream {
    let tokens = code.into_iter().flat_map(|token| match token {
        TokenTree::Ident(ident) if ident.to_string() == KRATE => krate.clone(),
        TokenTree::Group(group) => {
            let inner = substitute_crate(krate, group.stream());
            TokenTree::from(Group::new(group.delimiter(), inner)).into()
        }
        other => other.into(),
    });
    tokens.collect()
}

/// Splits the input into the tokens of the crate's path and the text of the literal after them.
fn parse_input(input: TokenStream) -> Result<(TokenStream, String), String> {
    let usage = || "write embed_skill!(\"folder/of/the/skill\")".to_owned();
    let mut tokens: Vec<TokenTree> = input.into_iter().collect();
    let mut last = tokens.pop();
    // A literal that came through another macro is wrapped.
    while let Some(TokenTree::Group(group)) = &last {
        last = group.stream().into_iter().next();
    }
    let Some(TokenTree::Literal(literal)) = last else {
        return Err(usage());
    };
    let text = literal.to_string();
    let text = text.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
    // The folder of a skill never needs an escape in Rust.
    let text = text.filter(|t| !t.contains('\\')).ok_or_else(usage)?;
    Ok((tokens.into_iter().collect(), text.to_owned()))
}

fn expand_skill(folder: &str) -> Result<String, String> {
    let base = std::env::var("CARGO_MANIFEST_DIR").map_err(|_| "not built by cargo".to_owned())?;
    let root = Path::new(&base).join(folder);
    let real = root.canonicalize();
    let real = real.map_err(|error| format!("{folder}: {error}"))?;
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let files = list_files(&real, folder)?;
    let document = files.iter().find(|(path, _)| path.is_document());
    let bytes = document.map(|(_, file)| fs::read(file)).transpose();
    let bytes = bytes.map_err(|error| format!("{folder}/{DOCUMENT}: {error}"))?;
    let checked = bytes.as_deref().map(|bytes| (DOCUMENT, bytes));
    let problems = validate_skill(&name, checked, ValidationLevel::Reference);
    if !problems.is_empty() {
        let mut message = format!("{folder} is not a valid skill:");
        for problem in problems {
            // Writing to a string cannot fail.
            let line = problem
                .line
                .map_or(String::new(), |line| format!(":{line}"));
            let _ = write!(
                message,
                "\n  {DOCUMENT}{line}: {} [{}]",
                problem.message, problem.code
            );
        }
        return Err(message);
    }
    let mut code = String::new();
    for (path, file) in &files {
        let place = file.to_string_lossy();
        if path.is_document() {
            let skill = format!("{KRATE}::Skill::new({name:?}, ::core::include_str!({place:?}))");
            code.insert_str(0, &skill);
            continue;
        }
        let kind = mime::of_path(path.as_str());
        let text = mime::is_text(kind) && fs::read_to_string(file).is_ok();
        let path = path.as_str();
        let _ = if text {
            write!(
                code,
                ".with_reference({KRATE}::SkillReference::new({path:?}, {kind:?}, \
                 ::core::include_str!({place:?})))"
            )
        } else {
            write!(
                code,
                ".with_reference({KRATE}::SkillReference::binary({path:?}, {kind:?}, \
                 ::core::include_bytes!({place:?}).as_slice()))"
            )
        };
    }
    Ok(code)
}

/// Lists every file of the folder, sorted by path, within the limits of a skill.
fn list_files(root: &Path, shown: &str) -> Result<Vec<(RelPath, PathBuf)>, String> {
    let mut limits = ManifestBuilder::default();
    let mut found = Vec::new();
    let mut open = vec![(String::new(), root.to_owned())];
    while let Some((prefix, folder)) = open.pop() {
        let at = |error: std::io::Error| format!("{shown}/{prefix}: {error}");
        for entry in fs::read_dir(&folder).map_err(at)? {
            let entry = entry.map_err(at)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if is_ignored(&name) {
                continue;
            }
            let path = match prefix.as_str() {
                "" => name,
                _ => format!("{prefix}/{name}"),
            };
            let metadata = entry.path().symlink_metadata().map_err(at)?;
            if metadata.is_dir() {
                open.push((path, entry.path()));
                continue;
            }
            if !metadata.is_file() {
                return Err(format!("{shown}/{path}: not a regular file"));
            }
            let parsed: RelPath = path
                .parse()
                .map_err(|error| format!("{shown}/{path}: {error}"))?;
            let fits = limits.reserve_file(&parsed, metadata.len());
            fits.map_err(|error| format!("{shown}: {error}"))?;
            found.push((parsed, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}
