//! A folder of Markdown pages as a workspace: search, types and tags from frontmatter, links in
//! either form, history from git.
//!
//! Pages are read when they change, and never through a symlink out of the folder. Pages are data:
//! no command in a page or in the settings of its repository is run.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    time::{Duration, Instant, SystemTime},
};

use pulldown_cmark::{Event, Options, Parser, Tag as MarkdownTag};
use repertoire_core::{
    Frontmatter, frontmatter,
    markdown::{MarkdownSummary, to_single_line, truncate_text},
};
use serde_json::Value;

use super::{PageHit, PageInfo, PageReferences, PageRevision, TagCount, Workspace, WorkspacePage};
use crate::error::{Error, Result};

/// The maximum number of pages.
const MAX_PAGES: usize = 50_000;
/// The maximum bytes of a page.
const MAX_PAGE: u64 = 1024 * 1024;
/// The maximum nesting of folders.
const MAX_DEPTH: usize = 32;
/// How long the cache is used before the folder is read again.
const CACHE_LIFETIME: Duration = Duration::from_secs(1);
/// The maximum bytes of a history, and the timeout of git.
const MAX_HISTORY: u64 = 8 << 20;
const GIT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of query words; more cost time without finding more.
const MAX_WORDS: usize = 64;
/// The maximum number of filters of each sort in a query.
const MAX_FILTERS: usize = 8;
/// The maximum characters of an excerpt.
const EXCERPT_CHARS: usize = 200;
/// The weight of a word in the title, relative to one in the text.
const TITLE_WEIGHT: f64 = 3.0;

/// A folder of Markdown pages.
///
/// ```
/// use repertoire_runtime::{Vault, Workspace};
///
/// let folder = tempfile::tempdir()?;
/// std::fs::write(folder.path().join("mira.md"), "---\ntype: person\n---\n# Mira\n\nLives by the sea.\n")?;
/// let vault = Vault::open(folder.path())?;
/// assert_eq!(vault.search_pages("sea", 5)?[0].title, "Mira");
/// assert_eq!(vault.pages_by_type("person")?[0].slug, "mira");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Vault {
    root: PathBuf,
    cache: Mutex<VaultCache>,
}

#[derive(Debug, Default)]
struct VaultCache {
    refreshed_at: Option<Instant>,
    pages: BTreeMap<String, IndexedPage>,
    /// Slugs by every name a page has, in lower case.
    names: HashMap<String, String>,
}

/// A page with its search data.
#[derive(Debug)]
struct IndexedPage {
    stamp: (SystemTime, u64),
    page: WorkspacePage,
    aliases: Vec<String>,
    targets: Vec<String>,
    /// The weighted count of each word; words of the title count more.
    words: HashMap<String, f64>,
    length: f64,
}

impl Vault {
    /// Opens a folder of pages.
    pub fn open(root: &Path) -> Result<Self> {
        let root = root
            .canonicalize()
            .map_err(|error| Error::Workspace(format!("{}: {error}", root.display())))?;
        if !root.is_dir() {
            return Err(Error::Workspace(format!(
                "{}: not a folder",
                root.display()
            )));
        }
        Ok(Self {
            root,
            cache: Mutex::default(),
        })
    }

    /// Returns the cache, updated if it is too old.
    fn refresh_cache(&self) -> Result<MutexGuard<'_, VaultCache>> {
        let mut seen = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if seen
            .refreshed_at
            .is_some_and(|at| at.elapsed() < CACHE_LIFETIME)
        {
            return Ok(seen);
        }
        let mut files = Vec::new();
        walk_pages(&self.root, "", 0, &mut files)?;
        let mut old = std::mem::take(&mut seen.pages);
        for (slug, path, stamp) in files {
            let known = old.remove(&slug).filter(|read| read.stamp == stamp);
            if let Some(read) = known.or_else(|| IndexedPage::read_page(&slug, &path, stamp)) {
                seen.pages.insert(slug, read);
            }
        }
        seen.names = index_names(&seen.pages);
        seen.refreshed_at = Some(Instant::now());
        Ok(seen)
    }
}

/// Collects every page beneath a folder; symlinks are not followed.
fn walk_pages(
    folder: &Path,
    prefix: &str,
    depth: usize,
    files: &mut Vec<(String, PathBuf, (SystemTime, u64))>,
) -> Result<()> {
    let failed = |error: std::io::Error| Error::Workspace(format!("{}: {error}", folder.display()));
    let mut entries: Vec<_> = std::fs::read_dir(folder)
        .map_err(failed)?
        .flatten()
        .collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else {
            continue;
        };
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() && depth < MAX_DEPTH {
            // A folder that cannot be read does not affect the others.
            let _ = walk_pages(&entry.path(), &format!("{prefix}{name}/"), depth + 1, files);
        } else if let Some(stem) = name.strip_suffix(".md").filter(|_| kind.is_file()) {
            let Ok(about) = entry.metadata() else {
                continue;
            };
            let stamp = (
                about.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                about.len(),
            );
            files.push((format!("{prefix}{stem}"), entry.path(), stamp));
            if files.len() > MAX_PAGES {
                return Err(Error::Workspace(format!("more than {MAX_PAGES} pages")));
            }
        }
    }
    Ok(())
}

/// Maps names to slugs: paths win over file names, those over titles and aliases.
fn index_names(pages: &BTreeMap<String, IndexedPage>) -> HashMap<String, String> {
    let mut names = HashMap::new();
    let mut add = |name: &str, slug: &str| {
        names
            .entry(name.to_lowercase())
            .or_insert_with(|| slug.to_owned());
    };
    for slug in pages.keys() {
        add(slug, slug);
    }
    for slug in pages.keys() {
        add(slug.rsplit('/').next().unwrap_or(slug), slug);
    }
    for (slug, read) in pages {
        add(&read.page.info.title, slug);
        for alias in &read.aliases {
            add(alias, slug);
        }
    }
    names
}

impl VaultCache {
    fn find_page(&self, name: &str) -> Option<&IndexedPage> {
        let name = name.trim().trim_start_matches("./");
        let name = name.strip_suffix(".md").unwrap_or(name).to_lowercase();
        self.pages.get(self.names.get(&name)?)
    }

    /// Resolves a link: relative to its own page first, then anywhere.
    fn resolve_link(&self, from: &str, target: &str) -> Option<&IndexedPage> {
        let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut path: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
        for part in target.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(path.pop()),
                part => path.push(part),
            }
        }
        self.find_page(&path.join("/"))
            .or_else(|| self.find_page(target))
    }
}

/// A query: words, and filters of the form `type:person`, `tag:family` or `#family`.
#[derive(Debug, Default)]
struct PageQuery {
    text: String,
    /// The page has one of these types.
    kinds: Vec<String>,
    /// The page has all of these tags.
    tags: Vec<String>,
}

impl PageQuery {
    fn parse(query: &str) -> Self {
        let mut parsed = Self::default();
        for word in query.split_whitespace() {
            let kind = word.strip_prefix("type:");
            let tag = word.strip_prefix("tag:").or_else(|| word.strip_prefix('#'));
            let filter = |text: &str| text.trim_start_matches('#').to_lowercase();
            match (kind, tag) {
                (Some(kind), _) if !kind.is_empty() => parsed.add_kind(filter(kind)),
                // `#1` is a number and no tag.
                (_, Some(tag)) if tag.starts_with(char::is_alphabetic) => {
                    parsed.add_tag(filter(tag));
                }
                _ => {
                    parsed.text.push_str(word);
                    parsed.text.push(' ');
                }
            }
        }
        parsed
    }

    fn add_kind(&mut self, kind: String) {
        if self.kinds.len() < MAX_FILTERS && !self.kinds.contains(&kind) {
            self.kinds.push(kind);
        }
    }

    fn add_tag(&mut self, tag: String) {
        if self.tags.len() < MAX_FILTERS && !self.tags.contains(&tag) {
            self.tags.push(tag);
        }
    }

    fn has_filters(&self) -> bool {
        !self.kinds.is_empty() || !self.tags.is_empty()
    }

    fn admits(&self, page: &PageInfo) -> bool {
        let has_tag = |wanted: &String| {
            let mut tags = page.tags.iter().map(|tag| tag.to_lowercase());
            // `family` includes `family/cousins`.
            tags.any(|tag| {
                tag.strip_prefix(wanted.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        };
        let kind = page.kind.as_deref().map(str::to_lowercase);
        let has_kind = self.kinds.is_empty() || kind.is_some_and(|kind| self.kinds.contains(&kind));
        has_kind && self.tags.iter().all(has_tag)
    }
}

/// The words of a text, in lower case.
fn split_words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty() && word.len() <= 64)
        .map(|word| {
            let word = word.to_lowercase();
            // Strip a plural `s`, so that singular and plural match.
            match word.strip_suffix('s') {
                Some(one) if one.len() > 2 && !one.ends_with('s') => one.to_owned(),
                _ => word,
            }
        })
}

fn string_list(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(text)) => text
            .split(',')
            .map(|part| part.trim().trim_start_matches('#').to_owned())
            .filter(|part| !part.is_empty())
            .collect(),
        Some(Value::Array(items)) => items
            .iter()
            .filter_map(Value::as_str)
            .map(|text| text.trim().trim_start_matches('#').to_owned())
            .collect(),
        _ => Vec::new(),
    }
}

impl IndexedPage {
    /// Reads a page; skips one that is too long or not text.
    fn read_page(slug: &str, path: &Path, stamp: (SystemTime, u64)) -> Option<Self> {
        if stamp.1 > MAX_PAGE {
            tracing::warn!(slug, "skipped a page with more than {MAX_PAGE} bytes");
            return None;
        }
        let whole = std::fs::read_to_string(path).ok()?;
        let fields = Frontmatter::from_document(&whole)
            .map(|front| front.to_json())
            .unwrap_or_default();
        let text = frontmatter::strip_frontmatter(&whole).to_owned();
        let given = fields
            .get("title")
            .and_then(Value::as_str)
            .map(to_single_line);
        let stem = slug.rsplit('/').next().unwrap_or(slug);
        let title = given
            .filter(|title| !title.is_empty())
            .or_else(|| MarkdownSummary::from_markdown(&text).title);
        let (targets, mut tags) = extract_links(&text);
        tags.extend(string_list(fields.get("tags")));
        tags.sort();
        tags.dedup();
        let info = PageInfo {
            slug: slug.to_owned(),
            title: title.unwrap_or_else(|| stem.to_owned()),
            kind: fields
                .get("type")
                .and_then(Value::as_str)
                .map(str::to_owned),
            tags,
        };
        let mut counted: HashMap<String, f64> = HashMap::new();
        for word in split_words(&text) {
            *counted.entry(word).or_default() += 1.0;
        }
        let kind = info.kind.as_deref().unwrap_or_default();
        let named = format!("{} {} {} {}", info.title, stem, info.tags.join(" "), kind);
        for word in split_words(&named) {
            *counted.entry(word).or_default() += TITLE_WEIGHT;
        }
        Some(Self {
            stamp,
            aliases: string_list(fields.get("aliases")),
            targets,
            length: counted.values().sum(),
            words: counted,
            page: WorkspacePage { info, text },
        })
    }

    /// Returns the line with the most query words.
    fn best_excerpt(&self, wanted: &[String]) -> String {
        let lines = self
            .page
            .text
            .lines()
            .filter(|line| !line.trim().is_empty());
        let count = |line: &&str| {
            split_words(line)
                .filter(|word| wanted.contains(word))
                .count()
        };
        let best = lines.rev().max_by_key(count).unwrap_or_default();
        truncate_text(
            &to_single_line(best.trim_start_matches(['#', '-', '>', ' '])),
            EXCERPT_CHARS,
        )
    }
}

/// Extracts the link targets within the workspace, and the tags.
fn extract_links(text: &str) -> (Vec<String>, Vec<String>) {
    let mut targets = Vec::new();
    let mut tags = Vec::new();
    let mut code = false;
    for event in Parser::new_ext(text, Options::ENABLE_WIKILINKS) {
        match event {
            Event::Start(
                MarkdownTag::Link { dest_url, .. } | MarkdownTag::Image { dest_url, .. },
            ) => {
                let target = dest_url.split(['#', '^']).next().unwrap_or_default().trim();
                let elsewhere = target.contains("://") || target.starts_with("mailto:");
                if !target.is_empty() && !elsewhere {
                    let target = target.replace("%20", " ");
                    let target = target.strip_suffix(".md").unwrap_or(&target).to_owned();
                    if !targets.contains(&target) {
                        targets.push(target);
                    }
                }
            }
            Event::Start(MarkdownTag::CodeBlock(_)) => code = true,
            Event::End(pulldown_cmark::TagEnd::CodeBlock) => code = false,
            Event::Text(text) if !code => {
                for word in text.split_whitespace() {
                    let Some(tag) = word.strip_prefix('#') else {
                        continue;
                    };
                    let tag = tag.trim_end_matches(|c: char| !c.is_alphanumeric());
                    if tag.starts_with(char::is_alphabetic) {
                        tags.push(tag.to_owned());
                    }
                }
            }
            _ => {}
        }
    }
    (targets, tags)
}

impl Workspace for Vault {
    fn search_pages(&self, query: &str, limit: usize) -> Result<Vec<PageHit>> {
        const K1: f64 = 1.2;
        const B: f64 = 0.75;
        let seen = self.refresh_cache()?;
        let query = PageQuery::parse(query);
        let mut wanted: Vec<String> = split_words(&query.text).take(MAX_WORDS).collect();
        wanted.sort();
        wanted.dedup();
        #[allow(clippy::cast_precision_loss, reason = "numbers of pages are small")]
        let count = |n: usize| n as f64;
        let all = count(seen.pages.len()).max(1.0);
        let average = seen.pages.values().map(|read| read.length).sum::<f64>() / all;
        let rarity: Vec<f64> = wanted
            .iter()
            .map(|word| {
                let having = seen
                    .pages
                    .values()
                    .filter(|read| read.words.contains_key(word));
                let having = count(having.count());
                (1.0 + (all - having + 0.5) / (having + 0.5)).ln()
            })
            .collect();
        let score = |read: &IndexedPage| -> f64 {
            let words = wanted.iter().zip(&rarity);
            words
                .map(|(word, rarity)| {
                    let times = read.words.get(word).copied().unwrap_or(0.0);
                    let norm = K1 * (1.0 - B + B * read.length / average.max(1.0));
                    rarity * times * (K1 + 1.0) / (times + norm)
                })
                .sum()
        };
        let mut hits: Vec<(f64, &IndexedPage)> = seen
            .pages
            .values()
            .filter(|read| query.admits(&read.page.info))
            .map(|read| (score(read), read))
            // A query of filters alone finds every page they admit.
            .filter(|(score, _)| *score > 0.0 || wanted.is_empty() && query.has_filters())
            .collect();
        hits.sort_by(|a, b| b.0.total_cmp(&a.0));
        hits.truncate(limit);
        Ok(hits
            .into_iter()
            .map(|(score, read)| PageHit {
                slug: read.page.info.slug.clone(),
                title: read.page.info.title.clone(),
                excerpt: read.best_excerpt(&wanted),
                score,
            })
            .collect())
    }

    fn find_page(&self, name: &str) -> Result<Option<WorkspacePage>> {
        Ok(self
            .refresh_cache()?
            .find_page(name)
            .map(|read| read.page.clone()))
    }

    fn pages_by_type(&self, kind: &str) -> Result<Vec<PageInfo>> {
        let seen = self.refresh_cache()?;
        let fits = |info: &&PageInfo| {
            let own = info.kind.as_deref();
            own.is_some_and(|own| own.eq_ignore_ascii_case(kind))
        };
        let infos = seen.pages.values().map(|read| &read.page.info);
        Ok(infos.filter(fits).cloned().collect())
    }

    fn tags(&self) -> Result<Vec<TagCount>> {
        let seen = self.refresh_cache()?;
        let mut count: BTreeMap<&str, usize> = BTreeMap::new();
        for tag in seen.pages.values().flat_map(|read| &read.page.info.tags) {
            *count.entry(tag).or_default() += 1;
        }
        let mut tags: Vec<TagCount> = count
            .into_iter()
            .map(|(name, pages)| TagCount {
                name: name.to_owned(),
                pages,
            })
            .collect();
        tags.sort_by_key(|tag| std::cmp::Reverse(tag.pages));
        Ok(tags)
    }

    fn references(&self, name: &str) -> Result<PageReferences> {
        let seen = self.refresh_cache()?;
        let Some(read) = seen.find_page(name) else {
            return Ok(PageReferences::default());
        };
        let slug = &read.page.info.slug;
        let mut found = PageReferences::default();
        for target in &read.targets {
            match seen.resolve_link(slug, target) {
                Some(other) => found.links.push(other.page.info.slug.clone()),
                None => found.missing.push(target.clone()),
            }
        }
        found.links.sort();
        found.links.dedup();
        for (from, other) in &seen.pages {
            let leads_here = |target: &String| {
                let to = seen.resolve_link(from, target);
                to.is_some_and(|to| to.page.info.slug == *slug)
            };
            if from != slug && other.targets.iter().any(leads_here) {
                found.backlinks.push(from.clone());
            }
        }
        Ok(found)
    }

    fn history(&self, name: &str, limit: usize) -> Result<Vec<PageRevision>> {
        let Some(slug) = self
            .refresh_cache()?
            .find_page(name)
            .map(|read| read.page.info.slug.clone())
        else {
            return Ok(Vec::new());
        };
        // Settings of an untrusted repository must not make git run programs or fetch from servers.
        let mut git = Command::new("git");
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
            git.env_remove(name);
        }
        git.args([
            "-c",
            "core.fsmonitor=false",
            "-c",
            "core.hooksPath=/dev/null",
        ])
        .args([
            "-c",
            "log.showSignature=false",
            "--no-pager",
            "--literal-pathspecs",
            "log",
            "--follow",
        ])
        .arg(format!("--max-count={}", limit.min(1000)))
        .args([
            "--no-show-signature",
            "--format=%H%x1f%an%x1f%aI%x1f%s",
            "--",
        ])
        .arg(format!("{slug}.md"))
        .current_dir(&self.root)
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_ALLOW_PROTOCOL", "none");
        let printed = run_with_timeout(git).map_err(|error| {
            Error::Workspace(match error.kind() {
                io::ErrorKind::TimedOut => {
                    let most = GIT_TIMEOUT.as_secs();
                    format!("git took more than {most} s for the history of {slug:?}")
                }
                _ => format!("history needs git: {error}"),
            })
        })?;
        // A folder without a repository has no history.
        let Some(printed) = printed else {
            return Ok(Vec::new());
        };
        let text = String::from_utf8_lossy(&printed);
        let rows = text.lines().filter_map(|line| {
            let mut parts = line.splitn(4, '\u{1f}').map(str::to_owned);
            Some(PageRevision {
                id: parts.next()?,
                author: parts.next()?,
                at: parts.next()?,
                summary: parts.next()?,
            })
        });
        Ok(rows.collect())
    }
}

/// Runs a program with a timeout and returns its output if it succeeds.
fn run_with_timeout(mut program: Command) -> io::Result<Option<Vec<u8>>> {
    let mut child = program
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut printed = child.stdout.take();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let read = printed
            .as_mut()
            .map(|printed| printed.take(MAX_HISTORY).read_to_end(&mut all));
        // After a timeout there is no receiver any more.
        let _ = sender.send(read.unwrap_or(Ok(0)).map(|_| all));
    });
    let read = receiver.recv_timeout(GIT_TIMEOUT);
    if read.is_err() {
        child.kill()?;
    }
    let status = child.wait()?;
    let all = read.map_err(|_| io::ErrorKind::TimedOut)??;
    Ok(status.success().then_some(all))
}
