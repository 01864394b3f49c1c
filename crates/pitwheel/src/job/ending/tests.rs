use super::*;

#[test]
fn a_job_is_buried_only_after_a_crash_alone() {
    assert!(matches!(after_crash(0, 1, "w"), Ending::Crash { .. }));
    assert!(matches!(after_crash(SUSPECT_CRASHES - 1, 1, "w"), Ending::Crash { .. }));
    assert!(matches!(after_crash(SUSPECT_CRASHES, 1, "w"), Ending::Dead { .. }));
}

fn attempt(number: u32, cancelled: bool) -> Attempt<'static> {
    Attempt { number, max: 3, history: History::All, ctid: None, worker: "w", cancelled }
}

fn failure() -> Outcome {
    Outcome::Failed(Failure { cause: Cause::Error, message: "no".into() })
}

#[test]
fn a_failed_attempt_is_retried_unless_it_was_the_last_or_cancelled() {
    assert!(matches!(decide(failure(), &attempt(2, false), 0.5), Ending::Retry { .. }));
    assert!(matches!(decide(failure(), &attempt(3, false), 0.5), Ending::Dead { .. }));
    assert!(matches!(decide(failure(), &attempt(2, true), 0.5), Ending::Cancelled { .. }));
    assert!(matches!(decide(failure(), &attempt(3, true), 0.5), Ending::Cancelled { .. }));
}

#[test]
fn followers_come_only_from_a_completion() {
    let follower = || NewJob::raw("next", "{}");
    let verdict = Verdict::from(Verdict::complete().then(follower()).then(follower()));
    assert_eq!(decide(Outcome::Verdict(verdict), &attempt(1, true), 0.5).then().len(), 2);
    assert!(decide(failure(), &attempt(1, false), 0.5).then().is_empty());
}
