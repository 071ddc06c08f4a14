//! A provider on loopback that answers what it is told to and remembers what it was asked.

#![allow(dead_code, reason = "not every test needs everything")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use serde_json::Value;

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// One answer.
#[derive(Debug, Clone)]
pub(crate) enum Says {
    /// A status and a JSON text.
    Json(u16, String),
    /// The same with one more header.
    With(u16, &'static str, String),
    /// Events of a stream.
    Events(&'static str, String),
    /// A promise of more bytes than come.
    Cut(String),
    /// Nothing, for as long as anybody waits.
    Nothing,
    /// No HTTP at all.
    Garbage,
}

/// The provider.
pub(crate) struct Fake {
    pub(crate) url: String,
    pub(crate) asked: Arc<Mutex<Vec<Asked>>>,
}

impl Fake {
    /// Answers one thing after the other, and the last one again and again.
    pub(crate) fn start(answers: Vec<Says>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let noted = asked.clone();
        std::thread::spawn(move || {
            let answers = Arc::new(answers);
            for stream in listener.incoming().map_while(Result::ok) {
                let (answers, noted) = (answers.clone(), noted.clone());
                std::thread::spawn(move || attend(stream, &answers, &noted));
            }
        });
        Self { url, asked }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn attend(mut stream: TcpStream, answers: &[Says], noted: &Mutex<Vec<Asked>>) {
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
        noted.push(Asked {
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
        Says::Json(status, body) => send(&mut stream, *status, json, body, body.len()),
        Says::With(status, header, body) => send(&mut stream, *status, header, body, body.len()),
        Says::Events(kind, body) => {
            send(
                &mut stream,
                200,
                &format!("Content-Type: {kind}"),
                body,
                body.len(),
            );
        }
        Says::Cut(body) => {
            let kind = "Content-Type: text/event-stream";
            send(&mut stream, 200, kind, body, body.len() + 1000);
        }
        Says::Nothing => {
            let _ = stream.read(&mut [0]);
        }
        Says::Garbage => {
            let _ = stream.write_all(b"\0\x01\x02 what?\r\n\r\n");
        }
    }
}
