//! Access log: one JSON line per request, written by a separate thread.
//!
//! A line has the method, the path, the name of the token (never the token) and the status.
//! Headers, queries and bodies are not logged.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::mpsc,
    thread::JoinHandle,
};

use serde::Serialize;

/// The number of lines queued for a slow disk; further lines are dropped.
const MAX_QUEUED_LINES: usize = 8192;
/// How much is written at once, in whole lines.
const MAX_BUFFER_BYTES: usize = 64 * 1024;
/// A log file that is longer is renamed, replacing the one that was renamed before.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

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
    /// Logs to the end of a file. At 64 MiB it is renamed to `FILE.1` and begun anew.
    pub fn with_file(path: &Path) -> std::io::Result<Self> {
        Ok(Self::with_writer(RotatingFile::open(path, MAX_FILE_BYTES)?))
    }

    /// Logs to a stream, which is flushed whenever the queue is empty.
    pub fn with_writer(writer: impl Write + Send + 'static) -> Self {
        let (lines, waiting) = mpsc::sync_channel::<String>(MAX_QUEUED_LINES);
        let mut writer = writer;
        let thread = std::thread::spawn(move || {
            let mut buffer = Vec::new();
            while let Ok(line) = waiting.recv() {
                let mut next = Some(line);
                while let Some(line) = next {
                    buffer.extend_from_slice(line.as_bytes());
                    buffer.push(b'\n');
                    next = (buffer.len() < MAX_BUFFER_BYTES)
                        .then(|| waiting.try_recv().ok())
                        .flatten();
                }
                if writer
                    .write_all(&buffer)
                    .and_then(|()| writer.flush())
                    .is_err()
                {
                    return;
                }
                buffer.clear();
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

/// A file that is renamed and begun anew when it is too long.
#[derive(Debug)]
struct RotatingFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    max_bytes: u64,
}

impl RotatingFile {
    fn open(path: &Path, max_bytes: u64) -> std::io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self {
            path: path.to_owned(),
            bytes: file.metadata()?.len(),
            file,
            max_bytes,
        })
    }

    fn rotate(&mut self) -> std::io::Result<()> {
        let mut old = self.path.as_os_str().to_owned();
        old.push(".1");
        std::fs::rename(&self.path, old)?;
        *self = Self::open(&self.path, self.max_bytes)?;
        Ok(())
    }
}

impl Write for RotatingFile {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        // A pipe or a device has no length that could grow.
        if self.bytes >= self.max_bytes
            && self.file.metadata()?.is_file()
            && let Err(error) = self.rotate()
        {
            tracing::warn!(%error, "the access log could not be renamed and is begun anew");
            self.file.set_len(0)?;
            self.bytes = 0;
        }
        // Whole lines come in, so none is split between two files.
        self.file.write_all(buffer)?;
        self.bytes += buffer.len() as u64;
        Ok(buffer.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn t47_an_access_log_has_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        let mut file = RotatingFile::open(&path, 100).unwrap();
        for n in 0..100 {
            writeln!(file, "line {n:04} of the log").unwrap();
        }
        let sizes = ["access.log", "access.log.1"].map(|name| {
            let metadata = std::fs::metadata(folder.path().join(name));
            metadata.unwrap().len()
        });
        assert!(sizes.iter().all(|size| *size <= 130), "{sizes:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        let newest = std::fs::read_to_string(&path).unwrap();
        assert!(newest.ends_with("line 0099 of the log\n"), "{newest}");
    }
}
