//! The series of each queue and kind.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use metrics::{Counter, Histogram, counter, histogram};

use crate::job::ending::Ending;

pub(super) const CLAIMED: &str = "pitwheel_jobs_claimed_total";
pub(super) const DEDUPLICATED: &str = "pitwheel_jobs_deduplicated_total";
pub(super) const DURATION: &str = "pitwheel_job_duration_seconds";
pub(super) const ENQUEUED: &str = "pitwheel_jobs_enqueued_total";
pub(super) const FINISHED: &str = "pitwheel_jobs_finished_total";
pub(super) const RETRIES: &str = "pitwheel_job_retries_total";
pub(super) const WAIT: &str = "pitwheel_job_wait_seconds";

/// Pairs of queue and kind with series of their own; the rest share the label `other`. Whoever may enqueue can invent names,
/// and a pair whose jobs end in every way has 150 lines in Prometheus' format.
const SERIES_MAX: usize = 200;
/// Their label.
const OTHERS: &str = "other";

/// How attempts end, as they are counted.
const OUTCOMES: [&str; 6] = ["completed", "failed", "dead", "cancelled", "snoozed", "released"];
pub(super) const FAILED: usize = 1;

/// The index of the ending among [`OUTCOMES`].
pub(super) fn outcome(ending: &Ending) -> usize {
    match ending {
        Ending::Done { .. } => 0,
        Ending::Retry { .. } => FAILED,
        Ending::Dead { .. } => 2,
        Ending::Cancelled { .. } => 3,
        Ending::Snooze { .. } => 4,
        Ending::Release | Ending::Crash { .. } => 5,
    }
}

/// The series of one queue and kind.
pub(super) struct Series {
    pub(super) enqueued: Counter,
    pub(super) deduplicated: Counter,
    pub(super) claimed: Counter,
    pub(super) retries: Counter,
    pub(super) wait: Histogram,
    pub(super) ended: [(Counter, Histogram); OUTCOMES.len()],
}

impl Series {
    fn new(queue: &str, kind: &str) -> Series {
        let (queue, kind) = (queue.to_owned(), kind.to_owned());
        let count = |name: &'static str| counter!(name, "queue" => queue.clone(), "kind" => kind.clone());
        let ended = OUTCOMES.map(|outcome| {
            (
                counter!(FINISHED, "queue" => queue.clone(), "kind" => kind.clone(), "outcome" => outcome),
                histogram!(DURATION, "queue" => queue.clone(), "kind" => kind.clone(), "outcome" => outcome),
            )
        });
        ended.iter().for_each(|(counter, _)| counter.absolute(0));
        let series = Series {
            enqueued: count(ENQUEUED),
            deduplicated: count(DEDUPLICATED),
            claimed: counter!(CLAIMED, "queue" => queue.clone()),
            retries: count(RETRIES),
            wait: histogram!(WAIT, "queue" => queue.clone(), "kind" => kind.clone()),
            ended,
        };
        [&series.enqueued, &series.deduplicated, &series.claimed, &series.retries]
            .iter()
            .for_each(|counter| counter.increment(0));
        series
    }
}

/// Series by queue and kind.
#[derive(Default)]
struct Known {
    by_queue: HashMap<String, HashMap<String, Arc<Series>>>,
    count: usize,
}

impl Known {
    /// The series of this pair, or of all others when there is no room for one more. `None`: it is to be added.
    fn find(&self, queue: &str, kind: &str) -> Option<Arc<Series>> {
        let of =
            |queue: &str, kind: &str| self.by_queue.get(queue).and_then(|kinds| kinds.get(kind)).cloned();
        let others = || (self.count >= SERIES_MAX).then(|| of(OTHERS, OTHERS)).flatten();
        of(queue, kind).or_else(others)
    }

    fn add(&mut self, queue: &str, kind: &str) -> Arc<Series> {
        if let Some(known) = self.find(queue, kind) {
            return known;
        }
        let (queue, kind) = if self.count >= SERIES_MAX { (OTHERS, OTHERS) } else { (queue, kind) };
        self.count += 1;
        let kinds = self.by_queue.entry(queue.to_owned()).or_default();
        kinds.entry(kind.to_owned()).or_insert_with(|| Arc::new(Series::new(queue, kind))).clone()
    }
}

pub(super) fn series(queue: &str, kind: &str) -> Arc<Series> {
    static KNOWN: LazyLock<RwLock<Known>> = LazyLock::new(RwLock::default);
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner).find(queue, kind);
    known.unwrap_or_else(|| KNOWN.write().unwrap_or_else(PoisonError::into_inner).add(queue, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_beyond_the_limit_share_one_series_that_is_found_without_a_write() {
        let mut known = Known::default();
        let first = known.add("mail", "send");
        for n in 1..SERIES_MAX {
            assert!(known.find("mail", &n.to_string()).is_none());
            known.add("mail", &n.to_string());
        }
        let others = known.add("mail", "one more");
        assert!(Arc::ptr_eq(&others, &known.find("invented", "name").expect("all others")));
        assert!(Arc::ptr_eq(&first, &known.find("mail", "send").expect("its own")));
        assert!(!Arc::ptr_eq(&first, &others));
    }
}
