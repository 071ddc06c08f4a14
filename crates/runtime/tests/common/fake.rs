//! A fake provider on loopback that sends scripted responses and records the requests.

#![allow(dead_code, reason = "not every test needs everything")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use serde_json::Value;

/// A recorded request.
#[derive(Debug, Clone)]
pub(crate) struct RecordedRequest {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

impl RecordedRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// A scripted response.
#[derive(Debug, Clone)]
pub(crate) enum FakeResponse {
    /// A status and a JSON body.
    Json(u16, String),
    /// The same with one additional header.
    JsonWithHeader(u16, &'static str, String),
    /// An event stream.
    Events(&'static str, String),
    /// A body shorter than its Content-Length.
    Truncated(String),
    /// No response until the client closes the connection.
    NoResponse,
    /// Bytes that are not HTTP.
    Garbage,
}

/// The provider.
pub(crate) struct FakeProvider {
    pub(crate) url: String,
    pub(crate) requests: Arc<Mutex<Vec<RecordedRequest>>>,
}

impl FakeProvider {
    /// Sends the responses in order, and repeats the last one.
    pub(crate) fn start(answers: Vec<FakeResponse>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<RecordedRequest>>> = Arc::default();
        let noted = requests.clone();
        std::thread::spawn(move || {
            let answers = Arc::new(answers);
            for stream in listener.incoming().map_while(Result::ok) {
                let (answers, noted) = (answers.clone(), noted.clone());
                std::thread::spawn(move || serve_connection(stream, &answers, &noted));
            }
        });
        Self { url, requests }
    }

    pub(crate) fn recorded_requests(&self) -> Vec<RecordedRequest> {
        self.requests.lock().unwrap().clone()
    }
}

fn serve_connection(
    mut stream: TcpStream,
    answers: &[FakeResponse],
    noted: &Mutex<Vec<RecordedRequest>>,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    if reader.read_line(&mut line).is_err() || line.is_empty() {
        return;
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.push((name.to_owned(), value.to_owned()));
    }
    let length = headers
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let mut body = vec![0; length.map_or(0, |(_, value)| value.parse().unwrap())];
    reader.read_exact(&mut body).unwrap();
    let number = {
        let mut noted = noted.lock().unwrap();
        noted.push(RecordedRequest {
            path,
            headers,
            body: serde_json::from_slice(&body).unwrap_or_default(),
        });
        noted.len() - 1
    };
    let send = |stream: &mut TcpStream, status: u16, head: &str, body: &str, length: usize| {
        let text = format!(
            "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n{head}\r\n\r\n\
             {body}"
        );
        let _ = stream.write_all(text.as_bytes());
    };
    let json = "Content-Type: application/json";
    match &answers[number.min(answers.len() - 1)] {
        FakeResponse::Json(status, body) => send(&mut stream, *status, json, body, body.len()),
        FakeResponse::JsonWithHeader(status, header, body) => {
            send(&mut stream, *status, header, body, body.len());
        }
        FakeResponse::Events(kind, body) => {
            send(
                &mut stream,
                200,
                &format!("Content-Type: {kind}"),
                body,
                body.len(),
            );
        }
        FakeResponse::Truncated(body) => {
            let kind = "Content-Type: text/event-stream";
            send(&mut stream, 200, kind, body, body.len() + 1000);
        }
        FakeResponse::NoResponse => {
            let _ = stream.read(&mut [0]);
        }
        FakeResponse::Garbage => {
            let _ = stream.write_all(b"\0\x01\x02 what?\r\n\r\n");
        }
    }
}
