//! The worker, as the engine's claim loop sees it.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::engine::claim::{ClaimedJobs, claim, release_unknown};
use crate::engine::claim_sink::{ClaimSink, Reserved};
use crate::engine::cursor::Bounds;
use crate::error::Error;
use crate::job::claim::{Claim, Claimed};
use crate::postgres::{Pool, Session};
use crate::worker::core::Core;

/// How long a worker waits at first for its own jobs to end, so that a suspect runs alone; doubled each time it is not enough.
const ALONE_WAIT: Duration = Duration::from_secs(10);

impl ClaimSink for Arc<Core> {
    fn name(&self) -> &str {
        Core::name(self)
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn queues(&self) -> &[String] {
        &self.registration.queues
    }

    fn kinds(&self) -> &[String] {
        &self.registration.kinds
    }

    fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    fn due(&self) -> &Notify {
        &self.due
    }

    fn freed(&self) -> &Notify {
        &self.freed
    }

    fn reserve(&self, only: Option<&BTreeSet<String>>) -> Reserved {
        self.slots().reserve(only)
    }

    async fn claim(
        &self,
        reserved: &Reserved,
        bounds: &Bounds,
        given_up: impl Future<Output = Error> + Send,
    ) -> Result<ClaimedJobs, Error> {
        let claim = async |client: Arc<Session>| {
            claim(&*client, self.id(), &reserved.slots_by_queue, &self.registration.kinds, bounds).await
        };
        let sent = Instant::now();
        let jobs = self.pool.run_until(given_up, claim).await?;
        if !jobs.is_empty() {
            self.alive().proved(sent);
        }
        if self.slots().is_last_claim(reserved, jobs.len()) {
            self.stop.cancel();
        }
        Ok(ClaimedJobs { jobs, alive_slots: reserved.total })
    }

    fn unreserve(&self, reserved: &Reserved, claimed: &[Claimed]) {
        self.slots().unreserve(reserved, claimed.len());
    }

    fn start(&self, jobs: Vec<Claimed>) {
        let mut slots = self.slots();
        let jobs = slots.accept(jobs);
        self.spawn(&mut slots, jobs.into_iter());
    }

    async fn release_unknown(&self, limit: Duration) -> Result<usize, Error> {
        let known = self.slots().known_holds();
        let is_known = |claim: &Claim| self.slots().knows(claim);
        let release =
            async |client: Arc<Session>| release_unknown(&*client, &[self.id()], &known, is_known).await;
        self.pool.run_within(limit, release).await
    }

    /// A worker that ends by itself leaves suspects to those that stay.
    fn takes_suspects(&self) -> bool {
        !self.slots().has_budget()
    }

    fn alone(&self) -> Option<i64> {
        self.slots().reserve_all(Instant::now()).then(|| self.id())
    }

    fn start_alone(&self, _: i64, suspect: Option<Claimed>) {
        self.start(suspect.into_iter().collect());
        let mut slots = self.slots();
        if slots.running.is_empty() {
            slots.unreserve_all();
        }
    }

    fn turn_holder(&self) -> i64 {
        self.id()
    }

    fn next_run_time(&self) -> Option<Instant> {
        self.run_times().first()
    }

    fn run_time_has_come(&self) -> bool {
        self.run_times().take_until(Instant::now())
    }

    fn alone_wait(&self) -> Duration {
        ALONE_WAIT
    }
}
