//! One open stream of a worker, and what is sent through it.

use std::sync::Arc;
use std::time::Instant;

use pitwheel::Claim;
use pitwheel::engine::Claimed;
use tokio::sync::mpsc;

use crate::dispatch::comparison::Comparison;
use crate::dispatch::group::Group;

/// Cancel messages that wait in a stream. Heartbeats carry cancel requests too, so more need not be queued.
const CANCELS_MAX: usize = 16;

/// What is sent to a worker through its stream.
#[derive(Debug)]
pub(crate) enum StreamMessage {
    /// Jobs that were claimed for it.
    Jobs(Vec<Claimed>),
    /// Running jobs to cancel.
    Cancels(Vec<Claim>),
}

/// The channel of a stream. It has room for a message for every slot, because a message carries at least one job, and for
/// [`CANCELS_MAX`] cancel messages.
pub(crate) fn stream_channel(slots: usize) -> (mpsc::Sender<StreamMessage>, mpsc::Receiver<StreamMessage>) {
    mpsc::channel(slots + CANCELS_MAX)
}

pub(crate) struct Stream {
    pub(crate) group: Arc<Group>,
    /// The id of the token that it was opened with.
    pub(crate) token: Option<i64>,
    pub(crate) slots: usize,
    /// Slots with a job, or reserved for a claim under way.
    pub(crate) taken: usize,
    pub(crate) messages: mpsc::Sender<StreamMessage>,
    pub(crate) comparison: Comparison,
    /// Whether its worker gets no more jobs: an operator made it quiet, or drains it.
    pub(crate) quiet: bool,
    /// When its worker was last known to be alive.
    pub(crate) alive_at: Instant,
}

impl Stream {
    pub(crate) fn new(
        group: Arc<Group>,
        (slots, token): (usize, Option<i64>),
        messages: mpsc::Sender<StreamMessage>,
    ) -> Stream {
        let alive_at = Instant::now();
        let comparison = Comparison::new(alive_at);
        Stream { group, token, slots, taken: 0, messages, comparison, quiet: false, alive_at }
    }

    /// Free slots that jobs can be claimed for.
    pub(crate) fn free_slots(&self) -> usize {
        if self.quiet { 0 } else { self.slots.saturating_sub(self.taken) }
    }

    pub(crate) fn is_of(&self, group: &Arc<Group>) -> bool {
        Arc::ptr_eq(&self.group, group)
    }
}
