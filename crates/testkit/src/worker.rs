//! A worker that runs in the background of a test.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use pitwheel::{Context, Pitwheel, Stats, Worker};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::kinds::Work;
use crate::wait::WAIT_MAX;

/// A worker with many slots on the queue `default`.
pub fn worker(pitwheel: &Pitwheel) -> Worker {
    Worker::new(pitwheel).queue("default", 50).name("tester")
}

/// Starts the worker in the background.
pub fn start_worker(worker: Worker) -> RunningWorker {
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(worker.run(async {
        let _ = stopped.await;
    }));
    RunningWorker { stop, task }
}

/// A worker in the background. If it is dropped, the worker shuts down and nothing waits for it.
pub struct RunningWorker {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Stats, pitwheel::Error>>,
}

impl RunningWorker {
    /// Shuts the worker down and waits for its end.
    pub async fn stop(self) -> Result<Stats> {
        let _ = self.stop.send(());
        Ok(tokio::time::timeout(WAIT_MAX, self.task).await???)
    }

    /// Waits until the worker ends without a shutdown.
    pub async fn ended(self) -> Result<Stats> {
        let _stop = self.stop;
        Ok(tokio::time::timeout(WAIT_MAX, self.task).await???)
    }

    /// Ends the worker's task without a shutdown, as a killed process ends.
    pub fn kill(self) {
        self.task.abort();
    }
}

/// Counts how many jobs run at the same time.
#[derive(Default)]
pub struct Concurrency {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Concurrency {
    /// The most jobs that ran at the same time.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    /// The worker with a handler for [`Work`] that counts.
    pub fn of(self: &Arc<Concurrency>, worker: Worker) -> Worker {
        let counts = self.clone();
        worker.handle(move |_: Work, _: Context| {
            let counts = counts.clone();
            async move {
                let now = counts.now.fetch_add(1, Ordering::SeqCst) + 1;
                counts.most.fetch_max(now, Ordering::SeqCst);
                tokio::task::yield_now().await;
                counts.now.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, String>(())
            }
        })
    }
}
