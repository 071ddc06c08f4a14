//! Access log: one JSON line per request, written by a separate thread.
//!
//! A line has the method, the path, the name of the token (never the token) and the status.
//! Headers, queries and bodies are not logged.

use std::{io::Write, sync::mpsc, thread::JoinHandle};

use serde::Serialize;

/// The number of lines queued for a slow disk; further lines are dropped.
const MAX_QUEUED_LINES: usize = 8192;

/// The access log of a server.
#[derive(Debug)]
pub struct AccessLog {
    lines: Option<mpsc::SyncSender<String>>,
    writer: Option<JoinHandle<()>>,
}

/// One request.
#[derive(Debug, Serialize)]
pub(super) struct AccessLogLine<'a> {
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
    /// Logs to a file or a stream, which is flushed whenever the queue is empty.
    pub fn with_writer(writer: impl Write + Send + 'static) -> Self {
        let (lines, waiting) = mpsc::sync_channel::<String>(MAX_QUEUED_LINES);
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

    pub(super) fn log_request(&self, line: &AccessLogLine<'_>) {
        if let (Some(lines), Ok(line)) = (&self.lines, serde_json::to_string(line)) {
            // Drop lines instead of delaying requests when the queue is full.
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
