//! What the sidecar says: lines of JSON, each a result, a refusal or a question.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

use crate::error::{Error, Result};

/// What the sidecar asks while it works on something.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) kind: String,
    pub(crate) body: Map<String, Value>,
}

/// Answers what the sidecar asks.
#[async_trait]
pub(crate) trait Answers: Sync {
    /// The fields of the answer.
    async fn answer(&self, question: Question) -> Result<Value>;
}

/// A line as it comes.
#[derive(Debug, Deserialize)]
struct Line {
    r#type: String,
    id: Option<u64>,
    call: Option<u64>,
    #[serde(flatten)]
    body: Map<String, Value>,
}

/// What a line says.
#[derive(Debug)]
pub(super) enum Said {
    Result(Map<String, Value>),
    Refused { code: String, message: String },
    Asked { call: u64, question: Question },
}

impl Said {
    /// Reads a line: which request it is about, and what it says of it.
    pub(super) fn read(line: &[u8]) -> Option<(Option<u64>, Self)> {
        let line: Line = repertoire_core::json::from_slice(line).ok()?;
        let said = match (line.r#type.as_str(), line.call) {
            ("result", _) => Self::Result(line.body),
            ("error", _) => {
                let word = |key: &str| line.body.get(key).and_then(Value::as_str);
                Self::Refused {
                    code: word("code").unwrap_or_default().to_owned(),
                    message: word("message").unwrap_or_default().to_owned(),
                }
            }
            (_, Some(call)) => Self::Asked {
                call,
                question: Question {
                    kind: line.r#type,
                    body: line.body,
                },
            },
            _ => return None,
        };
        Some((line.id, said))
    }
}

/// What the sidecar says of a request it could not do.
pub(super) fn told(code: &str, message: &str) -> Error {
    Error::Program {
        code: repertoire_core::markdown::cut(code, 40),
        message: repertoire_core::markdown::cut(message, 2000),
    }
}

/// Reads one line of so many bytes at most.
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
