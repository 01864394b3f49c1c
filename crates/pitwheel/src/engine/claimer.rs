//! The loop that claims: one for all queues of a worker, or for all streams of a server that have the same queues and kinds.
//! Hints wake it; without them it polls.

use std::collections::BTreeSet;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::Either;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::time::{sleep, sleep_until};

use crate::engine::answer_limit::AnswerLimit;
use crate::engine::claim::{ClaimedJobs, look_back};
use crate::engine::claim_sink::{ClaimSink, Reserved};
use crate::engine::cursor::{Bounds, Cursor, LevelLook, Look, LookedBack};
use crate::engine::look_times::{LOOK_BACK, LOOK_MAX, LookTimes, Looks, beside};
use crate::engine::retry::RetryDelay;
use crate::engine::suspects::Suspects;
use crate::engine::unknown_claims::UnknownClaims;
use crate::error::Error;
use crate::job::claim::{Claimed, QueueSlots};
use crate::metrics;
use crate::postgres::{Session, no_answer};

/// The poll interval after a poll that found something: more is likely to follow.
const POLL_SOON: Duration = Duration::from_millis(2);
/// The poll interval after a hint: what comes next is likely to have a hint too.
const POLL_HINTED: Duration = Duration::from_millis(20);
/// The poll interval when nothing is found: an idle node costs 25 statements a second, and a job without a hint waits 20 ms at
/// the median.
const POLL_IDLE: Duration = Duration::from_millis(40);
/// After a claim that found many jobs, and room for all of them, the next one begins no sooner than this after its start. Half of
/// what a claim of 30 jobs costs is the same for one job, so fewer and larger claims leave the server time for other work.
const PACE: Duration = Duration::from_millis(20);
/// From how many jobs on. With at most one hint every 5 ms this is 1,600 jobs a second; below that, hints are followed at once.
const PACED_FROM: usize = 8;
/// The longest poll interval, however many claimers a node has.
const POLL_SHARED: Duration = Duration::from_secs(1);
/// How long a claim waits for its answer at least: no other begins meanwhile.
const CLAIM_LIMIT: Duration = Duration::from_secs(3);
/// How long claims that run are waited for when the sink stops: handlers run meanwhile, and their grace time has not begun.
const LAST_CLAIMS: Duration = Duration::from_secs(2);
/// Claims at a time when the last one was full: while one waits for its commit, the other works.
const CLAIMS_MAX: usize = 2;

struct Claimer<'a, T> {
    sink: &'a T,
    cursor: Cursor,
    /// The queues whose last claim was full, so more is due in them.
    full: BTreeSet<String>,
    /// There was no room in any queue. A free slot ends this.
    no_room: bool,
    poll: Duration,
    next_poll: Instant,
    hint: bool,
    /// No claim for a hint or a poll begins before this.
    paced_until: Instant,
    looks: LookTimes,
    look_begun: Instant,
    /// A look back has said what waits.
    may_claim: bool,
    /// The time by the database's clock when it was last read, and when that was.
    clock: (SystemTime, Instant),
    suspects: Suspects,
    unknown: UnknownClaims,
    /// How long a claim waits for its answer.
    claim_limit: AnswerLimit,
}

/// What a claim asked for, and why.
struct Asked {
    room: Reserved,
    /// Where it reads from.
    bounds: Bounds,
    /// It asks all queues, not only the full ones, which are claimed from without polls.
    polls: bool,
    /// A hint caused it.
    hinted: bool,
    begun: Instant,
    limit: Duration,
}

/// What a look back read, what it found, and when its statement began and ended.
type LookReply = (Look, Result<(LookedBack, [Instant; 2]), Error>);

/// Claims and starts jobs until the sink stops. Returns whether a claim failed since the last look for unknown jobs: it may have been
/// committed.
pub async fn run_claimer(sink: &impl ClaimSink) -> bool {
    let mut claimer = Claimer::new(sink);
    let (mut claims, mut looks) = (FuturesUnordered::new(), Looks::new());
    let mut retry_delay = RetryDelay::default();
    while !sink.stop().is_cancelled() {
        if claims.is_empty()
            && let Err(error) = beside(&mut looks, pin!(claimer.look_around())).await
        {
            // Claims go on: what fails here may concern a few rows only.
            tracing::warn!(%error, worker = sink.name(), "cannot look after claims, will try again");
        }
        if sink.run_time_has_come() {
            claimer.hinted();
        }
        if looks.is_empty() && Instant::now() >= claimer.looks.next {
            looks.push(Either::Left(look_once(sink, claimer.next_look())));
        }
        while claimer.wants_more(claims.len()) {
            let polls = Instant::now() >= claimer.next_poll;
            let room = sink.reserve(if polls { None } else { Some(&claimer.full) });
            if room.total == 0 {
                claimer.no_room = polls;
                break;
            }
            let (bounds, hinted) = (claimer.cursor.bounds(), mem::take(&mut claimer.hint));
            let (limit, begun) = (claimer.claim_limit.get(), Instant::now());
            claims.push(claim_once(sink, Asked { room, bounds, polls, hinted, begun, limit }));
        }
        let (idle, looking) = (claims.is_empty(), !looks.is_empty());
        let failed = tokio::select! {
            Some(reply) = claims.next(), if !idle => claimer.take(reply).err().map(|error| (error, "cannot claim")),
            Some(reply) = looks.next(), if looking => {
                claimer.looked_back(reply).err().map(|error| (error, "cannot look for jobs that committed late"))
            }
            () = sink.freed().notified() => {
                claimer.no_room = false;
                continue;
            }
            () = sink.due().notified() => {
                claimer.hinted();
                continue;
            }
            () = sleep_until(claimer.wake_up(looking).into()), if idle => continue,
            () = sink.stop().cancelled() => continue,
        };
        match failed {
            None => retry_delay.reset(),
            Some((error, what)) => {
                tracing::warn!(%error, worker = sink.name(), "{what}, will try again");
                beside(&mut looks, retry_delay.wait(sink.stop())).await;
            }
        }
    }
    // The jobs of a claim that runs are held by this worker, so they are started.
    while let Some(reply) = claims.next().await {
        if let Err(error) = claimer.take(reply) {
            tracing::warn!(%error, worker = sink.name(), "the last claim failed");
        }
    }
    claimer.unknown.is_uncertain
}

async fn claim_once(sink: &impl ClaimSink, asked: Asked) -> (Asked, Result<ClaimedJobs, Error>) {
    let limit = asked.limit;
    let given_up = async {
        let stopped = sink.stop().cancelled().then(|()| sleep(LAST_CLAIMS));
        tokio::select! {
            () = sleep(limit) => no_answer(limit),
            () = stopped => no_answer(LAST_CLAIMS),
        }
    };
    let claimed = sink.claim(&asked.room, &asked.bounds, given_up).await;
    (asked, claimed)
}

/// Beside the claims, which go on whatever becomes of it.
async fn look_once(sink: &impl ClaimSink, look: Look) -> LookReply {
    let looking = async |client: Arc<Session>| {
        // Without the wait for a connection.
        let begun = Instant::now();
        let found = look_back(&client, sink.kinds(), &look).await?;
        Ok((found, [begun, Instant::now()]))
    };
    let found = sink.pool().run_within(LOOK_MAX, looking).await;
    (look, found)
}

impl<'a, T: ClaimSink> Claimer<'a, T> {
    fn new(sink: &'a T) -> Claimer<'a, T> {
        let now = Instant::now();
        Claimer {
            sink,
            cursor: Cursor::new(sink.queues().iter().map(String::as_str)),
            full: BTreeSet::new(),
            no_room: false,
            poll: POLL_SOON,
            next_poll: now,
            hint: false,
            paced_until: now,
            looks: LookTimes::new(now),
            look_begun: now,
            may_claim: false,
            clock: (SystemTime::UNIX_EPOCH, now),
            suspects: Suspects::new(sink.alone_wait(), now),
            unknown: UnknownClaims::new(now),
            claim_limit: AnswerLimit::new(CLAIM_LIMIT),
        }
    }

    /// Whether to start another claim beside those that run. None is started when claims must end first, to look for unknown ones or
    /// to run a suspect alone, and none before a look back.
    fn wants_more(&self, under_way: usize) -> bool {
        let now = Instant::now();
        let is_full = !self.full.is_empty();
        let may = under_way < if is_full { CLAIMS_MAX } else { 1 } && self.may_claim;
        let must_end = now >= self.unknown.next || self.suspects.need_attention(now);
        may && !must_end && !self.no_room && (is_full || now >= self.next_poll)
    }

    /// Something is due. A claim that runs may have read too early, so the next one follows without waiting for a poll.
    fn hinted(&mut self) {
        self.hint = true;
        self.next_poll = Instant::now().max(self.paced_until);
    }

    /// When to go on if nothing happens before. Without a free slot there is no need to poll.
    fn wake_up(&self, looking: bool) -> Instant {
        let look = if looking { self.unknown.next } else { self.looks.next.min(self.unknown.next) };
        if let Some(until) = self.suspects.waited_for_until() {
            look.min(until)
        } else if self.no_room || !self.may_claim {
            look
        } else {
            let poll = self.sink.next_run_time().map_or(self.next_poll, |time| time.min(self.next_poll));
            poll.min(look)
        }
    }

    /// Starts the claimed jobs, and moves the cursor on.
    fn take(&mut self, (asked, claimed): (Asked, Result<ClaimedJobs, Error>)) -> Result<(), Error> {
        let Asked { room, bounds, polls, hinted, begun, limit } = asked;
        // What this claim had reserved and did not fill is free again.
        self.no_room = false;
        let ClaimedJobs { jobs, alive_slots } = match claimed {
            Ok(claimed) => {
                self.claim_limit.answered(begun.elapsed());
                claimed
            }
            Err(error) => {
                self.claim_limit.failed(limit);
                self.unknown.claim_failed();
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
        self.cursor.after(&bounds, asked, &jobs, now);
        metrics::claimed(&jobs, now, begun.elapsed());
        self.sink.unreserve(&room, &jobs);
        let found = self.note_full(&room, &jobs, alive_slots);
        self.paced_until = if self.full.is_empty() && is_paced(&jobs) { begun + PACE } else { begun };
        if polls || found || self.full.is_empty() {
            let idle = (POLL_IDLE * self.sink.claimers_on_node()).min(POLL_SHARED);
            self.poll = match (hinted, found) {
                (true, _) => POLL_HINTED,
                (false, true) => POLL_SOON,
                (false, false) => (self.poll * 2).min(idle),
            };
            let wait = if self.hint { Duration::ZERO } else { self.poll };
            self.next_poll = (Instant::now() + wait).max(self.paced_until);
        }
        self.sink.start(jobs);
        Ok(())
    }

    /// Notes in which queues more is due. Where queues share the slots, a full claim says so of the queues that it reached. Returns
    /// whether it found jobs in other queues than these.
    fn note_full(&mut self, room: &Reserved, jobs: &[Claimed], alive_slots: usize) -> bool {
        let shared = !room.slots_by_worker.is_empty();
        let mut found = false;
        for asked in &room.slots_by_queue {
            let filled = jobs.iter().filter(|job| *job.queue == *asked.queue).count();
            if if shared { jobs.len() == alive_slots && filled > 0 } else { filled == asked.slots } {
                self.full.insert(asked.queue.clone());
            } else if !shared || jobs.len() < alive_slots {
                self.full.remove(&asked.queue);
                found |= filled > 0;
            }
        }
        found
    }

    fn next_look(&mut self) -> Look {
        self.look_begun = Instant::now();
        let is_deep = !self.cursor.is_in_pass() && self.looks.begin(self.look_begun);
        self.cursor.next_look(is_deep)
    }

    fn looked_back(&mut self, (look, reply): LookReply) -> Result<(), Error> {
        // Room may also appear with time, when a worker has waited long enough for a suspect.
        self.no_room = false;
        // Claims wait for one look at what waits, but not for a second one.
        self.may_claim |= self.clock.0 > SystemTime::UNIX_EPOCH;
        let (found, [begun, ended]) = match reply {
            Ok(found) => found,
            Err(error) => return self.look_failed(&look, error),
        };
        let took = ended - begun;
        let starts = self.cursor.looked_back(&look, &found);
        if took < LOOK_BACK {
            self.cursor.took_little();
        }
        if self.cursor.is_in_pass() {
            self.looks.goes_on(took, ended);
        } else {
            self.looks.succeeded(took, ended);
        }
        if starts {
            self.looks.next = ended;
        }
        self.clock = (found.snapshot.seen_at, ended);
        self.suspects.found(found.suspects && self.sink.takes_suspects());
        if !found.suspects {
            self.sink.no_suspect();
        }
        if found.levels.iter().any(|look| matches!(look, LevelLook::Behind { free: Some(_), .. })) {
            self.next_poll = Instant::now();
        }
        Ok(())
    }

    fn look_failed(&mut self, look: &Look, error: Error) -> Result<(), Error> {
        let (took, now) = (self.look_begun.elapsed(), Instant::now());
        if took < LOOK_MAX {
            self.looks.failed(now);
            return Err(error);
        }
        tracing::info!(%error, worker = self.sink.name(), "a look for jobs that committed late took too long, will read less at a time");
        self.cursor.took_too_long(look);
        self.looks.goes_on(took, now);
        Ok(())
    }

    /// Called while no claim runs: looks for claims whose results were lost, and runs a suspect alone if one is due.
    async fn look_around(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        if now >= self.unknown.next {
            self.unknown.release(self.sink).await?;
        }
        if self.suspects.need_attention(now) {
            let claimed = self.suspects.run_one_alone(self.sink).await;
            match claimed {
                Ok(true) => self.unknown.look_soon(),
                Ok(false) => {}
                Err(_) => self.unknown.claim_failed(),
            }
            claimed?;
        }
        Ok(())
    }
}

/// Whether the claim after these jobs waits, so that it finds more. Not if these are all that can run: the end of a job of a lane, of
/// a step or of a run makes others due.
fn is_paced(jobs: &[Claimed]) -> bool {
    let stands_alone = |job: &Claimed| job.lane.is_none() && job.step.is_none() && job.recurrence.is_none();
    jobs.len() >= PACED_FROM && jobs.iter().all(stands_alone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::claim::Claim;

    fn jobs(count: usize, lane: Option<&str>) -> Vec<Claimed> {
        let job = |id| Claimed {
            claim: Claim { id, fence: 1, holder: 1 },
            ctid: Default::default(),
            hold: 1,
            attempt: 1,
            max_attempts: 20,
            timeout: None,
            run_at: SystemTime::UNIX_EPOCH,
            priority: 0,
            queue: "default".into(),
            kind: "work".into(),
            key: None,
            lane: lane.map(str::to_owned),
            payload: "{}".to_owned(),
            metadata: None,
            recurrence: None,
            step: None,
        };
        (1..).take(count).map(job).collect()
    }

    #[test]
    fn few_jobs_and_heads_of_lanes_are_followed_at_once() {
        assert!(is_paced(&jobs(PACED_FROM, None)));
        assert!(!is_paced(&jobs(PACED_FROM - 1, None)));
        assert!(!is_paced(&jobs(100, Some("\"customer 1\""))));
    }
}
