//! What a caller may send at most, over either protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pitwheel::Error;
use pitwheel::engine::limits::{ENQUEUE_MAX, FOLLOWERS_MAX, SETTLE_MAX, SPAN_MAX};

/// The largest request: the default limit of gRPC libraries and proxies. Sixteen jobs with the largest payloads fit. The
/// clients cut their batches at half of it.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of one body that HTTP/2 takes from a client before the body is read, and keeps in memory. A body that waits for room holds so many.
/// A call moves as many in each round trip: 250 MB/s with 1 ms, and 4 MiB within the deadline of a body with half a second.
pub(crate) const STREAM_WINDOW: u32 = 256 * 1024;
/// The same for all calls of a connection. A Rust worker reports four times at a time: if all of these bodies wait, its heartbeats, which
/// use the same connection, still arrive.
pub(crate) const CONNECTION_WINDOW: u32 = 6 * STREAM_WINDOW;
/// Streams of one node. Each costs memory, and its heartbeats cost database time.
pub(crate) const STREAMS_MAX: usize = 10_000;
/// Streams of one node that are opened with the same token.
pub(crate) const TOKEN_STREAMS_MAX: usize = 2_000;

const SLOTS_MAX: u32 = 10_000;
pub(crate) const QUEUES_MAX: usize = 100;
pub(crate) const KINDS_MAX: usize = 1_000;
/// Claims that the ended streams of one heartbeat hold: ten streams with the most slots.
pub(crate) const HOLDING_MAX: usize = 10 * SLOTS_MAX as usize;
/// Characters of a worker's name; the rest is cut off.
const NAME_CHARS_MAX: usize = 200;
/// From 1970 to the year 2200. A later time is a mistake.
const TIME_MAX: Duration = Duration::from_secs(230 * 366 * 24 * 3600);

fn invalid<T>(message: String) -> Result<T, Error> {
    Err(Error::Invalid(message))
}

/// A time from 1970 to 2200. `None` stands for text or numbers that are no time.
pub(crate) fn time(field: &str, time: Option<SystemTime>) -> Result<SystemTime, Error> {
    let in_range = |time: &SystemTime| time.duration_since(UNIX_EPOCH).is_ok_and(|since| since < TIME_MAX);
    match time.filter(in_range) {
        Some(time) => Ok(time),
        None => {
            invalid(format!("`{field}` is not a time from 1970 to 2200: write it as in 2030-01-31T08:00:00Z"))
        }
    }
}

/// A time span of at most a hundred years. `None` stands for numbers that are no time span.
pub(crate) fn span(field: &str, span: Option<Duration>) -> Result<Duration, Error> {
    match span.filter(|span| *span <= SPAN_MAX) {
        Some(span) => Ok(span),
        None => invalid(format!("`{field}` is not a time span from 0 to 100 years")),
    }
}

/// The number of jobs that a stream may hold at a time.
pub(crate) fn slots(slots: u32) -> Result<usize, Error> {
    if !(1..=SLOTS_MAX).contains(&slots) {
        return invalid(format!("`slots` is {slots}: request 1 to {SLOTS_MAX}"));
    }
    Ok(slots as usize)
}

/// The queues of a stream, sorted and without duplicates.
pub(crate) fn queues(names: Vec<String>) -> Result<Vec<String>, Error> {
    names_of("queue", names, QUEUES_MAX)
}

/// The kinds of a stream, sorted and without duplicates.
pub(crate) fn kinds(names: Vec<String>) -> Result<Vec<String>, Error> {
    names_of("kind", names, KINDS_MAX)
}

fn names_of(what: &str, mut names: Vec<String>, max: usize) -> Result<Vec<String>, Error> {
    if names.is_empty() || names.len() > max {
        return invalid(format!("the request names {} {what}s: name 1 to {max}", names.len()));
    }
    for name in &names {
        pitwheel::engine::check_name(what, name)?;
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// The name of a worker, shortened and without control characters, which Postgres and terminals cannot show.
pub(crate) fn worker_name(name: &str) -> Result<String, Error> {
    let short: String = name.chars().filter(|c| !c.is_control()).take(NAME_CHARS_MAX).collect();
    if short.trim().is_empty() {
        return invalid(
            "`worker` is empty: send a name that identifies the process, such as host and id".into(),
        );
    }
    Ok(short)
}

/// Checks that a batch of results or workers is neither empty nor too large.
pub(crate) fn report(what: &str, len: usize) -> Result<(), Error> {
    batch(what, len, SETTLE_MAX)
}

/// Checks that the followers of one job are not too many.
pub(crate) fn followers(len: usize) -> Result<(), Error> {
    if len > FOLLOWERS_MAX {
        return invalid(format!("{len} jobs follow from one: send at most {FOLLOWERS_MAX}"));
    }
    Ok(())
}

/// Checks that the entries of a message are not too many.
pub(crate) fn entries(what: &str, len: usize, max: usize) -> Result<(), Error> {
    if len > max {
        return invalid(format!("the request has {len} {what}: send at most {max} at a time"));
    }
    Ok(())
}

/// Checks that the jobs to enqueue fit into one statement.
pub(crate) fn enqueue(len: usize) -> Result<(), Error> {
    batch("jobs", len, ENQUEUE_MAX)
}

fn batch(what: &str, len: usize, max: usize) -> Result<(), Error> {
    if !(1..=max).contains(&len) {
        return invalid(format!("the request has {len} {what}: send 1 to {max} at a time"));
    }
    Ok(())
}
