//! Messages of the sidecar: lines of JSON, each a result, an error or a host request.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

use crate::error::{Error, Result};

/// A request of the sidecar to the host while it works on something.
#[derive(Debug)]
pub(crate) struct HostRequest {
    pub(crate) kind: String,
    pub(crate) body: Map<String, Value>,
}

/// Answers host requests.
#[async_trait]
pub(crate) trait HostRequestHandler: Sync {
    /// Returns the fields of the answer.
    async fn handle_request(&self, question: HostRequest) -> Result<Value>;
}

/// A line before its type is checked.
#[derive(Debug, Deserialize)]
struct MessageLine {
    r#type: String,
    id: Option<u64>,
    call: Option<u64>,
    #[serde(flatten)]
    body: Map<String, Value>,
}

/// A message of the sidecar.
#[derive(Debug)]
pub(super) enum SidecarMessage {
    Result(Map<String, Value>),
    Refused { code: String, message: String },
    Request { call: u64, question: HostRequest },
}

impl SidecarMessage {
    /// Parses a line into the id of its request and the message.
    pub(super) fn parse_line(line: &[u8]) -> Option<(Option<u64>, Self)> {
        let line: MessageLine = repertoire_core::json::from_slice(line).ok()?;
        let message = match (line.r#type.as_str(), line.call) {
            ("result", _) => Self::Result(line.body),
            ("error", _) => {
                let word = |key: &str| line.body.get(key).and_then(Value::as_str);
                Self::Refused {
                    code: word("code").unwrap_or_default().to_owned(),
                    message: word("message").unwrap_or_default().to_owned(),
                }
            }
            (_, Some(call)) => Self::Request {
                call,
                question: HostRequest {
                    kind: line.r#type,
                    body: line.body,
                },
            },
            _ => return None,
        };
        Some((line.id, message))
    }
}

/// Converts an error message of the sidecar, with its texts shortened.
pub(super) fn program_error(code: &str, message: &str) -> Error {
    Error::Program {
        code: repertoire_core::markdown::truncate_text(code, 40),
        message: repertoire_core::markdown::truncate_text(message, 2000),
    }
}

/// Reads one line of at most `most` bytes.
pub(super) async fn read_line(
    reader: &mut (impl AsyncBufRead + Unpin),
    most: u64,
) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let read = reader.take(most + 1).read_until(b'\n', &mut line).await?;
    let refuse = |why: String| Err(std::io::Error::new(std::io::ErrorKind::InvalidData, why));
    if read as u64 > most {
        return refuse(format!("a line has more than {most} bytes"));
    }
    if !line.ends_with(b"\n") {
        return refuse("it ended".to_owned());
    }
    Ok(line)
}
