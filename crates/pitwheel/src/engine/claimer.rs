//! The loop that claims: one for all queues of a worker, or of many that take the same, woken by hints, polling when there
//! are none.

use std::future::Future;
use std::time::{Duration, Instant, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::engine::claim::{LookedBack, claim_alone, look_back};
use crate::engine::cursor::{Bounds, Cursor};
use crate::engine::retry::RetryDelay;
use crate::error::Error;
use crate::job::claim::{Claimed, QueueSlots};
use crate::metrics;
use crate::postgres::Pool;

/// After a claim that found something: more is likely on its way.
const POLL_SOON: Duration = Duration::from_millis(2);
/// When nothing is found: an idle node costs 25 statements a second, and a job that nobody hints at waits 20 ms at the
/// median.
const POLL_IDLE: Duration = Duration::from_millis(40);
/// However many claim on a node, a job that nobody hints at waits no longer.
const POLL_SHARED: Duration = Duration::from_secs(1);
/// How often a job that appeared where claims no longer read is looked for.
const LOOK_BACK: Duration = Duration::from_secs(1);
/// A look back that takes long, because a transaction has been open for long, is made rarer: at most this share of the time.
const LOOK_BACK_SHARE: u32 = 10;
/// How often the cursor is forgotten, in case that something broke its rules.
const START_OVER: Duration = Duration::from_secs(60);
/// How long after a claim that failed the worker looks for jobs it may hold unknowingly: a statement given up by us may go on
/// at the server for a while.
const UNKNOWN_CLAIMS: Duration = Duration::from_secs(120);
/// Claims under way at a time when the last one was full: while one waits for its commit, the other works.
const CLAIMS_MAX: usize = 2;

/// Who takes what the loop claims: the slots of one worker, or the streams of a node.
pub trait ClaimSink: Sync {
    /// A name for logs.
    fn name(&self) -> &str;
    /// Connections for claims.
    fn pool(&self) -> &Pool;
    /// Where it takes from.
    fn queues(&self) -> &[String];
    /// What it takes.
    fn kinds(&self) -> &[String];
    /// Ends when no more shall be claimed.
    fn stop(&self) -> &CancellationToken;
    /// Something may be due.
    fn due(&self) -> &Notify;
    /// There may be room again.
    fn freed(&self) -> &Notify;
    /// Sets room aside for one claim; empty when there is none. Queues take turns at being first.
    fn reserve(&self) -> Reserved;
    /// Claims for what was set aside.
    fn claim(
        &self,
        room: &Reserved,
        bounds: &Bounds,
    ) -> impl Future<Output = Result<Vec<Claimed>, Error>> + Send;
    /// Gives back the room that a claim did not fill.
    fn unreserve(&self, room: &Reserved, claimed: &[Claimed]);
    /// Starts what was claimed.
    fn start(&self, jobs: Vec<Claimed>);
    /// Gives back what may be held unknowingly, because the answer of a claim was lost.
    fn release_unknown(&self) -> impl Future<Output = Result<usize, Error>> + Send;
    /// A worker that runs nothing, to run a suspect alone; it gets nothing else until that has ended.
    fn alone(&self) -> Option<i64>;
    /// Starts a suspect on the worker that [`ClaimSink::alone`] gave; without one, that worker goes on as before.
    fn start_alone(&self, worker: i64, suspect: Option<Claimed>);
    /// How many claim like this one on this node, itself included. While they are idle they share one node's polls.
    fn claimers_on_node(&self) -> u32 {
        1
    }
    /// How long to claim nothing at all, at first, so that somebody gets to be alone.
    fn alone_wait(&self) -> Duration;
}

/// Room set aside for one claim.
#[derive(Debug, Default)]
pub struct Reserved {
    /// How many of each queue, in the order in which they are asked.
    pub slots_by_queue: Vec<QueueSlots>,
    /// Whose room it is, one entry for each job; empty where all is one worker's.
    pub slots_by_worker: Vec<i64>,
    /// How many in all.
    pub total: usize,
}

struct Claimer<'a, T> {
    sink: &'a T,
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
    alone_wait: Duration,
    /// Until when a claim that failed may turn out to have been committed.
    unknown_until: Instant,
}

/// What a claim asked for, when it began, and what it brought.
type Answer = (Reserved, Instant, Result<Vec<Claimed>, Error>);

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
                // Nothing to do before there is room again; then at once.
                claimer.busy = true;
                break;
            }
            claimer.hint = false;
            claims.push(claim_once(sink, room, claimer.cursor.bounds()));
        }
        let idle = claims.is_empty();
        tokio::select! {
            Some(answer) = claims.next(), if !idle => match claimer.take(answer) {
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
    // A claim under way brings jobs that are ours, whether we want them or not.
    while let Some(answer) = claims.next().await {
        if let Err(error) = claimer.take(answer) {
            tracing::warn!(%error, worker = sink.name(), "the last claim failed");
        }
    }
}

async fn claim_once(sink: &impl ClaimSink, room: Reserved, bounds: Bounds) -> Answer {
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

    /// When to go on if nothing happens before. With no room there is no use in polling.
    fn wake_up(&self) -> Instant {
        if self.busy { self.next_look } else { self.next_poll.min(self.next_look) }
    }

    /// Starts what a claim brought, and remembers how far it got.
    fn take(&mut self, (room, begun, claimed): Answer) -> Result<(), Error> {
        let jobs = match claimed {
            Ok(jobs) => jobs,
            Err(error) => {
                self.unknown_until = Instant::now() + UNKNOWN_CLAIMS;
                self.sink.unreserve(&room, &[]);
                return Err(error);
            }
        };
        // Where one total is shared, a full claim says nothing of the queues that it did not get to.
        let asked: &[QueueSlots] = if room.slots_by_worker.is_empty() || jobs.len() < room.total {
            &room.slots_by_queue
        } else {
            &[]
        };
        let now = self.clock.0 + self.clock.1.elapsed();
        self.cursor.after(asked, &jobs, now);
        metrics::claimed(&jobs, now, begun.elapsed());
        self.sink.unreserve(&room, &jobs);
        self.busy = jobs.len() == room.total;
        let idle = (POLL_IDLE * self.sink.claimers_on_node()).min(POLL_SHARED);
        self.poll = if jobs.is_empty() { (self.poll * 2).min(idle) } else { POLL_SOON };
        self.next_poll =
            Instant::now() + if std::mem::take(&mut self.hint) { Duration::ZERO } else { self.poll };
        self.sink.start(jobs);
        Ok(())
    }

    /// Looks back if it is time, and runs a suspect alone if one waits. With no claim under way.
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
        let (sink, cursor) = (self.sink, &mut self.cursor);
        let LookedBack { seen_at, suspects } =
            sink.pool().run(async |client| look_back(&client, sink.kinds(), cursor).await).await?;
        self.clock = (seen_at, Instant::now());
        self.suspects = suspects;
        self.next_look = Instant::now() + LOOK_BACK.max(begun.elapsed() * LOOK_BACK_SHARE);
        Ok(())
    }

    /// A suspect killed its process before, or stood beside the job that did. With nothing beside it, the next crash
    /// tells which.
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
