//! Accepts connections, and completes their TLS handshakes.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use metrics::counter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, Sleep, interval_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;
use tonic::transport::server::Connected;

use crate::listen::admission::{Admission, Admitted, Limits};
use crate::listen::ages::TURN;

/// A handshake that takes longer is given up.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// A connection that sent nothing worth reading for this long, after its handshake, is closed.
const FIRST_BYTES_WAIT_MAX: Duration = Duration::from_secs(10);
/// What a client of HTTP/2 sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The bytes that show which version of HTTP a client speaks. Fewer do not count, or one byte would keep a connection open.
const FIRST_BYTES: usize = PREFACE.len();
/// Bytes that a client of HTTP/1 may send before the head of its request is complete. They are kept in memory, without a token; hyper would
/// keep 400 KiB. Browsers and proxies send far less.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Connections that are ready and not yet served.
const READY_MAX: usize = 64;
/// Wait after a failed accept: the process may be out of file descriptors for a moment.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// A connection whose client reads nothing for this long, although there is something to read, is closed. The layers above read nothing
/// while they cannot write, so they would not notice that it must be closed.
const WRITE_WAIT_MAX: Duration = Duration::from_secs(30);

/// A connection. Reading and writing fail when its client sends or reads nothing, and when it must make room for another one.
pub(crate) struct Connection {
    socket: Socket,
    admitted: Arc<Admitted>,
    /// Ends when the connection must make room.
    evicted: Pin<Box<WaitForCancellationFutureOwned>>,
    /// `None`: the first bytes were read, or something was answered.
    deadline: Option<Pin<Box<Sleep>>>,
    /// How many bytes were read until then.
    first_bytes: usize,
    /// How many bytes of the preface of HTTP/2 were read; `None`: the client speaks HTTP/1.
    preface: Option<usize>,
    head: Head,
    /// Set while the client does not read what is written.
    unread: Option<Pin<Box<Sleep>>>,
    /// Ends the turns in which the parts of answers began to wait.
    turns: Interval,
}

/// What was read of the head of a request of HTTP/1. The bytes of bodies do not count: they are read while their request is under way.
#[derive(Default)]
struct Head {
    /// The number of requests before it.
    before: usize,
    bytes: usize,
}

enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    fn new(socket: Socket, admitted: Arc<Admitted>) -> Connection {
        let evicted = Box::pin(admitted.evicted().cancelled_owned());
        let deadline = Some(Box::pin(tokio::time::sleep(FIRST_BYTES_WAIT_MAX)));
        let mut turns = interval_at(Instant::now() + TURN, TURN);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (first_bytes, preface, head, unread) = (0, Some(0), Head::default(), None);
        Connection { socket, admitted, evicted, deadline, first_bytes, preface, head, unread, turns }
    }

    /// Whether the connection must be closed. Registers the task to be woken when that changes.
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        if self.admitted.is_served() {
            self.deadline = None;
        }
        while self.turns.poll_tick(context).is_ready() {
            if !self.admitted.ages().next_turn() {
                tracing::debug!("a client did not take an answer, its connection is closed");
                self.admitted.cut();
            }
        }
        self.evicted.as_mut().poll(context).is_ready()
            || self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(context).is_ready())
    }

    /// Whether the head of a request of HTTP/1 is too long. To be asked before more is read: what was read last may be the end of a head
    /// and the beginning of its body, and the request is noted before hyper reads again.
    fn is_head_too_long(&mut self) -> bool {
        match self.admitted.heads() {
            Some(before) if before == self.head.before => {}
            before => self.head = Head { before: before.unwrap_or(self.head.before), bytes: 0 },
        }
        self.preface.is_none() && self.head.bytes > HEAD_BYTES_MAX
    }

    fn note_read(&mut self, bytes: &[u8]) {
        self.head.bytes += bytes.len();
        if self.deadline.is_some() {
            self.first_bytes += bytes.len();
            if self.first_bytes >= FIRST_BYTES {
                self.deadline = None;
            }
        }
        if let Some(read) = self.preface.filter(|read| *read < PREFACE.len()) {
            let length = bytes.len().min(PREFACE.len() - read);
            let is_preface = bytes[..length] == PREFACE[read..read + length];
            self.preface = is_preface.then_some(read + length);
        }
    }

    /// Writes, unless the connection must be closed or its client has not read for too long.
    fn poll_socket<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut (dyn AsyncWrite + Unpin)>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.is_over(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let written = match &mut self.socket {
            Socket::Plain(stream) => write(Pin::new(stream), context),
            Socket::Tls(stream) => write(Pin::new(stream), context),
        };
        if written.is_ready() {
            self.unread = None;
            return written;
        }
        let unread = self.unread.get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_WAIT_MAX)));
        unread.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// The connections of a listener. A slow handshake does not delay other connections.
///
/// What is spawned belongs to `tasks` and ends when the stream is dropped; the listener is closed then.
pub(crate) fn incoming(listener: TcpListener, tls: Option<TlsAcceptor>, tasks: &TaskTracker) -> Incoming {
    let (ready, connections) = mpsc::channel(READY_MAX);
    let stop = CancellationToken::new();
    let admission = Admission::new(Limits::of_process());
    let handshakes = Handshakes { tls, ready, admission, tasks: tasks.clone(), stop: stop.clone() };
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
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => match handshakes.admission.admit(peer.ip()) {
                Some(admitted) => {
                    let _ = stream.set_nodelay(true);
                    handshakes.start(stream, admitted).await;
                }
                None => counter!("pitwheel_connections_refused_total").increment(1),
            },
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
    admission: Arc<Admission>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Handshakes {
    /// Makes the connection ready, after its handshake if there is TLS.
    async fn start(&self, stream: TcpStream, admitted: Arc<Admitted>) {
        let ready = self.ready.clone();
        let Some(tls) = self.tls.clone() else {
            let _ = ready.send(Connection::new(Socket::Plain(stream), admitted)).await;
            return;
        };
        self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(async move {
            let handshake = tokio::time::timeout(HANDSHAKE_MAX, tls.accept(stream));
            match admitted.evicted().run_until_cancelled_owned(handshake).await {
                Some(Ok(Ok(stream))) => {
                    let _ = ready.send(Connection::new(Socket::Tls(Box::new(stream)), admitted)).await;
                }
                Some(Ok(Err(error))) => tracing::debug!(%error, "a TLS handshake failed"),
                Some(Err(_)) => tracing::debug!("a TLS handshake took too long"),
                None => tracing::debug!("a TLS handshake was given up to make room"),
            }
        }));
    }
}

impl Connected for Connection {
    type ConnectInfo = Arc<Admitted>;

    fn connect_info(&self) -> Arc<Admitted> {
        self.admitted.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        if connection.is_over(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if connection.is_head_too_long() {
            tracing::debug!("the head of a request is too long, its connection is closed");
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        let before = buffer.filled().len();
        let read = match &mut connection.socket {
            Socket::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Socket::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        connection.note_read(&buffer.filled()[before..]);
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let connection = self.get_mut();
        connection.deadline = None;
        connection.poll_socket(context, |socket, context| socket.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let connection = self.get_mut();
        connection.deadline = None;
        connection.poll_socket(context, |socket, context| socket.poll_write_vectored(context, slices))
    }

    /// HTTP/1 keeps the bytes of an answer until they are written, so they count as unread; otherwise it would copy them. HTTP/2 keeps
    /// them anyway, and writes more often if it need not copy small frames.
    fn is_write_vectored(&self) -> bool {
        self.preface.is_none()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_socket(context, |socket, context| socket.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_socket(context, |socket, context| socket.poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A listener with room for one connection, and that connection.
    async fn only_connection() -> (Arc<Admission>, Arc<Admitted>, Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let client =
            TcpStream::connect(listener.local_addr().expect("an address")).await.expect("a connection");
        let (stream, peer) = listener.accept().await.expect("a connection");
        let admission = Admission::new(Limits { total: 1, per_address: 1 });
        let admitted = admission.admit(peer.ip()).expect("room");
        let connection = Connection::new(Socket::Plain(stream), admitted.clone());
        (admission, admitted, connection, client)
    }

    fn is_room(admission: &Arc<Admission>) -> bool {
        admission.admit("127.0.0.1".parse().expect("an address")).is_some()
    }

    #[tokio::test]
    async fn a_connection_that_was_served_and_has_no_call_is_closed_to_make_room() {
        let (admission, admitted, mut connection, _client) = only_connection().await;
        admitted.note_request();
        let mut byte = [0];
        let mut reading = Box::pin(connection.read(&mut byte));
        assert!(futures_util::poll!(&mut reading).is_pending());
        assert!(is_room(&admission));
        let closed = tokio::time::timeout(HANDSHAKE_MAX, reading).await.expect("it is woken");
        assert_eq!(closed.expect_err("closed").kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_connection_whose_client_does_not_read_is_closed_to_make_room() {
        let (admission, admitted, mut connection, _client) = only_connection().await;
        admitted.note_request();
        let block = vec![0; 1 << 20];
        let mut writing = Box::pin(async {
            loop {
                connection.write_all(&block).await?;
            }
        });
        assert!(futures_util::poll!(&mut writing).is_pending(), "the buffers are full");
        assert!(is_room(&admission));
        let closed: io::Result<()> = tokio::time::timeout(HANDSHAKE_MAX, writing).await.expect("it is woken");
        assert_eq!(closed.expect_err("closed").kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_client_does_not_take_an_answer_is_closed() {
        let (_admission, admitted, mut connection, _client) = only_connection().await;
        admitted.note_request();
        let answer = admitted.ages().begin();
        let mut byte = [0];
        let closed = tokio::time::timeout(5 * TURN, connection.read(&mut byte)).await.expect("it is woken");
        assert_eq!(closed.expect_err("closed").kind(), io::ErrorKind::TimedOut);
        drop(answer);
        let (_admission, admitted, mut connection, _client) = only_connection().await;
        admitted.note_request();
        drop(admitted.ages().begin());
        assert!(tokio::time::timeout(5 * TURN, connection.read(&mut byte)).await.is_err(), "it was taken");
    }

    #[tokio::test]
    async fn a_connection_of_http1_writes_the_bytes_of_an_answer_without_copying_them() {
        for (start, is_http1) in [("P", false), ("PRI * HTTP/1", true), ("PUT", true)] {
            let (_admission, _admitted, mut connection, mut client) = only_connection().await;
            client.write_all(start.as_bytes()).await.expect("a connection");
            for _ in 0..start.len() {
                connection.read_exact(&mut [0]).await.expect("a byte");
            }
            assert_eq!(connection.is_write_vectored(), is_http1, "{start}");
        }
        let (_admission, _admitted, mut connection, mut client) = only_connection().await;
        client.write_all(&[PREFACE, b"GET"].concat()).await.expect("a connection");
        connection.read_exact(&mut [0; PREFACE.len() + 3]).await.expect("the preface");
        assert!(!connection.is_write_vectored());
    }
}
