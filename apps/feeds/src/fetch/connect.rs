//! One request on one connection. The address is checked here, where the connection is made: a name that was checked earlier
//! may resolve to another address now.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::Url;

use crate::fetch::error::FetchError;
use crate::fetch::limits::CONNECT_MAX;

/// How connections are made.
pub(crate) struct Connector {
    pub(crate) tls: Arc<rustls::ClientConfig>,
    /// Whether this address may be connected to.
    pub(crate) allowed: fn(IpAddr) -> bool,
}

impl Connector {
    /// Sends the request and gives the response to `read`, which has the connection until it returns.
    pub(crate) async fn exchange<T, F>(
        &self,
        url: &Url,
        request: Request<Full<Bytes>>,
        read: impl FnOnce(Response<Incoming>) -> F,
    ) -> Result<T, FetchError>
    where
        F: Future<Output = Result<T, FetchError>>,
    {
        let host = url.host_str().unwrap_or_default();
        let stream = within(CONNECT_MAX, host, self.connect(url)).await?;
        if url.scheme() == "http" {
            return exchange(stream, host, request, read).await;
        }
        let failed = |error: String| FetchError::Tls(host.to_owned(), error);
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
        let name = name.map_err(|error| failed(error.to_string()))?;
        let handshake = TlsConnector::from(self.tls.clone()).connect(name, stream);
        let secured = async { handshake.await.map_err(|error| failed(error.to_string())) };
        exchange(within(CONNECT_MAX, host, secured).await?, host, request, read).await
    }

    /// Connects to the first address that may be connected to and accepts.
    async fn connect(&self, url: &Url) -> Result<TcpStream, FetchError> {
        let host = url.host_str().unwrap_or_default();
        let (mut refused, mut last) = (None, None);
        for address in resolve(url).await? {
            if !(self.allowed)(address.ip()) {
                refused = Some(address.ip());
                continue;
            }
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Err(error) => last = Some(error.to_string()),
            }
        }
        Err(match (last, refused) {
            (None, Some(address)) => FetchError::Address { host: host.to_owned(), address },
            (last, _) => FetchError::Connect(host.to_owned(), last.unwrap_or_else(|| "no address".into())),
        })
    }
}

async fn resolve(url: &Url) -> Result<Vec<SocketAddr>, FetchError> {
    let port = url.port_or_known_default().unwrap_or(80);
    match url.host() {
        Some(url::Host::Ipv4(address)) => Ok(vec![(address, port).into()]),
        Some(url::Host::Ipv6(address)) => Ok(vec![(address, port).into()]),
        Some(url::Host::Domain(name)) => match tokio::net::lookup_host((name, port)).await {
            Ok(addresses) => Ok(addresses.collect()),
            Err(error) => Err(FetchError::Resolve(name.to_owned(), error.to_string())),
        },
        None => Err(FetchError::Url(url.to_string())),
    }
}

async fn within<T>(
    limit: Duration,
    host: &str,
    step: impl Future<Output = Result<T, FetchError>>,
) -> Result<T, FetchError> {
    let done = tokio::time::timeout(limit, step).await;
    done.unwrap_or_else(|_| Err(FetchError::ConnectTime(host.to_owned())))
}

async fn exchange<S, T, F>(
    stream: S,
    host: &str,
    request: Request<Full<Bytes>>,
    read: impl FnOnce(Response<Incoming>) -> F,
) -> Result<T, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    F: Future<Output = Result<T, FetchError>>,
{
    let broke = |error: hyper::Error| FetchError::Exchange(host.to_owned(), error.to_string());
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broke)?;
    let work = async {
        let response = sender.send_request(request).await.map_err(broke)?;
        read(response).await
    };
    let (mut work, mut connection) = (std::pin::pin!(work), std::pin::pin!(connection));
    tokio::select! {
        biased;
        done = &mut work => return done,
        _ = &mut connection => {}
    }
    // The peer has closed the connection; what it sent before is still to be read.
    work.await
}
