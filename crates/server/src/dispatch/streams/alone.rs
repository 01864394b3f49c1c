//! Streams that run a suspect alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use pitwheel::Claim;
use pitwheel::engine::Claimed;

use crate::dispatch::group::Group;
use crate::dispatch::streams::Streams;
use crate::dispatch::suspects::Process;

impl Streams {
    /// Reserves a stream of a process that runs nothing, for a suspect. If every process is busy, the least busy one gets
    /// nothing more until it is empty, or for a limited time.
    pub(crate) fn reserve_alone(&mut self, group: &Arc<Group>, now: Instant) -> Option<i64> {
        let mut taken: HashMap<&Process, usize> = HashMap::new();
        for stream in self.open.values() {
            *taken.entry(&stream.process).or_default() += stream.taken;
        }
        let streams = self.open.iter().filter(|(_, stream)| stream.is_of(group) && !stream.quiet);
        let usable = streams.filter_map(|(worker, stream)| {
            let taken = taken.get(&stream.process).copied().unwrap_or_default();
            let waits = self.suspects.may_run(&stream.process, group, taken == 0, now)?;
            Some((taken > 0, !waits, taken, *worker))
        });
        let (is_busy, _, _, worker) = usable.min()?;
        let process = &self.open.get(&worker)?.process;
        if is_busy {
            self.suspects.wait(process, worker, group, now);
            return None;
        }
        self.suspects.reserve(process, worker, group);
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
            self.suspects.forget(&stream.process, worker);
            self.wake_freed();
            return Vec::new();
        };
        stream.reserve();
        self.send(vec![job])
    }
}
