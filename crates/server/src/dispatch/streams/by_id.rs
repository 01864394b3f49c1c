//! Slots for jobs that are claimed by their ids.

use std::sync::Arc;
use std::time::Instant;

use crate::dispatch::group::Group;
use crate::dispatch::not_claimed::NotClaimed;
use crate::dispatch::streams::Streams;

impl Streams {
    /// The group of a worker's stream. `None`: it has no stream here.
    pub(crate) fn group_of(&self, worker: i64) -> Option<Arc<Group>> {
        self.open.get(&worker).map(|stream| stream.group.clone())
    }

    /// Reserves a free slot of a worker for one job.
    pub(crate) fn reserve_slot(&mut self, worker: i64) -> Result<(), NotClaimed> {
        let Streams { open, suspects, .. } = self;
        let stream = open.get_mut(&worker).ok_or(NotClaimed::NoStream)?;
        if !stream.has_free_slot() || !suspects.leave_room(&stream.process, Instant::now()) {
            return Err(NotClaimed::NoSlot);
        }
        stream.reserve();
        Ok(())
    }
}
