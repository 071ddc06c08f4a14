//! Terminal output: data on stdout, messages for the user on stderr.
//!
//! Text from skills passes through [`terminal_safe`] before it reaches a terminal. Colour is used
//! only on a terminal. Work that takes longer than a second shows a spinner.

use std::{
    fmt::Display,
    io::{IsTerminal, Write},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use anstyle::{AnsiColor, Style};
use anyhow::Result;
use repertoire_core::text::terminal_safe;
use serde::Serialize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::args::{ColorWhen, GlobalArgs};

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const ID: Style = AnsiColor::Cyan.on_default();
const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const HINT: Style = AnsiColor::Green.on_default();

/// Escapes every control sequence except those that set a style, which is all that this program
/// prints. Names of files and folders reach messages in many places, and a cloned repository chooses
/// them (T8).
fn escape_controls(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\u{1b}') {
        let (before, sequence) = rest.split_at(at);
        escaped.push_str(&terminal_safe(before));
        let parameters = sequence.strip_prefix("\u{1b}[").unwrap_or_default();
        let digits = parameters.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        let length = if parameters.is_empty() || !digits.starts_with('m') {
            escaped.push_str(&terminal_safe(&sequence[..1]));
            1
        } else {
            let length = sequence.len() - digits.len() + 1;
            escaped.push_str(&sequence[..length]);
            length
        };
        rest = &sequence[length..];
    }
    escaped.push_str(&terminal_safe(rest));
    escaped
}

/// The process's output.
#[derive(Debug)]
pub(crate) struct Output {
    /// Print data as JSON.
    pub(crate) json: bool,
    quiet: bool,
}

#[allow(clippy::unused_self, reason = "one handle for all output")]
impl Output {
    pub(crate) fn new(global: &GlobalArgs) -> Self {
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
    pub(crate) fn print_text(&self, text: &str) -> Result<()> {
        let mut out = anstream::stdout().lock();
        out.write_all(escape_controls(text).as_bytes())?;
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

    /// Prints bytes unchanged; on a terminal, control sequences are escaped.
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

    /// Prints a message on stderr, unless `--quiet` is set.
    pub(crate) fn print_note(&self, text: impl Display) {
        if !self.quiet {
            self.write_stderr(&format!("{text}\n"));
        }
    }

    /// Prints a warning on stderr.
    pub(crate) fn print_warning(&self, text: impl Display) {
        self.write_stderr(&format!("{WARNING}warning:{WARNING:#} {text}\n"));
    }

    pub(crate) fn print_error(&self, text: &str) {
        // Indented, so that untrusted text cannot start a line of its own.
        let text = text.trim_end().replace('\n', "\n  ");
        self.write_stderr(&format!("{ERROR}error:{ERROR:#} {text}\n"));
    }

    pub(crate) fn print_hint(&self, text: &str) {
        self.write_stderr(&format!("{HINT}hint:{HINT:#} {text}\n"));
    }

    /// Asks a question on the terminal; everything but `y` and `yes` is a no.
    pub(crate) fn ask_yes_no(&self, question: &str) -> Result<bool> {
        self.write_stderr(&format!("{question} [y/N] "));
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }

    /// Whether `--quiet` is set.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Prints text on stderr from a thread that has no [`Output`].
    pub(crate) fn print_stderr(text: &str) {
        let text = escape_controls(text);
        let _ = anstream::stderr().lock().write_all(text.as_bytes());
    }

    pub(crate) fn write_stderr(&self, text: &str) {
        // A closed stderr cannot be reported anywhere.
        Self::print_stderr(text);
    }

    /// Returns a progress spinner, which is shown only on a terminal.
    pub(crate) fn progress_spinner(&self) -> indicatif::ProgressBar {
        let bar = indicatif::ProgressBar::hidden();
        if !self.quiet {
            bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        bar
    }

    /// Runs work and shows a spinner on a terminal if it takes longer than a second.
    pub(crate) fn with_spinner<T>(&self, what: &str, work: impl FnOnce() -> T) -> T {
        let spinner = self.begin_spinner(what);
        let result = work();
        spinner.finish();
        result
    }

    /// Begins a wait: after a second, a terminal shows what is waited for, and since when.
    pub(crate) fn begin_spinner(&self, what: &str) -> DelayedSpinner {
        let spinner = DelayedSpinner::default();
        spinner.restart(self, what);
        spinner
    }
}

/// A spinner that appears after a second; it is gone when it is finished.
#[derive(Debug, Clone, Default)]
pub(crate) struct DelayedSpinner(Arc<Mutex<Option<SpinnerThread>>>);

type SpinnerThread = (mpsc::Sender<()>, JoinHandle<()>);

impl DelayedSpinner {
    /// Begins another wait.
    pub(crate) fn restart(&self, output: &Output, what: &str) {
        self.finish();
        if output.quiet || !std::io::stderr().is_terminal() {
            return;
        }
        let (done, wait) = mpsc::channel::<()>();
        let what = what.to_owned();
        let thread = std::thread::spawn(move || {
            if wait.recv_timeout(Duration::from_secs(1)) == Err(mpsc::RecvTimeoutError::Timeout) {
                let style = indicatif::ProgressStyle::with_template("{spinner} {msg} {elapsed}");
                let bar = indicatif::ProgressBar::new_spinner().with_message(what);
                if let Ok(style) = style {
                    bar.set_style(style);
                }
                let bar = bar.with_elapsed(Duration::from_secs(1));
                bar.enable_steady_tick(Duration::from_millis(100));
                let _ = wait.recv();
                bar.finish_and_clear();
            }
        });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((done, thread));
    }

    /// Clears it, so that other text can be printed.
    pub(crate) fn finish(&self) {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((done, thread)) = running {
            drop(done);
            let _ = thread.join();
        }
    }
}

/// Returns the terminal's width, or `None` if stdout is not a terminal.
pub(crate) fn terminal_width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    terminal_size::terminal_size().map(|(width, _)| usize::from(width.0))
}

/// Truncates a text to a number of columns.
pub(crate) fn truncate_to_width(text: &str, columns: usize) -> String {
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

/// Breaks a text into lines of a number of columns; what does not fit into the last line is cut.
pub(crate) fn wrap_to_width(text: &str, columns: usize, max_lines: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let is_last = lines.len() + 1 >= max_lines;
        if line.is_empty() {
            line = truncate_to_width(word, columns);
        } else if line.width() + 1 + word.width() <= columns {
            line.push(' ');
            line.push_str(word);
        } else if is_last {
            line = truncate_to_width(&format!("{line} {word}"), columns);
            lines.push(line);
            return lines;
        } else {
            lines.push(std::mem::replace(
                &mut line,
                truncate_to_width(word, columns),
            ));
        }
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

/// Formats a number of bytes with its unit.
pub(crate) fn format_size(bytes: u64) -> String {
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
pub(crate) fn format_count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t8_only_styles_pass() {
        let styled = format!("{ID}id{ID:#} and\ttext\n");
        assert_eq!(escape_controls(&styled), styled);
        for hostile in [
            "\u{1b}]0;pwn\u{7}",
            "\u{1b}[2J",
            "\u{1b}[1;2",
            "\u{1b}",
            "\u{9b}2J",
        ] {
            let escaped = escape_controls(&format!("cfg{hostile}.json"));
            assert!(
                !escaped.contains(['\u{1b}', '\u{7}', '\u{9b}']),
                "{escaped:?}"
            );
        }
    }
}
