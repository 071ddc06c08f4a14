//! Records what commands write, and builds what a loss of power leaves of it.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{check_backup, run_command, write_skill_folder};

/// The system calls that change files.
const CALLS: &str = "openat,open,creat,write,pwrite64,fsync,fdatasync,ftruncate,\
rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,link,linkat,lseek";

/// One change, in the order in which it was made.
#[derive(Debug, Clone)]
enum FileOp {
    Create(PathBuf),
    Write(PathBuf, usize, Vec<u8>),
    Truncate(PathBuf, usize),
    Rename(PathBuf, PathBuf),
    Link(PathBuf, PathBuf),
    Remove(PathBuf),
    MakeFolder(PathBuf),
    Sync(PathBuf),
}

/// Whether syncs have an effect; without, the simulation has to find losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Syncs {
    Kept,
    Ignored,
}

/// What must hold after a command.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Expected {
    /// The number in the skill `notes`, if it is there.
    notes: Option<usize>,
    /// Whether the skill `other` is there.
    other: bool,
    /// How many of the two files outside the account are there: the backup, then the unpacked folder.
    outside: usize,
}

/// Simulates losses of power at this many random moments.
pub(crate) fn run(program: &Path, strace: &Path, moments: usize) -> Result<()> {
    let place = tempfile::tempdir()?;
    let folder = place.path().canonicalize()?;
    write_skill_folder(&folder, "other", 1)?;
    let package = json!({
        "name": "tone-check", "description": "Checks the tone. Use when asked.",
        "artifacts": [{"kind": "description", "name": "Overview", "content": "Check it.\n"}],
    });
    fs::write(folder.join("tone-check.json"), package.to_string())?;
    let initial = read_tree(&folder)?;
    let state = |notes, other, outside| Expected {
        notes,
        other,
        outside,
    };
    // Each command with what holds after it; a number is first written into the source of `notes`.
    let unpack = [
        "package",
        "unpack",
        "tone-check.json",
        "--output",
        "tone-check",
    ];
    let cleanup = ["gc", "--history", "1ms", "--yes"];
    let steps: [(&[&str], Option<usize>, Expected); 9] = [
        (&["add", "sources/notes"], Some(1), state(Some(1), false, 0)),
        (&["add", "sources/notes"], Some(2), state(Some(2), false, 0)),
        (&["add", "sources/other"], None, state(Some(2), true, 0)),
        (&["backup", "copy.db"], None, state(Some(2), true, 1)),
        (&unpack, None, state(Some(2), true, 2)),
        (&["remove", "other"], None, state(Some(2), false, 2)),
        (&cleanup, None, state(Some(2), false, 2)),
        (&["add", "sources/notes"], Some(3), state(Some(3), false, 2)),
        (
            &["restore", "copy.db", "--yes"],
            None,
            state(Some(2), true, 2),
        ),
    ];
    let mut ops = Vec::new();
    let mut known = HashMap::new();
    // The number of changes after each command.
    let mut ends = Vec::new();
    for (at, (args, number, _)) in steps.iter().enumerate() {
        if let Some(number) = number {
            write_skill_folder(&folder, "notes", *number)?;
        }
        let recorded = record_command(program, strace, &folder, args, &mut known);
        ops.extend(recorded.with_context(|| format!("step {at}"))?);
        ends.push(ops.len());
    }
    let seed = std::process::id().into();
    println!(
        "power loss: {moments} moments among {} changes, seed {seed}",
        ops.len()
    );
    let mut random = fastrand::Rng::with_seed(seed);
    let mut check_moment = |moment: usize, syncs: Syncs| {
        // Every boundary between commands once, then anywhere.
        let at = match ends.get(moment) {
            Some(end) => *end,
            None => random.usize(0..=ops.len()),
        };
        let left = tree_after_loss(&initial, &ops[..at], syncs, &mut random);
        let done = ends.iter().filter(|end| **end <= at).count();
        let none = state(None, false, 0);
        let before = done.checked_sub(1).map_or(&none, |last| &steps[last].2);
        let after = steps.get(done).map_or(before, |(_, _, state)| state);
        check_tree(program, &left, [before, after])
            .with_context(|| format!("after {at} of {} changes, {done} commands done", ops.len()))
    };
    // A program that never synced would lose something; if not, nothing is tested here.
    let unnoticed = (0..moments).all(|moment| check_moment(moment, Syncs::Ignored).is_ok());
    ensure!(!unnoticed, "the simulation does not notice missing syncs");
    for moment in 0..moments {
        check_moment(moment, Syncs::Kept)?;
    }
    println!("power loss: {moments} moments, nothing lost and nothing half-written");
    Ok(())
}

/// Writes what a loss of power left, and checks it with the program itself.
fn check_tree(program: &Path, tree: &FileTree, allowed: [&Expected; 2]) -> Result<()> {
    let place = tempfile::tempdir()?;
    for folder in &tree.folders {
        fs::create_dir_all(place.path().join(folder))?;
    }
    for (path, bytes) in &tree.files {
        let target = place.path().join(path);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(target, bytes)?;
    }
    let listed = run_command(program, place.path(), &["list", "--json"])?;
    let listed: Value = serde_json::from_str(&listed)?;
    let text = listed.to_string();
    let notes = if text.contains("\"notes\"") {
        let body = run_command(program, place.path(), &["cat", "skill://notes/SKILL.md"])?;
        let number = body
            .split("number ")
            .nth(1)
            .and_then(|rest| rest.split('.').next());
        Some(number.context("no number")?.parse()?)
    } else {
        None
    };
    let copy = place.path().join("copy.db");
    let unpacked = place.path().join("tone-check/SKILL.md");
    let found = Expected {
        notes,
        other: text.contains("\"other\""),
        outside: usize::from(copy.exists()) + usize::from(unpacked.exists()),
    };
    ensure!(
        allowed.contains(&&found),
        "found {found:?}, allowed {allowed:?}"
    );
    run_command(program, place.path(), &["doctor"])?;
    if copy.exists() {
        check_backup(program, &copy).context("copy.db")?;
    }
    if unpacked.exists() {
        run_command(program, place.path(), &["validate", "tone-check"])?;
    }
    Ok(())
}

#[derive(Debug, Clone, Default)]
struct FileTree {
    files: BTreeMap<PathBuf, Vec<u8>>,
    folders: Vec<PathBuf>,
}

fn read_tree(folder: &Path) -> Result<FileTree> {
    fn walk(root: &Path, folder: &Path, tree: &mut FileTree) -> Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let relative = path.strip_prefix(root)?.to_owned();
            if path.is_dir() {
                tree.folders.push(relative);
                walk(root, &path, tree)?;
            } else {
                tree.files.insert(relative, fs::read(&path)?);
            }
        }
        Ok(())
    }
    let mut tree = FileTree::default();
    walk(folder, folder, &mut tree)?;
    Ok(tree)
}

/// A file that may have several names, or none.
#[derive(Debug, Clone, Default)]
struct DiskFile {
    durable: Vec<u8>,
    /// Changes of its content that were not synced.
    pending: Vec<ContentOp>,
}

#[derive(Debug, Clone)]
enum ContentOp {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

fn apply_content(content: &mut Vec<u8>, op: &ContentOp) {
    match op {
        ContentOp::Write(at, bytes) => {
            if content.len() < at + bytes.len() {
                content.resize(at + bytes.len(), 0);
            }
            content[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        ContentOp::Truncate(len) => content.resize(*len, 0),
    }
}

/// A change of names, which refers to files by number.
#[derive(Debug, Clone)]
enum NameOp {
    Create(PathBuf, usize),
    Rename(PathBuf, PathBuf),
    Link(PathBuf, PathBuf),
    Remove(PathBuf),
    MakeFolder(PathBuf),
}

fn apply_name(names: &mut BTreeMap<PathBuf, usize>, folders: &mut Vec<PathBuf>, op: &NameOp) {
    match op {
        NameOp::Create(path, file) => {
            names.insert(path.clone(), *file);
        }
        NameOp::Rename(from, to) => {
            let below = |path: &Path| path.strip_prefix(from).ok().map(|rest| to.join(rest));
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
                return;
            }
            // A folder with everything in it.
            let moved: Vec<PathBuf> = names
                .keys()
                .filter(|p| p.starts_with(from))
                .cloned()
                .collect();
            for path in moved {
                if let (Some(new), Some(file)) = (below(&path), names.remove(&path)) {
                    names.insert(new, file);
                }
            }
            for folder in folders.iter_mut().filter(|folder| folder.starts_with(from)) {
                let rest = folder
                    .strip_prefix(from)
                    .unwrap_or(Path::new(""))
                    .to_owned();
                *folder = if rest.as_os_str().is_empty() {
                    to.clone()
                } else {
                    to.join(rest)
                };
            }
        }
        NameOp::Link(from, to) => {
            if let Some(file) = names.get(from).copied() {
                names.insert(to.clone(), file);
            }
        }
        NameOp::Remove(path) => {
            names.remove(path);
            folders.retain(|folder| folder != path);
        }
        NameOp::MakeFolder(path) => folders.push(path.clone()),
    }
}

/// Returns what a loss of power after these changes may leave.
fn tree_after_loss(
    initial: &FileTree,
    ops: &[FileOp],
    syncs: Syncs,
    random: &mut fastrand::Rng,
) -> FileTree {
    let mut files: Vec<DiskFile> = Vec::new();
    // Names as the processes saw them, and the changes that may not be on the disk yet.
    let mut names = BTreeMap::new();
    for (path, bytes) in &initial.files {
        names.insert(path.clone(), files.len());
        files.push(DiskFile {
            durable: bytes.clone(),
            pending: Vec::new(),
        });
    }
    let (mut durable_names, mut durable_folders) = (names.clone(), initial.folders.clone());
    let mut folders = initial.folders.clone();
    let mut pending: Vec<NameOp> = Vec::new();
    for op in ops {
        let change = match op {
            FileOp::Create(path) => {
                files.push(DiskFile::default());
                NameOp::Create(path.clone(), files.len() - 1)
            }
            FileOp::Rename(from, to) => NameOp::Rename(from.clone(), to.clone()),
            FileOp::Link(from, to) => NameOp::Link(from.clone(), to.clone()),
            FileOp::Remove(path) => NameOp::Remove(path.clone()),
            FileOp::MakeFolder(path) => NameOp::MakeFolder(path.clone()),
            FileOp::Write(path, at, bytes) => {
                if let Some(file) = names.get(path) {
                    files[*file]
                        .pending
                        .push(ContentOp::Write(*at, bytes.clone()));
                }
                continue;
            }
            FileOp::Truncate(path, len) => {
                if let Some(file) = names.get(path) {
                    files[*file].pending.push(ContentOp::Truncate(*len));
                }
                continue;
            }
            FileOp::Sync(_) if syncs == Syncs::Ignored => continue,
            FileOp::Sync(path) => {
                if let Some(file) = names.get(path) {
                    let file = &mut files[*file];
                    for op in std::mem::take(&mut file.pending) {
                        apply_content(&mut file.durable, &op);
                    }
                }
                for op in pending.drain(..) {
                    apply_name(&mut durable_names, &mut durable_folders, &op);
                }
                continue;
            }
        };
        apply_name(&mut names, &mut folders, &change);
        pending.push(change);
    }
    let kept = random.usize(0..=pending.len());
    for op in &pending[..kept] {
        apply_name(&mut durable_names, &mut durable_folders, op);
    }
    // How much of the unsynced content came to the disk by itself: nothing, some, or all.
    let share = [0.0, 0.5, 0.9, 1.0][random.usize(0..4)];
    let mut left = FileTree {
        folders: durable_folders,
        ..FileTree::default()
    };
    for (path, file) in durable_names {
        let mut content = files[file].durable.clone();
        for op in &files[file].pending {
            if random.f64() < share {
                apply_content(&mut content, op);
            }
        }
        left.files.insert(path, content);
    }
    left
}

/// Runs a command and returns what it changed below a folder.
fn record_command(
    program: &Path,
    strace: &Path,
    folder: &Path,
    args: &[&str],
    known: &mut HashMap<PathBuf, usize>,
) -> Result<Vec<FileOp>> {
    let log = tempfile::NamedTempFile::new()?;
    let done = Command::new(strace)
        .args(["-f", "-y", "-xx", "-s", "100000000", "-e"])
        .arg(format!("trace={CALLS}"))
        .arg("-o")
        .arg(log.path())
        .arg(program)
        .args(args)
        .env("REPERTOIRE_HOME", folder.join("home"))
        .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
        .env_remove("REPERTOIRE_WORKSPACE")
        .current_dir(folder)
        .output()
        .with_context(|| strace.display().to_string())?;
    ensure!(
        done.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    let text = fs::read_to_string(log.path())?;
    let mut recorder = Recorder::new(folder, known);
    for line in joined_lines(&text) {
        recorder.take_line(&line)?;
    }
    Ok(recorder.ops)
}

/// Joins calls that were interrupted by another thread in the log.
fn joined_lines(text: &str) -> Vec<String> {
    let mut open: HashMap<&str, String> = HashMap::new();
    let mut lines = Vec::new();
    for line in text.lines() {
        let Some((pid, call)) = line.split_once(' ') else {
            continue;
        };
        let call = call.trim_start();
        if let Some(start) = call.strip_suffix(" <unfinished ...>") {
            open.insert(pid, start.to_owned());
        } else if let Some(rest) = call.strip_prefix("<... ") {
            let rest = rest.split_once("resumed>").map_or("", |(_, rest)| rest);
            if let Some(start) = open.remove(pid) {
                lines.push(start + rest);
            }
        } else {
            lines.push(call.to_owned());
        }
    }
    lines
}

/// Returns a path as it is, or below the working folder of the command.
fn absolute_path(root: &Path, path: &str) -> String {
    let here = path.strip_prefix("./").unwrap_or(path);
    root.join(here).to_string_lossy().into_owned()
}

struct Recorder<'a> {
    root: &'a Path,
    ops: Vec<FileOp>,
    /// Where the next `write` of a descriptor goes.
    positions: HashMap<String, usize>,
    /// The files that exist, and their lengths.
    lengths: &'a mut HashMap<PathBuf, usize>,
}

impl<'a> Recorder<'a> {
    fn new(root: &'a Path, lengths: &'a mut HashMap<PathBuf, usize>) -> Self {
        Self {
            root,
            ops: Vec::new(),
            positions: HashMap::new(),
            lengths,
        }
    }

    fn relative(&self, path: &str) -> Option<PathBuf> {
        let path = Path::new(path).strip_prefix(self.root).ok()?;
        Some(path.to_owned())
    }

    fn take_line(&mut self, line: &str) -> Result<()> {
        let Some((name, rest)) = line.split_once('(') else {
            return Ok(());
        };
        let Some((args, result)) = rest.rsplit_once(") = ") else {
            return Ok(());
        };
        if result.starts_with('-') {
            return Ok(());
        }
        // Texts are hexadecimal, so they hold no commas.
        let args: Vec<&str> = args.split(", ").collect();
        let descriptor = |at: usize| -> Option<(String, String)> {
            let (number, path) = args.get(at)?.split_once('<')?;
            Some((number.to_owned(), decode(path.strip_suffix('>')?)))
        };
        let text = |at: usize| args.get(at).map(|arg| decode(arg.trim_matches('"')));
        // A path, relative to the working folder of the command.
        let root = self.root;
        let path = |at: usize| Some(absolute_path(root, &text(at)?));
        // A path, relative to the descriptor before it.
        let path_at = |at: usize| -> Option<String> {
            let path = text(at)?;
            if path.starts_with('/') {
                return Some(path);
            }
            let (_, folder) = descriptor(at.checked_sub(1)?)?;
            Some(format!("{folder}/{path}"))
        };
        match name {
            "openat" | "open" | "creat" => {
                let Some((number, path)) = result.split_once('<') else {
                    return Ok(());
                };
                let Some(path) = self.relative(&decode(path.trim_end_matches('>'))) else {
                    return Ok(());
                };
                let flags = args
                    .iter()
                    .find(|arg| arg.contains("O_"))
                    .copied()
                    .unwrap_or("");
                self.positions.insert(number.to_owned(), 0);
                if flags.contains("O_CREAT") && !self.lengths.contains_key(&path) {
                    self.lengths.insert(path.clone(), 0);
                    self.ops.push(FileOp::Create(path.clone()));
                }
                if flags.contains("O_TRUNC") {
                    self.lengths.insert(path.clone(), 0);
                    self.ops.push(FileOp::Truncate(path.clone(), 0));
                }
                if flags.contains("O_APPEND") {
                    let len = self.lengths.get(&path).copied().unwrap_or(0);
                    self.positions.insert(number.to_owned(), len);
                }
            }
            "pwrite64" | "write" => {
                let Some((number, path)) = descriptor(0) else {
                    return Ok(());
                };
                let Some(path) = self.relative(&path) else {
                    return Ok(());
                };
                let mut bytes = decode_bytes(args.get(1).context("no data")?.trim_matches('"'));
                bytes.truncate(result.parse()?);
                let at = if name == "write" {
                    let position = self.positions.entry(number).or_default();
                    *position += bytes.len();
                    *position - bytes.len()
                } else {
                    args.get(3).context("no offset")?.parse()?
                };
                let len = self.lengths.entry(path.clone()).or_default();
                *len = (*len).max(at + bytes.len());
                self.ops.push(FileOp::Write(path, at, bytes));
            }
            "lseek" => {
                if let Some((number, _)) = descriptor(0) {
                    self.positions.insert(number, result.parse()?);
                }
            }
            "ftruncate" => {
                let path = descriptor(0).and_then(|(_, path)| self.relative(&path));
                if let Some(path) = path {
                    let len = args.get(1).context("no length")?.parse()?;
                    self.lengths.insert(path.clone(), len);
                    self.ops.push(FileOp::Truncate(path, len));
                }
            }
            "fsync" | "fdatasync" => {
                let path = descriptor(0).and_then(|(_, path)| self.relative(&path));
                self.ops.extend(path.map(FileOp::Sync));
            }
            "rename" | "link" => self.move_path(name, path(0), path(1)),
            "renameat" | "renameat2" | "linkat" => self.move_path(name, path_at(1), path_at(3)),
            "unlink" | "rmdir" => self.remove_path(path(0)),
            "unlinkat" => self.remove_path(path_at(1)),
            "mkdir" => self.make_folder(path(0)),
            "mkdirat" => self.make_folder(path_at(1)),
            _ => {}
        }
        Ok(())
    }

    fn move_path(&mut self, name: &str, from: Option<String>, to: Option<String>) {
        let from = from.and_then(|path| self.relative(&path));
        let to = to.and_then(|path| self.relative(&path));
        if let (Some(from), Some(to)) = (from, to) {
            let len = self.lengths.get(&from).copied().unwrap_or(0);
            self.lengths.insert(to.clone(), len);
            self.ops.push(if name.starts_with("link") {
                FileOp::Link(from, to)
            } else {
                self.lengths.remove(&from);
                FileOp::Rename(from, to)
            });
        }
    }

    fn remove_path(&mut self, path: Option<String>) {
        if let Some(path) = path.and_then(|path| self.relative(&path)) {
            self.lengths.remove(&path);
            self.ops.push(FileOp::Remove(path));
        }
    }

    fn make_folder(&mut self, path: Option<String>) {
        let path = path.and_then(|path| self.relative(&path));
        self.ops.extend(path.map(FileOp::MakeFolder));
    }
}

fn decode(text: &str) -> String {
    String::from_utf8_lossy(&decode_bytes(text)).into_owned()
}

/// Decodes `\x` escapes; other characters stand for themselves.
fn decode_bytes(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len() / 4);
    let mut at = 0;
    while at < bytes.len() {
        let escaped = bytes[at..].starts_with(b"\\x");
        let digits = text.get(at + 2..at + 4);
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if escaped => {
                out.push(byte);
                at += 4;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    out
}
