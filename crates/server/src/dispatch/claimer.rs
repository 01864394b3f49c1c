//! Claims jobs for the streams of one group.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pitwheel::engine::{
    Bounds, ClaimSink, Claimed, ClaimedJobs, Pool, Reserved, Session, Settlement, Sql, alive_workers, claim,
    claim_for_workers, release_unknown, run_claimer, skip_late,
};
use pitwheel::{Claim, Error};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::dispatch::group::Group;
use crate::dispatch::release::Releaser;
use crate::dispatch::streams::SharedStreams;

/// The streams of a group, as the engine's claim loop sees them.
pub(crate) struct GroupSink {
    pub(crate) node_name: Arc<str>,
    pub(crate) pool: Pool,
    pub(crate) streams: SharedStreams,
    pub(crate) group: Arc<Group>,
    pub(crate) releaser: Releaser,
}

/// Claims until the last stream of the group closes.
pub(crate) async fn run(sink: GroupSink) {
    run_claimer(&sink).await;
}

impl ClaimSink for GroupSink {
    fn name(&self) -> &str {
        &self.node_name
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn queues(&self) -> &[String] {
        &self.group.queues
    }

    fn kinds(&self) -> &[String] {
        &self.group.kinds
    }

    fn stop(&self) -> &CancellationToken {
        &self.group.stop
    }

    fn due(&self) -> &Notify {
        &self.group.due
    }

    fn freed(&self) -> &Notify {
        &self.group.freed
    }

    fn reserve(&self, only: Option<&BTreeSet<String>>) -> Reserved {
        self.streams.lock().reserve(&self.group, only, Instant::now())
    }

    async fn claim(
        &self,
        room: &Reserved,
        bounds: &Bounds,
        given_up: impl Future<Output = Error> + Send,
    ) -> Result<ClaimedJobs, Error> {
        let claiming = async |client: Arc<Session>| {
            let claimed = claim_room(&*client, room, &self.group.kinds, bounds).await?;
            // More was due a moment ago. If these workers cannot take it, the claims of the others must not begin behind it.
            if claimed.jobs.is_empty() && self.group.was_full() {
                let alive_slots = self.alive_slots(&*client, room).await?;
                return Ok(ClaimedJobs { alive_slots, ..claimed });
            }
            Ok(claimed)
        };
        let ClaimedJobs { jobs, alive_slots } = self.pool.run_until(given_up, claiming).await?;
        self.group.note_full(jobs.len() == alive_slots);
        let (late, jobs) = split_late(jobs);
        let alive_slots = alive_slots - late.len();
        self.releaser.write(late);
        Ok(ClaimedJobs { jobs, alive_slots })
    }

    fn unreserve(&self, room: &Reserved, claimed: &[Claimed]) {
        self.group.found(claimed.len());
        self.streams.lock().unreserve(&room.slots_by_worker, claimed);
    }

    fn start(&self, jobs: Vec<Claimed>) {
        let unsent = self.streams.lock().send(jobs);
        self.releaser.release(unsent);
    }

    async fn release_unknown(&self, limit: Duration) -> Result<usize, Error> {
        let _no_claim = self.group.claiming_by_id.lock().await;
        let (workers, holds) = self.streams.lock().known_holds(&self.group);
        let is_known = |claim: &Claim| self.streams.lock().knows(*claim);
        let release =
            async |client: Arc<Session>| release_unknown(&*client, &workers, &holds, is_known).await;
        self.pool.run_within(limit, release).await
    }

    fn alone(&self) -> Option<i64> {
        self.streams.lock().reserve_alone(&self.group, Instant::now())
    }

    fn start_alone(&self, worker: i64, suspect: Option<Claimed>) {
        let unsent = self.streams.lock().send_alone(worker, suspect);
        self.releaser.release(unsent);
    }

    fn no_suspect(&self) {
        self.streams.lock().no_suspect(&self.group);
    }

    fn claimers_on_node(&self) -> u32 {
        u32::try_from(self.streams.lock().groups().len()).unwrap_or(u32::MAX)
    }

    fn next_run_time(&self) -> Option<Instant> {
        self.group.run_times().first()
    }

    fn run_time_has_come(&self) -> bool {
        self.group.run_times().take_until(Instant::now())
    }

    /// Zero: only the stream that is being emptied waits, the other streams of the group go on.
    fn alone_wait(&self) -> Duration {
        Duration::ZERO
    }
}

impl GroupSink {
    /// How many of these slots belong to workers that can take jobs. The others are offered to no more claims.
    async fn alive_slots(&self, client: &impl Sql, room: &Reserved) -> Result<usize, Error> {
        let slots = &room.slots_by_worker;
        let alive = alive_workers(client, slots).await?;
        self.streams.lock().set_alive(slots, &alive);
        Ok(slots.iter().filter(|worker| alive.get(worker) == Some(&false)).count())
    }
}

/// Claims for the reserved room. If it is that of one worker for one queue, the shorter statement of [`claim`] claims the same jobs.
async fn claim_room(
    client: &impl Sql,
    room: &Reserved,
    kinds: &[String],
    bounds: &Bounds,
) -> Result<ClaimedJobs, Error> {
    let Reserved { slots_by_queue, slots_by_worker, total } = room;
    if let ([_], Some(worker)) = (&**slots_by_queue, slots_by_worker.first())
        && slots_by_worker.iter().all(|other| other == worker)
    {
        let jobs = claim(client, *worker, slots_by_queue, kinds, bounds).await?;
        return Ok(ClaimedJobs { jobs, alive_slots: *total });
    }
    let queues: Vec<String> = slots_by_queue.iter().map(|slots| slots.queue.clone()).collect();
    claim_for_workers(client, slots_by_worker, &queues, kinds, bounds).await
}

/// Runs of recurring jobs that are too late and are skipped, with what is written for them, and the other jobs.
fn split_late(jobs: Vec<Claimed>) -> (Vec<Settlement>, Vec<Claimed>) {
    let (mut late, mut on_time) = (Vec::new(), Vec::with_capacity(jobs.len()));
    for job in jobs {
        let run = job.recurrence.as_deref();
        match run.and_then(|run| skip_late(run, job.attempt, job.run_at, fastrand::f64())) {
            Some((ending, plan)) => late.push(Settlement { plan, ..Settlement::new(job.claim, ending) }),
            None => on_time.push(job),
        }
    }
    (late, on_time)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use anyhow::{Context, Result};
    use pitwheel::WorkerCommand;
    use pitwheel::engine::{Cursor, Registration, register, retire};
    use pitwheel_testkit::{TestDb, work};
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::dispatch::reports::Reports;
    use crate::dispatch::stream::{StreamMessage, StreamOptions, stream_channel};
    use crate::dispatch::streams::SharedStreams;

    /// Opens a stream with one slot.
    async fn open(
        db: &TestDb,
        sink: &GroupSink,
    ) -> Result<(i64, tokio::sync::mpsc::Receiver<StreamMessage>)> {
        let worker = Registration {
            name: "test".to_owned(),
            lease: Duration::from_secs(3600),
            transport: "grpc",
            queues: sink.group.queues.clone(),
            kinds: sink.group.kinds.clone(),
            slots: 1,
            token: None,
        };
        let id = register(&db.client().await?, &worker).await?;
        let (sender, messages) = stream_channel(1);
        let options = StreamOptions { slots: 1, ..StreamOptions::default() };
        sink.streams.lock().open(id, sink.group.clone(), options, sender);
        Ok((id, messages))
    }

    /// The streams of a group for which more jobs are due than they have slots.
    async fn sink(db: &TestDb) -> Result<(GroupSink, Bounds)> {
        db.pitwheel().enqueue_many((0..9).map(work)).await?;
        let streams = SharedStreams::default();
        let (group, _) = streams.lock().group(vec!["default".into()], vec!["work".into()]);
        let releaser = Releaser::new(Reports::new(), TaskTracker::new(), CancellationToken::new());
        let pool = db.pitwheel().pool_for_loops(1, Duration::MAX)?;
        let sink = GroupSink { node_name: "test".into(), pool, streams, group, releaser };
        let bounds = Cursor::new(sink.queues().iter().map(String::as_str)).bounds();
        Ok((sink, bounds))
    }

    /// Claims for two streams: one that takes its job, and then one whose worker `changes` so that it takes none.
    async fn claim_for_one_that_takes_none(
        db: &TestDb,
        sink: &GroupSink,
        bounds: &Bounds,
        changes: impl AsyncFn(i64) -> Result<()>,
    ) -> Result<i64> {
        let (alive, _alive) = open(db, sink).await?;
        let full = sink.claim(&sink.reserve(None), bounds, pending()).await?;
        assert_eq!((full.jobs.len(), full.alive_slots), (1, 1));
        assert_eq!(full.jobs.first().context("a job")?.claim.holder, alive);

        let (other, _other) = open(db, sink).await?;
        changes(other).await?;
        let room = sink.reserve(None);
        assert_eq!(room.slots_by_worker, [other], "the first stream has no free slot");
        let none = sink.claim(&room, bounds, pending()).await?;
        assert_eq!((none.jobs.len(), none.alive_slots), (0, 0));
        sink.unreserve(&room, &[]);
        assert_eq!(sink.reserve(None).total, 0, "it is offered to no more claims");
        Ok(other)
    }

    #[tokio::test]
    async fn a_claim_for_a_dead_worker_does_not_say_that_nothing_is_due() -> Result<()> {
        let db = TestDb::new().await?;
        let (sink, bounds) = sink(&db).await?;
        let retired = async |worker| Ok(retire(&db.client().await?, worker).await?);
        let dead = claim_for_one_that_takes_none(&db, &sink, &bounds, retired).await?;
        assert!(!sink.streams.lock().workers().contains(&dead), "its stream has ended");
        Ok(())
    }

    #[tokio::test]
    async fn a_claim_for_a_quiet_worker_does_not_say_that_nothing_is_due() -> Result<()> {
        let db = TestDb::new().await?;
        let (sink, bounds) = sink(&db).await?;
        let quieted = async |worker| {
            assert!(db.pitwheel().command_worker(worker, WorkerCommand::Quiet).await?);
            Ok(())
        };
        let quiet = claim_for_one_that_takes_none(&db, &sink, &bounds, quieted).await?;
        assert!(sink.streams.lock().workers().contains(&quiet), "its stream stays open");
        Ok(())
    }
}
