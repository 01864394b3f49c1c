//! How an attempt of a run ends, and when its recurring job runs next.

use std::time::SystemTime;

use crate::job::ending::{Attempt, Ending, Outcome, Verdict, decide};
use crate::job::recurrence::{NextHint, Plan, Recurrence, RunEnd};

/// How an outcome ends an attempt of a run, like [`decide`], and when the recurring job runs next. `random` is between 0 and 1.
pub fn decide_run(
    outcome: Outcome,
    attempt: &Attempt<'_>,
    recurrence: &Recurrence,
    random: f64,
) -> (Ending, Option<Box<Plan>>) {
    let now = recurrence.clock.now();
    let hint = match &outcome {
        Outcome::Verdict(Verdict::Complete(completion)) => completion.next,
        _ => NextHint::default(),
    };
    let delay_is_given = matches!(outcome, Outcome::Verdict(Verdict::Retry { .. }));
    let ending = match decide(outcome, attempt, random) {
        Ending::Retry { error, .. } if !delay_is_given => {
            Ending::Retry { delay: recurrence.backoff(random), error }
        }
        ending => ending,
    };
    let plan = match &ending {
        Ending::Done { .. } => recurrence.after_run(RunEnd::Done(hint), now, random),
        Ending::Cancelled { .. } => recurrence.after_run(RunEnd::Cancelled, now, random),
        Ending::Dead { .. } => recurrence.after_run(RunEnd::Dead, now, random),
        Ending::Retry { delay, .. } => Some(recurrence.after_failure(*delay, now)),
        Ending::Snooze { delay } => Some(recurrence.after_snooze(*delay, now)),
        Ending::Release | Ending::Crash { .. } => None,
    };
    (
        ending,
        plan.map(|plan| Box::new(Plan { due: Some(recurrence.clock.instant(plan.next_run_at)), ..plan })),
    )
}

/// What is written instead of a run that is too late, if the policy of its recurring job is to skip it.
pub fn skip_late(
    recurrence: &Recurrence,
    attempt: u32,
    run_at: SystemTime,
    random: f64,
) -> Option<(Ending, Option<Box<Plan>>)> {
    let plan = recurrence.instead_of_late_run(attempt, run_at, random)?;
    let due = Some(recurrence.clock.instant(plan.next_run_at));
    Some((Ending::Snooze { delay: std::time::Duration::ZERO }, Some(Box::new(Plan { due, ..plan }))))
}
