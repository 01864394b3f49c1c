//! Limits what the node keeps of answers that their clients do not take: in bytes, and in time. A client that gives HTTP/2 no window and
//! answers pings would otherwise keep every answer in memory for as long as it likes.
//!
//! HTTP/2 drops a body when it has taken its bytes, long before it can write them. So the bytes themselves hold the room.

use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::auth::caller::Caller;
use crate::auth::middleware::{Refused, http_refusal, refusal};
use crate::listen::admission::{Admitted, Probe};
use crate::listen::ages::{Age, Ages};
use crate::listen::per_token::PerToken;
use crate::listen::unwritten::{Unwritten, UnwrittenBytes};
use crate::problem::Problem;

/// Bytes of answers that one token may leave unread: some hundred of the largest jobs. Callers without a token count as one.
const TOKEN_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The same for all callers of a node. One token cannot take more than an eighth.
const NODE_BYTES_MAX: usize = 8 * TOKEN_BYTES_MAX;
/// An answer counts as at most this many: it must not wait until all others of its token are read.
const ANSWER_BYTES_MAX: usize = TOKEN_BYTES_MAX / 2;
/// The same for an answer to a caller without a token: a quarter of what its connection may leave unread.
const REFUSAL_BYTES_MAX: usize = 16 * 1024;
/// What each answer counts beside its bytes, for its stream. It is taken before the call runs, so that a call is not done whose answer
/// has no room.
const STREAM_BYTES: usize = 1024;
/// How long an answer waits until others are read.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(5);
/// Answers are handed on in parts of this size, that of a frame of HTTP/2: the time to take an answer is counted for each part, so a
/// slow client has more time for a larger answer.
const PART_BYTES: usize = 16 * 1024;

type Permits = [Option<OwnedSemaphorePermit>; 2];

/// The answers that are not written yet.
pub(crate) struct Answers {
    node: Arc<Semaphore>,
    tokens: PerToken<Semaphore>,
}

impl Default for Answers {
    fn default() -> Answers {
        Answers { node: Arc::new(Semaphore::new(NODE_BYTES_MAX)), tokens: PerToken::default() }
    }
}

impl Answers {
    /// Where the answer to a request counts: for its token and the node; for its connection, if it needed no caller.
    fn room(&self, request: &Request) -> Room {
        match request.extensions().get::<Caller>() {
            Some(caller) => {
                let of_token = self.tokens.of(caller.token(), || Semaphore::new(TOKEN_BYTES_MAX));
                Room { counts_in: [Some(of_token), Some(self.node.clone())], answer_max: ANSWER_BYTES_MAX }
            }
            None => Room::of_connection(connection(request).as_ref()),
        }
    }
}

fn connection(request: &Request) -> Option<Arc<Admitted>> {
    request.extensions().get::<Arc<Admitted>>().cloned()
}

/// Where an answer counts.
struct Room {
    counts_in: [Option<Arc<Semaphore>>; 2],
    answer_max: usize,
}

impl Room {
    fn of_connection(connection: Option<&Arc<Admitted>>) -> Room {
        let refusals = connection.map(|admitted| admitted.refusals().clone());
        Room { counts_in: [refusals, None], answer_max: REFUSAL_BYTES_MAX }
    }

    /// Waits for room. `None`: there was none for too long.
    async fn take(&self, bytes: usize) -> Option<Permits> {
        let permits = u32::try_from(bytes.min(self.answer_max)).unwrap_or(u32::MAX);
        let all = async {
            let mut taken = Permits::default();
            for (room, taken) in self.counts_in.iter().zip(&mut taken) {
                if let Some(room) = room {
                    *taken = Some(room.clone().acquire_many_owned(permits).await.ok()?);
                }
            }
            Some(taken)
        };
        timeout(ROOM_WAIT_MAX, all).await.ok().flatten()
    }
}

/// What an answer holds until it is written.
#[derive(Default)]
struct Held {
    permits: Permits,
    probe: Option<Probe>,
    of_stream: Option<UnwrittenBytes>,
}

impl Held {
    /// Takes more room. False: there is none.
    async fn grow(&mut self, room: &Room, bytes: usize) -> bool {
        let Some(more) = room.take(bytes).await else { return false };
        for (held, more) in self.permits.iter_mut().zip(more) {
            match (held, more) {
                (Some(held), Some(more)) => held.merge(more),
                (held, more) => *held = more,
            }
        }
        true
    }

    /// The share of a part of an answer.
    fn split(&mut self, bytes: usize) -> Held {
        let permits = self.permits.each_mut().map(|permit| permit.as_mut()?.split(bytes));
        let of_stream = self.of_stream.as_mut().map(|rest| rest.split(bytes));
        Held { permits, probe: self.probe.clone(), of_stream }
    }
}

/// The body of an answer. Its first chunk holds the room of the answer. Later chunks are those of a stream. They count in time, and for
/// their stream if it has a limit of its own: HTTP/2 takes no more of them while it cannot write.
struct Answer {
    body: Body,
    /// What was read of the body and not handed on.
    chunk: Bytes,
    /// What comes after it, if it was read.
    next: Option<Result<Frame<Bytes>, axum::Error>>,
    held: Held,
    unwritten: Option<Unwritten>,
    ages: Option<Arc<Ages>>,
    /// Of the chunk.
    age: Option<Age>,
}

/// Bytes that were handed on. They are dropped when they are written, or when their stream ends.
struct Part {
    bytes: Bytes,
    _held: Held,
    _age: Option<Age>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Answer {
    /// Reads what the body has at once: all of it, unless it is a stream.
    async fn read(mut body: Body, connection: Option<&Arc<Admitted>>) -> Answer {
        let (mut chunk, mut next) = (Bytes::new(), None);
        match poll_fn(|context| Poll::Ready(Pin::new(&mut body).poll_frame(context))).await {
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => chunk = data,
                Err(frame) => next = Some(Ok(frame)),
            },
            Poll::Ready(Some(Err(error))) => next = Some(Err(error)),
            Poll::Ready(None) => body = Body::empty(),
            Poll::Pending => {}
        }
        let ages = connection.map(|admitted| admitted.ages().clone());
        let (held, unwritten) = (Held::default(), None);
        let mut answer = Answer { body, chunk, next, held, unwritten, ages, age: None };
        answer.begin_chunk();
        answer
    }

    fn begin_chunk(&mut self) {
        self.age = self.ages.as_ref().filter(|_| !self.chunk.is_empty()).map(Ages::begin);
    }

    /// The next part of the chunk.
    fn part(&mut self) -> Bytes {
        let bytes = self.chunk.split_to(self.chunk.len().min(PART_BYTES));
        let held = match self.chunk.is_empty() {
            true => mem::take(&mut self.held),
            false => self.held.split(bytes.len()),
        };
        let age = self.ages.as_ref().map(Ages::begin);
        self.begin_chunk();
        Bytes::from_owner(Part { bytes, _held: held, _age: age })
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let answer = self.get_mut();
        if answer.chunk.is_empty() {
            let next = match answer.next.take() {
                Some(next) => Some(next),
                None => ready!(Pin::new(&mut answer.body).poll_frame(context)),
            };
            match next.map(|next| next.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => {
                    answer.held.of_stream =
                        answer.unwritten.as_ref().map(|of_stream| of_stream.add(data.len()));
                    answer.chunk = data;
                }
                Some(Ok(Err(frame))) => return Poll::Ready(Some(Ok(frame))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        Poll::Ready(Some(Ok(Frame::data(answer.part()))))
    }

    fn is_end_stream(&self) -> bool {
        self.chunk.is_empty() && self.next.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, chunk) = (self.body.size_hint(), self.chunk.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + chunk);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + chunk);
        }
        hint
    }
}

/// Takes the room of an answer, and hands the answer on in parts that give it back when they are written.
pub(crate) async fn hold_answer(
    State(answers): State<Arc<Answers>>,
    request: Request,
    next: Next,
) -> Response {
    let (room, connection) = (answers.room(&request), connection(&request));
    let mut held = Held { probe: request.extensions().get::<Probe>().cloned(), ..Held::default() };
    if !held.grow(&room, STREAM_BYTES).await {
        return refusal(&request, no_room());
    }
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    let response = next.run(request).await;
    if response.body().is_end_stream() {
        return response;
    }
    let (parts, body) = response.into_parts();
    let mut answer = Answer::read(body, connection.as_ref()).await;
    answer.unwritten = parts.extensions.get::<Unwritten>().cloned();
    let bytes = answer.chunk.len();
    if bytes > 0 {
        if !held.grow(&room, bytes).await {
            // A caller that is told `busy` repeats the call, but what this call has done stays done.
            if let Some(connection) = connection.filter(|_| !is_read) {
                connection.cut();
            }
            return http_refusal(no_room());
        }
        answer.held = held;
    }
    Response::from_parts(parts, Body::new(answer))
}

/// Takes the room of an answer to a request that was refused before it reached a handler: that of its connection. Without room the
/// connection is closed.
pub(crate) async fn hold_refusal(request: Request, next: Next) -> Response {
    let connection = connection(&request);
    let response = next.run(request).await;
    let is_refused = response.extensions().get::<Refused>().is_some();
    let Some(connection) = connection.filter(|_| is_refused) else { return response };
    let (parts, body) = response.into_parts();
    let mut answer = Answer::read(body, Some(&connection)).await;
    let room = Room::of_connection(Some(&connection));
    if !answer.held.grow(&room, STREAM_BYTES + answer.chunk.len()).await {
        connection.cut();
    }
    Response::from_parts(parts, Body::new(answer))
}

fn no_room() -> Problem {
    Problem::busy("too many answers of this server are not read: read them, or send fewer calls at a time")
}

#[cfg(test)]
mod tests;
