//! What the loops of a worker share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::settler::SettleQueue;
use super::{Stats, Worker};
use crate::backend::Backend;
use crate::claim::{CLAIM_MAX, Claimed, QueueSlots, claim, release_unknown};
use crate::claimer::{ClaimSink, Reserved};
use crate::client::Pitwheel;
use crate::cursor::Bounds;
use crate::db::{Pool, Session};
use crate::error::Error;
use crate::handler::{Context, Handler, Handlers};
use crate::hint::HintListener;
use crate::lease::Registration;
use crate::metrics;
use crate::settle::{Attempt, Claim, Ending, Settled, Settlement, committed_or_not, decide};

pub(super) struct Core {
    pub(super) pitwheel: Pitwheel,
    backend: Arc<Backend>,
    pub(super) pool: Pool,
    pub(super) registration: Registration,
    pub(super) handlers: Handlers,
    pub(super) keep_history: Duration,
    pub(super) settle_queue: SettleQueue,
    /// Ends when the worker shall claim no more.
    pub(super) stop: CancellationToken,
    /// Something may be due.
    pub(super) due: Arc<Notify>,
    /// Somebody may want a running job stopped.
    pub(super) cancel: Arc<Notify>,
    /// A slot became free.
    pub(super) freed: Notify,
    id: AtomicI64,
    table: Mutex<Table>,
    started: AtomicU64,
    settled: AtomicU64,
    lost: AtomicU64,
}

/// Which slots are free and what runs in the others.
struct Table {
    slots: Vec<Slots>,
    running: HashMap<Claim, Running>,
    /// How many jobs of each hold are not settled yet.
    holds: HashMap<i64, usize>,
    emptied: Vec<i64>,
    /// Where the next claim starts asking, so that no queue is always first.
    turn: usize,
    /// A suspect runs, and nothing is to run beside it.
    alone: bool,
}

impl Table {
    fn count_off(&mut self, hold: i64) {
        let Some(count) = self.holds.get_mut(&hold) else { return };
        *count -= 1;
        if *count == 0 {
            self.holds.remove(&hold);
            self.emptied.push(hold);
        }
    }
}

pub(super) struct Slots {
    pub(super) queue: String,
    pub(super) free: usize,
}

struct Running {
    context: Context,
    hold: i64,
    started: Instant,
    task: AbortHandle,
}

impl Core {
    pub(super) fn new(
        mut worker: Worker,
        registration: Registration,
        pitwheel: Pitwheel,
        pool: Pool,
        id: i64,
        stop: CancellationToken,
    ) -> Core {
        let slots = worker.slots();
        let handlers = std::mem::take(&mut worker.handlers);
        Core {
            backend: Arc::new(Backend::Database(pitwheel.clone())),
            pitwheel,
            pool,
            registration,
            handlers,
            keep_history: worker.keep_history,
            settle_queue: SettleQueue::default(),
            stop,
            due: Arc::default(),
            cancel: Arc::default(),
            freed: Notify::new(),
            id: AtomicI64::new(id),
            table: Mutex::new(Table {
                slots,
                running: HashMap::new(),
                holds: HashMap::new(),
                emptied: Vec::new(),
                turn: 0,
                alone: false,
            }),
            started: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// The current incarnation.
    pub(super) fn id(&self) -> i64 {
        self.id.load(Ordering::Acquire)
    }

    pub(super) fn stats(&self) -> Stats {
        Stats {
            started: self.started.load(Ordering::Relaxed),
            settled: self.settled.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }

    pub(super) fn listener(&self) -> HintListener {
        let (queues, due) = (self.registration.queues.clone(), self.due.clone());
        let wake = move |queue: Option<&str>| {
            if queue.is_none_or(|queue| queues.iter().any(|ours| ours == queue)) {
                due.notify_one();
            }
        };
        HintListener { due: Box::new(wake), cancel: self.cancel.clone() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.table().running.is_empty()
    }

    /// Takes settled jobs off the table and frees their slots. Only now, since a slot whose ending is not written yet
    /// would let the worker hold more than it has slots for.
    /// A job that its handler settled in a transaction of its own is not lost when ours finds it gone.
    pub(super) fn settled(&self, batch: &[Settlement], answers: &[Settled]) {
        let (mut settled, mut lost) = (0, 0);
        let mut table = self.table();
        for (Settlement { claim, ending }, answer) in batch.iter().zip(answers) {
            let running = table.running.remove(claim);
            let by_handler = running.as_ref().is_some_and(|running| running.context.was_settled_by_handler());
            if *answer == Settled::Written || by_handler {
                settled += 1;
            } else {
                lost += 1;
                tracing::warn!(
                    job.id = claim.id,
                    job.fence = claim.fence,
                    worker = self.registration.name,
                    "lost: the job was given to another worker while it ran here"
                );
            }
            let Some(running) = running else { continue };
            let (queue, kind) = (running.context.queue(), running.context.kind());
            metrics::ended(queue, kind, ending, running.started.elapsed());
            if let Some(slots) = table.slots.iter_mut().find(|slots| slots.queue == queue) {
                slots.free += 1;
            }
            table.count_off(running.hold);
        }
        table.alone &= !table.running.is_empty();
        drop(table);
        metrics::lost(lost);
        self.settled.fetch_add(settled, Ordering::Relaxed);
        self.lost.fetch_add(lost, Ordering::Relaxed);
        self.freed.notify_one();
    }

    /// Holds of which everything is settled, to be forgotten with the next write. Not with the one that settled their
    /// last job: another batch might still hold an earlier one, and nobody would find it if this process died.
    pub(super) fn take_emptied(&self) -> Vec<i64> {
        std::mem::take(&mut self.table().emptied)
    }

    /// The holds this worker knows of.
    pub(super) fn known_holds(&self) -> Vec<i64> {
        self.table().holds.keys().copied().collect()
    }

    /// What handlers said about their progress since the last time.
    pub(super) fn take_progress(&self) -> Vec<(Claim, f32, String)> {
        let table = self.table();
        let reports = table.running.iter().filter(|(_, running)| !running.context.was_settled_by_handler());
        let mut reports: Vec<_> = reports
            .filter_map(|(claim, running)| {
                running.context.take_progress().map(|(part, note)| (*claim, part, note))
            })
            .collect();
        reports.sort_unstable_by_key(|(claim, ..)| claim.id);
        reports
    }

    /// Tells the handlers of these claims that somebody wants them to stop.
    pub(super) fn request_cancel(&self, wanted: impl Iterator<Item = Claim>) {
        let table = self.table();
        wanted.filter_map(|claim| table.running.get(&claim)).for_each(|running| running.context.cancel(true));
    }

    /// The worker was declared dead and goes on as another. What runs belongs to others now: its handlers are told, and
    /// their endings will be refused.
    pub(super) fn reborn(&self, id: i64) {
        self.id.store(id, Ordering::Release);
        self.table().running.values().for_each(|running| running.context.cancel(false));
    }

    /// Waits until nothing runs, but after the shutdown no longer than the grace time; then stops what is left and releases it.
    pub(super) async fn finish_within(&self, grace: Duration, shutdown: &CancellationToken) {
        let idle = async {
            while !self.is_idle() {
                self.freed.notified().await;
            }
        };
        tokio::select! {
            () = idle => return,
            () = async { shutdown.cancelled().await; tokio::time::sleep(grace).await } => {}
        }
        let left: Vec<Settlement> = {
            let table = self.table();
            table.running.values().for_each(|running| running.task.abort());
            let released = |claim: &Claim| Settlement { claim: *claim, ending: Ending::released() };
            table.running.keys().map(released).collect()
        };
        tracing::warn!(
            worker = self.registration.name,
            jobs = left.len(),
            "releasing jobs that did not finish in the grace time"
        );
        self.settle_queue.push_all(left);
    }
}

/// How long a worker waits at first for its own jobs to end, to run a suspect alone; doubled each time it was not enough.
const ALONE_WAIT: Duration = Duration::from_secs(10);

impl ClaimSink for Arc<Core> {
    fn name(&self) -> &str {
        &self.registration.name
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

    fn reserve(&self) -> Reserved {
        let mut table = self.table();
        if table.alone {
            return Reserved::default();
        }
        let count = table.slots.len();
        table.turn = (table.turn + 1) % count;
        let turn = table.turn;
        let mut room = Reserved::default();
        for at in (0..count).map(|n| (turn + n) % count) {
            let slots = &mut table.slots[at];
            let asked = slots.free.min(CLAIM_MAX - room.total);
            if asked > 0 {
                slots.free -= asked;
                room.total += asked;
                room.slots_by_queue.push(QueueSlots { queue: slots.queue.clone(), slots: asked });
            }
        }
        room
    }

    async fn claim(&self, room: &Reserved, bounds: &Bounds) -> Result<Vec<Claimed>, Error> {
        let claim = async |client: Arc<Session>| {
            claim(&*client, self.id(), &room.slots_by_queue, &self.registration.kinds, bounds).await
        };
        self.pool.run(claim).await
    }

    fn unreserve(&self, room: &Reserved, claimed: &[Claimed]) {
        let mut table = self.table();
        for ask in &room.slots_by_queue {
            let filled = claimed.iter().filter(|job| *job.queue == *ask.queue).count();
            if let Some(slots) = table.slots.iter_mut().find(|slots| slots.queue == ask.queue) {
                slots.free += ask.slots.saturating_sub(filled);
            }
        }
    }

    /// Each in a task of its own and in the slot reserved for it.
    fn start(&self, jobs: Vec<Claimed>) {
        self.started.fetch_add(jobs.len() as u64, Ordering::Relaxed);
        let started = Instant::now();
        let mut table = self.table();
        table.running.reserve(jobs.len());
        for job in jobs {
            let handler = self.handlers.get(&job.kind);
            let history = handler.as_ref().map_or(crate::History::All, |handler| handler.history);
            let (claim, hold) = (job.claim, job.hold);
            let context = Context::new(self.backend.clone(), job, history);
            let task = tokio::spawn(run_one(self.clone(), handler, context.clone())).abort_handle();
            *table.holds.entry(hold).or_default() += 1;
            table.running.insert(claim, Running { context, hold, started, task });
        }
    }

    async fn release_unknown(&self) -> Result<usize, Error> {
        let known = self.known_holds();
        self.pool.run(async |client| release_unknown(&*client, self.id(), &known).await).await
    }

    fn alone(&self) -> Option<i64> {
        let mut table = self.table();
        table.alone = table.running.is_empty();
        table.alone.then(|| self.id())
    }

    fn start_alone(&self, _: i64, suspect: Option<Claimed>) {
        let Some(job) = suspect else {
            self.table().alone = false;
            return;
        };
        if let Some(slots) = self.table().slots.iter_mut().find(|slots| *slots.queue == *job.queue) {
            slots.free = slots.free.saturating_sub(1);
        }
        self.start(vec![job]);
    }

    fn alone_wait(&self) -> Duration {
        ALONE_WAIT
    }
}

/// One attempt, from its handler's first line to its place in the settle queue.
async fn run_one(core: Arc<Core>, handler: Option<Arc<Handler>>, context: Context) {
    let claim = context.claim();
    let Some(handler) = handler else {
        return core.settle_queue.push(Settlement { claim, ending: Ending::released() });
    };
    let outcome = handler.run(&context).await;
    let attempt = Attempt {
        number: context.attempt(),
        max: context.max_attempts(),
        history: context.history(),
        ctid: Some(context.ctid()),
        worker: &core.registration.name,
        cancelled: context.cancel_requested(),
    };
    let outcome = committed_or_not(&context, outcome);
    let ending = decide(outcome, &attempt, fastrand::f64());
    core.settle_queue.push(Settlement { claim, ending });
}
