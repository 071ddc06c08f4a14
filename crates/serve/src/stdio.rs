//! MCP over standard input and output.
//!
//! One thread reads lines. It answers the most frequent requests itself and passes the others to
//! `rmcp`. A line that is not a message gets an error response, and a line that is too long is
//! skipped without being buffered.

use std::{
    fs::File,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    sync::{Arc, Mutex, PoisonError},
};

use rmcp::{
    RoleServer, ServiceExt,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    service::ServerInitializeError,
    transport::Transport,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    error::{Error, Result},
    mcp::{
        McpConnection,
        fast_path::{self, DeclaredRevision, FastMessage, ProtocolEra},
    },
    service::SkillService,
};

/// The maximum length of a line in bytes.
const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;
/// The number of messages queued for `rmcp`; the reader blocks when the queue is full.
const MAX_QUEUED_MESSAGES: usize = 64;

/// Serves one host over standard input and output until it disconnects or the server shuts down.
pub async fn serve_stdio(service: Arc<SkillService>) -> Result<()> {
    let failed = |error: std::io::Error| Error::Transport(error.to_string());
    let (input, output) = clone_standard_streams().map_err(failed)?;
    let output = LineWriter(Arc::new(Mutex::new(BlockingFile(output))));
    serve_connection(service, BlockingFile(input), output).await
}

/// Clones standard input and output as files, to bypass the buffering of the standard library.
fn clone_standard_streams() -> std::io::Result<(File, File)> {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        let input = std::io::stdin().as_fd().try_clone_to_owned()?;
        let output = std::io::stdout().as_fd().try_clone_to_owned()?;
        Ok((input.into(), output.into()))
    }
    #[cfg(windows)]
    {
        use std::os::windows::io::AsHandle;
        let input = std::io::stdin().as_handle().try_clone_to_owned()?;
        let output = std::io::stdout().as_handle().try_clone_to_owned()?;
        Ok((input.into(), output.into()))
    }
}

/// A file with blocking I/O, even if another process has set `O_NONBLOCK` on it.
#[derive(Debug)]
struct BlockingFile(File);

impl BlockingFile {
    /// Waits until the file is ready again; returns false for other errors.
    fn wait_until_ready(&self, error: &std::io::Error, writing: bool) -> bool {
        if error.kind() != ErrorKind::WouldBlock {
            return false;
        }
        #[cfg(unix)]
        {
            use rustix::event::{PollFd, PollFlags, poll};
            let want = if writing {
                PollFlags::OUT
            } else {
                PollFlags::IN
            };
            poll(&mut [PollFd::new(&self.0, want)], None).is_ok()
        }
        #[cfg(not(unix))]
        {
            let _ = writing;
            false
        }
    }
}

impl Read for BlockingFile {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if self.wait_until_ready(&error, false) => {}
                read => return read,
            }
        }
    }
}

impl Write for BlockingFile {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        loop {
            match self.0.write(buffer) {
                Err(error) if self.wait_until_ready(&error, true) => {}
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

async fn serve_connection(
    service: Arc<SkillService>,
    input: BlockingFile,
    output: LineWriter,
) -> Result<()> {
    let (send, receive) = mpsc::channel(MAX_QUEUED_MESSAGES);
    let reader = StdioReader {
        service: service.clone(),
        output: output.clone(),
        to_rmcp: send,
        handshake: Handshake::None,
        request_seen: false,
    };
    // A thread instead of a task, because reading from the host blocks.
    std::thread::spawn(move || reader.read_lines(BufReader::with_capacity(64 * 1024, input)));
    let lines = StdioTransport { receive, output };
    let stop = service.stop.child_token();
    let failed = async {
        match service.registry().await {
            // Without a registry the server cannot answer anything.
            Err(error) => error,
            Ok(_) => std::future::pending().await,
        }
    };
    let serve = async {
        let handlers = McpConnection::new(service.clone());
        let running = match handlers.serve_with_ct(lines, stop).await {
            Ok(running) => running,
            // A host may disconnect before the handshake; that is not an error.
            Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => {
                return Ok(());
            }
            Err(error) => return Err(Error::Transport(error.to_string())),
        };
        let ended = running.waiting().await;
        ended
            .map(drop)
            .map_err(|error| Error::Transport(error.to_string()))
    };
    tokio::select! {
        ended = serve => ended,
        error = failed => Err(error),
    }
}

/// Writes whole lines, one at a time.
#[derive(Debug, Clone)]
struct LineWriter(Arc<Mutex<BlockingFile>>);

impl LineWriter {
    fn write_line(&self, mut bytes: Vec<u8>) -> std::io::Result<()> {
        bytes.push(b'\n');
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&bytes)
    }
}

/// The state of the handshake of the older revisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handshake {
    None,
    Requested,
    Done,
}

/// Reads lines, and answers each or passes it to `rmcp`.
struct StdioReader {
    service: Arc<SkillService>,
    output: LineWriter,
    to_rmcp: mpsc::Sender<ClientJsonRpcMessage>,
    handshake: Handshake,
    /// Whether a request has been received.
    request_seen: bool,
}

impl StdioReader {
    fn read_lines(mut self, mut input: impl BufRead) {
        let mut line = Vec::new();
        while let Some(whole) = next_line(&mut input, &mut line) {
            let sent = if whole {
                self.handle_line(&line)
            } else {
                let message = format!("a line has at most {MAX_LINE_BYTES} bytes");
                self.write_error(-32600, &message, None)
            };
            if sent.is_err() {
                // The connection is closed.
                return;
            }
        }
    }

    /// Handles one line; an error means that the host has disconnected.
    fn handle_line(&mut self, line: &[u8]) -> Result<(), HostDisconnected> {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        let line = line.trim_ascii();
        if line.is_empty() {
            return Ok(());
        }
        if let Ok(message) = repertoire_core::json::from_slice::<FastMessage<'_>>(line) {
            if let Some(answer) = self.try_fast_path(&message) {
                return self.output.write_line(answer).map_err(|_| HostDisconnected);
            }
            match message.method.as_deref() {
                Some("initialize") => self.handshake = Handshake::Requested,
                Some("notifications/initialized") if self.handshake == Handshake::Requested => {
                    self.handshake = Handshake::Done;
                }
                _ => {}
            }
        }
        match repertoire_core::json::from_slice::<ClientJsonRpcMessage>(line) {
            Ok(message) => {
                self.request_seen |= matches!(message, ClientJsonRpcMessage::Request(_));
                if !self.request_seen {
                    // Notifications before the first request are ignored.
                    return Ok(());
                }
                self.to_rmcp
                    .blocking_send(message)
                    .map_err(|_| HostDisconnected)
            }
            Err(error) => self.reject_line(line, &error),
        }
    }

    fn try_fast_path(&self, message: &FastMessage<'_>) -> Option<Vec<u8>> {
        let era = match message.declared_revision() {
            DeclaredRevision::Modern => ProtocolEra::Modern,
            DeclaredRevision::Unspecified if self.handshake == Handshake::Done => {
                ProtocolEra::Legacy
            }
            DeclaredRevision::Unspecified | DeclaredRevision::Other => return None,
        };
        fast_path::try_answer(&self.service, message, era)
    }

    /// Reports a line that is not a valid message.
    fn reject_line(&self, line: &[u8], error: &serde_json::Error) -> Result<(), HostDisconnected> {
        let Ok(value) = repertoire_core::json::from_slice::<Value>(line) else {
            return self.write_error(-32700, &format!("not JSON: {error}"), None);
        };
        let id = value.get("id").filter(|id| id.is_string() || id.is_i64());
        if value.get("method").is_some() && value.get("id").is_none() {
            // Unknown or invalid notifications get no response.
            return Ok(());
        }
        self.write_error(-32600, "not a JSON-RPC message", id)
    }

    fn write_error(
        &self,
        code: i32,
        message: &str,
        id: Option<&Value>,
    ) -> Result<(), HostDisconnected> {
        let mut answer = json!({"jsonrpc": "2.0"});
        if let Some(id) = id {
            answer["id"] = id.clone();
        }
        answer["error"] = json!({"code": code, "message": message});
        let bytes = answer.to_string().into_bytes();
        self.output.write_line(bytes).map_err(|_| HostDisconnected)
    }
}

/// The host has disconnected.
#[derive(Debug)]
struct HostDisconnected;

/// Reads the next line; returns false if it was too long, and `None` at the end of input.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> Option<bool> {
    line.clear();
    let mut whole = true;
    loop {
        let chunk = match input.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return None,
        };
        if chunk.is_empty() {
            return (!line.is_empty()).then_some(whole);
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(chunk.len(), |at| at + 1);
        if line.len() + taken <= MAX_LINE_BYTES {
            line.extend_from_slice(&chunk[..taken]);
        } else {
            whole = false;
            line.clear();
            line.push(b' ');
        }
        input.consume(taken);
        if end.is_some() {
            return Some(whole);
        }
    }
}

/// The transport that `rmcp` uses.
struct StdioTransport {
    receive: mpsc::Receiver<ClientJsonRpcMessage>,
    output: LineWriter,
}

impl Transport<RoleServer> for StdioTransport {
    type Error = std::io::Error;

    fn send(
        &mut self,
        item: ServerJsonRpcMessage,
    ) -> impl Future<Output = std::io::Result<()>> + Send + 'static {
        let output = self.output.clone();
        async move {
            let bytes = serde_json::to_vec(&item)?;
            // A host that does not read blocks only this thread.
            let written = tokio::task::spawn_blocking(move || output.write_line(bytes)).await;
            written.map_err(std::io::Error::other)?
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        self.receive.recv().await
    }

    async fn close(&mut self) -> std::io::Result<()> {
        self.receive.close();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlong_line_is_skipped_and_the_next_line_is_read() {
        let mut input = vec![b'x'; MAX_LINE_BYTES + 10];
        input.extend_from_slice(b"\nshort\nlast");
        let mut input = std::io::Cursor::new(input);
        let mut line = Vec::new();
        assert_eq!(next_line(&mut input, &mut line), Some(false));
        assert!(line.len() < 10);
        assert_eq!(next_line(&mut input, &mut line), Some(true));
        assert_eq!(line, b"short\n");
        assert_eq!(next_line(&mut input, &mut line), Some(true));
        assert_eq!(line, b"last");
        assert_eq!(next_line(&mut input, &mut line), None);
    }
}
