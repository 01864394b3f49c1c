//! How many streams may be open, and how many bytes may wait in them, in all and per token. One that is being opened counts too: its
//! worker is registered first, and many can be opened in that time. So does one that was ended here until its client lets go of it.

use std::collections::{HashMap, HashSet};

use crate::dispatch::streams::{SharedStreams, Streams};
use crate::limits::{STREAMS_MAX, TOKEN_STREAMS_MAX};

/// Bytes of jobs that wait in the streams of one token, before each of them gets one job at a time. Workers that read have far fewer.
const TOKEN_QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The same for all streams of a node.
const NODE_QUEUE_BYTES_MAX: usize = 4 * TOKEN_QUEUE_BYTES_MAX;

/// Why there is no place for another stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// This node has too many streams.
    Node,
    /// The token has too many streams on this node.
    Token,
}

/// The place of a stream that is being opened. Free again when it is dropped.
pub(crate) struct Place {
    /// `None`: the stream is open.
    streams: Option<SharedStreams>,
    token: Option<i64>,
}

impl SharedStreams {
    /// Takes a place for a stream of a token.
    pub(crate) fn take_place(&self, token: Option<i64>) -> Result<Place, Full> {
        let mut streams = self.lock();
        streams.closing.forget_gone();
        let opening: usize = streams.opening.values().sum();
        if streams.open.len() + opening + streams.closing.len() >= STREAMS_MAX {
            return Err(Full::Node);
        }
        if token.is_some_and(|id| streams.count_of_token(id) >= TOKEN_STREAMS_MAX) {
            return Err(Full::Token);
        }
        *streams.opening.entry(token).or_default() += 1;
        Ok(Place { streams: Some(self.clone()), token })
    }
}

impl Streams {
    /// The number of streams that were opened, or are being opened, with a token.
    fn count_of_token(&self, token: i64) -> usize {
        let open = self.open.values().filter(|stream| stream.token == Some(token)).count();
        open + self.closing.count_of_token(token) + self.opening.get(&Some(token)).copied().unwrap_or(0)
    }

    /// The tokens in whose streams too many bytes wait.
    pub(crate) fn crowded_tokens(&self) -> HashSet<Option<i64>> {
        let open = self.open.values().map(|stream| (stream.token, stream.waiting_bytes()));
        let waiting = open.chain(self.closing.waiting_bytes());
        let total: usize = waiting.clone().map(|(_, bytes)| bytes).sum();
        let mut by_token: HashMap<Option<i64>, usize> = HashMap::new();
        if total >= TOKEN_QUEUE_BYTES_MAX {
            waiting.for_each(|(token, bytes)| *by_token.entry(token).or_default() += bytes);
        }
        by_token.retain(|_, bytes| *bytes >= TOKEN_QUEUE_BYTES_MAX || total >= NODE_QUEUE_BYTES_MAX);
        by_token.into_keys().collect()
    }

    fn free_place(&mut self, token: Option<i64>) {
        let Some(count) = self.opening.get_mut(&token) else { return };
        *count -= 1;
        if *count == 0 {
            self.opening.remove(&token);
        }
    }
}

impl Place {
    /// The stream is among the open ones now.
    pub(crate) fn opened(mut self, streams: &mut Streams) {
        self.streams = None;
        streams.free_place(self.token);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(streams) = &self.streams {
            streams.lock().free_place(self.token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_are_being_opened_count() {
        let streams = SharedStreams::default();
        let take = |token| streams.take_place(Some(token));
        let mut places: Vec<Place> = (0..TOKEN_STREAMS_MAX).filter_map(|_| take(1).ok()).collect();
        assert_eq!(places.len(), TOKEN_STREAMS_MAX);
        assert_eq!(take(1).err(), Some(Full::Token));
        places.pop();
        assert!(take(1).is_ok(), "one was given up");
        places.extend((0..STREAMS_MAX).map_while(|n| take(2 + (n / TOKEN_STREAMS_MAX) as i64).ok()));
        assert_eq!(places.len(), STREAMS_MAX);
        assert_eq!(take(9).err(), Some(Full::Node));
        assert_eq!(streams.take_place(None).err(), Some(Full::Node));
        drop(places);
        assert!(streams.lock().opening.is_empty());
    }
}
