//! The gauges of queues that are read from the database at a scrape. Producers can invent any number of queues: those with
//! the fewest jobs share one label.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::SystemTime;

use pitwheel::QueueSummary;
use pitwheel::engine::InFlight;

/// Queues with gauges of their own.
const QUEUES_MAX: usize = 200;
/// The label of the others.
const OTHER: &str = "other";

/// The gauges of one queue, or of all that share the label `other`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Gauges {
    pub(crate) name: String,
    pub(crate) waiting: i64,
    pub(crate) running: i64,
    pub(crate) later: i64,
    pub(crate) blocked: i64,
    /// How long the oldest due job has waited; 0: none waits.
    pub(crate) oldest_seconds: f64,
    pub(crate) paused: bool,
    pub(crate) in_flight: i64,
    pub(crate) longest_seconds: f64,
}

impl Gauges {
    fn jobs(&self) -> i64 {
        self.waiting + self.running.max(self.in_flight) + self.later + self.blocked
    }

    fn add(&mut self, other: &Gauges) {
        self.waiting += other.waiting;
        self.running += other.running;
        self.later += other.later;
        self.blocked += other.blocked;
        self.oldest_seconds = self.oldest_seconds.max(other.oldest_seconds);
        self.paused |= other.paused;
        self.in_flight += other.in_flight;
        self.longest_seconds = self.longest_seconds.max(other.longest_seconds);
    }
}

/// The gauges by queue: the queues with the most jobs, by name, and `other` for the rest.
pub(crate) fn fold(queues: &[QueueSummary], running: &[InFlight], now: SystemTime) -> Vec<Gauges> {
    let mut by_name: HashMap<&str, Gauges> = HashMap::new();
    for queue in queues {
        let gauges = by_name.entry(&queue.name).or_default();
        (gauges.waiting, gauges.running) = (queue.waiting, queue.running);
        (gauges.later, gauges.blocked) = (queue.later, queue.blocked);
        let age = queue.oldest_due_at.and_then(|at| now.duration_since(at).ok());
        gauges.oldest_seconds = age.map_or(0.0, |age| age.as_secs_f64());
        gauges.paused = queue.paused_at.is_some();
    }
    for queue in running {
        let gauges = by_name.entry(&queue.queue).or_default();
        (gauges.in_flight, gauges.longest_seconds) = (queue.jobs, queue.longest_seconds);
    }
    let mut all: Vec<Gauges> =
        by_name.into_iter().map(|(name, gauges)| Gauges { name: name.to_owned(), ..gauges }).collect();
    // `*` is not a queue: it stands for a pause of all.
    all.sort_by_cached_key(|queue| (queue.name != "*", Reverse(queue.jobs()), queue.name.clone()));
    let rest = all.split_off(all.len().min(QUEUES_MAX));
    for queue in rest {
        match all.iter_mut().find(|known| known.name == OTHER) {
            Some(other) => other.add(&queue),
            None => all.push(Gauges { name: OTHER.to_owned(), ..queue }),
        }
    }
    all.sort_by(|one, two| one.name.cmp(&two.name));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queues_with_the_fewest_jobs_share_a_label() {
        let queue =
            |name: &str, jobs| InFlight { queue: name.to_owned(), jobs, longest_seconds: jobs as f64 };
        let mut running: Vec<InFlight> = (0..10_000).map(|n| queue(&format!("invented{n}"), 1)).collect();
        running.push(queue("work", 50));
        let gauges = fold(&[], &running, SystemTime::UNIX_EPOCH);
        assert_eq!(gauges.len(), QUEUES_MAX + 1);
        let of = |name: &str| gauges.iter().find(|gauges| gauges.name == name).map(|gauges| gauges.in_flight);
        assert_eq!((of("work"), of(OTHER)), (Some(50), Some(10_001 - 200)));
        assert_eq!(gauges.iter().map(|gauges| gauges.in_flight).sum::<i64>(), 10_050, "none is missing");
    }
}
