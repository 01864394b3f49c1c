//! Jobs on their way to a worker: which are sent, and which of them have a slot.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Instant;

use pitwheel::Claim;
use pitwheel::engine::Claimed;

use crate::dispatch::job_bytes::job_bytes;
use crate::dispatch::stream::MESSAGE_BYTES_MAX;
use crate::dispatch::streams::Streams;

impl Streams {
    /// Takes the jobs to send to a worker now: as many as have a free slot, or all if the worker keeps those that have none, and as
    /// fit into one message. Claims that have ended meanwhile are dropped. If none can be sent, `sender` is woken when one can.
    /// `None`: the worker gets no more jobs.
    pub(crate) fn start(
        &mut self,
        worker: i64,
        ahead: &mut VecDeque<Claimed>,
        sender: &Waker,
    ) -> Option<Vec<Claimed>> {
        let stream = self.open.get_mut(&worker).filter(|stream| !stream.quiet)?;
        let room = stream.poll_room(sender);
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        while jobs.len() < room
            && let Some(job) = ahead.front()
            && (jobs.is_empty() || bytes + job_bytes(job) <= MESSAGE_BYTES_MAX)
            && let Some(job) = ahead.pop_front()
        {
            stream.sent(job.claim, job_bytes(&job));
            if self.outstanding.get(job.claim).is_some() {
                bytes += job_bytes(&job);
                jobs.push(job);
            }
        }
        stream.fill_slots(&mut self.outstanding, Instant::now());
        Some(jobs)
    }

    /// Jobs that were claimed for a worker are not sent to it, so their bytes do not wait any more. Returns their claims.
    #[must_use = "claims that were not sent must be released"]
    pub(crate) fn give_up(&mut self, worker: i64, unsent: &VecDeque<Claimed>) -> Vec<Claim> {
        if let Some(stream) = self.open.get_mut(&worker) {
            stream.left_queue(unsent.iter().map(job_bytes).sum());
        }
        unsent.iter().map(|job| job.claim).collect()
    }

    /// Jobs that were claimed ahead for this worker wait for too long and will be released.
    pub(crate) fn forget_pace(&mut self, worker: i64) {
        if let Some(stream) = self.open.get_mut(&worker) {
            stream.forget_pace();
        }
    }

    /// Workers have reported these claims: their slots are free for the next jobs, before the endings are written.
    pub(crate) fn reported(&mut self, claims: impl Iterator<Item = Claim>) {
        let (mut suspect_ended, now) = (false, Instant::now());
        for claim in claims {
            let Some((worker, took)) = self.outstanding.report(claim) else { continue };
            if let Some(stream) = self.open.get_mut(&worker) {
                stream.reported(took, now);
                stream.fill_slots(&mut self.outstanding, now);
                if stream.wanted(false) > 0 {
                    stream.group.freed.notify_one();
                }
                // Its ending may wait for a lock, but other jobs not for that.
                suspect_ended |= stream.unreported() == 0 && self.suspects.emptied(&stream.process, worker);
            }
        }
        if suspect_ended {
            self.wake_freed();
        }
    }
}
