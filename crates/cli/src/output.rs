//! Where output goes: data to stdout, words for people to stderr.
//!
//! Text from skills passes through [`terminal_safe`] before it reaches a terminal. Colour appears
//! only on one. Work that takes longer than a second shows that it goes on.

use std::{
    fmt::Display,
    io::{IsTerminal, Write},
    sync::mpsc,
    time::Duration,
};

use anstyle::{AnsiColor, Style};
use anyhow::Result;
use repertoire_core::text::terminal_safe;
use serde::Serialize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::args::{ColorWhen, Global};

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const ID: Style = AnsiColor::Cyan.on_default();
const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const GOOD: Style = AnsiColor::Green.on_default();

/// The process's output.
#[derive(Debug)]
pub(crate) struct Output {
    /// Print data as JSON.
    pub(crate) json: bool,
    quiet: bool,
}

#[allow(clippy::unused_self, reason = "one handle for all output")]
impl Output {
    pub(crate) fn new(global: &Global) -> Self {
        match global.color {
            ColorWhen::Auto => {}
            ColorWhen::Always => anstream::ColorChoice::Always.write_global(),
            ColorWhen::Never => anstream::ColorChoice::Never.write_global(),
        }
        Self {
            json: global.json,
            quiet: global.quiet,
        }
    }

    /// Prints lines of data.
    pub(crate) fn print(&self, text: &str) -> Result<()> {
        let mut out = anstream::stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }

    /// Prints a value as JSON.
    pub(crate) fn print_json(&self, value: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_string_pretty(value)?;
        text.push('\n');
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }

    /// Prints bytes exactly, unless a terminal would act on them.
    pub(crate) fn print_bytes(&self, bytes: &[u8]) -> Result<()> {
        let mut out = std::io::stdout().lock();
        if out.is_terminal() {
            let text = String::from_utf8_lossy(bytes);
            out.write_all(terminal_safe(&text).as_bytes())?;
        } else {
            out.write_all(bytes)?;
        }
        Ok(out.flush()?)
    }

    /// Says what was done, to people.
    pub(crate) fn note(&self, text: impl Display) {
        if !self.quiet {
            self.raw_err(&format!("{text}\n"));
        }
    }

    /// Says what is not right but does not stop anything.
    pub(crate) fn warn(&self, text: impl Display) {
        self.raw_err(&format!("{WARNING}warning:{WARNING:#} {text}\n"));
    }

    pub(crate) fn error(&self, text: &str) {
        // What strangers say in it begins no line.
        let text = text.trim_end().replace('\n', "\n  ");
        self.raw_err(&format!("{ERROR}error:{ERROR:#} {text}\n"));
    }

    pub(crate) fn hint(&self, text: &str) {
        self.raw_err(&format!("{GOOD}hint:{GOOD:#} {text}\n"));
    }

    /// Whether people want to hear less.
    pub(crate) fn quiet(&self) -> bool {
        self.quiet
    }

    /// Says something to people from a thread that has no output of its own.
    pub(crate) fn whisper(text: &str) {
        let _ = anstream::stderr().lock().write_all(text.as_bytes());
    }

    pub(crate) fn raw_err(&self, text: &str) {
        // With stderr gone there is nobody left to tell.
        let _ = anstream::stderr().lock().write_all(text.as_bytes());
    }

    /// A line that says how far long work is, where a terminal shows it.
    pub(crate) fn spinner(&self) -> indicatif::ProgressBar {
        let bar = indicatif::ProgressBar::hidden();
        if !self.quiet {
            bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        bar
    }

    /// Runs work; if it takes longer than a second, a terminal shows that it goes on.
    pub(crate) fn working<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        if self.quiet || !std::io::stderr().is_terminal() {
            return work();
        }
        let (done, wait) = mpsc::channel::<()>();
        let spinner = std::thread::spawn(move || {
            if wait.recv_timeout(Duration::from_secs(1)) == Err(mpsc::RecvTimeoutError::Timeout) {
                let bar = indicatif::ProgressBar::new_spinner().with_message(what);
                bar.enable_steady_tick(Duration::from_millis(100));
                let _ = wait.recv();
                bar.finish_and_clear();
            }
        });
        let result = work();
        drop(done);
        let _ = spinner.join();
        result
    }
}

/// The width to fit lines into: the terminal's, or none when nobody looks.
pub(crate) fn width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    terminal_size::terminal_size().map(|(width, _)| usize::from(width.0))
}

/// Fits a text into a number of columns.
pub(crate) fn fit(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 1;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > columns {
            break;
        }
        out.push(c);
    }
    out.push('…');
    out
}

/// A size for people.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{}.{} KiB", bytes / 1024, bytes % 1024 * 10 / 1024),
        _ => format!(
            "{}.{} MiB",
            bytes / 1_048_576,
            bytes % 1_048_576 * 10 / 1_048_576
        ),
    }
}

/// `1 skill`, `2 skills`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
