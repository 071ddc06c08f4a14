//! MCP over standard input and output.
//!
//! One thread reads lines. What is asked most it answers itself, on the spot; everything else it
//! hands to `rmcp`. A line that cannot be a message gets an answer too, and one that is too long
//! is passed over without being kept.

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
    engine::Engine,
    error::{Error, Result},
    mcp::{
        Handlers,
        fast::{self, Era, Message, Said},
    },
};

/// The most bytes of a line.
const MAX_LINE: usize = 4 * 1024 * 1024;
/// How many messages may wait for `rmcp`; the reader waits when there are more.
const WAITING: usize = 64;

/// Serves one host over standard input and output until it hangs up or the server shuts down.
pub async fn serve_stdio(engine: Arc<Engine>) -> Result<()> {
    let failed = |error: std::io::Error| Error::Transport(error.to_string());
    let (input, output) = standard().map_err(failed)?;
    let output = Output(Arc::new(Mutex::new(Patient(output))));
    serve(engine, Patient(input), output).await
}

/// Standard input and output as files: unbuffered, apart from what the library does with them.
fn standard() -> std::io::Result<(File, File)> {
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

/// A file that waits, also where whoever shares it has made it one that does not.
#[derive(Debug)]
struct Patient(File);

impl Patient {
    /// Waits until something can be done with the file again.
    fn wait(&self, error: &std::io::Error, writing: bool) -> bool {
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

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if self.wait(&error, false) => {}
                read => return read,
            }
        }
    }
}

impl Write for Patient {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        loop {
            match self.0.write(buffer) {
                Err(error) if self.wait(&error, true) => {}
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

async fn serve(engine: Arc<Engine>, input: Patient, output: Output) -> Result<()> {
    let (send, receive) = mpsc::channel(WAITING);
    let reader = Reader {
        engine: engine.clone(),
        output: output.clone(),
        hand_over: send,
        handshake: Handshake::None,
        opened: false,
    };
    // Not a task: it waits for the host for as long as the host likes.
    std::thread::spawn(move || reader.run(BufReader::with_capacity(64 * 1024, input)));
    let lines = Lines { receive, output };
    let stop = engine.stop.child_token();
    let failed = async {
        match engine.registry().await {
            // Without a registry there is nothing to serve.
            Err(error) => error,
            Ok(_) => std::future::pending().await,
        }
    };
    let serve = async {
        let handlers = Handlers::new(engine.clone());
        let running = match handlers.serve_with_ct(lines, stop).await {
            Ok(running) => running,
            // A host that leaves before it says hello has done nothing wrong.
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

/// Where lines go: one at a time, whole.
#[derive(Debug, Clone)]
struct Output(Arc<Mutex<Patient>>);

impl Output {
    fn line(&self, mut bytes: Vec<u8>) -> std::io::Result<()> {
        bytes.push(b'\n');
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&bytes)
    }
}

/// How far the handshake of the older revisions has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handshake {
    None,
    Asked,
    Done,
}

/// Reads lines and answers or hands over each.
struct Reader {
    engine: Arc<Engine>,
    output: Output,
    hand_over: mpsc::Sender<ClientJsonRpcMessage>,
    handshake: Handshake,
    /// Whether anything was asked yet.
    opened: bool,
}

impl Reader {
    fn run(mut self, mut input: impl BufRead) {
        let mut line = Vec::new();
        while let Some(whole) = next_line(&mut input, &mut line) {
            let sent = if whole {
                self.take(&line)
            } else {
                let message = format!("a line has at most {MAX_LINE} bytes");
                self.refuse(-32600, &message, None)
            };
            if sent.is_err() {
                // Nobody is listening any more.
                return;
            }
        }
    }

    /// Takes one line; an error means that there is nobody left to talk to.
    fn take(&mut self, line: &[u8]) -> Result<(), Gone> {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        let line = line.trim_ascii();
        if line.is_empty() {
            return Ok(());
        }
        if let Ok(message) = repertoire_core::json::from_slice::<Message<'_>>(line) {
            if let Some(answer) = self.answer(&message) {
                return self.output.line(answer).map_err(|_| Gone);
            }
            match message.method.as_deref() {
                Some("initialize") => self.handshake = Handshake::Asked,
                Some("notifications/initialized") if self.handshake == Handshake::Asked => {
                    self.handshake = Handshake::Done;
                }
                _ => {}
            }
        }
        match repertoire_core::json::from_slice::<ClientJsonRpcMessage>(line) {
            Ok(message) => {
                self.opened |= matches!(message, ClientJsonRpcMessage::Request(_));
                if !self.opened {
                    // Before the first question there is nothing to be told, and no answer due.
                    return Ok(());
                }
                self.hand_over.blocking_send(message).map_err(|_| Gone)
            }
            Err(error) => self.wrong(line, &error),
        }
    }

    fn answer(&self, message: &Message<'_>) -> Option<Vec<u8>> {
        let era = match message.said() {
            Said::Modern => Era::Modern,
            Said::Nothing if self.handshake == Handshake::Done => Era::Legacy,
            Said::Nothing | Said::Other => return None,
        };
        fast::answer(&self.engine, message, era)
    }

    /// Says what is wrong with a line that is no message.
    fn wrong(&self, line: &[u8], error: &serde_json::Error) -> Result<(), Gone> {
        let Ok(value) = repertoire_core::json::from_slice::<Value>(line) else {
            return self.refuse(-32700, &format!("not JSON: {error}"), None);
        };
        let id = value.get("id").filter(|id| id.is_string() || id.is_i64());
        if value.get("method").is_some() && value.get("id").is_none() {
            // A notification nobody knows, or a wrong one, is not answered.
            return Ok(());
        }
        self.refuse(-32600, "not a JSON-RPC message", id)
    }

    fn refuse(&self, code: i32, message: &str, id: Option<&Value>) -> Result<(), Gone> {
        let mut answer = json!({"jsonrpc": "2.0"});
        if let Some(id) = id {
            answer["id"] = id.clone();
        }
        answer["error"] = json!({"code": code, "message": message});
        let bytes = answer.to_string().into_bytes();
        self.output.line(bytes).map_err(|_| Gone)
    }
}

/// Nobody is left to talk to.
#[derive(Debug)]
struct Gone;

/// Reads the next line; says whether it is whole, or was too long. `None` at the end.
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
        if line.len() + taken <= MAX_LINE {
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

/// The lines that `rmcp` sees.
struct Lines {
    receive: mpsc::Receiver<ClientJsonRpcMessage>,
    output: Output,
}

impl Transport<RoleServer> for Lines {
    type Error = std::io::Error;

    fn send(
        &mut self,
        item: ServerJsonRpcMessage,
    ) -> impl Future<Output = std::io::Result<()>> + Send + 'static {
        let output = self.output.clone();
        async move {
            let bytes = serde_json::to_vec(&item)?;
            // A host that does not read keeps only this thread waiting.
            let written = tokio::task::spawn_blocking(move || output.line(bytes)).await;
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
    fn a_line_that_is_too_long_is_passed_over() {
        let mut input = vec![b'x'; MAX_LINE + 10];
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
