//! The slots of a queue, divided among its streams.
//!
//! A job keeps its slot until it ends, also when its stream breaks. A stream that named all slots meanwhile would get jobs that cannot
//! start, release them, and get the next ones. So each stream names only the slots that it has.

use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::job::pace::AHEAD_MAX;

/// The slots of a queue that no open stream has.
pub(super) struct FreeSlots {
    all: usize,
    free: Arc<Semaphore>,
}

impl FreeSlots {
    pub(super) fn new(all: usize) -> FreeSlots {
        FreeSlots { all, free: Arc::new(Semaphore::new(all)) }
    }

    /// Waits for the slots of one more stream, beside streams that have `open` of them. Short jobs of a broken stream are waited for, so
    /// that the next one has all slots.
    pub(super) async fn take(&self, open: usize) -> StreamSlots {
        match timeout(AHEAD_MAX, self.take_rest(open)).await {
            Ok(slots) => slots,
            Err(_) => self.take_free(open).await,
        }
    }

    /// All that the open streams do not have, when no job of a broken stream runs any more.
    async fn take_rest(&self, open: usize) -> StreamSlots {
        match self.all.saturating_sub(open) {
            0 => pending().await,
            rest => StreamSlots::new(self.acquire(rest).await),
        }
    }

    /// Those that are free beside long jobs: as many as the open streams have, or half of what these do not have, because else each job
    /// that ends would open a stream for its slot.
    async fn take_free(&self, open: usize) -> StreamSlots {
        let rest = self.all.saturating_sub(open);
        if rest == 0 {
            return pending().await;
        }
        let mut slots = self.acquire(open.min(rest.div_ceil(2)).max(1)).await;
        let more = u32::try_from(self.free.available_permits()).unwrap_or(u32::MAX);
        if let Ok(more) = self.free.clone().try_acquire_many_owned(more) {
            slots.merge(more);
        }
        StreamSlots::new(slots)
    }

    async fn acquire(&self, count: usize) -> OwnedSemaphorePermit {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        match self.free.clone().acquire_many_owned(count).await {
            Ok(slots) => slots,
            // It is never closed.
            Err(_) => pending().await,
        }
    }
}

/// The slots of one stream. When it ends, its free ones are those of the queue again, and each other one when its job ends.
pub(super) struct StreamSlots {
    count: usize,
    idle: Arc<Idle>,
}

struct Idle {
    slots: Mutex<OwnedSemaphorePermit>,
    freed: Notify,
}

impl Idle {
    fn slots(&self) -> MutexGuard<'_, OwnedSemaphorePermit> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamSlots {
    fn new(slots: OwnedSemaphorePermit) -> StreamSlots {
        let count = slots.num_permits();
        StreamSlots { count, idle: Arc::new(Idle { slots: Mutex::new(slots), freed: Notify::new() }) }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// A slot for a job, if one is free.
    pub(super) fn try_take(&self) -> Option<Slot> {
        let slot = self.idle.slots().split(1)?;
        Some(Slot { slot: Some(slot), stream: Arc::downgrade(&self.idle) })
    }

    /// Waits until one is free. Only one caller may wait.
    pub(super) async fn free(&self) {
        while self.idle.slots().num_permits() == 0 {
            self.idle.freed.notified().await;
        }
    }
}

/// The slot of a running job. Dropped when the job has ended.
pub(super) struct Slot {
    slot: Option<OwnedSemaphorePermit>,
    stream: Weak<Idle>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Without its stream the slot is dropped: it is the queue's again.
        if let (Some(stream), Some(slot)) = (self.stream.upgrade(), self.slot.take()) {
            stream.slots().merge(slot);
            stream.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, Result};
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn one_long_job_of_a_broken_stream_keeps_no_other_slot() -> Result<()> {
        let free = FreeSlots::new(8);
        let broken = free.take_rest(0).now_or_never().context("all are free")?;
        let mut jobs: Vec<Option<Slot>> = (0..8).map(|_| broken.try_take()).collect();
        drop(broken);
        jobs.truncate(4);
        let second = free.take_free(0).now_or_never().context("four are free")?;
        jobs.truncate(1);
        let third = free.take_free(4).now_or_never().context("three more are free")?;
        assert_eq!((second.count(), third.count()), (4, 3));
        Ok(())
    }

    #[test]
    fn a_stream_has_the_slots_that_jobs_of_the_broken_one_leave_free() -> Result<()> {
        let free = FreeSlots::new(8);
        let take = |open| free.take_free(open).now_or_never();
        let broken = free.take_rest(0).now_or_never().context("all are free")?;
        let mut jobs: Vec<Option<Slot>> = (0..8).map(|_| broken.try_take()).collect();
        assert!(broken.count() == 8 && jobs.iter().all(Option::is_some) && broken.try_take().is_none());
        jobs.truncate(6);
        assert!(broken.try_take().is_some() && take(8).is_none(), "an open stream has the slot again");
        drop(broken);
        assert!(free.take_rest(0).now_or_never().is_none(), "jobs of the broken stream run");

        let second = take(0).context("two are free")?;
        assert_eq!(second.count(), 2);
        jobs.truncate(5);
        assert!(take(2).is_none(), "one slot is too little for a stream");
        jobs.truncate(4);
        let third = take(2).context("two more are free")?;
        assert_eq!(third.count(), 2);
        jobs.clear();
        let last = free.take_rest(4).now_or_never().context("the rest is free")?;
        assert_eq!(last.count(), 4);
        assert!(take(8).is_none(), "the streams have all slots");
        drop((second, third, last));
        let next = free.take_rest(0).now_or_never().context("all have ended")?;
        assert_eq!(next.count(), 8);
        Ok(())
    }
}
