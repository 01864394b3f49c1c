//! Runs that carry the state of their recurring job from one to the next.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use pitwheel::engine::{Outcome, attempts, plan_runs, restore_lost_runs};
use pitwheel::{Misfire, Settled, Verdict};
use pitwheel_testkit::TestDb;

use crate::steps::{
    LIVE, WAITING, complete, create, end, ended, failure, get, make_older, recurring, seconds,
};

/// The next run is due at once.
fn done() -> Outcome {
    Outcome::Verdict(Verdict::complete().next_at(SystemTime::now()).into())
}

#[tokio::test]
async fn a_settle_of_a_run_that_carries_the_state_does_not_wait_for_its_recurring_job() -> Result<()> {
    let db = TestDb::new().await?;
    let id = create(&db, "every 15m").await?;
    let run = db.claim_one().await?;
    let client = db.client().await?;
    client.batch_execute("begin; select from pitwheel.recurring for update").await?;
    assert_eq!(complete(&db, &run).await?, Settled::Written);
    client.batch_execute("commit").await?;
    let after = get(&db, id).await?;
    assert_eq!((after.runs, after.running, db.count(WAITING).await?), (1, false, 1));
    assert!(after.last_run_at.is_some());
    assert_eq!(db.count("select runs from pitwheel.recurring").await?, 0, "the row is as it was");
    Ok(())
}

#[tokio::test]
async fn what_was_counted_survives_failures_and_changes() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = db.pitwheel().recurring();
    let id = create(&db, "every 15m").await?;
    for runs in 1..=3 {
        ended(&db, &db.claim_one().await?, done()).await?;
        assert_eq!(get(&db, id).await?.runs, runs);
    }
    ended(&db, &db.claim_one().await?, failure()).await?;
    let failed = get(&db, id).await?;
    assert_eq!((failed.runs, failed.consecutive_failures), (3, 1));
    jobs.run_now(id).await?;
    ended(&db, &db.claim_one().await?, done()).await?;
    let again = get(&db, id).await?;
    assert_eq!((again.runs, again.consecutive_failures, again.last_error), (4, 0, None));
    ended(&db, &db.claim_one().await?, done()).await?;
    let last = get(&db, id).await?.last_run_at;
    let moved = jobs.runs(id, None, 1).await?[0].id;
    let later = SystemTime::now() + Duration::from_secs(600);
    db.pitwheel().change(&[moved], pitwheel::Change::Reschedule(Some(later))).await?;
    let disabled = jobs.disable(id).await?;
    assert_eq!((disabled.runs, disabled.last_run_at), (5, last));
    assert_eq!(seconds(later, disabled.next_run_at.context("kept")? + Duration::from_millis(1)), 0);
    assert_eq!(db.count("select runs from pitwheel.recurring").await?, 5);
    Ok(())
}

#[tokio::test]
async fn a_run_whose_state_was_taken_back_is_settled_with_its_recurring_job() -> Result<()> {
    let db = TestDb::new().await?;
    let id = create(&db, "every 15m").await?;
    let mut run = db.claim_one().await?;
    db.pitwheel().recurring().disable(id).await?;
    // The row may come back to the place where it was.
    let attempt = attempts(&db.client().await?, &[run.claim]).await?.remove(&run.claim.id);
    run.ctid = attempt.context("it is held")?.ctid;
    assert_eq!(complete(&db, &run).await?, Settled::Written);
    assert_eq!((get(&db, id).await?.runs, db.count(LIVE).await?), (1, 0));
    Ok(())
}

#[tokio::test]
async fn times_that_were_run_are_not_run_again_after_the_next_run_was_deleted_by_hand() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let id = db.pitwheel().recurring().create(recurring("k", "every 10m")?.misfire(Misfire::All)).await?.id;
    make_older(&db, "55 minutes").await?;
    for _ in 0..6 {
        assert_eq!(end(&db, &db.claim_one().await?, Outcome::Verdict(().into())).await?, Settled::Written);
    }
    let next = get(&db, id).await?.next_run_at;
    client.execute("delete from pitwheel.job", &[]).await?;
    restore_lost_runs(&client, 0).await?;
    plan_runs(&client, 0).await?;
    assert_eq!((get(&db, id).await?.next_run_at, db.count(WAITING).await?), (next, 1));
    Ok(())
}

/// A program creates its recurring jobs at every start, maybe before the maintenance has found out.
#[tokio::test]
async fn nor_if_it_is_created_or_enabled_again_before_the_maintenance_looks() -> Result<()> {
    for disables in [false, true] {
        let db = TestDb::new().await?;
        let (client, jobs) = (db.client().await?, db.pitwheel().recurring());
        let definition = recurring("k", "every 10m")?.misfire(Misfire::All);
        let id = jobs.create(definition.clone()).await?.id;
        make_older(&db, "55 minutes").await?;
        for _ in 0..6 {
            let run = db.claim_one().await?;
            assert_eq!(end(&db, &run, Outcome::Verdict(().into())).await?, Settled::Written);
        }
        let next = get(&db, id).await?.next_run_at;
        client.execute("delete from pitwheel.job", &[]).await?;
        if disables {
            jobs.disable(id).await?;
        }
        jobs.create(definition).await?;
        plan_runs(&client, 0).await?;
        let created = get(&db, id).await?;
        assert_eq!(db.count(WAITING).await?, 1);
        match disables {
            // Enabled anew: its times count from then on.
            true => assert!(created.next_run_at > Some(SystemTime::now()), "{created:?}"),
            false => assert_eq!(created.next_run_at, next),
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_change_of_its_row_by_hand_concerns_the_run_that_carries_the_state() -> Result<()> {
    for (change, live, next_run) in [
        ("update pitwheel.recurring set payload = '{\"n\": 2}'", 1, "test {\"n\": 2}"),
        ("update pitwheel.recurring set kind = 'new'", 1, "new {}"),
        ("update pitwheel.recurring set enabled = false", 0, ""),
        ("delete from pitwheel.recurring", 0, ""),
    ] {
        let db = TestDb::new().await?;
        let id = create(&db, "every 15m").await?;
        ended(&db, &db.claim_one().await?, done()).await?;
        let run = db.claim_one().await?;
        db.client().await?.batch_execute(change).await?;
        assert_eq!(complete(&db, &run).await?, Settled::Written, "{change}");
        assert_eq!(db.count(LIVE).await?, live, "{change}");
        if live == 1 {
            let sql = "select kind || ' ' || payload::text from pitwheel.job";
            assert_eq!(db.client().await?.query_one(sql, &[]).await?.get::<_, &str>(0), next_run);
            assert_eq!(get(&db, id).await?.runs, 2, "what was counted is kept");
        }
    }
    Ok(())
}
