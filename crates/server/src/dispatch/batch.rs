//! Collects what arrives together into one batch.

use std::time::Duration;

use tokio::sync::mpsc;

/// How large a batch gets, and how long it waits.
pub(crate) struct Limits {
    /// No more is added to a batch of this size. The last item may exceed it.
    pub(crate) max: usize,
    /// A batch smaller than this waits once for more.
    pub(crate) enough: usize,
    /// How long it waits.
    pub(crate) linger: Duration,
}

/// The next batch, at least one item; `None`: the channel is closed and empty. `size` is what an item adds to the batch.
pub(crate) async fn next_batch<T>(
    queue: &mut mpsc::Receiver<T>,
    limits: &Limits,
    size: impl Fn(&T) -> usize,
) -> Option<Vec<T>> {
    let first = queue.recv().await?;
    let mut total = size(&first);
    let mut batch = vec![first];
    if total < limits.enough && queue.is_empty() {
        tokio::time::sleep(limits.linger).await;
    }
    while total < limits.max {
        let Ok(item) = queue.try_recv() else { break };
        total += size(&item);
        batch.push(item);
    }
    Some(batch)
}
