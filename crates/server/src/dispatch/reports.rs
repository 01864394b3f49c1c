//! Writing endings that many workers report, in batches as large as what came together while the last one was written.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pitwheel::engine::{Settlement, settle};
use pitwheel::{Error, Settled};
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};

use crate::dispatch::node::Node;

/// Endings per statement, as far as reports can be joined.
const BATCH_MAX: usize = 1000;
/// A batch smaller than this waits a moment for others.
const BATCH_FAIR: usize = 300;
const LINGER: Duration = Duration::from_millis(1);

/// One report, and who waits for its answer.
pub(crate) struct Report {
    endings: Vec<Settlement>,
    answer: oneshot::Sender<Result<Vec<Settled>, Refusal>>,
}

/// Why something was not written.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Refusal {
    /// The node takes no more.
    #[error("this node is ending: try another")]
    Ending,
    /// The database did not take it.
    #[error(transparent)]
    Engine(Arc<Error>),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Engine(Arc::new(error))
    }
}

/// The way in.
pub(crate) struct Reports {
    sender: Mutex<Option<mpsc::UnboundedSender<Report>>>,
}

impl Reports {
    pub(crate) fn new() -> (Reports, mpsc::UnboundedReceiver<Report>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Reports { sender: Mutex::new(Some(sender)) }, receiver)
    }

    /// Writes endings; one answer for each, in order.
    pub(crate) async fn settle(&self, endings: Vec<Settlement>) -> Result<Vec<Settled>, Refusal> {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (answer, answered) = oneshot::channel();
        let sent = sender.and_then(|sender| sender.send(Report { endings, answer }).ok());
        if sent.is_none() {
            return Err(Refusal::Ending);
        }
        answered.await.unwrap_or(Err(Refusal::Ending))
    }

    /// Takes no more. Those who have begun to send are still answered.
    pub(crate) fn close(&self) {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Writes until nothing more can come. Two loops, so that one batch is prepared while the other waits for its commit.
pub(crate) async fn run(node: Arc<Node>, queue: mpsc::UnboundedReceiver<Report>) {
    let queue = AsyncMutex::new(queue);
    let write_all = async || {
        while let Some(batch) = next(&queue).await {
            write(&node, batch).await;
        }
    };
    tokio::join!(write_all(), write_all());
}

/// The next reports that fit into one batch.
async fn next(queue: &AsyncMutex<mpsc::UnboundedReceiver<Report>>) -> Option<Vec<Report>> {
    let mut queue = queue.lock().await;
    let first = queue.recv().await?;
    let mut count = first.endings.len();
    let mut batch = vec![first];
    if count < BATCH_FAIR && queue.is_empty() {
        tokio::time::sleep(LINGER).await;
    }
    while count < BATCH_MAX {
        let Ok(report) = queue.try_recv() else { break };
        count += report.endings.len();
        batch.push(report);
    }
    Some(batch)
}

/// Writes reports together; if Postgres refuses one of them, each by itself, so that it cannot hold up the others.
async fn write(node: &Node, batch: Vec<Report>) {
    let emptied = node.streams().take_emptied();
    let together: Vec<Settlement> = batch.iter().flat_map(|report| report.endings.iter().cloned()).collect();
    match put(node, &together, &emptied).await {
        Ok(settled) => {
            let mut settled = settled.into_iter();
            for report in batch {
                let answers = settled.by_ref().take(report.endings.len()).collect();
                let _ = report.answer.send(Ok(answers));
            }
        }
        Err(error) if error.is_transient() || batch.len() == 1 => {
            let refusal = Refusal::from(error);
            batch.into_iter().for_each(|report| {
                let _ = report.answer.send(Err(refusal.clone()));
            });
        }
        Err(_) => {
            for report in batch {
                let settled = put(node, &report.endings, &[]).await.map_err(Refusal::from);
                let _ = report.answer.send(settled);
            }
        }
    }
}

/// Whatever the answer says of a claim, written or lost, it has ended here.
async fn put(node: &Node, endings: &[Settlement], emptied: &[i64]) -> Result<Vec<Settled>, Error> {
    let settled = node.pool.run(async |client| settle(&*client, endings, emptied).await).await?;
    let mut streams = node.streams();
    streams.count(endings, &settled);
    streams.ended(endings.iter().map(|ending| ending.claim));
    drop(streams);
    Ok(settled)
}
