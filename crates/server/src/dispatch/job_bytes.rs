//! How many bytes a job has in the message to its worker: limits of messages and queues count them.

use pitwheel::Recurrence;
use pitwheel::engine::Claimed;

/// What a job has beside its texts: numbers, times, and the number and length of each field.
const JOB_BYTES: usize = 200;
/// The same for the recurring job of a run.
const RECURRENCE_BYTES: usize = 200;
/// The same for a step, and for each step that it comes after.
const STEP_BYTES: usize = 50;
/// The longest trace context. It is sent beside the metadata that it comes from.
const TRACE_BYTES_MAX: usize = 600;

/// The bytes of a job in a message, or a few more: everything that the message carries.
pub(crate) fn job_bytes(job: &Claimed) -> usize {
    let Claimed { queue, kind, key, lane, payload, metadata, recurrence, step, .. } = job;
    let texts =
        queue.len() + kind.len() + optional(key) + optional(lane) + payload.len() + optional(metadata);
    let parents = step.iter().flat_map(|step| &step.parents);
    JOB_BYTES
        + texts
        + optional(metadata).min(TRACE_BYTES_MAX)
        + recurrence.as_deref().map_or(0, recurrence_bytes)
        + step.as_ref().map_or(0, |step| STEP_BYTES + step.name.len())
        + parents.map(|parent| STEP_BYTES + parent.name.len() + optional(&parent.result)).sum::<usize>()
}

fn recurrence_bytes(run: &Recurrence) -> usize {
    RECURRENCE_BYTES + run.key.len() + run.cadence().to_string().len()
}

fn optional(text: &Option<String>) -> usize {
    text.as_ref().map_or(0, String::len)
}
