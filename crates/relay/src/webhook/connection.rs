//! A connection to a webhook, kept open between requests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;
use url::Url;

/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The body of an answer is read so that the connection can be used again. A longer one closes it.
const BODY_MAX: usize = 64 * 1024;

type Body = Full<Bytes>;

/// A connection that makes itself again when it has ended.
#[derive(Default)]
pub(super) struct Connection {
    open: Option<Open>,
}

struct Open {
    sender: SendRequest<Body>,
    /// Drives the connection.
    _task: AbortOnDropHandle<()>,
}

impl Connection {
    /// Sends a request; returns the status of the answer.
    ///
    /// # Errors
    /// If there is no answer. The request may have been received.
    pub(super) async fn send(
        &mut self,
        url: &Url,
        tls: &Arc<ClientConfig>,
        request: Request<Body>,
    ) -> Result<StatusCode, String> {
        let mut open = match self.open.take().filter(|open| !open.sender.is_closed()) {
            Some(open) => open,
            None => within(CONNECT_MAX, "no connection", connect(url, tls)).await?,
        };
        let exchange = async {
            open.sender.ready().await.map_err(|error| error.to_string())?;
            let response = open.sender.send_request(request).await.map_err(|error| error.to_string())?;
            read(response).await
        };
        let (status, reusable) = within(ANSWER_MAX, "no answer", exchange).await?;
        if reusable {
            self.open = Some(open);
        }
        Ok(status)
    }
}

/// The status, and whether the whole body was read.
async fn read(response: Response<Incoming>) -> Result<(StatusCode, bool), String> {
    let status = response.status();
    let body = Limited::new(response.into_body(), BODY_MAX).collect().await;
    Ok((status, body.is_ok()))
}

async fn connect(url: &Url, tls: &Arc<ClientConfig>) -> Result<Open, String> {
    let failed = |error: io::Error| format!("cannot connect: {error}");
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let port = url.port_or_known_default().unwrap_or(443);
    let stream = TcpStream::connect((host, port)).await.map_err(failed)?;
    let _ = stream.set_nodelay(true);
    if url.scheme() == "http" {
        return open(stream).await;
    }
    let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    open(TlsConnector::from(tls.clone()).connect(name, stream).await.map_err(failed)?).await
}

async fn open<S>(stream: S) -> Result<Open, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // An error of the connection shows in the answer.
    let task = AbortOnDropHandle::new(tokio::spawn(async { drop(connection.await) }));
    Ok(Open { sender, _task: task })
}

async fn within<T>(
    limit: Duration,
    what: &str,
    step: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let done = tokio::time::timeout(limit, step).await;
    done.unwrap_or_else(|_| Err(format!("{what} within {} s", limit.as_secs())))
}
