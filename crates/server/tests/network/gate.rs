//! Handlers that run until the test lets them end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use pitwheel::{Context, NewJob, Worker};
use pitwheel_testkit::{RunningWorker, TestDb, Work, start_worker, wait_until, work};
use tokio::sync::Semaphore;

use crate::queries::HELD;

/// Counts the runs of a handler, and holds each until the test lets it pass.
#[derive(Clone)]
pub(crate) struct Gate {
    runs: Arc<AtomicUsize>,
    running: Arc<AtomicUsize>,
    most_at_once: Arc<AtomicUsize>,
    permits: Arc<Semaphore>,
}

impl Gate {
    /// A gate that lets this many runs pass.
    pub(crate) fn open_for(count: usize) -> Gate {
        let counter = || Arc::new(AtomicUsize::new(0));
        Gate {
            runs: counter(),
            running: counter(),
            most_at_once: counter(),
            permits: Arc::new(Semaphore::new(count)),
        }
    }

    /// A remote worker whose handler waits at this gate.
    pub(crate) fn worker(&self, url: &str, slots: usize) -> Worker {
        let gate = self.clone();
        let handler = move |_: Work, _: Context| {
            let gate = gate.clone();
            async move {
                gate.runs.fetch_add(1, Ordering::SeqCst);
                let now = gate.running.fetch_add(1, Ordering::SeqCst) + 1;
                gate.most_at_once.fetch_max(now, Ordering::SeqCst);
                let passed = gate.permits.acquire().await.map(|permit| permit.forget());
                gate.running.fetch_sub(1, Ordering::SeqCst);
                passed
            }
        };
        Worker::remote(url).queue("default", slots).handle(handler)
    }

    /// Starts such a worker and waits until it runs five jobs.
    pub(crate) async fn start_with_five_jobs(
        &self,
        db: &TestDb,
        url: &str,
        slots: usize,
    ) -> Result<RunningWorker> {
        let running = start_worker(self.worker(url, slots));
        db.pitwheel().enqueue_many((0..5).map(work)).await?;
        wait_until("it runs five jobs", async || Ok(self.runs() == 5)).await?;
        Ok(running)
    }

    /// Lets this many more runs pass.
    pub(crate) fn let_pass(&self, count: usize) {
        self.permits.add_permits(count);
    }

    /// How many runs have begun.
    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// How many runs are waiting at the gate now.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    /// How many runs were waiting at the same time, at most.
    pub(crate) fn most_at_once(&self) -> usize {
        self.most_at_once.load(Ordering::SeqCst)
    }
}

/// Enqueues jobs so large that a connection buffers only a few of them, and waits until each is claimed.
pub(crate) async fn enqueue_large_jobs(db: &TestDb, count: i64) -> Result<()> {
    let claimed = db.count(HELD).await?;
    for n in 1..=count {
        let payload = format!("{{\"n\": {n}, \"filler\": \"{}\"}}", "x".repeat(250_000));
        db.pitwheel().enqueue(NewJob::raw("work", payload)).await?;
        wait_until("it is claimed", async || Ok(db.count(HELD).await? == claimed + n)).await?;
    }
    Ok(())
}
