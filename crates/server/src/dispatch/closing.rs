//! Streams that were ended here, until their clients let go of them. What waits in them is in memory until then.

use std::time::Instant;

use crate::dispatch::stream::Stream;
use crate::listen::lifetimes::{Lifetime, UNREAD_MAX};

#[derive(Default)]
pub(crate) struct ClosingStreams {
    streams: Vec<Closing>,
}

struct Closing {
    since: Instant,
    token: Option<i64>,
    lifetime: Lifetime,
}

impl ClosingStreams {
    pub(crate) fn add(&mut self, stream: &Stream, since: Instant) {
        if let Some(lifetime) = stream.lifetime.clone().filter(|lifetime| !lifetime.is_over()) {
            self.streams.push(Closing { since, token: stream.token, lifetime });
        }
    }

    pub(crate) fn forget_gone(&mut self) {
        self.streams.retain(|closing| !closing.lifetime.is_over());
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(crate) fn count_of_token(&self, token: i64) -> usize {
        self.streams.iter().filter(|closing| closing.token == Some(token)).count()
    }

    /// Closes the connections of streams that were ended a while ago.
    pub(crate) fn cut_unread(&mut self, now: Instant) {
        self.forget_gone();
        self.streams.retain(|closing| {
            let is_late = now.duration_since(closing.since) > UNREAD_MAX;
            if is_late {
                closing.lifetime.cut();
            }
            !is_late
        });
    }
}
