//! A claim: the right to run a job and to write its ending.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::postgres::Ctid;

/// The proof of a claim: a job and its fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The id of the job.
    pub id: i64,
    /// A number that grows at each claim of the job and never goes back. Every write after the claim names it. Pass it to
    /// outside systems that can refuse lower numbers.
    pub fence: i64,
}

/// The result of a write that named a fence.
#[must_use = "a lost claim means the job is no longer ours"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It was written.
    Written,
    /// The claim is gone: swept, claimed again, or settled before. Nothing was written.
    Lost,
}

/// The free slots for a queue.
#[derive(Debug, Clone)]
pub struct QueueSlots {
    /// The name of the queue.
    pub queue: String,
    /// How many jobs may be claimed from it.
    pub slots: usize,
}

/// A claimed job, with what is needed to run it.
#[derive(Debug)]
pub struct Claimed {
    /// The proof of the claim.
    pub claim: Claim,
    /// The id of the worker that holds it.
    pub holder: i64,
    /// Where its row is after the claim.
    pub ctid: Ctid,
    /// The id of the hold: the record of what one claim took for one worker.
    pub hold: i64,
    /// The number of this attempt, counted from 1.
    pub attempt: u32,
    /// The maximum number of attempts.
    pub max_attempts: u32,
    /// How long the attempt may take; `None`: without limit.
    pub timeout: Option<Duration>,
    /// The time at which it was due.
    pub run_at: SystemTime,
    /// -9 to 9, higher first.
    pub priority: i16,
    /// The queue it came from.
    pub queue: Arc<str>,
    /// Its kind, which selects the handler.
    pub kind: Arc<str>,
    /// Its key, if it has one.
    pub key: Option<String>,
    /// Its payload, as JSON text.
    pub payload: String,
    /// Its metadata, as JSON text.
    pub metadata: Option<String>,
}
