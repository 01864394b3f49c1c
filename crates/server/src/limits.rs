//! What a caller may ask for at most, and in which words it is told.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tonic::Status;

/// A batch of 1,000 jobs with large payloads is refused before it is read.
pub(crate) const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;
const SLOTS_MAX: u32 = 10_000;
const QUEUES_MAX: usize = 100;
const KINDS_MAX: usize = 1_000;
const BATCH_MAX: usize = 1_000;
const ENQUEUE_MAX: usize = 500;
const NAME_CHARS_MAX: usize = 200;
/// Streams of one node. Each costs some memory, and its heartbeats.
pub(crate) const STREAMS_MAX: usize = 10_000;

/// A hundred years: longer is a mistake, and overflows somewhere.
pub(crate) const SPAN_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);
/// Streams that are open with one token.
pub(crate) const TOKEN_STREAMS_MAX: usize = 2_000;

/// Whether a time is one that people mean: from 1970 to 2200.
pub(crate) fn is_sane(time: SystemTime) -> bool {
    let since = time.duration_since(UNIX_EPOCH);
    since.is_ok_and(|since| since < Duration::from_secs(230 * 366 * 24 * 3600))
}

/// How many jobs a stream may have at a time.
pub(crate) fn slots(slots: u32) -> Result<usize, Status> {
    if !(1..=SLOTS_MAX).contains(&slots) {
        return Err(Status::invalid_argument(format!("slots is {slots}: ask for 1 to {SLOTS_MAX}")));
    }
    Ok(slots as usize)
}

/// The queues of a stream, each once and in one order.
pub(crate) fn queues(names: Vec<String>) -> Result<Vec<String>, Status> {
    names_of("queue", names, QUEUES_MAX)
}

/// The kinds of a stream, each once and in one order.
pub(crate) fn kinds(names: Vec<String>) -> Result<Vec<String>, Status> {
    names_of("kind", names, KINDS_MAX)
}

fn names_of(what: &str, mut names: Vec<String>, max: usize) -> Result<Vec<String>, Status> {
    if names.is_empty() || names.len() > max {
        return Err(Status::invalid_argument(format!("{} {what}s: name 1 to {max}", names.len())));
    }
    for name in &names {
        pitwheel::engine::check_name(what, name)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// A name for people: short, and without what Postgres cannot keep.
pub(crate) fn worker_name(name: &str) -> Result<String, Status> {
    let short: String = name.chars().filter(|c| !c.is_control()).take(NAME_CHARS_MAX).collect();
    if short.trim().is_empty() {
        return Err(Status::invalid_argument(
            "worker is empty: give it a name that tells people which process it is",
        ));
    }
    Ok(short)
}

/// Checks that a batch is neither empty nor too large.
pub(crate) fn batch(what: &str, len: usize) -> Result<(), Status> {
    at_most(what, len, BATCH_MAX)
}

/// Checks that jobs to enqueue fit into one statement.
pub(crate) fn enqueue(len: usize) -> Result<(), Status> {
    at_most("jobs", len, ENQUEUE_MAX)
}

fn at_most(what: &str, len: usize, max: usize) -> Result<(), Status> {
    if !(1..=max).contains(&len) {
        return Err(Status::invalid_argument(format!("{len} {what}: send 1 to {max} at a time")));
    }
    Ok(())
}
