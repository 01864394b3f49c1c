//! Running suspects alone. A suspect killed its process, or ran beside the job that did. When it runs alone, the next crash shows which.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::claim::{claim_alone, take_turn};
use crate::engine::claim_sink::ClaimSink;
use crate::engine::look_times::{LOOK_BACK, LOOK_MAX};
use crate::error::Error;
use crate::postgres::Session;

/// The longest wait of a worker for its own jobs to end, so that a suspect runs alone. take_turn.sql knows it too.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// One worker at a time stops claiming to run a suspect, and for as long as that took it claims other jobs before the next one.
pub(super) struct Suspects {
    /// The last look back found one that is due.
    are_due: bool,
    /// None is run before this.
    next: Instant,
    /// How long to wait for this worker's own jobs to end.
    wait: Duration,
    /// Nothing is claimed: since when, and until when at the latest.
    stopped: Option<(Instant, Instant)>,
}

impl Suspects {
    pub(super) fn new(wait: Duration, now: Instant) -> Suspects {
        Suspects { are_due: false, next: now, wait, stopped: None }
    }

    /// The result of a look back.
    pub(super) fn found(&mut self, are_due: bool) {
        self.are_due = are_due;
    }

    /// Whether [`Suspects::run_one_alone`] is to be called, and no claim may begin before.
    pub(super) fn need_attention(&self, now: Instant) -> bool {
        self.stopped.is_some() || self.are_due && now >= self.next
    }

    /// When the wait for a free worker ends, if there is one.
    pub(super) fn waited_for_until(&self) -> Option<Instant> {
        self.stopped.map(|(_, until)| until)
    }

    /// Called again and again while no claim runs, until a worker is free for a suspect, the wait is over, or no suspect is due any
    /// more. Returns whether one was claimed; after an error it may have been.
    pub(super) async fn run_one_alone(&mut self, sink: &impl ClaimSink) -> Result<bool, Error> {
        let Some((begun, until)) = self.stopped else { return self.begin(sink).await };
        if !self.are_due {
            return self.give_up(sink, begun).await;
        }
        match sink.alone() {
            Some(worker) => self.run_on(sink, worker, begun).await,
            None if Instant::now() < until => Ok(false),
            None => {
                self.wait = (self.wait * 2).min(WAIT_MAX);
                self.give_up(sink, begun).await
            }
        }
    }

    /// A worker that runs nothing makes no other job wait, so it needs no turn, which a busy one may have for long.
    async fn begin(&mut self, sink: &impl ClaimSink) -> Result<bool, Error> {
        let now = Instant::now();
        if let Some(worker) = sink.alone() {
            return self.run_on(sink, worker, now).await;
        }
        if !self.wait.is_zero() {
            let taken = turn(sink, self.wait).await;
            if !matches!(taken, Ok(true)) {
                // After an error too: other jobs must not wait for a turn that cannot be taken.
                self.claim_again(now);
                return taken;
            }
        }
        self.stopped = Some((now, Instant::now() + self.wait));
        Box::pin(self.run_one_alone(sink)).await
    }

    /// Claims a suspect for this worker, which runs nothing.
    async fn run_on(&mut self, sink: &impl ClaimSink, worker: i64, begun: Instant) -> Result<bool, Error> {
        let (queues, kinds) = (sink.queues(), sink.kinds());
        let claim = async |client: Arc<Session>| claim_alone(&client, worker, queues, kinds).await;
        let suspect = sink.pool().run_within(LOOK_MAX, claim).await;
        self.wait = sink.alone_wait();
        match suspect {
            Ok(Some(suspect)) => {
                sink.start_alone(worker, Some(suspect));
                self.claim_again(begun);
                Ok(true)
            }
            Ok(None) => {
                sink.start_alone(worker, None);
                self.give_up(sink, begun).await
            }
            Err(error) => {
                sink.start_alone(worker, None);
                self.claim_again(begun);
                Err(error)
            }
        }
    }

    /// Claims again without having run a suspect. If this worker has the turn, another one may try at once.
    async fn give_up(&mut self, sink: &impl ClaimSink, begun: Instant) -> Result<bool, Error> {
        let has_turn = self.stopped.is_some() && !sink.alone_wait().is_zero();
        self.claim_again(begun);
        if has_turn {
            turn(sink, Duration::ZERO).await?;
        }
        Ok(false)
    }

    fn claim_again(&mut self, begun: Instant) {
        (self.stopped, self.are_due) = (None, false);
        self.next = Instant::now() + LOOK_BACK.max(begun.elapsed());
    }
}

async fn turn(sink: &impl ClaimSink, wait: Duration) -> Result<bool, Error> {
    let holder = sink.turn_holder();
    let take = async |client: Arc<Session>| take_turn(&client, holder, wait).await;
    sink.pool().run_within(LOOK_MAX, take).await
}
