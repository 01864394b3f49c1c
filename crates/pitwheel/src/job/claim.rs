//! A claim: the right to run a job and to write its ending.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::postgres::Ctid;

/// The value that proves a claim: which job, and the number that grew when it was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The job.
    pub id: i64,
    /// Grows at each claim and never goes back. Every write after the claim names it; hand it to outside systems that can
    /// refuse lower numbers.
    pub fence: i64,
}

/// What became of a write that named a fence.
#[must_use = "a lost claim means the job is no longer ours"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It was written.
    Written,
    /// The claim is gone: swept, claimed again, or settled before. Nothing was written.
    Lost,
}

/// How many jobs a queue may give.
#[derive(Debug, Clone)]
pub struct QueueSlots {
    /// The queue.
    pub queue: String,
    /// Its free slots.
    pub slots: usize,
}

/// A job that is ours to run.
#[derive(Debug)]
pub struct Claimed {
    /// What every later write must name.
    pub claim: Claim,
    /// The worker it is claimed for.
    pub holder: i64,
    /// Where its row stands now.
    pub ctid: Ctid,
    /// The batch it came in, whose row goes with its last job.
    pub hold: i64,
    /// Which attempt this is, counted from 1.
    pub attempt: u32,
    /// How many there are.
    pub max_attempts: u32,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// When it was due.
    pub run_at: SystemTime,
    /// -9 to 9.
    pub priority: i16,
    /// The queue it came from.
    pub queue: Arc<str>,
    /// What picks its handler.
    pub kind: Arc<str>,
    /// Its identity, if it has one.
    pub key: Option<String>,
    /// JSON text.
    pub payload: String,
    /// JSON text.
    pub metadata: Option<String>,
}
