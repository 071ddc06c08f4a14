//! One line of JSON for each request, written by a thread of its own.
//!
//! A line says what was asked, by whom (the name of the token, never the token), and how it
//! ended. Headers, queries and bodies are not in it.

use std::{io::Write, sync::mpsc, thread::JoinHandle};

use serde::Serialize;

/// How many lines may wait for a slow disk before further ones are lost.
const WAITING: usize = 8192;

/// Where requests are written down.
#[derive(Debug)]
pub struct AccessLog {
    lines: Option<mpsc::SyncSender<String>>,
    writer: Option<JoinHandle<()>>,
}

/// One request.
#[derive(Debug, Serialize)]
pub(super) struct Line<'a> {
    pub(super) at: String,
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rpc: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<&'a str>,
    pub(super) status: u16,
    pub(super) micros: u128,
}

impl AccessLog {
    /// Writes to a file or a stream; lines are flushed whenever none is waiting.
    pub fn to(writer: impl Write + Send + 'static) -> Self {
        let (lines, waiting) = mpsc::sync_channel::<String>(WAITING);
        let mut out = std::io::BufWriter::new(writer);
        let thread = std::thread::spawn(move || {
            while let Ok(line) = waiting.recv() {
                let mut next = Some(line);
                while let Some(line) = next {
                    if writeln!(out, "{line}").is_err() {
                        return;
                    }
                    next = waiting.try_recv().ok();
                }
                if out.flush().is_err() {
                    return;
                }
            }
        });
        Self {
            lines: Some(lines),
            writer: Some(thread),
        }
    }

    pub(super) fn write(&self, line: &Line<'_>) {
        if let (Some(lines), Ok(line)) = (&self.lines, serde_json::to_string(line)) {
            // A full queue loses lines rather than time.
            let _ = lines.try_send(line);
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        drop(self.lines.take());
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}
