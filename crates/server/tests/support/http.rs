//! HTTP by hand: what a test says is what goes over the wire.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Nothing here takes this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) kind: String,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.text).with_context(|| format!("not JSON: {}", self.text))
    }
}

/// A caller with or without a token.
#[derive(Clone)]
pub(crate) struct Http {
    pub(crate) address: SocketAddr,
    pub(crate) headers: String,
}

impl Http {
    pub(crate) fn new(address: SocketAddr) -> Http {
        Http { address, headers: String::new() }
    }

    pub(crate) fn with(&self, header: &str) -> Http {
        Http { address: self.address, headers: format!("{}{header}\r\n", self.headers) }
    }

    pub(crate) fn token(&self, secret: &str) -> Http {
        self.with(&format!("authorization: Bearer {secret}"))
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Answer> {
        self.send("GET", path, "", b"").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.json("POST", path, body).await
    }

    pub(crate) async fn json(&self, method: &str, path: &str, body: &Value) -> Result<Answer> {
        self.send(method, path, "content-type: application/json\r\n", body.to_string().as_bytes()).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Result<Answer> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n{}{headers}\r\n",
            self.address,
            body.len(),
            self.headers
        );
        self.raw(&[head.as_bytes(), body].concat()).await
    }

    pub(crate) async fn raw(&self, request: &[u8]) -> Result<Answer> {
        let mut stream = TcpStream::connect(self.address).await?;
        // A server that refuses a body before it has read it all may close its side first.
        let _ = stream.write_all(request).await;
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await?;
        if bytes.is_empty() {
            read?;
        }
        answer(&bytes)
    }

    /// A stream of events, read one at a time.
    pub(crate) async fn events(&self, path: &str) -> Result<Events> {
        let mut stream = TcpStream::connect(self.address).await?;
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n{}\r\n", self.address, self.headers);
        stream.write_all(head.as_bytes()).await?;
        Ok(Events { stream, text: String::new() })
    }
}

fn answer(bytes: &[u8]) -> Result<Answer> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("no answer: {text}"))?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    let header = |name: &str| {
        let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(name));
        line.and_then(|line| line.split_once(": ")).map(|(_, value)| value.to_owned()).unwrap_or_default()
    };
    let text = if header("transfer-encoding:") == "chunked" { unchunked(body) } else { body.to_owned() };
    Ok(Answer { status, kind: header("content-type:"), text })
}

fn unchunked(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        text.push_str(rest.get(..size).unwrap_or(rest));
        body = rest.get(size + 2..).unwrap_or("");
    }
    text
}

pub(crate) struct Events {
    stream: TcpStream,
    text: String,
}

impl Events {
    /// The name and the data of the next event.
    pub(crate) async fn next(&mut self) -> Result<(String, Value)> {
        loop {
            let event = self.text.find("event: ").and_then(|from| {
                let (name, rest) = self.text[from + 7..].split_once("\ndata: ")?;
                let (data, after) = rest.split_once("\n\n")?;
                Some((name.to_owned(), data.to_owned(), after.to_owned()))
            });
            if let Some((name, data, after)) = event {
                self.text = after;
                return Ok((name, serde_json::from_str(&data)?));
            }
            let mut bytes = [0; 8192];
            let read = tokio::time::timeout(PATIENCE, self.stream.read(&mut bytes)).await??;
            anyhow::ensure!(read > 0, "the stream ended: {}", self.text);
            self.text.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }
}
