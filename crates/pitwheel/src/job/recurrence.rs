//! What a run knows about its recurring job, and when the next run is due: pure decisions.

use std::time::{Duration, Instant, SystemTime};

use crate::job::backoff::Backoff;
use crate::job::cadence::{self, Cadence, Rhythm};
use crate::job::limits::SPAN_MAX;
use crate::job::misfire::Misfire;

/// Between failed attempts of a run. The first is longer than that of other jobs: a recurring job comes back anyway.
const FAILED: Backoff = Backoff { first: Duration::from_secs(5), longest: Duration::from_secs(3600) };
/// Skipped times are counted up to this number: counting the minutes of a year would take longer than the run.
const SKIPPED_MAX: u64 = 10_000;

/// The recurring job that a run belongs to, as it was when the run was claimed.
#[derive(Debug, Clone)]
pub struct Recurrence {
    /// The id of the recurring job.
    pub id: i64,
    /// Its key.
    pub key: String,
    /// The time for which this run was planned, without jitter.
    pub planned_at: SystemTime,
    /// How many attempts in a row have failed before this one.
    pub consecutive_failures: u32,
    /// The current interval of an adaptive cadence.
    pub interval: Option<Duration>,
    pub(crate) cadence: Cadence,
    pub(crate) misfire: Misfire,
    /// Counts the changes of the cadence. A plan that was made for another version is not used.
    pub(crate) version: i64,
    /// Its run carries this state, and can hand it on to the next one.
    pub(crate) carried: bool,
    pub(crate) clock: Clock,
}

/// The time by the database's clock, from one reading of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) read: SystemTime,
    pub(crate) at: Instant,
}

impl Clock {
    pub(crate) fn now(self) -> SystemTime {
        self.read + self.at.elapsed()
    }

    /// The same clock, as if it had been read at an earlier time of the database.
    pub(crate) fn at_time(self, time: SystemTime) -> Clock {
        let before = self.read.duration_since(time).unwrap_or_default();
        match self.at.checked_sub(before) {
            Some(at) => Clock { read: time, at },
            None => self,
        }
    }

    /// When the process reaches a time of the database.
    pub(crate) fn instant(self, time: SystemTime) -> Instant {
        self.at + time.duration_since(self.read).unwrap_or_default()
    }
}

/// What a handler says about the next run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NextHint {
    /// How many new things it found. `None`: it does not say.
    pub(crate) found: Option<u64>,
    /// The time of the next run.
    pub(crate) at: Option<SystemTime>,
}

/// When a recurring job runs next, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextRun {
    /// When its next run is due.
    pub at: SystemTime,
    /// Why it runs at that time, for people.
    pub reason: String,
}

/// The next run of a recurring job, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The id of the recurring job; 0: it has none yet.
    pub(crate) recurring: i64,
    /// The version of the recurring job that the plan was made for.
    pub(crate) version: i64,
    /// When the run is due.
    pub next_run_at: SystemTime,
    /// The planned time without jitter, from which the following ones are counted.
    pub(crate) anchor_at: SystemTime,
    /// Why it runs at `next_run_at`, for people.
    pub reason: String,
    pub(crate) interval: Option<Duration>,
    /// How many planned times are not run.
    pub(crate) skipped: u64,
    /// When this process reaches the time of the next run, if that is known.
    pub due: Option<Instant>,
    /// The run carries the state of the recurring job, and can hand it on to the next one.
    pub(crate) carried: bool,
}

/// How a run ended, as far as the next one depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunEnd {
    Done(NextHint),
    Cancelled,
    /// It is dead: it failed for the last time.
    Dead,
}

impl Recurrence {
    /// When the recurring job runs.
    pub fn cadence(&self) -> &Cadence {
        &self.cadence
    }

    /// What becomes of planned times at which it could not run.
    pub fn misfire(&self) -> Misfire {
        self.misfire
    }

    /// Grows with each change of the cadence.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// When this run was claimed, by the database's clock.
    pub fn claimed_at(&self) -> SystemTime {
        self.clock.read
    }

    /// The plan after the end of a run. `random` is between 0 and 1. `None`: the cadence has no further time.
    pub(crate) fn after_run(&self, end: RunEnd, now: SystemTime, random: f64) -> Option<Plan> {
        let hint = if let RunEnd::Done(hint) = end { hint } else { NextHint::default() };
        let mut plan = match (hint.at, &self.cadence.rhythm) {
            (Some(at), _) => self.plan(at.min(now + SPAN_MAX), "its handler named the time".to_owned()),
            (None, Rhythm::Adaptive { min, max }) => {
                self.after_interval(hint.found, (*min, *max), now, random)
            }
            (None, _) => self.after_planned_time(self.clock.read, now, random)?,
        };
        if end == RunEnd::Dead {
            let wait = self.backoff(random);
            if plan.next_run_at < now + wait {
                plan.next_run_at = now + wait;
                plan.reason = self.failed(wait);
            }
        }
        Some(plan)
    }

    /// The plan after an attempt that failed: the same run again after this delay.
    pub(crate) fn after_failure(&self, delay: Duration, now: SystemTime) -> Plan {
        let delay = delay.min(SPAN_MAX);
        Plan { anchor_at: self.planned_at, ..self.plan(now + delay, self.failed(delay)) }
    }

    /// The plan after a snooze: the same run again after this delay.
    pub(crate) fn after_snooze(&self, delay: Duration, now: SystemTime) -> Plan {
        let delay = delay.min(SPAN_MAX);
        let reason = format!("its handler snoozed it for {}", cadence::text(delay));
        Plan { anchor_at: self.planned_at, ..self.plan(now + delay, reason) }
    }

    /// The plan instead of a run that is too late, if the policy is to skip it: since it was due, at `run_at`, the next planned time has come.
    /// A run that was put back on purpose is due later than planned.
    pub(crate) fn instead_of_late_run(&self, attempt: u32, run_at: SystemTime, random: f64) -> Option<Plan> {
        // A retry is late because of its backoff.
        if self.misfire != Misfire::Skip || attempt > 1 {
            return None;
        }
        let now = self.clock.read;
        let following = self.cadence.next_after(self.planned_at, run_at.max(self.planned_at))?;
        if following > now {
            return None;
        }
        let skipped = 1 + self.count(self.planned_at, now);
        let at = self.cadence.next_after(self.planned_at, now)?;
        Some(Plan { skipped, reason: skipped_text(skipped), ..self.with_jitter(at, random) })
    }

    /// The plan of a recurring job that has no run in progress and none planned. `started`: the start of its last run that was
    /// settled without a plan. If that was for an earlier time than the planned one, the planned one is skipped.
    pub(crate) fn without_run(
        &self,
        started: Option<SystemTime>,
        now: SystemTime,
        random: f64,
    ) -> Option<Plan> {
        let mut plan = match (&self.cadence.rhythm, started.filter(|started| *started >= self.planned_at)) {
            (Rhythm::Adaptive { min, max }, _) => self.after_interval(None, (*min, *max), now, random),
            (_, Some(started)) => self.after_planned_time(started, now, random)?,
            (_, None) => {
                self.with_jitter(self.cadence.next_after(self.planned_at, now.max(self.planned_at))?, random)
            }
        };
        if self.consecutive_failures > 0 {
            let wait = FAILED.span(self.consecutive_failures).mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0);
            plan.next_run_at = plan.next_run_at.max(now + wait);
        }
        Some(Plan { reason: "planned by the maintenance".to_owned(), ..plan })
    }

    /// How long to wait after an attempt that failed: between half of a span and the whole of it. The span doubles with each
    /// failure in a row.
    pub(crate) fn backoff(&self, random: f64) -> Duration {
        FAILED.span(self.consecutive_failures.saturating_add(1)).mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
    }

    fn failed(&self, wait: Duration) -> String {
        let failures = self.consecutive_failures.saturating_add(1);
        let times = if failures == 1 { "once".to_owned() } else { format!("{failures} times in a row") };
        format!("it failed {times}: waits {}", cadence::text(wait))
    }

    fn after_interval(
        &self,
        found: Option<u64>,
        (min, max): (Duration, Duration),
        now: SystemTime,
        random: f64,
    ) -> Plan {
        let was = self.interval.unwrap_or(min).clamp(min, max);
        let interval = adapted(was, found, min, max);
        let found = match found {
            None => "it did not say what it found".to_owned(),
            Some(0) => "it found nothing new".to_owned(),
            Some(count) => format!("it found {count} new"),
        };
        let reason = if interval == was {
            format!("{found}: stays at {}", cadence::text(was))
        } else {
            format!("{found}: {} instead of {}", cadence::text(interval), cadence::text(was))
        };
        Plan { interval: Some(interval), reason, ..self.with_jitter(now + interval, random) }
    }

    fn after_planned_time(&self, started: SystemTime, now: SystemTime, random: f64) -> Option<Plan> {
        // The first planned time that has no run yet follows this one.
        let covered = match self.misfire {
            Misfire::Skip => now,
            Misfire::One => started,
            Misfire::All => self.planned_at,
        };
        // A run before its planned time, because a person asked for it, leaves that time as it is.
        let still_planned =
            self.planned_at > started && (self.misfire != Misfire::Skip || self.planned_at > now);
        let at = if still_planned {
            self.planned_at
        } else {
            self.cadence.next_after(self.planned_at, covered)?
        };
        let plan = self.with_jitter(at, random);
        if self.misfire == Misfire::Skip {
            let skipped = match self.planned_at > started {
                _ if still_planned => 0,
                true => 1 + self.count(self.planned_at, now),
                false => self.count(started, now),
            };
            if skipped > 0 {
                return Some(Plan { skipped, reason: skipped_text(skipped), ..plan });
            }
        }
        if at <= now {
            return Some(Plan { next_run_at: now, reason: "a planned time was missed".to_owned(), ..plan });
        }
        Some(plan)
    }

    fn with_jitter(&self, at: SystemTime, random: f64) -> Plan {
        let next_run_at = at + self.cadence.jitter.mul_f64(random.clamp(0.0, 1.0));
        Plan { anchor_at: at, ..self.plan(next_run_at, self.cadence.to_string()) }
    }

    fn plan(&self, next_run_at: SystemTime, reason: String) -> Plan {
        let (version, interval) = (self.version, self.interval);
        let recurring = self.id;
        Plan {
            recurring,
            version,
            next_run_at,
            anchor_at: next_run_at,
            reason,
            interval,
            skipped: 0,
            due: None,
            carried: self.carried,
        }
    }

    /// How many planned times are after one time and not after another.
    fn count(&self, after: SystemTime, until: SystemTime) -> u64 {
        if let Rhythm::Every(interval) = self.cadence.rhythm {
            let first = self.cadence.next_after(self.planned_at, after);
            let since = first.and_then(|first| until.duration_since(first).ok());
            return since.map_or(0, |since| 1 + since.as_secs() / interval.as_secs());
        }
        let next = |at: &SystemTime| self.cadence.next_after(self.planned_at, *at);
        let times = std::iter::successors(next(&after), next).take_while(|at| *at <= until);
        times.take(SKIPPED_MAX as usize).count() as u64
    }
}

/// The first plan of a cadence: at a given time, or by the cadence. `every` and `adaptive` begin at once.
pub(crate) fn first_plan(
    cadence: &Cadence,
    at: Option<SystemTime>,
    now: SystemTime,
    random: f64,
) -> Option<Plan> {
    let jitter = cadence.jitter.mul_f64(random.clamp(0.0, 1.0));
    let (anchor_at, jitter) = match (at, &cadence.rhythm) {
        (Some(at), _) => (at, Duration::ZERO),
        (None, Rhythm::Cron(_)) => (cadence.next_after(now, now)?, jitter),
        (None, _) => (now, jitter),
    };
    let interval = shortest(cadence);
    let reason = "created".to_owned();
    Some(Plan {
        recurring: 0,
        version: 0,
        next_run_at: anchor_at + jitter,
        anchor_at,
        reason,
        interval,
        skipped: 0,
        due: None,
        carried: false,
    })
}

/// The plan after a change of the cadence: one interval from now.
pub(crate) fn changed_plan(cadence: &Cadence, now: SystemTime, random: f64) -> Option<Plan> {
    let at = match &cadence.rhythm {
        Rhythm::Every(interval) | Rhythm::Adaptive { min: interval, .. } => now + *interval,
        Rhythm::Cron(_) => cadence.next_after(now, now)?,
    };
    let reason = "its cadence was changed".to_owned();
    let plan = first_plan(cadence, None, now, random)?;
    Some(Plan {
        next_run_at: at + cadence.jitter.mul_f64(random.clamp(0.0, 1.0)),
        anchor_at: at,
        reason,
        ..plan
    })
}

/// The next times of a cadence: the first as it is planned, if it is, then those by the cadence, without jitter. An adaptive cadence
/// goes on with its current interval.
pub(crate) fn next_times(
    cadence: &Cadence,
    (first, anchor, now): (Option<SystemTime>, SystemTime, SystemTime),
    interval: Option<Duration>,
    count: usize,
) -> Vec<SystemTime> {
    let next = |at: &SystemTime| match cadence.rhythm {
        Rhythm::Adaptive { min, .. } => Some(*at + interval.unwrap_or(min)),
        _ => cadence.next_after(anchor, *at),
    };
    // A run before its planned time leaves that time as it is.
    let planned = first.filter(|first| *first < anchor).map(|_| anchor);
    let begin = planned.or(first).unwrap_or(now);
    let after = std::iter::successors(next(&begin), next);
    first.into_iter().chain(planned).chain(after).take(count).collect()
}

fn shortest(cadence: &Cadence) -> Option<Duration> {
    match cadence.rhythm {
        Rhythm::Adaptive { min, .. } => Some(min),
        _ => None,
    }
}

/// The next interval of an adaptive cadence. It halves when something was found and grows by half when nothing was: a source that
/// becomes busy is followed quickly, and one quiet run changes little.
fn adapted(was: Duration, found: Option<u64>, min: Duration, max: Duration) -> Duration {
    let next = match found {
        None => was,
        Some(0) => was.saturating_mul(3) / 2,
        Some(_) => was / 2,
    };
    next.clamp(min, max)
}

fn skipped_text(skipped: u64) -> String {
    let times = if skipped == 1 { "time" } else { "times" };
    format!("skipped {skipped} planned {times}")
}

#[cfg(test)]
mod tests;
