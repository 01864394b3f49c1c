//! Connections as they come in, with TLS or without.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::server::Connected;

/// Who does not shake hands within this time does not mean it.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Connections that are ready and not yet served.
const READY_MAX: usize = 64;

/// A connection.
pub(crate) enum Connection {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The connections of a listener. Those that shake hands slowly hold up nobody.
pub(crate) fn incoming(listener: TcpListener, tls: Option<TlsAcceptor>) -> Incoming {
    let (ready, connections) = mpsc::channel(READY_MAX);
    let accepting = AbortOnDropHandle::new(tokio::spawn(accept(listener, tls, ready)));
    Incoming { connections, _accepting: accepting }
}

pub(crate) struct Incoming {
    connections: mpsc::Receiver<Connection>,
    _accepting: AbortOnDropHandle<()>,
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.connections.poll_recv(context).map(|connection| connection.map(Ok))
    }
}

/// Accepts, however many cannot be accepted in between: a node that is out of files for a moment goes on.
async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, ready: mpsc::Sender<Connection>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls.clone() else {
            if ready.send(Connection::Plain(stream)).await.is_err() {
                return;
            }
            continue;
        };
        let ready = ready.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE_MAX, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let _ = ready.send(Connection::Tls(Box::new(stream))).await;
                }
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            }
        });
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Connection::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Connection::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_flush(context),
            Connection::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Connection::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
