//! A web server for tests, close to the socket: it can break every rule.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// A request that arrived.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) path: String,
    /// The whole head, as it was sent.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Request {
    /// A header, exactly as it was sent.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// An answer.
pub(crate) struct Reply {
    pub(crate) bytes: Vec<u8>,
    /// The answer is sent when a permit is added here.
    pub(crate) gate: Option<Arc<Semaphore>>,
    /// The connection stays open after the answer, and nothing more is sent.
    pub(crate) hangs: bool,
}

impl Reply {
    /// An answer with a body.
    pub(crate) fn new(status: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Reply {
        let body = body.as_ref();
        let mut head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len());
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        let bytes = [head.as_bytes(), b"\r\n", body].concat();
        Reply { bytes, gate: None, hangs: false }
    }

    pub(crate) fn ok(body: impl AsRef<[u8]>) -> Reply {
        Reply::new("200 OK", &[], body)
    }

    pub(crate) fn redirect(status: &str, to: &str) -> Reply {
        Reply::new(status, &[("location", to)], "")
    }

    pub(crate) fn raw(bytes: impl Into<Vec<u8>>) -> Reply {
        Reply { bytes: bytes.into(), gate: None, hangs: false }
    }

    pub(crate) fn after(self, gate: &Arc<Semaphore>) -> Reply {
        Reply { gate: Some(gate.clone()), ..self }
    }

    pub(crate) fn then_hang(self) -> Reply {
        Reply { hangs: true, ..self }
    }
}

/// A running server. It listens on all loopback addresses, so that it can be several hosts.
pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Site {
    pub(crate) async fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Result<Site> {
        let listener = TcpListener::bind("0.0.0.0:0").await?;
        let address = SocketAddr::from(([127, 0, 0, 1], listener.local_addr()?.port()));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (requests.clone(), Arc::new(answer));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, answer) = (seen.clone(), answer.clone());
                tokio::spawn(async move { serve(stream, &seen, &*answer).await });
            }
        });
        Ok(Site { address, requests, task })
    }

    /// A URL on the host 127.0.0.1.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// A URL on another host: 127.0.1.`host`.
    pub(crate) fn url_on(&self, host: u8, path: &str) -> String {
        format!("http://127.0.1.{host}:{}{path}", self.address.port())
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.requests().into_iter().map(|request| request.path).collect()
    }
}

async fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<Request>>,
    answer: &(dyn Fn(&Request) -> Reply + Send + Sync),
) -> Result<()> {
    let request = read(&mut stream).await?;
    let reply = answer(&request);
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(request);
    if let Some(gate) = &reply.gate {
        gate.acquire().await?.forget();
    }
    stream.write_all(&reply.bytes).await?;
    if reply.hangs {
        std::future::pending::<()>().await;
    }
    Ok(stream.shutdown().await?)
}

async fn read(stream: &mut TcpStream) -> Result<Request> {
    let mut bytes = Vec::new();
    let end = loop {
        anyhow::ensure!(stream.read_buf(&mut bytes).await? > 0, "the client went away");
        if let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec())?;
    let path = head.split(' ').nth(1).context("no path")?.to_owned();
    let mut request = Request { path, head, body: String::new() };
    let length: usize = request.header("content-length").unwrap_or("0").parse()?;
    while bytes.len() < end + length {
        anyhow::ensure!(stream.read_buf(&mut bytes).await? > 0, "the client went away");
    }
    request.body = String::from_utf8(bytes[end..].to_vec())?;
    Ok(request)
}

/// A feed with these guids.
pub(crate) fn feed(guids: &[&str]) -> String {
    let item = |guid: &&str| {
        format!(
            "<item><guid>{guid}</guid><title>article {guid}</title><link>http://x.example/{guid}</link></item>"
        )
    };
    let items: String = guids.iter().map(item).collect();
    format!("<rss version=\"2.0\"><channel><title>A feed</title>{items}</channel></rss>")
}
