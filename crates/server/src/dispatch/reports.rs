//! Writes the endings that many workers report. A batch is as large as what arrived while the last one was written.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pitwheel::engine::limits::{BYTES_PER_ENDING, SETTLE_MAX};
use pitwheel::engine::{
    AnswerLimit, AttemptInfo, Batcher, Ending, Linger, Pool, Session, SettleResult, Settlement, Weight,
    settle_with_due, written_followers,
};
use pitwheel::{Claim, Error, History, Pitwheel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::dispatch::claim_hints::ClaimHints;
use crate::dispatch::recent::{ClaimsBeingWritten, RecentClaims};
use crate::dispatch::source::Source;
use crate::dispatch::streams::SharedStreams;
use crate::listen::bodies::Room;

/// A batch of fewer endings waits a moment, which joins the reports of many workers into one commit.
const ENOUGH: usize = 300;
/// Reports that wait to be written. More callers than this wait until there is room, so that a slow database slows workers down
/// instead of filling the memory.
const REPORTS_MAX: usize = 1000;
/// How long a settle waits for its answer at least. Waits for locks end before.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// Endings to write together.
#[derive(Default)]
pub(crate) struct Endings {
    pub(crate) endings: Vec<Settlement>,
    /// Where each of them comes from.
    pub(crate) sources: Vec<Source>,
    /// The attempts, by job id, that were read from the database: a report that has waited for that does not wait for others.
    pub(crate) attempts: HashMap<i64, AttemptInfo>,
    /// The room of their bytes. `None`: they come from this node.
    pub(crate) room: Option<Room>,
}

/// One report, and where its result is awaited.
struct Report {
    /// How much of a batch it takes up.
    weight: usize,
    endings: Vec<Settlement>,
    /// Where each of them comes from.
    sources: Vec<Source>,
    /// Those of their attempts, by job id, that were read from the database.
    attempts: HashMap<i64, AttemptInfo>,
    reply: oneshot::Sender<Result<Vec<SettleResult>, NotWritten>>,
    /// Its place among the reports that wait. It is free when the report was written, and not when its caller has given up.
    _place: OwnedSemaphorePermit,
    /// The room of its bytes, likewise. `None`: it comes from this node.
    _room: Option<Room>,
}

/// Why a report or a heartbeat was not written.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum NotWritten {
    #[error("this node is stopping: use another node")]
    Stopping,
    #[error(
        "what an ended stream left is not settled yet, because a job is locked or the database slow: repeat the heartbeat"
    )]
    Unsettled,
    #[error(transparent)]
    Failed(Arc<Error>),
}

impl From<Error> for NotWritten {
    fn from(error: Error) -> NotWritten {
        NotWritten::Failed(Arc::new(error))
    }
}

/// Writes endings through the loops of [`Reports::run`].
#[derive(Clone)]
pub(crate) struct Reports {
    queue: Arc<Batcher<Report>>,
    room: Arc<Semaphore>,
}

impl Reports {
    pub(crate) fn new() -> Reports {
        let queue = Batcher::new(weigh, ENOUGH, SETTLE_MAX, Linger::Millisecond);
        Reports { queue: Arc::new(queue), room: Arc::new(Semaphore::new(REPORTS_MAX)) }
    }

    /// Gives jobs back that their workers never got; one result for each, in the same order.
    pub(crate) async fn release(&self, claims: Vec<Claim>) -> Result<Vec<SettleResult>, NotWritten> {
        let sources = vec![Source::Node; claims.len()];
        let endings = claims.into_iter().map(Settlement::release).collect();
        self.settle(Endings { endings, sources, ..Endings::default() }).await
    }

    /// Writes endings; one result for each, in the same order. If the caller is dropped after the report was queued, the endings
    /// are written all the same.
    pub(crate) async fn settle(&self, report: Endings) -> Result<Vec<SettleResult>, NotWritten> {
        let Endings { endings, sources, attempts, room } = report;
        let place = self.room.clone().acquire_owned().await.map_err(|_| NotWritten::Stopping)?;
        let (reply, replied) = oneshot::channel();
        let weight = endings.iter().map(weight).sum();
        self.queue
            .push([Report { weight, endings, sources, attempts, reply, _place: place, _room: room }])
            .map_err(|_| NotWritten::Stopping)?;
        replied.await.unwrap_or(Err(NotWritten::Stopping))
    }

    /// Accepts no more reports. Those that are queued are still written.
    pub(crate) fn close(&self) {
        self.queue.close();
    }

    /// Writes reports until [`Reports::close`]. Two loops: one prepares a batch while the other waits for its commit. `pitwheel` sends hints
    /// that jobs are due.
    pub(crate) async fn run(self, pitwheel: Pitwheel, pool: Pool, streams: SharedStreams, hints: ClaimHints) {
        let writer =
            Writer { pitwheel, pool, streams, hints, settled: Mutex::default(), locked: Mutex::default() };
        let write_all = async || {
            let mut limit = AnswerLimit::new(SETTLE_LIMIT);
            while let Some(batch) = self.queue.next().await {
                writer.write(batch, &mut limit).await;
            }
        };
        tokio::join!(write_all(), write_all());
    }
}

fn weigh(report: &Report) -> Weight {
    Weight { weight: report.weight, hurries: !report.attempts.is_empty() }
}

fn weight(settlement: &Settlement) -> usize {
    1 + settlement.ending.bytes() / BYTES_PER_ENDING
}

struct Writer {
    pitwheel: Pitwheel,
    pool: Pool,
    streams: SharedStreams,
    hints: ClaimHints,
    settled: Mutex<SettledClaims>,
    /// Claims whose jobs were locked when their endings were to be written.
    locked: Mutex<RecentClaims>,
}

#[derive(Default)]
struct SettledClaims {
    being_written: ClaimsBeingWritten,
    /// What workers settled without a row in the history.
    recent: RecentClaims,
}

impl Writer {
    /// Writes reports together.
    async fn write(&self, mut batch: Vec<Report>, limit: &mut AnswerLimit) {
        let attempts: HashMap<i64, AttemptInfo> =
            batch.iter_mut().flat_map(|report| std::mem::take(&mut report.attempts)).collect();
        let emptied = self.streams.lock().take_emptied();
        let mut together: Vec<Settlement> =
            batch.iter().flat_map(|report| report.endings.iter().cloned()).collect();
        self.forget_ctids(&mut together);
        let sources: Vec<Source> = batch.iter().flat_map(|report| report.sources.iter().copied()).collect();
        match self.write_endings(&together, &sources, &attempts, &emptied, limit).await {
            Ok(results) => {
                let mut results = results.into_iter();
                for report in batch {
                    let own = results.by_ref().take(report.endings.len()).collect();
                    let _ = report.reply.send(Ok(own));
                }
            }
            Err(error) => {
                self.streams.lock().put_back_emptied(emptied);
                let error = NotWritten::from(error);
                for report in batch {
                    let _ = report.reply.send(Err(error.clone()));
                }
            }
        }
    }

    /// Writes endings and frees their slots: whether a claim was written or lost, it no longer runs here. A claim whose row is
    /// locked, or whose ending was refused, keeps its slot until its worker reports it again.
    async fn write_endings(
        &self,
        endings: &[Settlement],
        sources: &[Source],
        attempts: &HashMap<i64, AttemptInfo>,
        emptied: &[i64],
        limit: &mut AnswerLimit,
    ) -> Result<Vec<SettleResult>, Error> {
        let claims = || endings.iter().map(|ending| ending.claim);
        self.settled().being_written.add(claims());
        let written = self.settle(endings, emptied, limit).await;
        let (results, due) = {
            // From here on, what was written is remembered.
            let mut settled = self.settled();
            settled.being_written.remove(claims());
            let (mut results, due) = written?;
            settled.recognise(endings, sources, &mut results);
            (results, due)
        };
        self.remember_locked(endings, &results);
        {
            let mut streams = self.streams.lock();
            let completed = streams.record(endings, sources, &results, attempts);
            let has_ended =
                |result: &SettleResult| !matches!(result, SettleResult::Locked | SettleResult::Refused(_));
            let ended = endings.iter().zip(&results).filter(|(_, result)| has_ended(result));
            let ended = ended.map(|(ending, _)| ending.claim);
            let settled = ended.clone().filter(|claim| !completed.contains(claim));
            self.hints.settled(streams.not_sent_from_here(settled));
            self.hints.completed(completed);
            for (ending, result) in endings.iter().zip(&results) {
                if let (SettleResult::Written, Some(plan)) = (result, &ending.plan) {
                    let due = plan.due.into_iter();
                    due.for_each(|due| streams.groups().iter().for_each(|group| group.run_times().add(due)));
                }
            }
            streams.ended(ended);
        }
        self.pitwheel.hint_followers(written_followers(endings, &results)).await;
        self.pitwheel.hint_due(&due).await;
        Ok(results)
    }

    /// A connection that is broken without notice delays the reports for seconds only: their workers repeat them.
    async fn settle(
        &self,
        endings: &[Settlement],
        emptied: &[i64],
        limit: &mut AnswerLimit,
    ) -> Result<(Vec<SettleResult>, BTreeSet<String>), Error> {
        let settling = async |client: Arc<Session>| settle_with_due(&*client, endings, emptied).await;
        let begun = Instant::now();
        let settled = self.pool.run_within(limit.get(), settling).await;
        match &settled {
            Ok(_) => limit.answered(begun.elapsed()),
            Err(_) => limit.failed(limit.get()),
        }
        settled
    }

    /// Endings that are reported again because their jobs were locked must not wait for these locks once more.
    fn forget_ctids(&self, endings: &mut [Settlement]) {
        let locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        let again = endings.iter_mut().filter(|ending| locked.contains(ending.claim, false));
        again.for_each(Settlement::forget_ctid);
    }

    fn remember_locked(&self, endings: &[Settlement], results: &[SettleResult]) {
        let locked = endings.iter().zip(results).filter(|(_, result)| **result == SettleResult::Locked);
        let mut remembered = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        locked.for_each(|(ending, _)| remembered.add(ending.claim, false));
    }

    fn settled(&self) -> MutexGuard<'_, SettledClaims> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SettledClaims {
    /// Remembers what workers settled without a row in the history, and recognises what is repeated. A claim that another batch is
    /// writing may seem lost because of that: it is to be reported again.
    fn recognise(&mut self, endings: &[Settlement], sources: &[Source], results: &mut [SettleResult]) {
        let SettledClaims { being_written, recent } = self;
        for ((ending, source), result) in endings.iter().zip(sources).zip(results) {
            match result {
                SettleResult::Written if *source != Source::Node && !leaves_history(&ending.ending) => {
                    recent.add(ending.claim, ending.ending.is_done());
                }
                SettleResult::Lost if recent.contains(ending.claim, ending.ending.is_done()) => {
                    *result = SettleResult::Already;
                }
                SettleResult::Lost if being_written.contains(ending.claim) => *result = SettleResult::Locked,
                _ => {}
            }
        }
    }
}

/// Whether an ending leaves a row in the history, if no cancel was requested.
fn leaves_history(ending: &Ending) -> bool {
    match ending {
        Ending::Done { history, result, .. } => result.is_some() || *history == History::All,
        Ending::Dead { .. } | Ending::Cancelled { .. } => true,
        Ending::Retry { .. } | Ending::Snooze { .. } | Ending::Release | Ending::Crash { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::task::unconstrained;

    use super::*;
    use crate::limits::MESSAGE_BYTES_MAX;
    use crate::listen::bodies::Bodies;

    #[tokio::test]
    async fn a_report_keeps_the_room_of_its_bytes_when_its_caller_has_given_up() {
        let (bodies, reports) = (Bodies::new(Vec::new()), Reports::new());
        let room = |bytes| {
            unconstrained(bodies.room("/pitwheel.v1.WorkerService/ReportResult", None, bytes, None))
                .now_or_never()
        };
        for id in 0..4 {
            let report = Endings {
                endings: vec![Settlement::release(Claim { id, fence: 1, holder: 1 })],
                sources: vec![Source::Node],
                room: Some(room(MESSAGE_BYTES_MAX).expect("there is room").expect("it is not too large")),
                ..Endings::default()
            };
            // Nothing writes, so the caller waits. It is dropped here.
            assert!(unconstrained(reports.settle(report)).now_or_never().is_none());
        }
        assert!(room(1).is_none(), "four of the largest reports are queued");
        reports.close();
        while reports.queue.next().await.is_some() {}
        assert!(room(1).is_some(), "what was taken out frees its room");
    }

    #[tokio::test]
    async fn a_report_keeps_its_place_when_its_caller_has_given_up() {
        let reports = Reports::new();
        for id in 0..2 * REPORTS_MAX as i64 {
            // Nothing writes, so the caller waits. It is dropped here.
            let caller = reports.release(vec![Claim { id, fence: 1, holder: 1 }]);
            assert!(unconstrained(caller).now_or_never().is_none());
        }
        reports.close();
        let mut waited = 0;
        while let Some(batch) = reports.queue.next().await {
            waited += batch.len();
        }
        assert_eq!(waited, REPORTS_MAX, "the others found no room");
        assert_eq!(reports.room.available_permits(), REPORTS_MAX, "what was taken out frees its place");
    }
}
