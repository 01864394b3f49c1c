//! What the loops of a worker share.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::engine::batcher::{Batcher, Linger};
use crate::engine::hint::HintListener;
use crate::engine::lease::Registration;
use crate::engine::run_times::RunTimes;
use crate::engine::settle_columns::{SettleResult, weigh};
use crate::job::claim::{Claim, Claimed};
use crate::job::ending::{Attempt, Settlement, decide, unless_committed};
use crate::job::limits::SETTLE_MAX;
use crate::job::run_ending::{decide_run, skip_late};
use crate::metrics;
use crate::postgres::Pool;
use crate::worker::alive::Alive;
use crate::worker::backend::Backend;
use crate::worker::context::Context;
use crate::worker::handler::{Handler, Handlers};
use crate::worker::later::Later;
use crate::worker::slots::{Freed, Running, Slots};
use crate::worker::stats::Counters;

/// A settle with fewer endings waits a moment for more.
const SETTLE_ENOUGH: usize = 500;

pub(super) struct Core {
    backend: Arc<Backend>,
    /// For claims, settles and progress.
    pub(super) pool: Pool,
    /// For sweeps alone, so that nothing else can delay them.
    pub(super) sweep_pool: Pool,
    pub(super) registration: Registration,
    handlers: Handlers,
    /// Endings that wait to be written. Bounded: no more is claimed while many are not written (`slots.rs`).
    pub(super) endings: Batcher<Settlement>,
    /// Endings to write later, because their rows were locked, or because they replace refused ones. Bounded like `endings`.
    later: Mutex<Later<Settlement>>,
    /// Endings that waited for a lock, or were written together with one that did. Bounded like `endings`.
    waited: Mutex<Vec<Settlement>>,
    /// Ends when the worker must claim no more.
    pub(super) stop: CancellationToken,
    /// Something may be due.
    pub(super) due: Arc<Notify>,
    /// A cancel may have been requested.
    pub(super) cancel: Arc<Notify>,
    /// A slot became free.
    pub(super) freed: Notify,
    id: AtomicI64,
    alive: Mutex<Alive>,
    slots: Mutex<Slots>,
    /// When the next runs are due of recurring jobs whose last runs were settled here.
    run_times: Mutex<RunTimes>,
    pub(super) counters: Counters,
}

impl Core {
    pub(super) fn new(
        registration: Registration,
        id: i64,
        pools: (Pool, Pool),
        backend: Backend,
        handlers: Handlers,
        slots: Slots,
        stop: CancellationToken,
    ) -> Core {
        let alive = Mutex::new(Alive::new(registration.lease, Instant::now()));
        Core {
            backend: Arc::new(backend),
            pool: pools.0,
            sweep_pool: pools.1,
            registration,
            handlers,
            endings: Batcher::new(weigh, SETTLE_ENOUGH, SETTLE_MAX, Linger::Paced),
            later: Mutex::default(),
            waited: Mutex::default(),
            stop,
            due: Arc::default(),
            cancel: Arc::default(),
            freed: Notify::new(),
            id: AtomicI64::new(id),
            alive,
            slots: Mutex::new(slots),
            run_times: Mutex::default(),
            counters: Counters::default(),
        }
    }

    /// The id of the current incarnation.
    pub(super) fn id(&self) -> i64 {
        self.id.load(Ordering::Acquire)
    }

    pub(super) fn name(&self) -> &str {
        &self.registration.name
    }

    /// What says whether the lease may have ended.
    pub(super) fn alive(&self) -> MutexGuard<'_, Alive> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hint_listener(&self) -> HintListener {
        let (queues, due) = (self.registration.queues.clone(), self.due.clone());
        let wake = move |queue: Option<&str>| {
            if queue.is_none_or(|queue| queues.iter().any(|ours| ours == queue)) {
                due.notify_one();
            }
        };
        // Claims return nothing while this worker is quiet, and it settles its jobs itself.
        HintListener {
            due: Box::new(wake),
            cancel: self.cancel.clone(),
            command: Arc::default(),
            reported: Box::new(|_| ()),
            settled: Box::new(|_| ()),
            completed: Box::new(|_| ()),
        }
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn run_times(&self) -> MutexGuard<'_, RunTimes> {
        self.run_times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what was settled. A job that its handler has settled itself is not lost when it is gone here.
    pub(super) fn settled(&self, batch: &[Settlement], results: &[SettleResult]) {
        let (mut settled, mut lost) = (0, 0);
        let mut slots = self.slots();
        for (Settlement { claim, ending, plan, .. }, result) in batch.iter().zip(results) {
            if matches!(result, SettleResult::Locked | SettleResult::Refused(_)) {
                continue;
            }
            let Some(attempt) = slots.settled(*claim) else { continue };
            if let (SettleResult::Written, Some(due)) = (result, plan.as_ref().and_then(|plan| plan.due)) {
                self.run_times().add(due);
            }
            let is_settled = matches!(result, SettleResult::Written | SettleResult::Already);
            if is_settled || attempt.context.was_settled_by_handler() {
                settled += 1;
            } else {
                lost += 1;
                tracing::warn!(
                    job.id = claim.id,
                    job.fence = claim.fence,
                    worker = self.name(),
                    "lost: the job was given to another worker while it ran here"
                );
            }
            attempt.context.lane().inspect(|_| self.due.notify_one()); // the next of its lane is due
            metrics::ended(attempt.context.queue(), attempt.context.kind(), ending, attempt.took());
        }
        drop(slots);
        metrics::lost(lost);
        self.counters.settled(settled);
        self.counters.lost(lost);
        self.freed.notify_one();
    }

    /// How it reaches other workers.
    pub(super) fn backend(&self) -> &Backend {
        &self.backend
    }

    pub(super) fn take_emptied(&self) -> Vec<i64> {
        self.slots().take_emptied()
    }

    /// Asks the handlers of these claims to stop. Those that have not started are released, which cancels them.
    pub(super) fn request_cancel(&self, claims: &[Claim]) {
        let mut slots = self.slots();
        let running = claims.iter().filter_map(|claim| slots.running.get(claim));
        running.for_each(|running| running.context.cancel(true));
        // Before the lock is released, as in `end`: this is called on the thread of the renewals.
        self.release(slots.take_ahead(|claim| claims.contains(&claim)));
    }

    /// The worker was declared dead and goes on under a new id. Its jobs belong to others now: their handlers are asked to stop,
    /// and their endings will be refused.
    pub(super) fn reregistered(&self, id: i64) {
        let mut slots = self.slots();
        // With the lock, so that nothing that is claimed under the new id runs yet.
        self.id.store(id, Ordering::Release);
        slots.running.values().for_each(|running| running.context.cancel(false));
        self.release(slots.take_ahead(|_| true));
    }

    /// Releases what has not started. Waits until all is settled, but after the shutdown only for handlers, and no longer than the grace
    /// time: while the database is away nothing is settled. Then stops the handlers that are left, and releases their jobs too.
    pub(super) async fn finish_within(&self, grace: Duration, shutdown: &CancellationToken) {
        let unstarted = self.slots().take_ahead(|_| true);
        self.release(unstarted);
        let until = async |is_so: fn(&Slots) -> bool| {
            while !is_so(&self.slots()) {
                self.freed.notified().await;
            }
        };
        tokio::select! {
            () = until(Slots::is_empty) => return,
            () = shutdown.cancelled() => {}
        }
        let _ = tokio::time::timeout(grace, until(|slots| slots.running.is_empty())).await;
        let left = self.slots().abort_running();
        if !left.is_empty() {
            let (worker, jobs) = (self.name(), left.len());
            tracing::warn!(worker, jobs, "releasing jobs that did not finish in the grace time");
        }
        self.release(left);
    }

    /// Releases jobs that were claimed ahead and still wait, because those before them take longer than expected.
    pub(super) fn release_late(&self) {
        let late = self.slots().take_late();
        self.release(late);
    }

    fn release(&self, claims: Vec<Claim>) {
        self.settle(claims.into_iter().map(Settlement::release));
    }

    /// Starts jobs, each in a task of its own.
    pub(super) fn spawn(self: &Arc<Core>, slots: &mut Slots, jobs: impl ExactSizeIterator<Item = Claimed>) {
        self.counters.started(jobs.len());
        slots.running.reserve(jobs.len());
        let started = Instant::now();
        for job in jobs {
            let (handler, history) = self.handlers.get(&job.kind);
            let claim = job.claim;
            let context = Context::new(self.backend.clone(), job, history);
            let task = tokio::spawn(run_one(self.clone(), handler, context.clone())).abort_handle();
            slots.running.insert(claim, Running { context, started, task });
        }
    }

    /// The handler has ended: its slot takes the next job at once, and its ending waits to be written.
    fn end(self: &Arc<Core>, settlement: Settlement) {
        let mut slots = self.slots();
        // The attempt was released when its grace time had passed: that is its ending.
        let Some(Freed { next, wants_claim }) = slots.end(settlement.claim) else { return };
        self.spawn(&mut slots, next.into_iter());
        // Before the lock is released: when nothing runs any more, the queue of endings may be closed.
        self.settle([settlement]);
        drop(slots);
        // Nothing is claimed any more: this may be the handler that the shutdown waits for.
        if wants_claim || self.stop.is_cancelled() {
            self.freed.notify_one();
        }
    }

    pub(super) fn later(&self) -> MutexGuard<'_, Later<Settlement>> {
        self.later.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn waited(&self) -> MutexGuard<'_, Vec<Settlement>> {
        self.waited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What its ending depends on.
    pub(super) fn attempt<'a>(&'a self, context: &Context) -> Attempt<'a> {
        Attempt {
            number: context.attempt(),
            max: context.max_attempts(),
            history: context.history(),
            ctid: context.job().fast_ctid(),
            worker: self.name(),
            cancelled: context.cancel_requested(),
        }
    }

    /// The queue of endings is closed only after the last of them was pushed.
    fn settle(&self, endings: impl IntoIterator<Item = Settlement>) {
        let _ = self.endings.push(endings);
    }
}

/// One attempt, from the start of its handler until its ending waits to be written.
async fn run_one(core: Arc<Core>, handler: Option<Arc<Handler>>, context: Context) {
    let claim = context.claim();
    let is_in_doubt = core.alive().is_in_doubt(Instant::now());
    let Some(handler) = handler.filter(|_| !is_in_doubt) else {
        return core.end(Settlement::release(claim));
    };
    let random = fastrand::f64();
    let recurrence = context.recurring();
    let run_at = context.job().run_at;
    if let Some((ending, plan)) = recurrence.and_then(|run| skip_late(run, context.attempt(), run_at, random))
    {
        return core.end(Settlement { plan, ..Settlement::new(claim, ending) });
    }
    let outcome = handler.run(&context).await;
    let attempt = core.attempt(&context);
    let outcome = unless_committed(context.was_settled_by_handler(), outcome);
    let (ending, plan) = match recurrence {
        Some(recurrence) => decide_run(outcome, &attempt, recurrence, random),
        None => (decide(outcome, &attempt, random), None),
    };
    let (in_lane, last_progress) = (context.lane().is_some(), context.last_progress().last());
    core.end(Settlement { claim, ending, plan, in_lane, last_progress });
}
