//! Streams that run a suspect alone, or wait to be empty for one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::dispatch::group::Group;

/// How long a stream gets no jobs at first, so that it becomes empty for a suspect. Each wait in vain is followed by a time with
/// jobs that is twice as long, and then by a wait that is twice as long: jobs get at least half of the time, and a wait becomes
/// long enough for the longest job.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The streams that do not get every job at the moment, by worker.
#[derive(Default)]
pub(crate) struct Suspects {
    turns: HashMap<i64, Turn>,
}

struct Turn {
    /// The group whose claimer found the suspect.
    group: Arc<Group>,
    mode: Mode,
    /// How long the current wait may last, or the next one.
    wait_max: Duration,
}

enum Mode {
    /// The stream gets nothing until what it runs has ended: then it runs a suspect alone.
    Waiting { until: Instant },
    /// A wait was in vain: the stream gets jobs until this time, and does not wait before.
    Resting { until: Instant },
    /// It runs a suspect, and gets nothing else meanwhile.
    Alone,
}

impl Suspects {
    /// Whether a stream gets jobs that are not suspects. Ends a wait that has lasted too long.
    pub(crate) fn leave_room(&mut self, worker: i64, now: Instant) -> bool {
        let Some(turn) = self.turns.get_mut(&worker) else { return true };
        if let Mode::Waiting { until } = turn.mode
            && now >= until
        {
            turn.wait_max *= 2;
            turn.mode = Mode::Resting { until: now + turn.wait_max };
        }
        matches!(turn.mode, Mode::Resting { .. })
    }

    /// Whether a stream could wait, or run a suspect if it is empty. `None`: no; otherwise whether it waits already.
    pub(crate) fn may_run(&self, worker: i64, is_empty: bool, now: Instant) -> Option<bool> {
        match self.turns.get(&worker).map(|turn| &turn.mode) {
            None => Some(false),
            Some(Mode::Waiting { .. }) => Some(true),
            Some(Mode::Resting { until }) => (is_empty || now >= *until).then_some(false),
            Some(Mode::Alone) => None,
        }
    }

    /// The stream is empty, and reserved for a suspect.
    pub(crate) fn reserve(&mut self, worker: i64, group: &Arc<Group>) {
        let turn = Turn { group: group.clone(), mode: Mode::Alone, wait_max: WAIT_MAX };
        self.turns.insert(worker, turn);
    }

    /// The stream is to be empty. It waits no longer than before if it waits already.
    pub(crate) fn wait(&mut self, worker: i64, group: &Arc<Group>, now: Instant) {
        let wait_max = self.turns.get(&worker).map_or(WAIT_MAX, |turn| turn.wait_max);
        if !matches!(self.turns.get(&worker), Some(Turn { mode: Mode::Waiting { .. }, .. })) {
            let mode = Mode::Waiting { until: now + wait_max };
            self.turns.insert(worker, Turn { group: group.clone(), mode, wait_max });
        }
    }

    /// The stream has ended, or became empty. Returns whether it gets more jobs than before.
    pub(crate) fn forget(&mut self, worker: i64) -> bool {
        self.turns.remove(&worker).is_some()
    }

    /// The stream became empty. Returns whether that was the end of a suspect.
    pub(crate) fn emptied(&mut self, worker: i64) -> bool {
        let alone = matches!(self.turns.get(&worker), Some(Turn { mode: Mode::Alone, .. }));
        alone && self.forget(worker)
    }

    /// No suspect is due for this group: its streams need not wait. Returns whether one of them did.
    pub(crate) fn none_due(&mut self, group: &Arc<Group>) -> bool {
        let before = self.turns.len();
        self.turns.retain(|_, turn| matches!(turn.mode, Mode::Alone) || !Arc::ptr_eq(&turn.group, group));
        self.turns.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: i64 = 1;

    fn group() -> Arc<Group> {
        Arc::new(Group::new(vec!["default".into()], vec!["work".into()]))
    }

    #[test]
    fn waits_in_vain_take_at_most_half_of_the_time_and_grow() {
        let (mut suspects, group, mut now) = (Suspects::default(), group(), Instant::now());
        for wait in [WAIT_MAX, 2 * WAIT_MAX, 4 * WAIT_MAX] {
            suspects.wait(WORKER, &group, now);
            assert!(!suspects.leave_room(WORKER, now + wait - Duration::from_millis(1)), "it waits {wait:?}");
            now += wait;
            assert!(suspects.leave_room(WORKER, now), "the wait is over after {wait:?}");
            let rest = 2 * wait - Duration::from_millis(1);
            assert_eq!(suspects.may_run(WORKER, false, now + rest), None, "it is left alone for {rest:?}");
            assert_eq!(suspects.may_run(WORKER, true, now), Some(false), "unless it is empty");
            now += 2 * wait;
            assert_eq!(suspects.may_run(WORKER, false, now), Some(false));
        }
    }

    #[test]
    fn only_the_group_that_waits_ends_its_wait() {
        let (mut suspects, own, other, now) = (Suspects::default(), group(), group(), Instant::now());
        suspects.wait(WORKER, &own, now);
        assert!(!suspects.none_due(&other));
        assert!(!suspects.leave_room(WORKER, now));
        assert!(suspects.none_due(&own));
        assert!(suspects.leave_room(WORKER, now));
    }
}
