//! The loop that claims: one for all queues of a worker, or for all streams of a server that have the same queues and kinds.
//! Hints wake it; without them it polls.

use std::future::Future;
use std::time::{Duration, Instant, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::engine::claim::{ClaimedJobs, LookedBack, claim_alone, look_back};
use crate::engine::cursor::{Bounds, Cursor};
use crate::engine::retry::RetryDelay;
use crate::error::Error;
use crate::job::claim::{Claimed, QueueSlots};
use crate::metrics;
use crate::postgres::Pool;

/// The poll interval after a claim that found something: more is likely to follow.
const POLL_SOON: Duration = Duration::from_millis(2);
/// The poll interval when nothing is found: an idle node costs 25 statements a second, and a job without a hint waits 20 ms at
/// the median.
const POLL_IDLE: Duration = Duration::from_millis(40);
/// The longest poll interval, however many claimers a node has.
const POLL_SHARED: Duration = Duration::from_secs(1);
/// The interval of looks back.
const LOOK_BACK: Duration = Duration::from_secs(1);
/// A look back that takes long, because a transaction has been open for long, is made less often: it takes at most one part in
/// this many of the time.
const LOOK_BACK_SHARE: u32 = 10;
/// How often the cursor starts over from the bottom, in case a job appeared where it should not.
const START_OVER: Duration = Duration::from_secs(60);
/// How long after a failed claim the worker looks for jobs that it holds without knowing it: a statement that timed out here may
/// still run at the server.
const UNKNOWN_CLAIMS: Duration = Duration::from_secs(120);
/// Claims at a time when the last one was full: while one waits for its commit, the other works.
const CLAIMS_MAX: usize = 2;

/// What the loop claims for: the slots of one worker, or the streams of a server.
pub trait ClaimSink: Sync {
    /// The name for logs.
    fn name(&self) -> &str;
    /// The connections for claims.
    fn pool(&self) -> &Pool;
    /// The queues to claim from.
    fn queues(&self) -> &[String];
    /// The kinds to claim.
    fn kinds(&self) -> &[String];
    /// Ends when no more must be claimed.
    fn stop(&self) -> &CancellationToken;
    /// Notified when something may be due.
    fn due(&self) -> &Notify;
    /// Notified when slots may be free again.
    fn freed(&self) -> &Notify;
    /// Reserves free slots for one claim; empty when there are none. Queues take turns at being first.
    fn reserve(&self) -> Reserved;
    /// Claims for the reserved slots.
    fn claim(
        &self,
        room: &Reserved,
        bounds: &Bounds,
    ) -> impl Future<Output = Result<ClaimedJobs, Error>> + Send;
    /// Frees the reserved slots that the claim did not fill.
    fn unreserve(&self, room: &Reserved, claimed: &[Claimed]);
    /// Starts the claimed jobs.
    fn start(&self, jobs: Vec<Claimed>);
    /// Releases jobs that are held without being known, because the result of a claim was lost.
    fn release_unknown(&self) -> impl Future<Output = Result<usize, Error>> + Send;
    /// Reserves a worker that runs nothing, to run a suspect alone; it gets no other job until the suspect has ended.
    fn alone(&self) -> Option<i64>;
    /// Starts a suspect on the worker that [`ClaimSink::alone`] returned; without a suspect, that worker goes on as before.
    fn start_alone(&self, worker: i64, suspect: Option<Claimed>);
    /// A look back found no suspect: workers need not wait to be free for one.
    fn no_suspect(&self) {}
    /// The number of claimers on this node, this one included. While idle they share the polls of one.
    fn claimers_on_node(&self) -> u32 {
        1
    }
    /// How long to claim nothing, at first, so that a worker becomes free to run a suspect alone.
    fn alone_wait(&self) -> Duration;
}

/// Slots reserved for one claim.
#[derive(Debug, Default)]
pub struct Reserved {
    /// The slots of each queue, in the order of the claim.
    pub slots_by_queue: Vec<QueueSlots>,
    /// The worker of each slot, one entry per slot; empty where all slots belong to one worker.
    pub slots_by_worker: Vec<i64>,
    /// The number of slots.
    pub total: usize,
}

struct Claimer<'a, T> {
    sink: &'a T,
    cursor: Cursor,
    /// The last claim filled all its slots, so more is due.
    busy: bool,
    poll: Duration,
    next_poll: Instant,
    hint: bool,
    next_look: Instant,
    next_start_over: Instant,
    /// The time by the database's clock when it was last read, and when that was.
    clock: (SystemTime, Instant),
    suspects: bool,
    alone_wait: Duration,
    /// Until when a failed claim may turn out to have been committed.
    unknown_until: Instant,
}

/// The slots of a claim, when it began, and its result.
type ClaimReply = (Reserved, Instant, Result<ClaimedJobs, Error>);

/// Claims and starts jobs until the sink stops.
pub async fn run_claimer(sink: &impl ClaimSink) {
    let mut claimer = Claimer::new(sink);
    let mut claims = FuturesUnordered::new();
    let mut retry_delay = RetryDelay::default();
    while !sink.stop().is_cancelled() {
        if claims.is_empty()
            && let Err(error) = claimer.look_around().await
        {
            tracing::warn!(%error, worker = sink.name(), "cannot look for jobs, will try again");
            retry_delay.wait(sink.stop()).await;
            continue;
        }
        while claimer.wants_more(claims.len()) {
            let room = sink.reserve();
            if room.total == 0 {
                // The next claim follows as soon as a slot is free.
                claimer.busy = true;
                break;
            }
            claimer.hint = false;
            claims.push(claim_once(sink, room, claimer.cursor.bounds()));
        }
        let idle = claims.is_empty();
        tokio::select! {
            Some(reply) = claims.next(), if !idle => match claimer.take(reply) {
                Ok(()) => retry_delay.reset(),
                Err(error) => {
                    tracing::warn!(%error, worker = sink.name(), "cannot claim, will try again");
                    retry_delay.wait(sink.stop()).await;
                }
            },
            () = sink.freed().notified() => {}
            () = sink.due().notified() => claimer.hinted(),
            () = tokio::time::sleep_until(claimer.wake_up().into()), if idle => {}
            () = sink.stop().cancelled() => {}
        }
    }
    // The jobs of a claim that is still running are held by this worker, so they are started.
    while let Some(reply) = claims.next().await {
        if let Err(error) = claimer.take(reply) {
            tracing::warn!(%error, worker = sink.name(), "the last claim failed");
        }
    }
}

async fn claim_once(sink: &impl ClaimSink, room: Reserved, bounds: Bounds) -> ClaimReply {
    let begun = Instant::now();
    let claimed = sink.claim(&room, &bounds).await;
    (room, begun, claimed)
}

impl<'a, T: ClaimSink> Claimer<'a, T> {
    fn new(sink: &'a T) -> Claimer<'a, T> {
        let now = Instant::now();
        Claimer {
            sink,
            cursor: Cursor::new(sink.queues().iter().map(String::as_str)),
            busy: false,
            poll: POLL_SOON,
            next_poll: now,
            hint: false,
            next_look: now,
            next_start_over: now + START_OVER,
            clock: (SystemTime::UNIX_EPOCH, now),
            suspects: false,
            alone_wait: sink.alone_wait(),
            unknown_until: now,
        }
    }

    /// Whether to start another claim beside those that run. Before a look back none is started: its result would move the
    /// bound past what the look back finds.
    fn wants_more(&self, under_way: usize) -> bool {
        let now = Instant::now();
        let room = under_way < if self.busy { CLAIMS_MAX } else { 1 };
        room && now < self.next_look && (self.busy || now >= self.next_poll)
    }

    /// Something is due. A claim that runs may have read too early, so its result does not delay the next one.
    fn hinted(&mut self) {
        self.hint = true;
        self.next_poll = Instant::now();
    }

    /// When to go on if nothing happens before. Without a free slot there is no need to poll.
    fn wake_up(&self) -> Instant {
        if self.busy { self.next_look } else { self.next_poll.min(self.next_look) }
    }

    /// Starts the claimed jobs, and moves the cursor on.
    fn take(&mut self, (room, begun, claimed): ClaimReply) -> Result<(), Error> {
        let ClaimedJobs { jobs, alive_slots } = match claimed {
            Ok(claimed) => claimed,
            Err(error) => {
                self.unknown_until = Instant::now() + UNKNOWN_CLAIMS;
                self.sink.unreserve(&room, &[]);
                return Err(error);
            }
        };
        // Where queues share the slots, a full claim may not have reached all of them.
        let asked: &[QueueSlots] = if room.slots_by_worker.is_empty() || jobs.len() < alive_slots {
            &room.slots_by_queue
        } else {
            &[]
        };
        let now = self.clock.0 + self.clock.1.elapsed();
        self.cursor.after(asked, &jobs, now);
        metrics::claimed(&jobs, now, begun.elapsed());
        self.sink.unreserve(&room, &jobs);
        self.busy = jobs.len() == alive_slots;
        let idle = (POLL_IDLE * self.sink.claimers_on_node()).min(POLL_SHARED);
        self.poll = if jobs.is_empty() { (self.poll * 2).min(idle) } else { POLL_SOON };
        self.next_poll =
            Instant::now() + if std::mem::take(&mut self.hint) { Duration::ZERO } else { self.poll };
        self.sink.start(jobs);
        Ok(())
    }

    /// Looks back if it is time, and runs a suspect alone if one is due. Called while no claim runs.
    async fn look_around(&mut self) -> Result<(), Error> {
        if Instant::now() >= self.next_look {
            if Instant::now() < self.unknown_until {
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
        let released = self.sink.release_unknown().await?;
        if released > 0 {
            tracing::info!(
                worker = self.sink.name(),
                jobs = released,
                "released jobs of a claim whose result was lost"
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
        let (sink, cursor) = (self.sink, &mut self.cursor);
        let LookedBack { seen_at, suspects } =
            sink.pool().run(async |client| look_back(&client, sink.kinds(), cursor).await).await?;
        self.clock = (seen_at, Instant::now());
        self.suspects = suspects;
        if !suspects {
            sink.no_suspect();
        }
        self.next_look = Instant::now() + LOOK_BACK.max(begun.elapsed() * LOOK_BACK_SHARE);
        Ok(())
    }

    /// A suspect killed its process, or ran beside the job that did. When it runs alone, the next crash
    /// shows which.
    async fn run_suspect_alone(&mut self) -> Result<(), Error> {
        self.suspects = false;
        let sink = self.sink;
        let deadline = Instant::now() + self.alone_wait;
        let worker = loop {
            if let Some(worker) = sink.alone() {
                break worker;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.alone_wait *= 2;
                self.next_look = Instant::now() + LOOK_BACK.max(self.alone_wait);
                return Ok(());
            }
            tokio::select! {
                () = sink.freed().notified() => {}
                () = sink.stop().cancelled() => return Ok(()),
                () = tokio::time::sleep(left) => {}
            }
        };
        self.unknown_until = Instant::now() + UNKNOWN_CLAIMS;
        let suspect = sink
            .pool()
            .run(async |client| claim_alone(&client, worker, sink.queues(), sink.kinds()).await)
            .await;
        self.alone_wait = sink.alone_wait();
        let found = matches!(suspect, Ok(Some(_)));
        let (suspect, ended) = match suspect {
            Ok(suspect) => (suspect, Ok(())),
            Err(error) => (None, Err(error)),
        };
        sink.start_alone(worker, suspect);
        if found {
            self.next_look = Instant::now();
        }
        ended
    }
}
