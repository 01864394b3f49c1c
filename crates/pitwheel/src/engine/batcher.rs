//! Collects items that arrive one by one into batches.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How a small batch waits for more items, so that a burst costs few writes.
#[derive(Debug, Clone, Copy)]
pub enum Linger {
    /// A millisecond or two, where a write costs a transaction.
    Millisecond,
    /// Until every task that is ready now has run, where a slot waits for the write.
    Turn,
}

impl Linger {
    async fn wait(self) {
        match self {
            Linger::Millisecond => tokio::time::sleep(Duration::from_millis(1)).await,
            Linger::Turn => tokio::task::yield_now().await,
        }
    }
}

/// A queue that gives out what came together while the last batch was written. Several loops may take from it. It does not
/// bound what waits: its users take no more work while too much waits to be written.
pub struct Batcher<T> {
    waiting: Mutex<Waiting<T>>,
    /// Items became available, enough of them for a batch that does not linger, or the queue was closed.
    arrived: Notify,
    closed: CancellationToken,
    weight: fn(&T) -> usize,
    enough: usize,
    max: usize,
    linger: Linger,
}

struct Waiting<T> {
    items: VecDeque<T>,
    weight: usize,
    /// The next batch does not wait for more items.
    hurried: bool,
}

impl<T> Batcher<T> {
    /// A batch weighs at most `max`, unless its only item weighs more. One below `enough` waits for more items.
    pub fn new(weight: fn(&T) -> usize, enough: usize, max: usize, linger: Linger) -> Batcher<T> {
        Batcher {
            waiting: Mutex::new(Waiting { items: VecDeque::new(), weight: 0, hurried: false }),
            arrived: Notify::new(),
            closed: CancellationToken::new(),
            weight,
            enough,
            max,
            linger,
        }
    }

    /// Adds items. Returns them if the queue is closed.
    ///
    /// # Errors
    /// The items themselves: the queue is closed.
    pub fn push(&self, items: impl IntoIterator<Item = T>) -> Result<(), Vec<T>> {
        let mut waiting = self.waiting();
        if self.closed.is_cancelled() {
            return Err(items.into_iter().collect());
        }
        let before = waiting.weight;
        for item in items {
            waiting.weight += (self.weight)(&item);
            waiting.items.push_back(item);
        }
        let after = waiting.weight;
        drop(waiting);
        if (before == 0 && after > 0) || (before < self.enough && after >= self.enough) {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// What was added goes out without waiting for more items.
    pub fn hurry(&self) {
        let mut waiting = self.waiting();
        waiting.hurried = !waiting.items.is_empty();
        drop(waiting);
        self.arrived.notify_one();
    }

    /// Takes no more items. What waits is still given out.
    pub fn close(&self) {
        let waiting = self.waiting();
        self.closed.cancel();
        drop(waiting);
    }

    /// The next batch; `None` when the queue is closed and empty. Safe to cancel: nothing is taken before it returns.
    pub async fn next(&self) -> Option<Vec<T>> {
        loop {
            while self.waiting().items.is_empty() {
                tokio::select! {
                    () = self.arrived.notified() => {}
                    () = self.closed.cancelled() => break,
                }
            }
            if self.lingers() && !self.closed.is_cancelled() {
                tokio::select! {
                    () = self.linger.wait() => {}
                    () = self.arrived.notified() => {}
                }
            }
            let batch = self.take();
            if !batch.is_empty() || self.closed.is_cancelled() {
                return (!batch.is_empty()).then_some(batch);
            }
        }
    }

    fn lingers(&self) -> bool {
        let waiting = self.waiting();
        waiting.weight < self.enough && !waiting.hurried
    }

    fn take(&self) -> Vec<T> {
        let mut waiting = self.waiting();
        waiting.hurried = false;
        let (mut batch, mut weight) = (Vec::new(), 0);
        while let Some(item) = waiting.items.front() {
            weight += (self.weight)(item);
            if weight > self.max && !batch.is_empty() {
                break;
            }
            batch.extend(waiting.items.pop_front());
        }
        waiting.weight -= batch.iter().map(self.weight).sum::<usize>();
        batch
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn what_came_together_is_one_batch_up_to_its_weight() {
        let batcher = Batcher::new(|item: &usize| *item, 3, 5, Linger::Millisecond);
        batcher.push([2, 2, 2]).expect("it is open");
        assert_eq!(batcher.next().await, Some(vec![2, 2]));
        assert_eq!(batcher.next().await, Some(vec![2]));
        batcher.push([9, 1]).expect("it is open");
        assert_eq!(batcher.next().await, Some(vec![9]), "an item above the limit goes alone");
    }

    #[tokio::test]
    async fn a_hurried_batch_does_not_wait_for_more() {
        let batcher = Batcher::new(|_: &u8| 1, 3, 5, Linger::Millisecond);
        batcher.push([1]).expect("it is open");
        batcher.hurry();
        assert_eq!(batcher.next().now_or_never(), Some(Some(vec![1])));
        batcher.push([2]).expect("it is open");
        assert_eq!(batcher.next().await, Some(vec![2]), "the next one waits for its notification again");
    }

    #[tokio::test]
    async fn a_closed_queue_gives_out_what_waits_and_takes_no_more() {
        let batcher = Batcher::new(|_: &u8| 1, 3, 5, Linger::Millisecond);
        batcher.push([1]).expect("it is open");
        batcher.close();
        assert_eq!(batcher.push([2]), Err(vec![2]));
        assert_eq!(batcher.next().await, Some(vec![1]));
        assert_eq!(batcher.next().await, None);
    }
}
