//! Collects items that arrive one by one into batches.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// The time between two small batches that are paced.
const PACE: Duration = Duration::from_millis(20);

/// How a small batch waits for more items, so that a burst costs few writes.
#[derive(Debug, Clone, Copy)]
pub enum Linger {
    /// A millisecond or two, where a write costs a transaction.
    Millisecond,
    /// Until 20 ms after the batch before, at least a millisecond or two: where nothing waits for the write.
    Paced,
    /// Until every task that is ready now has run, where a slot waits for the write.
    Turn,
}

impl Linger {
    /// `last` is when the batch before was given out.
    async fn wait(self, last: Option<Instant>) {
        let soon = Instant::now() + Duration::from_millis(1);
        match self {
            Linger::Millisecond => sleep_until(soon).await,
            Linger::Paced => sleep_until(last.map_or(soon, |last| soon.max(last + PACE))).await,
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
    weigh: fn(&T) -> Weight,
    enough: usize,
    max: usize,
    linger: Linger,
}

/// What an item means for its batch.
pub struct Weight {
    /// How much of a batch it takes up.
    pub weight: usize,
    /// Its batch does not wait for more items.
    pub hurries: bool,
}

struct Waiting<T> {
    items: VecDeque<T>,
    weight: usize,
    /// The next batch does not wait for more items.
    hurried: bool,
    /// When the last batch was given out.
    last: Option<Instant>,
}

impl<T> Batcher<T> {
    /// A batch weighs at most `max`, unless its only item weighs more. One below `enough` waits for more items.
    pub fn new(weigh: fn(&T) -> Weight, enough: usize, max: usize, linger: Linger) -> Batcher<T> {
        Batcher {
            waiting: Mutex::new(Waiting { items: VecDeque::new(), weight: 0, hurried: false, last: None }),
            arrived: Notify::new(),
            closed: CancellationToken::new(),
            weigh,
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
        let (was_empty, lingered) = (waiting.items.is_empty(), self.lingers(&waiting));
        for item in items {
            let Weight { weight, hurries } = (self.weigh)(&item);
            waiting.weight += weight;
            waiting.hurried |= hurries;
            waiting.items.push_back(item);
        }
        let arrived = was_empty && !waiting.items.is_empty() || lingered && !self.lingers(&waiting);
        drop(waiting);
        if arrived {
            self.arrived.notify_one();
        }
        Ok(())
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
            let last = self.waiting().last;
            let mut waited = pin!(self.linger.wait(last));
            while self.lingers(&self.waiting()) && !self.closed.is_cancelled() {
                tokio::select! {
                    () = &mut waited => break,
                    // It may have arrived while the last batch was written, and has waited then. That does not change the pace.
                    () = self.arrived.notified() => {
                        if !matches!(self.linger, Linger::Paced) {
                            break;
                        }
                    }
                }
            }
            let batch = self.take();
            if !batch.is_empty() || self.closed.is_cancelled() {
                return (!batch.is_empty()).then_some(batch);
            }
        }
    }

    fn lingers(&self, waiting: &Waiting<T>) -> bool {
        waiting.weight < self.enough && !waiting.hurried
    }

    fn take(&self) -> Vec<T> {
        let mut waiting = self.waiting();
        let (mut batch, mut weight) = (Vec::new(), 0);
        while let Some(item) = waiting.items.front() {
            weight += (self.weigh)(item).weight;
            if weight > self.max && !batch.is_empty() {
                break;
            }
            batch.extend(waiting.items.pop_front());
        }
        waiting.weight -= batch.iter().map(|item| (self.weigh)(item).weight).sum::<usize>();
        if !batch.is_empty() {
            waiting.last = Some(Instant::now());
        }
        // What is left over has waited enough. Another loop takes it.
        waiting.hurried = !waiting.items.is_empty();
        if waiting.hurried {
            self.arrived.notify_one();
        }
        batch
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;

    use super::*;

    const HURRIES: u8 = 9;

    fn batcher(linger: Linger) -> Batcher<u8> {
        Batcher::new(|item| Weight { weight: 1, hurries: *item == HURRIES }, 3, 5, linger)
    }

    #[tokio::test]
    async fn what_came_together_is_one_batch_up_to_its_weight() {
        let batcher =
            Batcher::new(|item: &usize| Weight { weight: *item, hurries: false }, 3, 5, Linger::Millisecond);
        batcher.push([2, 2, 2]).expect("it is open");
        assert_eq!(batcher.next().await, Some(vec![2, 2]));
        assert_eq!(batcher.next().await, Some(vec![2]));
        batcher.push([9, 1]).expect("it is open");
        assert_eq!(batcher.next().await, Some(vec![9]), "an item above the limit goes alone");
    }

    #[tokio::test]
    async fn a_hurried_batch_does_not_wait_for_more() {
        let batcher = batcher(Linger::Paced);
        batcher.push([HURRIES]).expect("it is open");
        assert_eq!(batcher.next().now_or_never(), Some(Some(vec![HURRIES])));
        batcher.push([2]).expect("it is open");
        assert_eq!(batcher.next().now_or_never(), None, "the next one waits again");
        batcher.push([HURRIES]).expect("it is open");
        assert_eq!(batcher.next().now_or_never(), Some(Some(vec![2, HURRIES])));
    }

    #[tokio::test]
    async fn small_batches_keep_their_pace_and_the_first_one_goes_at_once() {
        let batcher = batcher(Linger::Paced);
        let mut given = Vec::new();
        for item in 0..3 {
            batcher.push([item]).expect("it is open");
            batcher.next().await;
            given.push(Instant::now());
        }
        assert!(given[1] - given[0] >= PACE && given[2] - given[1] >= PACE, "{given:?}");
        batcher.push([1, 2, 3]).expect("it is open");
        assert_eq!(batcher.next().now_or_never(), Some(Some(vec![1, 2, 3])), "a large one does not wait");
    }

    #[tokio::test]
    async fn what_one_batch_leaves_over_wakes_another_loop() {
        let batcher = Arc::new(batcher(Linger::Millisecond));
        let next = |batcher: Arc<Batcher<u8>>| async move { batcher.next().await.map(|batch| batch.len()) };
        let loops = [0; 3].map(|_| tokio::spawn(next(batcher.clone())));
        // In this runtime of one thread, all of them wait before the burst comes.
        tokio::task::yield_now().await;
        batcher.push([1; 12]).expect("it is open");
        let mut sizes = Vec::new();
        for one in loops {
            let size = tokio::time::timeout(Duration::from_secs(5), one).await.expect("it is woken");
            sizes.push(size.expect("no panic"));
        }
        sizes.sort_unstable();
        assert_eq!(sizes, [Some(2), Some(5), Some(5)]);
    }

    #[tokio::test]
    async fn a_closed_queue_gives_out_what_waits_and_takes_no_more() {
        let batcher = batcher(Linger::Millisecond);
        batcher.push([1]).expect("it is open");
        batcher.close();
        assert_eq!(batcher.push([2]), Err(vec![2]));
        assert_eq!(batcher.next().await, Some(vec![1]));
        assert_eq!(batcher.next().await, None);
    }
}
