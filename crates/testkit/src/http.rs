//! An HTTP/1.1 client: one connection for each request, every header under the test's control.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::wait::WAIT_MAX;

/// A client of one server, with headers that go with every request.
#[derive(Clone)]
pub struct Http {
    address: SocketAddr,
    headers: HeaderMap,
}

impl Http {
    /// A client without a token.
    pub fn new(address: SocketAddr) -> Http {
        let http = Http { address, headers: HeaderMap::new() };
        http.header("host", &address.to_string()).header("connection", "close")
    }

    /// The same client with one more header, or with another value of it. Panics if it is not a header.
    pub fn header(&self, name: &str, value: &str) -> Http {
        let mut http = self.clone();
        let name = HeaderName::try_from(name).expect("the name of a header");
        http.headers.insert(name, HeaderValue::from_str(value).expect("the value of a header"));
        http
    }

    /// The same client with a token.
    pub fn token(&self, secret: &str) -> Http {
        self.header("authorization", &format!("Bearer {secret}"))
    }

    /// A request without a body.
    pub async fn get(&self, path: &str) -> Result<HttpResponse> {
        self.send("GET", path, Bytes::new()).await
    }

    /// A `POST` with a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Result<HttpResponse> {
        self.json("POST", path, body).await
    }

    /// A request with a JSON body.
    pub async fn json(&self, method: &str, path: &str, body: &Value) -> Result<HttpResponse> {
        self.header("content-type", "application/json").send(method, path, body.to_string()).await
    }

    /// A request with any method and any body.
    pub async fn send(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Result<HttpResponse> {
        let stream = TcpStream::connect(self.address).await?;
        self.send_over(stream, method, path, body).await
    }

    /// The same over a connection of the caller's, for example one with TLS.
    pub async fn send_over<S>(
        &self,
        stream: S,
        method: &str,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Result<HttpResponse>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let request = self.request(method, path, body.into())?;
        timeout(WAIT_MAX, async {
            let (response, _connection) = exchange(stream, request).await?;
            HttpResponse::read(response).await
        })
        .await?
    }

    /// Opens a stream of server-sent events.
    pub async fn events(&self, path: &str) -> Result<Events> {
        let request = self.request("GET", path, Bytes::new())?;
        let stream = TcpStream::connect(self.address).await?;
        let (response, connection) = timeout(WAIT_MAX, exchange(stream, request)).await??;
        Ok(Events { body: response.into_body(), text: String::new(), _connection: connection })
    }

    fn request(&self, method: &str, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::from_bytes(method.as_bytes())?;
        *request.uri_mut() = path.parse().with_context(|| format!("`{path}` is not a path"))?;
        *request.headers_mut() = self.headers.clone();
        Ok(request)
    }
}

/// Sends the request; returns the head of the response, and the task that drives the connection.
async fn exchange<S>(
    stream: S,
    request: Request<Full<Bytes>>,
) -> Result<(Response<Incoming>, AbortOnDropHandle<()>)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // An error of the connection shows in the response.
    let connection = AbortOnDropHandle::new(tokio::spawn(async { drop(connection.await) }));
    Ok((sender.send_request(request).await?, connection))
}

/// A response that was read to its end.
pub struct HttpResponse {
    /// The status code.
    pub status: u16,
    /// The content type; empty if the server sent none.
    pub content_type: String,
    /// The body.
    pub text: String,
}

impl HttpResponse {
    async fn read(response: Response<Incoming>) -> Result<HttpResponse> {
        let status = response.status().as_u16();
        let content_type = response.headers().get(CONTENT_TYPE).map(HeaderValue::to_str).transpose()?;
        let content_type = content_type.unwrap_or_default().to_owned();
        let body = response.into_body().collect().await?.to_bytes();
        Ok(HttpResponse { status, content_type, text: String::from_utf8_lossy(&body).into_owned() })
    }

    /// The body as JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.text).with_context(|| format!("not JSON: {}", self.text))
    }
}

/// A stream of server-sent events, read one at a time.
pub struct Events {
    body: Incoming,
    /// What was received and not returned yet.
    text: String,
    _connection: AbortOnDropHandle<()>,
}

impl Events {
    /// The name and the data of the next event.
    pub async fn next(&mut self) -> Result<(String, Value)> {
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
            let frame = timeout(WAIT_MAX, self.body.frame()).await?;
            let frame = frame.with_context(|| format!("the stream ended: {}", self.text))??;
            self.text.push_str(&String::from_utf8_lossy(frame.data_ref().context("not data")?));
        }
    }
}
