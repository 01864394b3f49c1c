//! Writes the endings that many workers report. A batch is as large as what arrived while the last one was written.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pitwheel::engine::{Pool, Settlement, settle};
use pitwheel::{Error, Settled};
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};

use crate::dispatch::batch::{Limits, next_batch};
use crate::dispatch::streams::SharedStreams;

/// Endings of one statement: more make it slower without saving commits. One millisecond costs a worker little, and
/// joins the reports of many workers into one commit.
const BATCH: Limits = Limits { max: 1000, enough: 300, linger: Duration::from_millis(1) };

/// Reports that wait for a loop. More callers than this wait until there is room, so that a slow database slows workers
/// down instead of filling the memory. The loops never send to this channel, so nothing waits for itself.
const QUEUE_MAX: usize = 1000;

/// One report, and where its result is awaited.
pub(crate) struct Report {
    endings: Vec<Settlement>,
    reply: oneshot::Sender<Result<Vec<Settled>, NotWritten>>,
}

/// Why a report or a heartbeat was not written.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum NotWritten {
    #[error("this node is stopping: use another node")]
    Stopping,
    #[error(transparent)]
    Failed(Arc<Error>),
}

impl From<Error> for NotWritten {
    fn from(error: Error) -> NotWritten {
        NotWritten::Failed(Arc::new(error))
    }
}

/// The sending side: writes endings through the loops of [`run`].
#[derive(Clone)]
pub(crate) struct Reports {
    /// `None` after [`Reports::close`].
    sender: Arc<Mutex<Option<mpsc::Sender<Report>>>>,
}

impl Reports {
    pub(crate) fn new() -> (Reports, mpsc::Receiver<Report>) {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        (Reports { sender: Arc::new(Mutex::new(Some(sender))) }, receiver)
    }

    /// Writes endings; one result for each, in the same order. If the caller is dropped after the report was queued, the
    /// endings are written all the same.
    pub(crate) async fn settle(&self, endings: Vec<Settlement>) -> Result<Vec<Settled>, NotWritten> {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sender = sender.ok_or(NotWritten::Stopping)?;
        let (reply, replied) = oneshot::channel();
        sender.send(Report { endings, reply }).await.map_err(|_| NotWritten::Stopping)?;
        // The loops end when no sender is left: this one must not outlive its use.
        drop(sender);
        replied.await.unwrap_or(Err(NotWritten::Stopping))
    }

    /// Accepts no more reports. Those that were queued, or wait to be, are still written.
    pub(crate) fn close(&self) {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Writes reports until [`Reports::close`]. Two loops: one prepares a batch while the other waits for its commit.
pub(crate) async fn run(pool: Pool, streams: SharedStreams, queue: mpsc::Receiver<Report>) {
    let queue = AsyncMutex::new(queue);
    let write_all = async || {
        while let Some(batch) = next(&queue).await {
            write(&pool, &streams, batch).await;
        }
    };
    tokio::join!(write_all(), write_all());
}

async fn next(queue: &AsyncMutex<mpsc::Receiver<Report>>) -> Option<Vec<Report>> {
    next_batch(&mut *queue.lock().await, &BATCH, |report| report.endings.len()).await
}

/// Writes reports together. If Postgres rejects the batch, writes each report alone, so that one bad report does not fail
/// the others.
async fn write(pool: &Pool, streams: &SharedStreams, batch: Vec<Report>) {
    let emptied = streams.lock().take_emptied();
    let together: Vec<Settlement> = batch.iter().flat_map(|report| report.endings.iter().cloned()).collect();
    match write_endings(pool, streams, &together, &emptied).await {
        Ok(settled) => {
            let mut settled = settled.into_iter();
            for report in batch {
                let results = settled.by_ref().take(report.endings.len()).collect();
                let _ = report.reply.send(Ok(results));
            }
        }
        Err(error) if error.is_transient() || batch.len() == 1 => {
            let error = NotWritten::from(error);
            for report in batch {
                let _ = report.reply.send(Err(error.clone()));
            }
        }
        Err(_) => {
            for report in batch {
                let settled = write_endings(pool, streams, &report.endings, &[]).await;
                let _ = report.reply.send(settled.map_err(NotWritten::from));
            }
        }
    }
}

/// Writes endings and frees their slots: whether a claim was written or lost, it no longer runs here.
async fn write_endings(
    pool: &Pool,
    streams: &SharedStreams,
    endings: &[Settlement],
    emptied: &[i64],
) -> Result<Vec<Settled>, Error> {
    let settled = pool.run(async |client| settle(&*client, endings, emptied).await).await?;
    let mut streams = streams.lock();
    streams.record(endings, &settled);
    streams.ended(endings.iter().map(|ending| ending.claim));
    drop(streams);
    Ok(settled)
}
