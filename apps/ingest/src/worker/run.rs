//! The worker.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use pitwheel::{Context, Worker};

use crate::error::Error;
use crate::ingest::Ingest;
use crate::kinds::{CsvIngest, EmissionRecalc, FactorIngest, QUEUE, UnitSync, Upkeep};
use crate::metrics;
use crate::worker::handlers::Handlers;
use crate::worker::upkeep;

/// How a worker runs jobs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkerOptions {
    /// Jobs at a time. Default: 2: each keeps a processor and a connection busy.
    pub slots: usize,
    /// How long the worker may be silent before its jobs are given to others. Default: 30 seconds.
    pub lease: Duration,
}

impl Default for WorkerOptions {
    fn default() -> WorkerOptions {
        WorkerOptions { slots: 2, lease: Duration::from_secs(30) }
    }
}

/// Runs jobs until `shutdown` ends.
///
/// # Errors
/// Before the first job only.
pub async fn run(
    ingest: &Ingest,
    options: WorkerOptions,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    metrics::describe();
    let handlers = Arc::new(Handlers { ingest: ingest.clone() });
    let entries = handlers.clone();
    let factors = handlers.clone();
    let units = handlers.clone();
    let worker = Worker::new(ingest.pitwheel())
        .queue(QUEUE, options.slots.max(1))
        .lease(options.lease)
        .handle(move |job: CsvIngest, context: Context| {
            let handlers = entries.clone();
            async move { handlers.load(job.0, context).await }
        })
        .handle(move |job: FactorIngest, context: Context| {
            let handlers = factors.clone();
            async move { handlers.load(job.0, context).await }
        })
        .handle(move |job: UnitSync, context: Context| {
            let handlers = units.clone();
            async move { handlers.load(job.0, context).await }
        });
    let upkeep_on = ingest.clone();
    let worker = worker
        .handle(move |job: EmissionRecalc, context: Context| {
            let handlers = handlers.clone();
            async move { handlers.recalculate(job.0, context).await }
        })
        .handle(move |_: Upkeep, context: Context| {
            let ingest = upkeep_on.clone();
            async move { upkeep::run(&ingest, &context).await }
        });
    // Boxed, so that the compiler can tell that this future may move between threads.
    let running: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(worker.run(shutdown));
    running.await?;
    Ok(())
}
