//! A worker that runs in the background of a test.

use anyhow::Result;
use pitwheel::{Pitwheel, Stats, Worker};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

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
