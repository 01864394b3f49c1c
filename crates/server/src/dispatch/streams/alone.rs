//! Streams that run a suspect alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pitwheel::Claim;
use pitwheel::engine::Claimed;

use crate::dispatch::group::Group;
use crate::dispatch::streams::Streams;
use crate::dispatch::suspects::Process;

/// How long a suspect waits for the endings of other jobs to be written: a crash would be counted for them too. Longer than that takes,
/// unless a row is locked, or the database is away.
const ENDINGS_WAIT: Duration = Duration::from_secs(1);

/// What the streams of a process have.
#[derive(Default)]
struct Load {
    /// Jobs that are claimed for them and not reported.
    unreported: usize,
    /// When the last ending was reported of those that are not written.
    reported_at: Option<Instant>,
}

impl Load {
    fn is_empty(&self, now: Instant) -> bool {
        let is_late = |at| now.saturating_duration_since(at) >= ENDINGS_WAIT;
        self.unreported == 0 && self.reported_at.is_none_or(is_late)
    }
}

impl Streams {
    /// Reserves a stream of a process that runs nothing, for a suspect. If every process is busy, the least busy one gets
    /// nothing more until it is empty, or for a limited time.
    pub(crate) fn reserve_alone(&mut self, group: &Arc<Group>, now: Instant) -> Option<i64> {
        let mut loads: HashMap<&Process, Load> = HashMap::new();
        for stream in self.open.values() {
            let load = loads.entry(&stream.process).or_default();
            load.unreported += stream.unreported();
            load.reported_at = load.reported_at.max(stream.unwritten_since());
        }
        let streams = self.open.iter().filter(|(_, stream)| stream.is_of(group) && !stream.quiet);
        let usable = streams.filter_map(|(worker, stream)| {
            let load = loads.get(&stream.process)?;
            let is_empty = load.is_empty(now);
            let waits = self.suspects.may_run(&stream.process, group, is_empty, now)?;
            Some((!is_empty, !waits, load.unreported, *worker))
        });
        let (is_busy, _, _, worker) = usable.min()?;
        let stream = self.open.get_mut(&worker)?;
        if is_busy {
            self.suspects.wait(&stream.process, worker, group, now);
            return None;
        }
        self.suspects.reserve(&stream.process, worker, group);
        stream.reserve();
        Some(worker)
    }

    /// No suspect is due for the streams of this group: those that wait for one go on.
    pub(crate) fn no_suspect(&mut self, group: &Arc<Group>) {
        if self.suspects.none_due(group) {
            self.wake_freed();
        }
    }

    /// Sends a suspect to the stream that was reserved for it; `None`: there was no suspect after all. Returns the claim
    /// if the stream has closed meanwhile: it must be released.
    #[must_use = "claims that were not sent must be released"]
    pub(crate) fn send_alone(&mut self, worker: i64, suspect: Option<Claimed>) -> Vec<Claim> {
        let Some(stream) = self.open.get_mut(&worker) else {
            return suspect.into_iter().map(|job| job.claim).collect();
        };
        let Some(job) = suspect else {
            stream.unreserve(1);
            self.suspects.forget(&stream.process, worker);
            self.wake_freed();
            return Vec::new();
        };
        self.send(vec![job])
    }
}
