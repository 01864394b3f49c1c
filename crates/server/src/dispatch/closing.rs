//! Streams that were ended here, until their clients let go of them. What waits in them is in memory until then.

use std::time::Instant;

use crate::dispatch::stream::Stream;
use crate::listen::lifetimes::{Lifetime, UNREAD_MAX};
use crate::listen::unwritten::Unwritten;

#[derive(Default)]
pub(crate) struct ClosingStreams {
    streams: Vec<Closing>,
}

struct Closing {
    since: Instant,
    token: Option<i64>,
    lifetime: Lifetime,
    /// Bytes of jobs that were not handed on when it was ended. They are dropped with the stream.
    queued_bytes: usize,
    unwritten: Unwritten,
}

impl Closing {
    fn is_gone(&self) -> bool {
        self.lifetime.is_over() && self.unwritten.bytes() == 0
    }

    fn waiting_bytes(&self) -> usize {
        let queued = if self.lifetime.is_over() { 0 } else { self.queued_bytes };
        queued + self.unwritten.bytes()
    }
}

impl ClosingStreams {
    pub(crate) fn add(&mut self, stream: &Stream, since: Instant) {
        let Some(lifetime) = stream.lifetime.clone() else { return };
        let (token, queued_bytes) = (stream.token, stream.queued_bytes);
        let closing = Closing { since, token, lifetime, queued_bytes, unwritten: stream.unwritten.clone() };
        if !closing.is_gone() {
            self.streams.push(closing);
        }
    }

    pub(crate) fn forget_gone(&mut self) {
        self.streams.retain(|closing| !closing.is_gone());
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(crate) fn count_of_token(&self, token: i64) -> usize {
        self.streams.iter().filter(|closing| closing.token == Some(token)).count()
    }

    /// The bytes that wait in each stream, with its token.
    pub(crate) fn waiting_bytes(&self) -> impl Iterator<Item = (Option<i64>, usize)> + Clone {
        self.streams.iter().map(|closing| (closing.token, closing.waiting_bytes()))
    }

    /// Closes the connections of streams that were ended a while ago. One that is over is only waited for: its last bytes are written, or
    /// are too old themselves.
    pub(crate) fn cut_unread(&mut self, now: Instant) {
        self.forget_gone();
        self.streams.retain(|closing| {
            let is_late = !closing.lifetime.is_over() && now.duration_since(closing.since) > UNREAD_MAX;
            if is_late {
                closing.lifetime.cut();
            }
            !is_late
        });
    }
}
