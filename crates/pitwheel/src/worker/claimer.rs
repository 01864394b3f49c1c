//! The loop that claims: one for all queues of a worker, woken by hints, polling when there are none.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::core::Core;
use crate::claim::{Ask, Claimed, LookedBack, claim, claim_alone, look_back};
use crate::cursor::Cursor;
use crate::error::Error;

/// After a claim that found something: more is likely on its way.
const POLL_SOON: Duration = Duration::from_millis(2);
/// When nothing is found: an idle node costs 25 statements a second, and a job that nobody hints at waits 20 ms at the
/// median.
const POLL_IDLE: Duration = Duration::from_millis(40);
/// How often a job that appeared where claims no longer read is looked for.
const LOOK_BACK: Duration = Duration::from_secs(1);
/// A look back that takes long, because a transaction has been open for long, is made rarer: at most this share of the time.
const LOOK_BACK_SHARE: u32 = 10;
/// How often the cursor is forgotten, in case that something broke its rules.
const START_OVER: Duration = Duration::from_secs(60);
/// How long a worker waits at first for its own jobs to end, to run a suspect alone; doubled each time it was not enough.
const PATIENCE: Duration = Duration::from_secs(10);

struct Claimer<'a> {
    core: &'a Arc<Core>,
    cursor: Cursor,
    poll: Duration,
    next_look: Instant,
    next_start_over: Instant,
    /// The database's clock when it was last seen, and when that was.
    clock: (SystemTime, Instant),
    suspects: bool,
    patience: Duration,
}

/// Claims and starts jobs until the worker stops.
pub(super) async fn run(core: &Arc<Core>) {
    let now = Instant::now();
    let mut claimer = Claimer {
        core,
        cursor: Cursor::new(core.queues.iter().map(String::as_str)),
        poll: POLL_SOON,
        next_look: now,
        next_start_over: now + START_OVER,
        clock: (SystemTime::UNIX_EPOCH, now),
        suspects: false,
        patience: PATIENCE,
    };
    let mut trouble = Trouble::default();
    while !core.stop.is_cancelled() {
        match claimer.turn().await {
            Ok(()) => trouble.over(),
            Err(error) => {
                tracing::warn!(%error, worker = core.name, "cannot claim, will try again");
                trouble.wait(&core.stop).await;
            }
        }
    }
}

impl Claimer<'_> {
    /// One turn: look back if it is time, run a suspect alone if one waits, claim if there are slots, then wait.
    async fn turn(&mut self) -> Result<(), Error> {
        if Instant::now() >= self.next_look {
            self.look_back().await?;
        }
        if self.suspects {
            return self.run_suspect_alone().await;
        }
        let free = self.core.free_slots();
        if free.is_empty() {
            self.wait(LOOK_BACK).await;
            return Ok(());
        }
        let asks: Vec<Ask> = free.iter().map(|(queue, slots)| Ask { queue, slots: *slots }).collect();
        let jobs = self.claim(&asks).await?;
        let full = jobs.len() == asks.iter().map(|ask| ask.slots).sum::<usize>();
        self.poll = if jobs.is_empty() { (self.poll * 2).min(POLL_IDLE) } else { POLL_SOON };
        self.core.start(jobs);
        if !full {
            self.wait_for_due().await;
        }
        Ok(())
    }

    async fn claim(&mut self, asks: &[Ask<'_>]) -> Result<Vec<Claimed>, Error> {
        let now = self.clock.0 + self.clock.1.elapsed();
        let (core, cursor) = (self.core, &mut self.cursor);
        core.pool.run(async |client| claim(&client, core.id(), asks, &core.kinds, cursor, now).await).await
    }

    async fn look_back(&mut self) -> Result<(), Error> {
        let begun = Instant::now();
        if begun >= self.next_start_over {
            self.cursor.start_over();
            self.next_start_over = begun + START_OVER;
        }
        let (core, cursor) = (self.core, &mut self.cursor);
        let LookedBack { seen_at, suspects } =
            core.pool.run(async |client| look_back(&client, &core.kinds, cursor).await).await?;
        self.clock = (seen_at, Instant::now());
        self.suspects = suspects;
        self.next_look = Instant::now() + LOOK_BACK.max(begun.elapsed() * LOOK_BACK_SHARE);
        Ok(())
    }

    /// A suspect killed its process before, or stood beside the job that did. With nothing beside it, the next crash
    /// tells which.
    async fn run_suspect_alone(&mut self) -> Result<(), Error> {
        self.suspects = false;
        let deadline = Instant::now() + self.patience;
        while !self.core.is_idle() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.patience *= 2;
                self.next_look = Instant::now() + self.patience;
                return Ok(());
            }
            self.wait(left).await;
            if self.core.stop.is_cancelled() {
                return Ok(());
            }
        }
        let core = self.core;
        let suspect = core
            .pool
            .run(async |client| claim_alone(&client, core.id(), &core.queues, &core.kinds).await)
            .await?;
        self.patience = PATIENCE;
        if let Some(job) = suspect {
            core.start(vec![job]);
            while !core.is_idle() && !core.stop.is_cancelled() {
                self.wait(LOOK_BACK).await;
            }
            self.next_look = Instant::now();
        }
        Ok(())
    }

    /// Until a slot is freed, the worker stops, or the time is over.
    async fn wait(&self, longest: Duration) {
        tokio::select! {
            () = self.core.freed.notified() => {}
            () = self.core.stop.cancelled() => {}
            () = tokio::time::sleep(longest) => {}
        }
    }

    /// Until a hint comes, the worker stops, or it is time to poll.
    async fn wait_for_due(&self) {
        tokio::select! {
            () = self.core.due.notified() => {}
            () = self.core.stop.cancelled() => {}
            () = tokio::time::sleep(self.poll) => {}
        }
    }
}

/// Waits between tries when the database is away: longer each time, spread at random, so that a fleet does not come back
/// at once.
#[derive(Default)]
pub(super) struct Trouble {
    tries: u32,
}

impl Trouble {
    const LONGEST: Duration = Duration::from_secs(2);

    pub(super) fn over(&mut self) {
        self.tries = 0;
    }

    pub(super) async fn wait(&mut self, stop: &tokio_util::sync::CancellationToken) {
        let span = Duration::from_millis(50).saturating_mul(1 << self.tries.min(10)).min(Trouble::LONGEST);
        self.tries += 1;
        tokio::select! {
            () = tokio::time::sleep(span.mul_f64(0.5 + fastrand::f64() / 2.0)) => {}
            () = stop.cancelled() => {}
        }
    }
}
