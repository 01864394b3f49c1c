//! Claims whose results were lost: a claim that failed here may have been committed.

use std::time::{Duration, Instant};

use crate::engine::answer_limit::AnswerLimit;
use crate::engine::claim_sink::ClaimSink;
use crate::error::Error;

/// How often the worker looks for jobs that it holds without knowing it.
const PAUSE: Duration = Duration::from_secs(10);
/// How soon it does so after a claim failed: the server has noticed by then that the connection is closed, and ended the statement.
pub(crate) const UNKNOWN_SOON: Duration = Duration::from_millis(2500);
/// How long a look waits for its answer at least.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

pub(crate) struct UnknownClaims {
    /// When to look for them.
    pub(crate) next: Instant,
    /// A claim has failed since the last look.
    pub(crate) is_uncertain: bool,
    limit: AnswerLimit,
}

impl UnknownClaims {
    pub(crate) fn new(now: Instant) -> UnknownClaims {
        UnknownClaims { next: now + PAUSE, is_uncertain: false, limit: AnswerLimit::new(ANSWER_LIMIT) }
    }

    pub(crate) fn claim_failed(&mut self) {
        self.is_uncertain = true;
        self.look_soon();
    }

    pub(crate) fn look_soon(&mut self) {
        self.next = Instant::now() + UNKNOWN_SOON;
    }

    /// Gives back the jobs of such claims. Called while no claim runs.
    pub(crate) async fn release(&mut self, sink: &impl ClaimSink) -> Result<(), Error> {
        let (limit, begun) = (self.limit.get(), Instant::now());
        let released = sink.release_unknown(limit).await;
        match released {
            Ok(_) => self.limit.answered(begun.elapsed()),
            Err(_) => self.limit.failed(limit),
        }
        let pause = if released.is_ok() { PAUSE } else { UNKNOWN_SOON };
        self.next = Instant::now() + pause;
        let jobs = released?;
        self.is_uncertain = false;
        if jobs > 0 {
            let worker = sink.name();
            tracing::info!(worker, jobs, "released jobs of a claim whose result was lost");
        }
        Ok(())
    }
}
