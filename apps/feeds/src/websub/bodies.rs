//! The bodies that hubs push: how many bytes of them are in memory, and how long one may take. Their path is public.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use pitwheel_server::Problem;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::fetch::limits::BODY_BYTES_MAX;

/// A body that is not complete after this long is refused. The largest one needs 8.4 Mbit/s; few feeds have more than 1 MiB.
const BODY_TIME_MAX: Duration = Duration::from_secs(10);
/// Bytes of bodies that are being read, parsed or stored: eight of the largest. Parsed, they take several times as much.
const ALL_BYTES_MAX: usize = 8 * BODY_BYTES_MAX;

/// The bodies that are in memory. Clones share one limit.
#[derive(Clone)]
pub(crate) struct Bodies {
    room: Arc<Semaphore>,
}

/// A body that was read. Its room is free when it is dropped.
#[derive(Debug)]
pub(crate) struct PushedBody {
    pub(crate) bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl Bodies {
    pub(crate) fn new() -> Bodies {
        Bodies { room: Arc::new(Semaphore::new(ALL_BYTES_MAX)) }
    }

    /// Reads a body to its end. One without a declared length takes the room of the largest. Nothing waits for room: the hub sends the
    /// content again.
    pub(crate) async fn read(&self, body: Body) -> Result<PushedBody, Problem> {
        let declared = body.size_hint().upper().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let bytes_max = declared.unwrap_or(BODY_BYTES_MAX);
        if bytes_max > BODY_BYTES_MAX {
            return Err(Problem::invalid(format!(
                "the content has {bytes_max} bytes, the limit is {BODY_BYTES_MAX}"
            )));
        }
        let room = self.room.clone().try_acquire_many_owned(u32::try_from(bytes_max).unwrap_or(u32::MAX));
        let room =
            room.map_err(|_| Problem::busy("too much content is being received: send it again later"))?;
        let read = timeout(BODY_TIME_MAX, to_bytes(body, bytes_max)).await.map_err(|_| {
            Problem::invalid(format!("the content was not complete after {BODY_TIME_MAX:?}: send it again"))
        })?;
        let bytes = read.map_err(|error| {
            Problem::invalid(format!(
                "the content cannot be read to its end, or has more than {bytes_max} bytes: {error}"
            ))
        })?;
        Ok(PushedBody { bytes, _room: room })
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use futures_util::{StreamExt, stream};
    use tokio::time::Instant;

    use super::*;

    /// A body whose length is not declared, and which does not end.
    fn unfinished(first: Vec<u8>) -> Body {
        Body::from_stream(stream::iter([Ok::<_, io::Error>(first)]).chain(stream::pending()))
    }

    async fn refusal(bodies: &Bodies, body: Body) -> String {
        match bodies.read(body).await {
            Ok(body) => panic!("{} bytes were taken", body.bytes.len()),
            Err(problem) => problem.detail().to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_end_is_refused_at_the_deadline() {
        let started = Instant::now();
        let refused = refusal(&Bodies::new(), unfinished(vec![b'x'])).await;
        assert!(refused.contains("not complete after 10s"), "{refused}");
        assert!(started.elapsed() < BODY_TIME_MAX + Duration::from_secs(1));
    }

    #[tokio::test]
    async fn a_body_that_is_too_large_is_refused() {
        let bodies = Bodies::new();
        let declared = refusal(&bodies, Body::from(vec![0; BODY_BYTES_MAX + 1])).await;
        assert!(declared.contains("10485761 bytes, the limit is 10485760"), "{declared}");
        let undeclared = refusal(&bodies, unfinished(vec![0; BODY_BYTES_MAX + 1])).await;
        assert!(undeclared.contains("more than 10485760 bytes"), "{undeclared}");
    }

    #[tokio::test]
    async fn a_body_keeps_its_room_until_it_is_dropped() {
        let bodies = Bodies::new();
        let mut kept = Vec::new();
        for _ in 0..8 {
            kept.push(bodies.read(Body::from(vec![0; BODY_BYTES_MAX])).await.expect("there is room"));
        }
        let refused = refusal(&bodies, Body::from("x")).await;
        assert!(refused.contains("too much content"), "{refused}");
        kept.pop();
        let read = bodies.read(Body::from("x")).await.expect("there is room again");
        assert_eq!(&*read.bytes, b"x");
    }
}
