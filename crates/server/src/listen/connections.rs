//! Accepts connections, and completes their TLS handshakes.

use std::future::Future;
use std::io;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use futures_util::Stream;
use metrics::counter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;
use tonic::transport::server::Connected;

use crate::auth::caller::Caller;
use crate::auth::middleware::{is_probe, refusal};
use crate::listen::admission::{Admission, Admitted, Call, Limits};
use crate::problem::Problem;

/// A handshake that takes longer is given up.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// A connection that sent nothing worth reading for this long, after its handshake, is closed.
const FIRST_BYTES_WAIT_MAX: Duration = Duration::from_secs(10);
/// The bytes that show which version of HTTP a client speaks. Fewer do not count, or one byte would keep a connection open.
const FIRST_BYTES: usize = 24;
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
    /// Set while the client does not read what is written.
    unread: Option<Pin<Box<Sleep>>>,
}

enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    fn new(socket: Socket, admitted: Arc<Admitted>) -> Connection {
        let evicted = Box::pin(admitted.evicted().cancelled_owned());
        let deadline = Some(Box::pin(tokio::time::sleep(FIRST_BYTES_WAIT_MAX)));
        Connection { socket, admitted, evicted, deadline, first_bytes: 0, unread: None }
    }

    /// Whether the connection must be closed. Registers the task to be woken when that changes.
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        if self.admitted.is_served() {
            self.deadline = None;
        }
        self.evicted.as_mut().poll(context).is_ready()
            || self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(context).is_ready())
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

/// Notes that a connection has sent a request.
pub(crate) async fn note_request(request: Request, next: Next) -> Response {
    if let Some(admitted) = request.extensions().get::<Arc<Admitted>>() {
        admitted.note_request();
    }
    next.run(request).await
}

/// Refuses a probe if its connection has too many under way.
pub(crate) async fn limit_probes(request: Request, next: Next) -> Response {
    let admitted =
        request.extensions().get::<Arc<Admitted>>().filter(|_| is_probe(request.uri().path())).cloned();
    let Some(admitted) = admitted else { return next.run(request).await };
    let Some(_probe) = admitted.begin_probe() else {
        return refusal(
            &request,
            Problem::busy("this connection has too many probes under way: send fewer at a time"),
        );
    };
    next.run(request).await
}

/// Counts the call of a caller who was authenticated as under way until the answer is sent: it may be a stream. Calls of others do not
/// keep the connection: a client that sends only a part of its request, or never reads the answer, would do so without a token.
pub(crate) async fn hold_call(request: Request, next: Next) -> Response {
    let admitted = request.extensions().get::<Arc<Admitted>>();
    let is_authenticated = request.extensions().get::<Caller>().is_some();
    let call = admitted.filter(|_| is_authenticated).map(Admitted::begin_call);
    let response = next.run(request).await;
    match call {
        Some(call) => response.map(|body| Body::new(Pin::new(HeldBody { body, _call: call }))),
        None => response,
    }
}

/// The body of an answer whose call is under way until it is dropped. A pinned pointer to a body is a body too, so it only has to
/// be such a pointer.
struct HeldBody {
    body: Body,
    _call: Call,
}

impl Deref for HeldBody {
    type Target = Body;

    fn deref(&self) -> &Body {
        &self.body
    }
}

impl DerefMut for HeldBody {
    fn deref_mut(&mut self) -> &mut Body {
        &mut self.body
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
        let before = buffer.filled().len();
        let read = match &mut connection.socket {
            Socket::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Socket::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        if connection.deadline.is_some() {
            connection.first_bytes += buffer.filled().len() - before;
            if connection.first_bytes >= FIRST_BYTES {
                connection.deadline = None;
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let connection = self.get_mut();
        connection.deadline = None;
        connection.poll_socket(context, |socket, context| socket.poll_write(context, bytes))
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
    use axum::Router;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tonic::codegen::Service;

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

    #[tokio::test]
    async fn a_call_without_a_caller_does_not_keep_its_connection_while_it_is_under_way() {
        let mut routes = Router::new()
            .route("/", get(std::future::pending::<()>))
            .layer(from_fn(hold_call))
            .layer(from_fn(note_request));
        let (admission, admitted, _connection, _client) = only_connection().await;
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(admitted);
        let mut call = Box::pin(routes.call(request));
        assert!(futures_util::poll!(&mut call).is_pending());
        assert!(is_room(&admission));
    }

    #[tokio::test]
    async fn probes_of_one_connection_are_limited() {
        let (_admission, admitted, _connection, _client) = only_connection().await;
        let probe = || admitted.begin_probe();
        let probes: Vec<_> = std::iter::from_fn(probe).collect();
        let mut routes = Router::new().route("/healthz", get(|| async {})).layer(from_fn(limit_probes));
        let mut status = async |path: &str| {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = path.parse().expect("a path");
            request.extensions_mut().insert(admitted.clone());
            routes.call(request).await.expect("an answer").status().as_u16()
        };
        assert_eq!((status("/healthz").await, status("/other").await), (429, 404));
        drop(probes);
        assert_eq!(status("/healthz").await, 200);
    }

    #[tokio::test]
    async fn only_the_answer_to_an_authenticated_caller_keeps_a_connection() {
        let mut routes = Router::new()
            .route("/", get(|| async { "answer" }))
            .layer(from_fn(hold_call))
            .layer(from_fn(note_request));
        for (caller, keeps) in [(Some(Caller::loopback()), true), (None, false)] {
            let (admission, admitted, _connection, _client) = only_connection().await;
            let mut request = Request::new(Body::empty());
            request.extensions_mut().insert(admitted);
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            let response = routes.call(request).await.expect("an answer");
            let length = axum::body::HttpBody::size_hint(response.body()).exact();
            assert_eq!(length, Some(6), "its length is still known");
            assert_eq!(is_room(&admission), !keeps);
            if keeps {
                let answer = axum::body::to_bytes(response.into_body(), 6).await.expect("a body");
                assert_eq!(answer, "answer");
                assert!(is_room(&admission), "it was sent");
            }
        }
    }
}
