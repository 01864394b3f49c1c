use std::time::UNIX_EPOCH;

use super::*;

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

/// Planned for second 0 and started at `started`.
fn run(cadence: &str, misfire: Misfire, started: u64) -> Recurrence {
    Recurrence {
        id: 1,
        key: "k".to_owned(),
        planned_at: at(0),
        consecutive_failures: 0,
        interval: None,
        cadence: cadence.parse().expect("a cadence"),
        misfire,
        version: 3,
        carried: true,
        clock: Clock { read: at(started), at: Instant::now() },
    }
}

fn done(run: &Recurrence, now: u64) -> Plan {
    run.after_run(RunEnd::Done(NextHint::default()), at(now), 0.5).expect("a plan")
}

#[test]
fn a_run_in_time_is_followed_by_the_next_planned_time_under_every_policy() {
    for misfire in [Misfire::Skip, Misfire::One, Misfire::All] {
        let plan = done(&run("every 10s", misfire, 1), 3);
        assert_eq!((plan.next_run_at, plan.anchor_at), (at(10), at(10)), "{misfire:?}");
        assert_eq!((plan.skipped, &*plan.reason, plan.version), (0, "every 10s", 3));
    }
}

#[test]
fn a_late_run_makes_up_for_all_missed_times_for_one_or_for_none() {
    let one = done(&run("every 10s", Misfire::One, 35), 36);
    assert_eq!((one.anchor_at, one.next_run_at), (at(40), at(40)));
    let all = done(&run("every 10s", Misfire::All, 35), 36);
    assert_eq!((all.anchor_at, all.next_run_at), (at(10), at(36)), "the missed time is run at once");
    let skip =
        run("every 10s", Misfire::Skip, 35).instead_of_late_run(1, at(0), 0.5).expect("it is too late");
    assert_eq!((skip.anchor_at, skip.next_run_at, skip.skipped), (at(40), at(40), 4));
    assert!(
        run("every 10s", Misfire::Skip, 9).instead_of_late_run(1, at(0), 0.5).is_none(),
        "late, but still its turn"
    );
    assert!(run("every 10s", Misfire::Skip, 35).instead_of_late_run(2, at(0), 0.5).is_none(), "a retry");
    assert!(run("every 10s", Misfire::One, 35).instead_of_late_run(1, at(0), 0.5).is_none());
}

#[test]
fn a_run_that_was_put_back_for_longer_than_an_interval_is_not_late() {
    let snoozed = run("every 10s", Misfire::Skip, 35);
    assert!(snoozed.instead_of_late_run(1, at(33), 0.5).is_none(), "due two seconds ago");
    assert!(snoozed.instead_of_late_run(1, at(25), 0.5).is_some(), "due before the last planned time");
}

#[test]
fn times_missed_during_a_run_are_run_once_each_or_not_at_all() {
    let one = done(&run("every 10s", Misfire::One, 1), 35);
    assert_eq!((one.anchor_at, one.next_run_at), (at(10), at(35)));
    let all = done(&run("every 10s", Misfire::All, 1), 35);
    assert_eq!((all.anchor_at, all.next_run_at), (at(10), at(35)));
    let skip = done(&run("every 10s", Misfire::Skip, 1), 35);
    assert_eq!((skip.anchor_at, skip.next_run_at, skip.skipped), (at(40), at(40), 3));
    assert_eq!(skip.reason, "skipped 3 planned times");
}

#[test]
fn a_run_before_its_time_leaves_the_planned_time_as_it_is() {
    let mut early = run("every 10s", Misfire::One, 0);
    early.planned_at = at(50);
    for misfire in [Misfire::Skip, Misfire::One, Misfire::All] {
        early.misfire = misfire;
        assert_eq!(done(&early, 3).next_run_at, at(50), "{misfire:?}");
    }
    assert_eq!((done(&early, 51).anchor_at, done(&early, 51).next_run_at), (at(50), at(51)));
    early.misfire = Misfire::Skip;
    assert_eq!(done(&early, 51).next_run_at, at(60));
}

#[test]
fn a_dead_run_is_followed_after_the_backoff_and_a_success_is_not_delayed() {
    let mut failed = run("every 1s", Misfire::One, 0);
    failed.consecutive_failures = 4;
    let plan = failed.after_run(RunEnd::Dead, at(1), 1.0).expect("a plan");
    assert_eq!(plan.next_run_at, at(1 + 5 * 16));
    assert_eq!(plan.reason, "it failed 5 times in a row: waits 1m20s");
    assert_eq!(done(&failed, 0).next_run_at, at(1));
    failed.consecutive_failures = u32::MAX;
    assert_eq!(failed.backoff(1.0), Duration::from_secs(3600));
    assert_eq!(failed.backoff(0.0), Duration::from_secs(1800));
}

#[test]
fn the_handler_may_name_the_time() {
    let hint = NextHint { at: Some(at(777)), found: Some(3) };
    let plan =
        run("cron 0 0 * * *", Misfire::One, 0).after_run(RunEnd::Done(hint), at(1), 0.5).expect("a plan");
    assert_eq!((plan.next_run_at, &*plan.reason), (at(777), "its handler named the time"));
}

#[test]
fn an_adaptive_interval_stays_within_its_bounds_and_follows_what_was_found() {
    let (min, max) = (Duration::from_secs(60), Duration::from_secs(86_400));
    let mut random = fastrand::Rng::with_seed(5);
    let mut interval = min;
    for _ in 0..10_000 {
        let found = [None, Some(0), Some(random.u64(1..100))][random.usize(0..3)];
        let next = adapted(interval, found, min, max);
        assert!((min..=max).contains(&next));
        match found {
            None => assert_eq!(next, interval),
            Some(0) => assert!(next > interval || next == max),
            Some(_) => assert!(next < interval || next == min),
        }
        interval = next;
    }
    let mut source = run("adaptive 15m..24h", Misfire::One, 0);
    source.interval = Some(Duration::from_secs(3600));
    let plan =
        |found| source.after_run(RunEnd::Done(NextHint { found, at: None }), at(5), 0.5).expect("a plan");
    assert_eq!(
        (plan(Some(3)).next_run_at, &*plan(Some(3)).reason),
        (at(5 + 1800), "it found 3 new: 30m instead of 1h")
    );
    assert_eq!(plan(Some(0)).reason, "it found nothing new: 1h30m instead of 1h");
    assert_eq!(plan(None).reason, "it did not say what it found: stays at 1h");
}

/// Whatever happens, the plan is not before the end of the run, and not before the planned time that it is for.
#[test]
fn a_plan_is_never_in_the_past() {
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..5000 {
        let cadence = ["every 7s", "every 1m jitter 20s", "cron */5 * * * *", "adaptive 10s..1h jitter 5s"];
        let misfire = [Misfire::Skip, Misfire::One, Misfire::All][random.usize(0..3)];
        let started = random.u64(0..500);
        let mut run = run(cadence[random.usize(0..4)], misfire, started);
        run.planned_at = at(random.u64(0..700));
        run.consecutive_failures = random.u32(0..40);
        let now = started + random.u64(0..500);
        let end = [RunEnd::Dead, RunEnd::Cancelled, RunEnd::Done(NextHint::default())][random.usize(0..3)];
        let plan = run.after_run(end, at(now), random.f64()).expect("a plan");
        assert!(plan.next_run_at >= at(now), "{run:?} {end:?} {plan:?}");
        assert!(plan.next_run_at >= plan.anchor_at, "{run:?} {end:?} {plan:?}");
    }
}

#[test]
fn the_next_times_are_those_that_runs_in_time_would_have() {
    let cadence: Cadence = "every 10s jitter 3s".parse().expect("a cadence");
    let times = |first, anchor, now| next_times(&cadence, (first, anchor, now), None, 3);
    assert_eq!(times(Some(at(2)), at(0), at(1)), [at(2), at(10), at(20)], "the first one has its jitter");
    assert_eq!(times(Some(at(5)), at(30), at(5)), [at(5), at(30), at(40)], "run now");
    assert_eq!(times(None, at(0), at(1)), [at(10), at(20), at(30)]);
}

#[test]
fn a_time_too_far_away_is_cut() {
    let run = run("every 10s", Misfire::One, 0);
    let last = at(1) + SPAN_MAX;
    assert_eq!(run.after_failure(Duration::MAX, at(1)).next_run_at, last);
    assert_eq!(run.after_snooze(Duration::MAX, at(1)).next_run_at, last);
    let hint = NextHint { at: Some(at(1) + 9 * SPAN_MAX), found: None };
    assert_eq!(run.after_run(RunEnd::Done(hint), at(1), 0.5).expect("a plan").next_run_at, last);
}
