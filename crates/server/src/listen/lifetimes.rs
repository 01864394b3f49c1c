//! Streams that must end, and clients that prevent it: while a client takes no data of a stream, the layers below do not look at
//! whether the stream has more or is over. Such a stream ends with its connection.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::{CancellationToken, DropGuard};

use crate::listen::admission::Admitted;

/// One token may take one of so many places: it cannot keep all others out.
const TOKEN_PART: usize = 4;
/// How long a stream that is over may stay until its connection is closed.
pub(crate) const UNREAD_MAX: Duration = Duration::from_secs(10);

/// Whether a stream was dropped, and the connection that it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Lifetime {
    dropped: CancellationToken,
    connection: CancellationToken,
}

impl Lifetime {
    /// Of a stream that keeps the guard.
    pub(crate) fn new(connection: Option<&Arc<Admitted>>) -> (Lifetime, DropGuard) {
        let dropped = CancellationToken::new();
        let connection = connection.map(|admitted| admitted.evicted()).unwrap_or_default();
        (Lifetime { dropped: dropped.clone(), connection }, dropped.drop_guard())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.dropped.is_cancelled()
    }

    /// Closes the connection, and with it the stream.
    pub(crate) fn cut(&self) {
        self.connection.cancel();
    }
}

/// Places for streams with a maximum age.
pub(crate) struct Places {
    max: usize,
    age_max: Duration,
    taken: Mutex<Vec<Taken>>,
}

struct Taken {
    since: Instant,
    token: Option<i64>,
    stream: Lifetime,
}

/// The place of a stream, until it is dropped.
pub(crate) struct Place {
    _dropped: DropGuard,
}

impl Places {
    pub(crate) fn new(max: usize, age_max: Duration) -> Places {
        Places { max, age_max, taken: Mutex::default() }
    }

    /// Takes a place for a stream of a token, if it needs one. `None`: all are taken, or all that its token may take. Streams that should
    /// be over give theirs back.
    pub(crate) fn take(
        &self,
        connection: Option<&Arc<Admitted>>,
        token: Option<i64>,
        now: Instant,
    ) -> Option<Place> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|Taken { since, stream, .. }| {
            let is_late = now.duration_since(*since) > self.age_max + UNREAD_MAX;
            if is_late {
                stream.cut();
            }
            !is_late && !stream.is_over()
        });
        let of_token = taken.iter().filter(|other| other.token == token).count();
        if taken.len() >= self.max || token.is_some() && of_token >= self.max / TOKEN_PART {
            return None;
        }
        let (stream, dropped) = Lifetime::new(connection);
        taken.push(Taken { since: now, token, stream });
        Some(Place { _dropped: dropped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::admission::{Admission, Limits};

    #[test]
    fn a_stream_that_should_be_over_loses_its_place_and_its_connection() {
        let admission = Admission::new(Limits { total: 1, per_address: 1 });
        let connection = admission.admit("10.0.0.1".parse().expect("an address"));
        let places = Places::new(1, Duration::from_secs(600));
        let now = Instant::now();
        let place = places.take(connection.as_ref(), None, now).expect("room");
        assert!(places.take(None, None, now + places.age_max).is_none());
        let later = now + Duration::from_secs(700);
        let other = places.take(None, None, later).expect("the first is over");
        assert!(connection.expect("room").evicted().is_cancelled());
        drop(place);
        assert!(places.take(None, None, later).is_none());
        drop(other);
        assert!(places.take(None, None, later).is_some());
    }
}
