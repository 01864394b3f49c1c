//! Counters and histograms, through the `metrics` facade: they go to the recorder of the process.
//!
//! Off until [`enable`] is called, and free of cost until then. `pitwheel serve` enables them and serves them at `/metrics`.

mod series;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};

use crate::error::{DatabaseError, Error};
use crate::job::claim::Claimed;
use crate::job::ending::Ending;
use crate::metrics::series::{
    CLAIMED, DEDUPLICATED, DURATION, ENQUEUED, FAILED, FINISHED, RETRIES, WAIT, outcome, series,
};

/// The histogram of jobs per claim.
pub const CLAIM_BATCH: &str = "pitwheel_claim_batch_size";
const CLAIM_DURATION: &str = "pitwheel_claim_duration_seconds";
const CLAIM_EMPTY: &str = "pitwheel_claim_empty_total";
const DB_ERRORS: &str = "pitwheel_db_errors_total";
const LANES_REPAIRED: &str = "pitwheel_lanes_repaired_total";
const LOST: &str = "pitwheel_jobs_lost_total";
const MAINTENANCE: &str = "pitwheel_maintenance_duration_seconds";
const OUTBOX_ACKNOWLEDGE: &str = "pitwheel_outbox_acknowledge_duration_seconds";
const OUTBOX_ADDED: &str = "pitwheel_outbox_events_added_total";
const OUTBOX_DELIVERED: &str = "pitwheel_outbox_events_delivered_total";
const OUTBOX_LATE: &str = "pitwheel_outbox_events_late_total";
const OUTBOX_LOST: &str = "pitwheel_outbox_events_lost_total";
const OUTBOX_PARKED: &str = "pitwheel_outbox_entities_parked_total";
const OUTBOX_READ: &str = "pitwheel_outbox_read_duration_seconds";
const OUTBOX_REBALANCED: &str = "pitwheel_outbox_shards_moved_total";
const OUTBOX_SEND_ERRORS: &str = "pitwheel_outbox_send_errors_total";
const PIPELINES_LOST: &str = "pitwheel_pipeline_lost_steps_total";
const RECURRING_LOST: &str = "pitwheel_recurring_lost_runs_total";
const RECURRING_PLANNED: &str = "pitwheel_recurring_planned_total";
const RESCUED: &str = "pitwheel_jobs_rescued_total";
const WAKEUPS: &str = "pitwheel_notify_wakeups_total";

/// Pairs of a worker that start at zero. With more queues and kinds, most pairs never occur: those that do begin with their first job.
const EXPECTED_MAX: usize = 20;

static ON: AtomicBool = AtomicBool::new(false);

/// Starts to record. Call it after the process has set its recorder.
pub fn enable() {
    describe_counter!(ENQUEUED, "Jobs enqueued by this process.");
    describe_counter!(DEDUPLICATED, "Enqueues that returned a live job with the same key.");
    describe_counter!(CLAIMED, "Jobs claimed by this process.");
    describe_counter!(FINISHED, "Attempts that ended here, by outcome.");
    describe_counter!(RETRIES, "Failed attempts that are retried.");
    describe_counter!(LOST, "Endings that were refused because the claim was lost.");
    describe_counter!(RESCUED, "Jobs taken from dead workers.");
    describe_counter!(CLAIM_EMPTY, "Claims that found nothing due.");
    describe_counter!(DB_ERRORS, "Failed database calls of the engine, by SQLSTATE class.");
    describe_counter!(WAKEUPS, "Hints received that something is due.");
    describe_counter!(
        RECURRING_PLANNED,
        "Runs of recurring jobs that the maintenance planned, not a settle."
    );
    describe_counter!(LANES_REPAIRED, "Lanes that had no head, and got one from the maintenance.");
    describe_counter!(RECURRING_LOST, "Recurring jobs whose next run was gone.");
    describe_counter!(PIPELINES_LOST, "Steps of pipelines whose job was gone.");
    describe_outbox();
    describe_histogram!(WAIT, Unit::Seconds, "Time from due to claimed.");
    describe_histogram!(DURATION, Unit::Seconds, "Time from claimed to settled.");
    describe_histogram!(CLAIM_DURATION, Unit::Seconds, "Duration of a claim.");
    describe_histogram!(MAINTENANCE, Unit::Seconds, "Duration of a sweep or a prune.");
    describe_histogram!(CLAIM_BATCH, Unit::Count, "Jobs per claim.");
    // Series whose labels are known start at zero.
    counter!(CLAIM_EMPTY).absolute(0);
    counter!(LOST).absolute(0);
    counter!(WAKEUPS).absolute(0);
    counter!(RECURRING_PLANNED).absolute(0);
    counter!(RECURRING_LOST).absolute(0);
    counter!(LANES_REPAIRED).absolute(0);
    counter!(PIPELINES_LOST).absolute(0);
    for class in ["08", "40", "53", "57", "unreachable"] {
        counter!(DB_ERRORS, "class" => class).absolute(0);
    }
    for reason in ["dead_worker", "too_many_crashes"] {
        counter!(RESCUED, "reason" => reason).absolute(0);
    }
    ON.store(true, Ordering::Release);
}

/// The metrics of the outbox.
fn describe_outbox() {
    describe_counter!(OUTBOX_ADDED, "Events added to the outbox by this process.");
    describe_counter!(OUTBOX_DELIVERED, "Events that this process has delivered.");
    describe_counter!(
        OUTBOX_LOST,
        "Events whose acknowledgement was refused: another relay delivers them again."
    );
    describe_counter!(OUTBOX_LATE, "Events with an id below one of their entity that was already delivered.");
    describe_counter!(OUTBOX_PARKED, "Entities that were parked.");
    describe_counter!(OUTBOX_REBALANCED, "Shards that this relay acquired, released or lost.");
    describe_counter!(
        OUTBOX_SEND_ERRORS,
        "Sends that failed: `again` is tried again, `refused` parks the entity."
    );
    describe_histogram!(OUTBOX_READ, Unit::Seconds, "Duration of a read of the outbox.");
    describe_histogram!(OUTBOX_ACKNOWLEDGE, Unit::Seconds, "Duration of an acknowledgement.");
    for counter in [OUTBOX_ADDED, OUTBOX_DELIVERED, OUTBOX_LOST, OUTBOX_LATE, OUTBOX_PARKED] {
        counter!(counter).absolute(0);
    }
    for histogram in [OUTBOX_READ, OUTBOX_ACKNOWLEDGE] {
        drop(histogram!(histogram));
    }
    for how in ["acquired", "released", "lost"] {
        counter!(OUTBOX_REBALANCED, "how" => how).absolute(0);
    }
    for kind in ["again", "refused"] {
        counter!(OUTBOX_SEND_ERRORS, "kind" => kind).absolute(0);
    }
}

fn on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Starts the series of these queues and kinds at zero, if they are few.
pub fn expect(queues: &[String], kinds: &[String]) {
    if on() && queues.len().saturating_mul(kinds.len()) <= EXPECTED_MAX {
        for queue in queues {
            kinds.iter().for_each(|kind| drop(series(queue, kind)));
        }
    }
}

/// Counts enqueues: queue, kind, and whether the job is new.
pub(crate) fn enqueued<'a>(jobs: impl Iterator<Item = (&'a str, &'a str, bool)>) {
    if on() {
        for (queue, kind, is_new) in jobs {
            let series = series(queue, kind);
            (if is_new { &series.enqueued } else { &series.deduplicated }).increment(1);
        }
    }
}

/// Records a claim that ended at `now` by the database's clock and took `took`.
pub(crate) fn claimed(jobs: &[Claimed], now: SystemTime, took: Duration) {
    if !on() {
        return;
    }
    histogram!(CLAIM_DURATION).record(took);
    histogram!(CLAIM_BATCH).record(jobs.len() as f64);
    if jobs.is_empty() {
        counter!(CLAIM_EMPTY).increment(1);
    }
    for same in jobs.chunk_by(|one, other| one.queue == other.queue && one.kind == other.kind) {
        let series = series(&same[0].queue, &same[0].kind);
        series.claimed.increment(same.len() as u64);
        same.iter().for_each(|job| series.wait.record(now.duration_since(job.run_at).unwrap_or_default()));
    }
}

/// Records the ending of an attempt, `took` after its claim.
pub fn ended(queue: &str, kind: &str, ending: &Ending, took: Duration) {
    if !on() {
        return;
    }
    let (series, outcome) = (series(queue, kind), outcome(ending));
    let (counter, histogram) = &series.ended[outcome];
    counter.increment(1);
    histogram.record(took);
    if outcome == FAILED {
        series.retries.increment(1);
    }
}

/// Counts endings that were refused.
pub fn lost(endings: u64) {
    if on() {
        counter!(LOST).increment(endings);
    }
}

/// Counts the jobs that a sweep took from dead workers.
pub(crate) fn swept(released: usize, buried: usize) {
    if on() {
        counter!(RESCUED, "reason" => "dead_worker").increment(released as u64);
        counter!(RESCUED, "reason" => "too_many_crashes").increment(buried as u64);
    }
}

/// Counts the runs of recurring jobs that the maintenance planned.
pub(crate) fn planned(runs: usize) {
    if on() {
        counter!(RECURRING_PLANNED).increment(runs as u64);
    }
}

/// Counts the recurring jobs whose next run was gone.
pub(crate) fn lost_runs(recurring: usize) {
    if on() {
        counter!(RECURRING_LOST).increment(recurring as u64);
    }
}

/// Counts the lanes that got a head from the maintenance.
pub(crate) fn promoted(lanes: usize) {
    if on() {
        counter!(LANES_REPAIRED).increment(lanes as u64);
    }
}

/// Counts the steps of pipelines whose job was gone.
pub(crate) fn lost_steps(steps: u64) {
    if on() {
        counter!(PIPELINES_LOST).increment(steps);
    }
}

/// Counts a hint.
pub(crate) fn woken() {
    if on() {
        counter!(WAKEUPS).increment(1);
    }
}

/// Counts a failed database call.
pub(crate) fn failed(error: &Error) {
    let Error::Database(error) = error else { return };
    if on() {
        let class = match error {
            DatabaseError::Refused { code, .. } => code.get(..2).unwrap_or("unknown").to_owned(),
            DatabaseError::Unreachable(_) => "unreachable".to_owned(),
        };
        counter!(DB_ERRORS, "class" => class).increment(1);
    }
}

/// Records the duration of a sweep or a prune.
pub(crate) fn maintained(task: &'static str, took: Duration) {
    if on() {
        histogram!(MAINTENANCE, "task" => task).record(took);
    }
}

/// Counts events that were added to the outbox.
pub(crate) fn events_added(events: usize) {
    if on() {
        counter!(OUTBOX_ADDED).increment(events as u64);
    }
}

/// Records the duration of a read of the outbox.
pub(crate) fn outbox_read(took: Duration) {
    if on() {
        histogram!(OUTBOX_READ).record(took);
    }
}

/// Counts events that came after a later one of their entity.
pub(crate) fn outbox_late(events: usize) {
    if on() && events > 0 {
        counter!(OUTBOX_LATE).increment(events as u64);
    }
}

/// Records an acknowledgement.
pub(crate) fn outbox_acknowledged(delivered: usize, lost: usize, took: Duration) {
    if on() {
        histogram!(OUTBOX_ACKNOWLEDGE).record(took);
        counter!(OUTBOX_DELIVERED).increment(delivered as u64);
        counter!(OUTBOX_LOST).increment(lost as u64);
    }
}

/// Counts a parked entity.
pub(crate) fn outbox_parked() {
    if on() {
        counter!(OUTBOX_PARKED).increment(1);
    }
}

/// Counts shards that came or went: `acquired`, `released` or `lost`.
pub(crate) fn shards_moved(how: &'static str, shards: usize) {
    if on() && shards > 0 {
        counter!(OUTBOX_REBALANCED, "how" => how).increment(shards as u64);
    }
}

/// Counts a send that failed: `again` or `refused`.
pub fn send_failed(kind: &'static str) {
    if on() {
        counter!(OUTBOX_SEND_ERRORS, "kind" => kind).increment(1);
    }
}
