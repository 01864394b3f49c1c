//! Accepts connections, and completes their TLS handshakes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic::transport::server::Connected;

/// A handshake that takes longer is given up.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Handshakes under way. While there are as many, new connections wait in the listener's backlog.
const HANDSHAKES_MAX: usize = 1000;
/// Connections that are ready and not yet served.
const READY_MAX: usize = 64;
/// Wait after a failed accept: the process may be out of file descriptors for a moment.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A connection.
pub(crate) enum Connection {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The connections of a listener. A slow handshake does not delay other connections.
///
/// What is spawned belongs to `tasks` and ends when the stream is dropped; the listener is closed then.
pub(crate) fn incoming(listener: TcpListener, tls: Option<TlsAcceptor>, tasks: &TaskTracker) -> Incoming {
    let (ready, connections) = mpsc::channel(READY_MAX);
    let stop = CancellationToken::new();
    let handshakes = Handshakes { tls, ready, tasks: tasks.clone(), stop: stop.clone() };
    tasks.spawn(stop.clone().run_until_cancelled_owned(accept(listener, handshakes)));
    Incoming { connections, _stop: stop.drop_guard() }
}

pub(crate) struct Incoming {
    connections: mpsc::Receiver<Connection>,
    _stop: DropGuard,
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.connections.poll_recv(context).map(|connection| connection.map(Ok))
    }
}

/// Accepts connections, also after an accept failed.
async fn accept(listener: TcpListener, handshakes: Handshakes) {
    let permits = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    while let Ok(permit) = permits.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                handshakes.start(stream, permit).await;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection, will retry");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

struct Handshakes {
    tls: Option<TlsAcceptor>,
    ready: mpsc::Sender<Connection>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Handshakes {
    /// Makes the connection ready, after its handshake if there is TLS. The permit is held until then.
    async fn start(&self, stream: TcpStream, permit: OwnedSemaphorePermit) {
        let ready = self.ready.clone();
        let Some(tls) = self.tls.clone() else {
            let _ = ready.send(Connection::Plain(stream)).await;
            return;
        };
        self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(async move {
            match tokio::time::timeout(HANDSHAKE_MAX, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let _ = ready.send(Connection::Tls(Box::new(stream))).await;
                }
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            }
            drop(permit);
        }));
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
