//! The loop that claims: one for all queues of a worker, woken by hints, polling when there are none.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::core::Core;
use crate::claim::{Ask, Claimed, LookedBack, claim, claim_alone, look_back, release_unknown};
use crate::cursor::{Bounds, Cursor};
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

/// How long after a claim that failed the worker looks for jobs it may hold unknowingly: a statement given up by us may go on
/// at the server for a while.
const DOUBT: Duration = Duration::from_secs(120);
/// Claims under way at a time when the last one was full: while one waits for its commit, the other works.
const CLAIMS_MAX: usize = 2;

struct Claimer<'a> {
    core: &'a Arc<Core>,
    cursor: Cursor,
    /// The last claim brought all it asked for, so there is more.
    busy: bool,
    poll: Duration,
    next_poll: Instant,
    hint: bool,
    next_look: Instant,
    next_start_over: Instant,
    /// The database's clock when it was last seen, and when that was.
    clock: (SystemTime, Instant),
    suspects: bool,
    patience: Duration,
    /// Until when a claim that failed may turn out to have been committed.
    doubt_until: Instant,
}

/// What a claim asked for and what it brought.
type Answer = (Vec<Ask>, Result<Vec<Claimed>, Error>);

/// Claims and starts jobs until the worker stops.
pub(super) async fn run(core: &Arc<Core>) {
    let mut claimer = Claimer::new(core);
    let mut claims = FuturesUnordered::new();
    let mut trouble = Trouble::default();
    while !core.stop.is_cancelled() {
        if claims.is_empty()
            && let Err(error) = claimer.look_around().await
        {
            tracing::warn!(%error, worker = core.name, "cannot look for jobs, will try again");
            trouble.wait(&core.stop).await;
            continue;
        }
        while claimer.wants_more(claims.len()) {
            let asks = core.reserve();
            if asks.is_empty() {
                break;
            }
            claimer.hint = false;
            claims.push(claim_once(core, asks, claimer.cursor.bounds()));
        }
        let idle = claims.is_empty();
        tokio::select! {
            Some(answer) = claims.next(), if !idle => match claimer.take(answer) {
                Ok(()) => trouble.over(),
                Err(error) => {
                    tracing::warn!(%error, worker = core.name, "cannot claim, will try again");
                    trouble.wait(&core.stop).await;
                }
            },
            () = core.freed.notified() => {}
            () = core.due.notified() => claimer.hinted(),
            () = tokio::time::sleep_until(claimer.wake_up().into()), if idle => {}
            () = core.stop.cancelled() => {}
        }
    }
    // A claim under way brings jobs that are ours, whether we want them or not.
    while let Some(answer) = claims.next().await {
        if let Err(error) = claimer.take(answer) {
            tracing::warn!(%error, worker = core.name, "the last claim failed");
        }
    }
}

async fn claim_once(core: &Core, asks: Vec<Ask>, bounds: Bounds) -> Answer {
    let claimed =
        core.pool.run(async |client| claim(&*client, core.id(), &asks, &core.kinds, &bounds).await).await;
    (asks, claimed)
}

impl<'a> Claimer<'a> {
    fn new(core: &'a Arc<Core>) -> Claimer<'a> {
        let now = Instant::now();
        Claimer {
            core,
            cursor: Cursor::new(core.queues.iter().map(String::as_str)),
            busy: false,
            poll: POLL_SOON,
            next_poll: now,
            hint: false,
            next_look: now,
            next_start_over: now + START_OVER,
            clock: (SystemTime::UNIX_EPOCH, now),
            suspects: false,
            patience: PATIENCE,
            doubt_until: now,
        }
    }

    /// Whether it is time for another claim beside those under way. Before a look back none is begun: its answer would
    /// move the bound on again over what the look found.
    fn wants_more(&self, under_way: usize) -> bool {
        let now = Instant::now();
        let room = under_way < if self.busy { CLAIMS_MAX } else { 1 };
        room && now < self.next_look && (self.busy || now >= self.next_poll)
    }

    /// Something is due. A claim under way may have looked too early, so its answer does not put off the next one.
    fn hinted(&mut self) {
        self.hint = true;
        self.next_poll = Instant::now();
    }

    /// When to go on if nothing happens before. With no slot free there is no use in polling.
    fn wake_up(&self) -> Instant {
        if self.busy { self.next_look } else { self.next_poll.min(self.next_look) }
    }

    /// Starts what a claim brought, and remembers how far it got.
    fn take(&mut self, (asks, claimed): Answer) -> Result<(), Error> {
        let jobs = match claimed {
            Ok(jobs) => jobs,
            Err(error) => {
                self.doubt_until = Instant::now() + DOUBT;
                self.core.unreserve(&asks, &[]);
                return Err(error);
            }
        };
        self.cursor.after(&asks, &jobs, self.clock.0 + self.clock.1.elapsed());
        self.core.unreserve(&asks, &jobs);
        self.busy = jobs.len() == asks.iter().map(|ask| ask.slots).sum::<usize>();
        self.poll = if jobs.is_empty() { (self.poll * 2).min(POLL_IDLE) } else { POLL_SOON };
        self.next_poll =
            Instant::now() + if std::mem::take(&mut self.hint) { Duration::ZERO } else { self.poll };
        self.core.start(jobs);
        Ok(())
    }

    /// Looks back if it is time, and runs a suspect alone if one waits. With no claim under way.
    async fn look_around(&mut self) -> Result<(), Error> {
        if Instant::now() >= self.next_look {
            if Instant::now() < self.doubt_until {
                self.release_unknown().await?;
            }
            self.look_back().await?;
        }
        if self.suspects {
            self.run_suspect_alone().await?;
        }
        Ok(())
    }

    async fn release_unknown(&self) -> Result<(), Error> {
        let (core, known) = (self.core, self.core.known_holds());
        let released =
            core.pool.run(async |client| release_unknown(&*client, core.id(), &known).await).await?;
        if released > 0 {
            tracing::info!(
                worker = core.name,
                jobs = released,
                "released jobs whose claim was answered too late"
            );
        }
        Ok(())
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
        self.doubt_until = Instant::now() + DOUBT;
        let suspect = core
            .pool
            .run(async |client| claim_alone(&client, core.id(), &core.queues, &core.kinds).await)
            .await?;
        self.patience = PATIENCE;
        if let Some(job) = suspect {
            core.take_slot(&job.queue);
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
