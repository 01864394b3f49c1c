//! Runs: one live job each, planned by the settle of the last run.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use pitwheel::engine::{Ending, Outcome, plan_runs, restore_lost_runs};
use pitwheel::{History, Misfire, Settled, State, Verdict};
use pitwheel_testkit::TestDb;

use crate::steps::{
    LIVE, WAITING, complete, create, end, ended, failure, get, make_older, recurring, seconds,
};

#[tokio::test]
async fn a_run_is_followed_by_one_job_at_the_next_planned_time() -> Result<()> {
    let db = TestDb::new().await?;
    let id = create(&db, "every 15m").await?;
    let first = get(&db, id).await?;
    let run = db.claim_one().await?;
    assert!(get(&db, id).await?.running);
    assert_eq!(complete(&db, &run).await?, Settled::Written);

    let after = get(&db, id).await?;
    assert_eq!((after.runs, after.running, after.consecutive_failures), (1, false, 0));
    let planned = first.next_run_at.context("planned")? + Duration::from_secs(900);
    assert_eq!(
        after.next_run_at,
        Some(planned),
        "counted from the planned time, not from the end of the run"
    );
    assert_eq!(after.reason.as_deref(), Some("every 15m"));
    assert_eq!(db.count(WAITING).await?, 1);
    assert_eq!(db.state(run.claim.id).await?, Some(State::Done));
    assert!(db.claim(1).await?.is_empty(), "it is not due");
    let runs = db.pitwheel().recurring().runs(id, None, 0).await?;
    assert_eq!(runs.iter().map(|run| run.state).collect::<Vec<_>>(), [State::Waiting, State::Done]);
    Ok(())
}

#[tokio::test]
async fn a_stale_run_is_taken_over_and_its_late_finish_is_refused() -> Result<()> {
    let db = TestDb::new().await?;
    let id = create(&db, "every 15m").await?;
    let first = db.claim_one().await?;
    db.expire_holder(&first).await?;
    db.sweep().await?;
    let second = db.claim_one().await?;
    assert_eq!(first.claim.id, second.claim.id, "it is the same run");
    assert_eq!(complete(&db, &first).await?, Settled::Lost);
    assert_eq!(get(&db, id).await?.runs, 0);
    assert_eq!(complete(&db, &second).await?, Settled::Written);
    assert_eq!(complete(&db, &second).await?, Settled::Lost);
    assert_eq!((get(&db, id).await?.runs, db.count(LIVE).await?), (1, 1));
    Ok(())
}

#[tokio::test]
async fn a_failed_run_is_retried_with_a_growing_backoff_and_a_success_resets_it() -> Result<()> {
    let db = TestDb::new().await?;
    let id = create(&db, "every 15m").await?;
    let mut waits = Vec::new();
    for failures in 1..=3 {
        let run = db.claim_one().await?;
        let now = db.pitwheel().now().await?;
        assert_eq!(end(&db, &run, failure()).await?, Settled::Written);
        let failed = get(&db, id).await?;
        assert_eq!((failed.consecutive_failures, failed.runs), (failures, 0));
        assert_eq!(failed.last_error.as_deref(), Some("no answer"));
        waits.push(seconds(now, failed.next_run_at.context("planned")?));
        let run_at =
            "select count(*) from pitwheel.job join pitwheel.recurring on recurring.id = job.recurring
            where job.run_at = recurring.next_run_at";
        assert_eq!(db.count(run_at).await?, 1, "the time that is shown is the time of the job");
        db.client().await?.execute("update pitwheel.job set run_at = now()", &[]).await?;
    }
    assert!(waits.windows(2).all(|pair| pair[1] >= 2 * pair[0] - 1), "{waits:?}");
    assert!(get(&db, id).await?.reason.context("a reason")?.starts_with("it failed 3 times in a row"));

    let own = db.claim_one().await?;
    ended(&db, &own, Outcome::Verdict(Verdict::retry_after(Duration::from_secs(500), "busy"))).await?;
    let now = db.pitwheel().now().await?;
    assert!((498..=500).contains(&seconds(now, get(&db, id).await?.next_run_at.context("planned")?)));
    db.client().await?.execute("update pitwheel.job set run_at = now()", &[]).await?;

    let run = db.claim_one().await?;
    assert_eq!(run.recurrence.as_ref().map(|run| run.consecutive_failures), Some(4));
    ended(&db, &run, Outcome::Verdict(().into())).await?;
    let after = get(&db, id).await?;
    assert_eq!((after.consecutive_failures, after.last_error, after.runs), (0, None, 1));
    Ok(())
}

#[tokio::test]
async fn a_run_with_a_limit_of_attempts_dies_and_the_next_one_follows() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = db.pitwheel().recurring();
    let id = jobs.create(recurring("k", "every 1s")?.max_attempts(1)).await?.id;
    let run = db.claim_one().await?;
    ended(&db, &run, failure()).await?;
    let after = get(&db, id).await?;
    assert_eq!(db.state(run.claim.id).await?, Some(State::Dead));
    assert_eq!((after.runs, after.consecutive_failures, db.count(WAITING).await?), (1, 1, 1));
    let now = db.pitwheel().now().await?;
    assert!(seconds(now, after.next_run_at.context("planned")?) >= 2, "not before the backoff");
    Ok(())
}

#[tokio::test]
async fn missed_times_are_made_up_for_as_the_policy_says() -> Result<()> {
    for (misfire, runs, skipped) in [(Misfire::One, 1, 0), (Misfire::All, 6, 0)] {
        let db = TestDb::new().await?;
        let jobs = db.pitwheel().recurring();
        let id = jobs.create(recurring("k", "every 10m")?.misfire(misfire)).await?.id;
        make_older(&db, "55 minutes").await?;
        let mut done = 0;
        while let Some(run) = db.claim(1).await?.first() {
            ended(&db, run, Outcome::Verdict(().into())).await?;
            done += 1;
        }
        let after = get(&db, id).await?;
        assert_eq!((done, after.runs, after.skipped), (runs, runs, skipped), "{misfire:?}");
        let now = db.pitwheel().now().await?;
        assert!((280..=300).contains(&seconds(now, after.next_run_at.context("planned")?)), "{misfire:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_handler_names_the_time_or_what_it_found() -> Result<()> {
    let db = TestDb::new().await?;
    let id = create(&db, "adaptive 1m..1h").await?;
    let run = db.claim_one().await?;
    ended(&db, &run, Outcome::Verdict(Verdict::complete().found(0).into())).await?;
    let after = get(&db, id).await?;
    assert_eq!(after.interval, Some(Duration::from_secs(90)));
    assert_eq!(after.reason.as_deref(), Some("it found nothing new: 1m30s instead of 1m"));

    db.pitwheel().recurring().run_now(id).await?;
    let run = db.claim_one().await?;
    let named = SystemTime::now() + Duration::from_secs(5000);
    ended(&db, &run, Outcome::Verdict(Verdict::complete().next_at(named).into())).await?;
    let after = get(&db, id).await?;
    assert_eq!(seconds(named, after.next_run_at.context("planned")? + Duration::from_millis(1)), 0);
    assert_eq!(after.reason.as_deref(), Some("its handler named the time"));
    Ok(())
}

#[tokio::test]
async fn the_maintenance_plans_what_was_settled_in_sql_and_what_a_person_deleted() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let id = create(&db, "every 15m").await?;
    let run = db.claim_one().await?;
    let done =
        client.query_one("select pitwheel.complete($1, $2)", &[&run.claim.id, &run.claim.fence]).await?;
    assert!(done.get::<_, bool>(0));
    let unplanned = get(&db, id).await?;
    assert_eq!((unplanned.runs, unplanned.next_run_at, db.count(LIVE).await?), (1, None, 0));
    assert_eq!(plan_runs(&client, 0).await?.enqueued, 1);
    assert_eq!(plan_runs(&client, 0).await?.enqueued, 0);
    assert_eq!(db.count(WAITING).await?, 1);
    let now = db.pitwheel().now().await?;
    assert!(seconds(now, get(&db, id).await?.next_run_at.context("planned")?) > 800);

    client.execute("delete from pitwheel.job", &[]).await?;
    assert_eq!(
        (plan_runs(&client, 0).await?.enqueued, db.count(WAITING).await?),
        (0, 0),
        "it does not look for it"
    );
    assert_eq!(restore_lost_runs(&client, 0).await?, id);
    assert_eq!(restore_lost_runs(&client, id).await?, 0, "it starts again");
    assert_eq!(db.count(WAITING).await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_recurring_job_that_cannot_be_planned_does_not_hold_up_the_others() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    for n in 1..=5 {
        db.pitwheel().recurring().create(recurring(&n.to_string(), "every 15m")?).await?;
    }
    client
        .batch_execute(
            "delete from pitwheel.job;
            update pitwheel.recurring set planned = false, payload = to_json(key);
            create function refuse() returns trigger language plpgsql as $$
            begin
                raise exception 'this is refused' using errcode = '22023';
            end $$;
            create trigger refuse before insert on pitwheel.job for each row when (new.payload::text = '\"2\"')
                execute function refuse();",
        )
        .await?;
    assert_eq!(plan_runs(&client, 0).await?.enqueued, 4);
    assert_eq!((plan_runs(&client, 0).await?.enqueued, db.count(WAITING).await?), (0, 4));
    let lose = "delete from pitwheel.job; update pitwheel.recurring set planned = true, next_run_at = now()";
    client.batch_execute(lose).await?;
    restore_lost_runs(&client, 0).await?;
    assert_eq!(db.count(WAITING).await?, 4);
    client.batch_execute("update pitwheel.recurring set planned = key <> '2'").await?;
    client.batch_execute("drop trigger refuse on pitwheel.job").await?;
    assert_eq!(plan_runs(&client, 0).await?.enqueued, 1, "it is tried again");
    Ok(())
}

/// More recurring jobs than a page, which a trigger refuses, and one behind them.
const REFUSED: &str = "
    insert into pitwheel.recurring (kind, key, queue, cadence, misfire, payload, priority, enabled, planned, anchor_at)
    select 'test', n, 'default', 'every 1d', 'one', to_json(n <= 600), 0, true, false, now() from generate_series(1, 601) as n;
    create sequence tries;
    create function refuse() returns trigger language plpgsql as $$
    begin
        perform nextval('tries');
        raise exception 'this is refused';
    end $$;
    create trigger refuse before insert on pitwheel.job for each row when (new.payload::text = 'true') execute function refuse();";

#[tokio::test]
async fn a_page_of_refused_recurring_jobs_keeps_none_behind_it_waiting() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute(REFUSED).await?;
    for lost in [false, true] {
        client.execute("update pitwheel.recurring set planned = $1, next_run_at = now()", &[&lost]).await?;
        client.batch_execute("delete from pitwheel.job; select setval('tries', 1)").await?;
        let mut above = 0;
        loop {
            let before = db.count("select last_value from tries").await?;
            above = match lost {
                false => plan_runs(&client, above).await?.next,
                true => restore_lost_runs(&client, above).await?,
            };
            let tries = db.count("select last_value from tries").await? - before;
            assert!(tries <= 150, "a look ends, however many are refused: {tries} statements");
            if above == 0 {
                break;
            }
        }
        assert_eq!(db.count(WAITING).await?, 1, "the one behind them");
    }
    Ok(())
}

#[tokio::test]
async fn a_page_of_locked_recurring_jobs_keeps_none_behind_it_waiting() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute(REFUSED).await?;
    client.batch_execute("drop trigger refuse on pitwheel.job").await?;
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.execute("select from pitwheel.recurring where payload::text = 'true' for update", &[]).await?;
    assert_eq!(plan_runs(&client, 0).await?.enqueued, 1, "the one behind them");
    lock.rollback().await?;
    assert_eq!(plan_runs(&client, 0).await?.enqueued, 600);
    Ok(())
}

#[tokio::test]
async fn missed_times_of_runs_settled_in_sql_are_made_up_for_as_the_policy_says() -> Result<()> {
    for (misfire, runs, skipped) in [(Misfire::One, 1, 0), (Misfire::All, 6, 0), (Misfire::Skip, 1, 0)] {
        let db = TestDb::new().await?;
        let client = db.client().await?;
        let id = db.pitwheel().recurring().create(recurring("k", "every 10m")?.misfire(misfire)).await?.id;
        make_older(&db, "55 minutes").await?;
        let mut done = 0;
        while let Some(run) = db.claim(1).await?.first() {
            client.query("select pitwheel.complete($1, $2)", &[&run.claim.id, &run.claim.fence]).await?;
            assert_eq!(plan_runs(&client, 0).await?.enqueued, 1);
            done += 1;
        }
        let after = get(&db, id).await?;
        assert_eq!((done, after.runs, after.skipped), (runs, runs, skipped), "{misfire:?}");
        let now = db.pitwheel().now().await?;
        assert!((280..=300).contains(&seconds(now, after.next_run_at.context("planned")?)), "{misfire:?}");
    }
    Ok(())
}

/// `run now`, and the planned time comes while that run is in progress.
#[tokio::test]
async fn a_planned_time_during_an_early_run_without_a_plan_is_run_or_recorded_as_skipped() -> Result<()> {
    for (misfire, due, skipped) in [(Misfire::One, 1, 0), (Misfire::All, 1, 0), (Misfire::Skip, 0, 1)] {
        for in_sql in [true, false] {
            let db = TestDb::new().await?;
            let client = db.client().await?;
            let jobs = db.pitwheel().recurring();
            let later = SystemTime::now() + Duration::from_secs(60);
            let id = jobs.create(recurring("k", "every 10m")?.misfire(misfire).first_at(later)).await?.id;
            jobs.run_now(id).await?;
            let run = db.claim_one().await?;
            make_older(&db, "2 minutes").await?;
            client
                .batch_execute("update pitwheel.job set claimed_at = claimed_at - interval '2 minutes'")
                .await?;
            if in_sql {
                client.query("select pitwheel.complete($1, $2)", &[&run.claim.id, &run.claim.fence]).await?;
            } else {
                assert_eq!(db.settle(&run, Ending::done(History::All, None)).await?, Settled::Written);
            }
            plan_runs(&client, 0).await?;
            let after = get(&db, id).await?;
            let claimed = db.claim(2).await?.len();
            assert_eq!(
                (claimed, after.skipped, after.runs),
                (due, skipped, 1),
                "{misfire:?}, in SQL: {in_sql}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_run_that_fails_in_sql_counts_for_its_recurring_job() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let id = create(&db, "every 15m").await?;
    let run = db.claim_one().await?;
    let failed = "select pitwheel.fail($1, $2, 'no answer', interval '5 minutes')";
    assert!(client.query_one(failed, &[&run.claim.id, &run.claim.fence]).await?.get::<_, bool>(0));
    let after = get(&db, id).await?;
    assert_eq!((after.consecutive_failures, after.last_error.as_deref()), (1, Some("no answer")));
    assert_eq!(db.count(WAITING).await?, 1);

    db.pitwheel().recurring().run_now(id).await?;
    let run = db.claim_one().await?;
    db.pitwheel().recurring().disable(id).await?;
    assert!(client.query_one(failed, &[&run.claim.id, &run.claim.fence]).await?.get::<_, bool>(0));
    assert_eq!((db.count(LIVE).await?, db.state(run.claim.id).await?), (0, Some(State::Cancelled)));
    Ok(())
}

#[tokio::test]
async fn a_crash_that_buries_a_run_does_not_end_its_recurring_job() -> Result<()> {
    let db = TestDb::new().await?;
    let id = create(&db, "every 15m").await?;
    for _ in 0..2 {
        let run = db.claim_one().await?;
        db.expire_holder(&run).await?;
        db.sweep().await?;
    }
    let worker = db.register().await?;
    let run = db.claim_alone(worker).await?.context("it is a suspect")?;
    db.expire_holder(&run).await?;
    db.sweep().await?;
    assert_eq!(db.state(run.claim.id).await?, Some(State::Dead));
    let client = db.client().await?;
    assert_eq!((plan_runs(&client, 0).await?.enqueued, db.count(WAITING).await?), (1, 1));
    assert_eq!(get(&db, id).await?.consecutive_failures, 1);
    Ok(())
}
