//! Processes that run a suspect alone, or wait to be empty for one. A suspect may end its whole process, and with it what runs on
//! other streams of the process.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::dispatch::group::Group;

/// How long a process gets no jobs at first, so that it becomes empty for a suspect. Each wait in vain is followed by a time with
/// jobs that is twice as long, and then by a wait that is twice as long: jobs get at least half of the time, and a wait becomes
/// long enough for the longest job.
pub(crate) const FIRST_WAIT: Duration = Duration::from_secs(10);
/// The longest wait, like that of a worker in process. A time with jobs is at most twice as long.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// Characters of a process's name; the rest is ignored.
const NAME_CHARS_MAX: usize = 200;

/// What runs the jobs of one or several streams, and ends as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Process {
    /// It has only the stream of this worker.
    OfStream(i64),
    /// All its streams give this name. Streams of different tokens are of different processes.
    Named(Option<i64>, Arc<str>),
}

impl Process {
    /// The process of a worker's stream; `name` is empty if it has no other stream.
    pub(crate) fn new(worker: i64, token: Option<i64>, name: &str) -> Process {
        if name.is_empty() {
            return Process::OfStream(worker);
        }
        let name: String = name.chars().take(NAME_CHARS_MAX).collect();
        Process::Named(token, name.into())
    }
}

/// The processes that do not get every job at the moment.
#[derive(Default)]
pub(crate) struct Suspects {
    turns: HashMap<Process, Turn>,
}

struct Turn {
    /// The group whose claimer found the suspect.
    group: Arc<Group>,
    /// The worker whose stream is to run the suspect.
    worker: i64,
    mode: Mode,
    /// How long the current wait may last, or the next one.
    wait: Duration,
}

enum Mode {
    /// The process gets nothing until what it runs has ended: then it runs a suspect alone.
    Waiting { until: Instant },
    /// A wait was in vain: the process gets jobs until this time, and does not wait before.
    Resting { until: Instant },
    /// It runs a suspect, and gets nothing else meanwhile.
    Alone,
}

impl Suspects {
    /// Whether a process gets jobs that are not suspects. Ends a wait that has lasted too long.
    pub(crate) fn leave_room(&mut self, process: &Process, now: Instant) -> bool {
        let Some(turn) = self.turns.get_mut(process) else { return true };
        if let Mode::Waiting { until } = turn.mode
            && now >= until
        {
            turn.mode = Mode::Resting { until: now + 2 * turn.wait };
            turn.wait = (2 * turn.wait).min(WAIT_MAX);
        }
        matches!(turn.mode, Mode::Resting { .. })
    }

    /// Whether a process could wait for this group's suspect, or run it if it is empty. `None`: no; otherwise whether it waits
    /// already.
    pub(crate) fn may_run(
        &self,
        process: &Process,
        group: &Arc<Group>,
        is_empty: bool,
        now: Instant,
    ) -> Option<bool> {
        let Some(turn) = self.turns.get(process) else { return Some(false) };
        match turn.mode {
            Mode::Waiting { .. } => Arc::ptr_eq(&turn.group, group).then_some(true),
            Mode::Resting { until } => (is_empty || now >= until).then_some(false),
            Mode::Alone => None,
        }
    }

    /// The process is empty, and reserved for a suspect on the stream of this worker.
    pub(crate) fn reserve(&mut self, process: &Process, worker: i64, group: &Arc<Group>) {
        let turn = Turn { group: group.clone(), worker, mode: Mode::Alone, wait: FIRST_WAIT };
        self.turns.insert(process.clone(), turn);
    }

    /// The process is to be empty. It waits no longer than before if it waits already.
    pub(crate) fn wait(&mut self, process: &Process, worker: i64, group: &Arc<Group>, now: Instant) {
        let turn = self.turns.get(process);
        if turn.is_some_and(|turn| matches!(turn.mode, Mode::Waiting { .. })) {
            return;
        }
        let wait = turn.map_or(FIRST_WAIT, |turn| turn.wait);
        let mode = Mode::Waiting { until: now + wait };
        self.turns.insert(process.clone(), Turn { group: group.clone(), worker, mode, wait });
    }

    /// The stream of this worker has ended, or there is no suspect for it. Returns whether its process gets more jobs than before.
    pub(crate) fn forget(&mut self, process: &Process, worker: i64) -> bool {
        let is_own = self.turns.get(process).is_some_and(|turn| turn.worker == worker);
        is_own && self.turns.remove(process).is_some()
    }

    /// Nothing runs on the stream of this worker any more. Returns whether that was the end of a suspect.
    pub(crate) fn emptied(&mut self, process: &Process, worker: i64) -> bool {
        let alone = self.turns.get(process).is_some_and(|turn| matches!(turn.mode, Mode::Alone));
        alone && self.forget(process, worker)
    }

    /// No suspect is due for this group: no process need wait for one. Returns whether one did.
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
    const PROCESS: Process = Process::OfStream(WORKER);

    fn group() -> Arc<Group> {
        Arc::new(Group::new(vec!["default".into()], vec!["work".into()]))
    }

    #[test]
    fn waits_in_vain_take_at_most_half_of_the_time_and_grow_to_a_limit() {
        let (mut suspects, group, mut now) = (Suspects::default(), group(), Instant::now());
        for wait in [10, 20, 40, 80, 160, 300, 300].map(Duration::from_secs) {
            suspects.wait(&PROCESS, WORKER, &group, now);
            assert!(
                !suspects.leave_room(&PROCESS, now + wait - Duration::from_millis(1)),
                "it waits {wait:?}"
            );
            now += wait;
            assert!(suspects.leave_room(&PROCESS, now), "the wait is over after {wait:?}");
            let rest = 2 * wait - Duration::from_millis(1);
            assert_eq!(
                suspects.may_run(&PROCESS, &group, false, now + rest),
                None,
                "it is left alone for {rest:?}"
            );
            assert_eq!(suspects.may_run(&PROCESS, &group, true, now), Some(false), "unless it is empty");
            now += 2 * wait;
            assert_eq!(suspects.may_run(&PROCESS, &group, false, now), Some(false));
        }
    }

    #[test]
    fn only_the_group_that_waits_ends_its_wait() {
        let (mut suspects, own, other, now) = (Suspects::default(), group(), group(), Instant::now());
        suspects.wait(&PROCESS, WORKER, &own, now);
        assert!(!suspects.none_due(&other));
        assert!(!suspects.leave_room(&PROCESS, now));
        assert!(suspects.none_due(&own));
        assert!(suspects.leave_room(&PROCESS, now));
    }

    #[test]
    fn streams_of_one_name_and_token_are_one_process() {
        let process = |worker, token, name| Process::new(worker, token, name);
        assert_eq!(process(1, Some(7), "a"), process(2, Some(7), "a"));
        assert_ne!(process(1, Some(7), "a"), process(2, Some(8), "a"), "another token");
        assert_ne!(process(1, None, ""), process(2, None, ""), "no name");
    }
}
