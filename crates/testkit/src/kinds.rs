//! Kinds of jobs that tests of several crates use.

use pitwheel::{Job, NewJob};
use serde::{Deserialize, Serialize};

/// A job with a number, for handlers that tell jobs apart.
#[derive(Serialize, Deserialize, Clone)]
pub struct Work {
    /// The number.
    pub n: i64,
}

impl Job for Work {
    const KIND: &'static str = "work";
    const MAX_ATTEMPTS: u32 = 3;
}

/// A job of the kind [`Work`], to enqueue.
pub fn work(n: i64) -> NewJob {
    NewJob::of(&Work { n })
}

/// A job that takes the given time.
#[derive(Serialize, Deserialize)]
pub struct Nap {
    /// How long it takes, in milliseconds.
    pub ms: u64,
}

impl Job for Nap {
    const KIND: &'static str = "nap";
}

/// A job without a payload.
#[derive(Serialize, Deserialize)]
pub struct Greet {}

impl Job for Greet {
    const KIND: &'static str = "greet";
}
