//! What the tests of the worker share: kinds, and a worker that runs until the test has seen enough.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use pitwheel::{Job, Pitwheel, Stats, Worker};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Nothing here takes this long unless it is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize, Clone)]
pub(crate) struct Work {
    pub(crate) n: i64,
}

impl Job for Work {
    const KIND: &'static str = "work";
    const MAX_ATTEMPTS: u32 = 3;
}

pub(crate) struct Handle {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Stats, pitwheel::Error>>,
}

impl Handle {
    pub(crate) async fn stop(self) -> Result<Stats> {
        let _ = self.stop.send(());
        Ok(tokio::time::timeout(PATIENCE, self.task).await???)
    }
}

/// Starts the worker in the background.
pub(crate) fn start(worker: Worker) -> Handle {
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(worker.run(async {
        let _ = stopped.await;
    }));
    Handle { stop, task }
}

/// A worker on the default queue, with room for many.
pub(crate) fn worker(pitwheel: &Pitwheel) -> Worker {
    Worker::new(pitwheel).queue("default", 50).name("tester")
}

/// Waits until the condition holds, looking again and again.
pub(crate) async fn until<F: Future<Output = Result<bool>>>(
    what: &str,
    condition: impl Fn() -> F,
) -> Result<()> {
    let begun = Instant::now();
    while !condition().await? {
        if begun.elapsed() > PATIENCE {
            bail!("waited in vain until {what}");
        }
        tokio::time::sleep(Duration::from_millis(5)).await; // between two looks
    }
    Ok(())
}
