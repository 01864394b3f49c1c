//! Reads the bodies of requests: within a deadline, and with a limit of bytes in memory, per token and per node.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::Next;
use axum::response::Response;
use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::auth::caller::Caller;
use crate::auth::middleware::{is_grpc_path, refusal};
use crate::limits::{MESSAGE_BYTES_MAX, STREAM_WINDOW};
use crate::listen::entries;
use crate::listen::per_token::PerToken;
use crate::problem::Problem;

/// A body that is not complete after this long is refused. The largest one needs 3.4 Mbit/s; a caller with a slower
/// connection sends smaller batches.
const BODY_TIME_MAX: Duration = Duration::from_secs(10);
/// Bytes of requests under way that one token may have in memory: four of the largest. Decoded, they take several times as
/// much. Callers without a token count as one.
const TOKEN_BYTES_MAX: usize = 4 * MESSAGE_BYTES_MAX;
/// The same for the heartbeats of one token: one of the largest. A worker with ten streams sends a hundred bytes.
const HEARTBEAT_BYTES_MAX: usize = MESSAGE_BYTES_MAX;
/// How many tokens can have so many bytes at a time. The others wait: one token cannot take more than an eighth of a node's room.
const FULL_TOKENS_MAX: usize = 8;
/// How long a request waits for others to end, before it is refused with `busy`.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(5);
/// Bytes that the bodies of one token that wait have sent already, in rooms for the bodies of a token: 128 bodies, or more if their heads
/// say that they are small. HTTP/2 keeps these bytes, whatever the number of connections. A body beyond them is refused at once.
const WAITING_ROOMS: usize = 2;
/// The largest body of a health check, which needs no token: the name of a service.
const HEALTH_BYTES_MAX: usize = 1024;
/// How long the body of a health check may take. It comes with its request.
const HEALTH_TIME_MAX: Duration = Duration::from_secs(1);
/// The bytes before a message of gRPC: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// Heartbeats have a room of their own. Reports keep theirs until they are written: workers whose heartbeats waited for that would be
/// declared dead while the database is slow.
const HEARTBEAT: &str = "/pitwheel.v1.WorkerService/Heartbeat";

/// The bodies that are in memory.
pub(crate) struct Bodies {
    heartbeats: Rooms,
    others: Rooms,
    /// Bodies of paths that begin with one of these are read by the handlers of an application.
    streamed_prefixes: Vec<String>,
}

/// Room for one body, in the extensions of its request. Freed when the last copy is dropped: who keeps what was read after the caller
/// has given up keeps its room too.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    _permits: Arc<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
}

/// Room for bodies, per token and per node.
struct Rooms {
    token_bytes_max: usize,
    node: Arc<Semaphore>,
    tokens: PerToken<Semaphore>,
    waiting: PerToken<Semaphore>,
}

impl Rooms {
    fn new(token_bytes_max: usize) -> Rooms {
        let node = Arc::new(Semaphore::new(FULL_TOKENS_MAX * token_bytes_max));
        Rooms { token_bytes_max, node, tokens: PerToken::default(), waiting: PerToken::default() }
    }

    /// Waits for room for a body. All of it is taken at once: bodies that each hold a part would wait for each other. Meanwhile HTTP/2 has
    /// what the client may send; only a length in the head of the request binds it.
    async fn take(&self, token: Option<i64>, bytes: usize, declared: Option<usize>) -> Result<Room, Problem> {
        let permits = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let sent_max = declared.unwrap_or(usize::MAX).min(STREAM_WINDOW as usize);
        let busy = || Problem::busy("too many large requests are under way: send fewer at a time");
        let waiting = self.waiting.of(token, || Semaphore::new(WAITING_ROOMS * self.token_bytes_max));
        let _waits = waiting.try_acquire_many(permits(sent_max)).map_err(|_| busy())?;
        let permits = permits(bytes);
        let both = async {
            let of_token = self.tokens.of(token, || Semaphore::new(self.token_bytes_max));
            let of_token = of_token.acquire_many_owned(permits).await.ok()?;
            let of_node = self.node.clone().acquire_many_owned(permits).await.ok()?;
            Some(Room { _permits: Arc::new((of_token, of_node)) })
        };
        timeout(ROOM_WAIT_MAX, both).await.ok().flatten().ok_or_else(busy)
    }
}

impl Bodies {
    pub(crate) fn new(streamed_prefixes: Vec<String>) -> Bodies {
        let (heartbeats, others) = (Rooms::new(HEARTBEAT_BYTES_MAX), Rooms::new(TOKEN_BYTES_MAX));
        Bodies { heartbeats, others, streamed_prefixes }
    }

    /// Waits for room for the body of a call with this path. `declared`: the length that the head of the request declares.
    pub(crate) async fn room(
        &self,
        path: &str,
        token: Option<i64>,
        bytes: usize,
        declared: Option<usize>,
    ) -> Result<Room, Problem> {
        if bytes > MESSAGE_BYTES_MAX {
            return Err(too_large(bytes, MESSAGE_BYTES_MAX));
        }
        let rooms = if path == HEARTBEAT { &self.heartbeats } else { &self.others };
        rooms.take(token, bytes, declared).await
    }

    /// Reads a body whose length is known before it is read: from its header, or from the prefix of gRPC. Otherwise it
    /// takes the room of the largest.
    async fn read(
        &self,
        path: &str,
        token: Option<i64>,
        declared: Option<usize>,
        body: Body,
    ) -> Result<(Bytes, Room), Problem> {
        let grpc = is_grpc_path(path);
        let mut chunks = body.into_data_stream();
        let mut read = Read::default();
        while grpc && declared.is_none() && read.len() < PREFIX_BYTES {
            let Some(chunk) = chunks.next().await else { break };
            read.add(chunk)?;
        }
        let bytes = match declared {
            Some(bytes) => bytes,
            None if grpc => read.message_bytes(),
            None => MESSAGE_BYTES_MAX,
        };
        let room = self.room(path, token, bytes, declared).await?;
        while read.len() <= bytes {
            let Some(chunk) = chunks.next().await else { return Ok((read.bytes.into(), room)) };
            read.add(chunk)?;
        }
        Err(too_large(read.len(), bytes))
    }
}

/// The part of a body that was read. In one piece: a body may arrive byte by byte, and each chunk takes up more than what is in it.
#[derive(Default)]
struct Read {
    bytes: Vec<u8>,
}

impl Read {
    fn add(&mut self, chunk: Result<Bytes, axum::Error>) -> Result<(), Problem> {
        let chunk = chunk.map_err(|error| Problem::invalid(format!("the body cannot be read: {error}")))?;
        self.bytes.extend_from_slice(&chunk);
        Ok(())
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The length of the message of gRPC that begins here, with its prefix.
    fn message_bytes(&self) -> usize {
        let prefix = self.bytes.iter().skip(1).take(PREFIX_BYTES - 1);
        let length = prefix.fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
        PREFIX_BYTES + length
    }
}

fn too_large(bytes: usize, max: usize) -> Problem {
    Problem::too_large(format!(
        "the request has at least {bytes} bytes, the limit is {max}: send smaller batches"
    ))
}

fn too_slow(limit: Duration) -> Problem {
    Problem::too_slow(format!("the body was not complete after {limit:?}: send smaller batches"))
}

/// The message of a call that has one. A body with more is refused: the decoder decodes the second message too, and nothing has
/// counted its entries.
fn only_message(body: &[u8]) -> Result<&[u8], Problem> {
    let message = body.split_first_chunk::<PREFIX_BYTES>().filter(|([_, length @ ..], message)| {
        usize::try_from(u32::from_be_bytes(*length)).is_ok_and(|length| length == message.len())
    });
    message
        .map(|(_, message)| message)
        .ok_or_else(|| Problem::invalid("the body is not one message of gRPC: send one message per call"))
}

fn declared(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads the body of a call to the API before its handler runs. Routes of an application read their bodies themselves, and
/// so does the reflection service, whose body is a stream.
pub(crate) async fn read_body(State(bodies): State<Arc<Bodies>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_health = path.starts_with("/grpc.health.");
    let is_ours = is_health || path.starts_with("/pitwheel.v1.") || path.starts_with("/api/v1/");
    let is_streamed = bodies.streamed_prefixes.iter().any(|prefix| path.starts_with(prefix));
    if !is_ours || is_streamed || request.body().is_end_stream() {
        return next.run(request).await;
    }
    let token = request.extensions().get::<Caller>().and_then(Caller::token);
    let declared = declared(request.headers());
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let read = async {
        if is_health {
            let read = timeout(HEALTH_TIME_MAX, axum::body::to_bytes(body, HEALTH_BYTES_MAX)).await;
            return read
                .map_err(|_| too_slow(HEALTH_TIME_MAX))?
                .map(|bytes| (bytes, None))
                .map_err(|_| too_large(HEALTH_BYTES_MAX + 1, HEALTH_BYTES_MAX));
        }
        let (bytes, room) = bodies.read(path, token, declared, body).await?;
        if is_grpc_path(path) {
            entries::check(path, only_message(&bytes)?)?;
        }
        Ok((bytes, Some(room)))
    };
    match timeout(BODY_TIME_MAX, read).await.unwrap_or_else(|_| Err(too_slow(BODY_TIME_MAX))) {
        Ok((bytes, room)) => {
            let mut request = Request::from_parts(parts, Body::from(bytes));
            if let Some(room) = room.clone() {
                request.extensions_mut().insert(room);
            }
            let response = next.run(request).await;
            drop(room);
            response
        }
        Err(problem) => refusal(&Request::from_parts(parts, Body::empty()), problem),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::task::unconstrained;

    use super::*;

    #[tokio::test]
    async fn bodies_that_would_wait_are_refused_at_once_when_many_wait() {
        const WINDOW: usize = STREAM_WINDOW as usize;
        // A message may be longer than it says in its own head.
        for (declared, sent_max) in
            [(Some(WINDOW / 2), WINDOW / 2), (Some(2 * WINDOW), WINDOW), (None, WINDOW)]
        {
            let bodies = Bodies::new(Vec::new());
            let room = |token| Box::pin(unconstrained(bodies.room("/api/v1/jobs", token, 10, declared)));
            let largest = || bodies.room("/api/v1/jobs", None, MESSAGE_BYTES_MAX, None);
            let _held: Vec<_> = (0..4).map(|_| unconstrained(largest()).now_or_never()).collect();
            let mut waiting = Vec::new();
            let refused = loop {
                let mut next = room(None);
                match (&mut next).now_or_never() {
                    None => waiting.push(next),
                    Some(refused) => break refused,
                }
                assert!(waiting.len() < 1000, "no limit");
            };
            assert!(refused.is_err());
            assert_eq!(waiting.len() * sent_max, 2 * TOKEN_BYTES_MAX);
            assert!(room(Some(1)).now_or_never().is_some_and(|room| room.is_ok()), "another token has room");
            waiting.pop();
            assert!(room(None).now_or_never().is_none(), "it waits");
        }
    }

    #[tokio::test]
    async fn many_tokens_cannot_take_more_than_the_room_of_a_node() {
        let bodies = Bodies::new(Vec::new());
        let largest = |token| bodies.room("/api/v1/jobs", Some(token), MESSAGE_BYTES_MAX, None);
        let take = |token| (0..4).map(move |_| unconstrained(largest(token)).now_or_never());
        let mut held: Vec<_> = (1..=8).flat_map(take).collect();
        assert!(held.iter().all(|room| matches!(room, Some(Ok(_)))), "the room of eight tokens");
        let mut next = Box::pin(unconstrained(largest(9)));
        assert!((&mut next).now_or_never().is_none(), "the ninth waits");
        held.pop();
        assert!(next.now_or_never().is_some_and(|room| room.is_ok()));
    }

    #[tokio::test]
    async fn heartbeats_wait_for_no_report() {
        let bodies = Bodies::new(Vec::new());
        let ready = |path, bytes| unconstrained(bodies.room(path, Some(1), bytes, None)).now_or_never();
        let report = "/pitwheel.v1.WorkerService/ReportResult";
        let reports: Vec<_> = (0..4).map_while(|_| ready(report, MESSAGE_BYTES_MAX)).collect();
        assert_eq!(reports.len(), 4);
        assert!(ready(report, 1).is_none(), "they take the room of the token");
        assert!(ready(HEARTBEAT, 1000).is_some_and(|room| room.is_ok()));
        let _largest = ready(HEARTBEAT, MESSAGE_BYTES_MAX).expect("there is room");
        assert!(ready(HEARTBEAT, 1).is_none(), "heartbeats have a limit too");
    }
}
