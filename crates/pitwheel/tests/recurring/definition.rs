//! What people define and change: create, disable, enable, run now, cancel, delete.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use pitwheel::engine::{Outcome, SettleResult, Settlement, plan_runs, settle, skip_late};
use pitwheel::{Error, Misfire, NewRecurring, RunNow, Settled, State, Verdict};
use pitwheel_testkit::TestDb;

use crate::steps::{
    LIVE, WAITING, complete, create, end, ended, failure, get, make_older, recurring, seconds,
};

#[tokio::test]
async fn creating_twice_makes_one_with_the_last_definition() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = db.pitwheel().recurring();
    let (one, two) =
        tokio::join!(jobs.create(recurring("k", "every 15m")?), jobs.create(recurring("k", "every 15m")?));
    let (one, two) = (one?, two?);
    assert_eq!(one.id, two.id);
    assert!(one.is_new != two.is_new);
    assert_eq!(db.count(LIVE).await?, 1);
    let before = get(&db, one.id).await?;

    let again = NewRecurring::raw("test", r#"{"n":2}"#, "k", "every 15m".parse()?).priority(3);
    assert!(!jobs.create(again).await?.is_new);
    let after = jobs.get(one.id).await?;
    assert_eq!((&*after.payload, after.summary.priority), (r#"{"n":2}"#, 3));
    assert_eq!(after.summary.next_run_at, before.next_run_at, "the same cadence keeps its time");
    let run = db.claim_one().await?;
    assert_eq!((&*run.payload, run.priority), (r#"{"n":2}"#, 3), "the waiting run has the new definition");
    assert_eq!(run.recurrence.as_ref().map(|run| &*run.key), Some("k"));

    jobs.create(recurring("k", "every 1h")?).await?;
    assert_eq!(db.count(LIVE).await?, 1, "the run in progress is its only live job");
    Ok(())
}

#[tokio::test]
async fn a_disabled_running_job_finishes_and_nothing_follows() -> Result<()> {
    let db = TestDb::new().await?;
    let id = create(&db, "every 15m").await?;
    let run = db.claim_one().await?;
    let disabled = db.pitwheel().recurring().disable(id).await?;
    assert!(!disabled.enabled && disabled.running);
    assert_eq!(complete(&db, &run).await?, Settled::Written);
    let after = get(&db, id).await?;
    assert_eq!((after.runs, db.count(LIVE).await?), (1, 0));
    assert!(after.next_run_at > disabled.next_run_at, "the time of the next run is kept");

    let enabled = db.pitwheel().recurring().enable(id).await?;
    assert_eq!((enabled.next_run_at, db.count(WAITING).await?), (after.next_run_at, 1));
    Ok(())
}

#[tokio::test]
async fn a_disabled_job_is_not_retried_released_or_snoozed_into_the_queue() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = db.pitwheel().recurring();
    for outcome in [failure(), Outcome::Verdict(Verdict::Snooze(Duration::from_secs(60)))] {
        let id = create(&db, "every 15m").await?;
        jobs.run_now(id).await?;
        let run = db.claim_one().await?;
        let kept = jobs.disable(id).await?.next_run_at;
        assert_eq!(end(&db, &run, outcome).await?, Settled::Written);
        assert_eq!(db.count(LIVE).await?, 0);
        assert_eq!(
            (db.state(run.claim.id).await?, get(&db, id).await?.next_run_at),
            (Some(State::Cancelled), kept)
        );
    }
    let id = create(&db, "every 15m").await?;
    jobs.run_now(id).await?;
    let run = db.claim_one().await?;
    jobs.delete(id).await?;
    let released = settle(&db.client().await?, &[Settlement::release(run.claim)], &[]).await?;
    assert_eq!((released, db.count(LIVE).await?), (vec![SettleResult::Written], 0));
    Ok(())
}

#[tokio::test]
async fn enabling_runs_at_the_kept_time_or_now_if_it_has_passed() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = db.pitwheel().recurring();
    let later = SystemTime::now() + Duration::from_secs(1000);
    let id = jobs.create(recurring("k", "every 15m")?.first_at(later)).await?.id;
    let kept = jobs.disable(id).await?.next_run_at;
    assert_eq!(db.count(LIVE).await?, 0);
    assert_eq!(jobs.enable(id).await?.next_run_at, kept);
    assert!(db.claim(1).await?.is_empty());

    jobs.disable(id).await?;
    make_older(&db, "2 hours").await?;
    let now = db.pitwheel().now().await?;
    // Subscribing again creates it again.
    let again = jobs.create(recurring("k", "every 15m")?).await?;
    let next = again.next_run.context("planned")?;
    assert!(next.at >= now, "not in the past");
    let run = db.claim_one().await?;
    ended(&db, &run, Outcome::Verdict(().into())).await?;
    let following = get(&db, id).await?.next_run_at.context("planned")?;
    assert_eq!(
        seconds(next.at, following),
        900,
        "the times that passed while it was disabled are not made up for"
    );
    Ok(())
}

#[tokio::test]
async fn a_change_of_the_cadence_counts_for_the_run_in_progress() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = db.pitwheel().recurring();
    let id = create(&db, "every 15m").await?;
    let run = db.claim_one().await?;
    let changed = jobs.change(id, &"every 2h".parse()?, Some(Misfire::All)).await?;
    assert_eq!((&*changed.cadence, changed.misfire), ("every 2h", Misfire::All));
    ended(&db, &run, Outcome::Verdict(().into())).await?;
    let after = get(&db, id).await?;
    assert_eq!(after.next_run_at, changed.next_run_at, "the plan for the old cadence is not used");
    let waiting = jobs.change(id, &"cron 0 3 * * * Europe/Zurich".parse()?, None).await?;
    assert_eq!((waiting.misfire, db.count(WAITING).await?), (Misfire::All, 1));
    let moved = "select count(*) from pitwheel.job join pitwheel.recurring on recurring.id = job.recurring
        where job.run_at = recurring.next_run_at";
    assert_eq!(db.count(moved).await?, 1);
    let times = jobs.next_times(id, 3).await?;
    assert_eq!((times.len(), Some(times[0])), (3, waiting.next_run_at));
    Ok(())
}

#[tokio::test]
async fn a_change_of_the_cadence_counts_for_a_late_run_that_is_skipped() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = db.pitwheel().recurring();
    let id = jobs.create(recurring("k", "every 1h")?.misfire(Misfire::Skip)).await?.id;
    make_older(&db, "150 minutes").await?;
    let run = db.claim_one().await?;
    let changed = jobs.change(id, &"every 2m".parse()?, None).await?;
    let recurrence = run.recurrence.as_deref().context("it is a run")?;
    let (ending, plan) = skip_late(recurrence, run.attempt, run.run_at, 0.5).context("it is late")?;
    let skipped = Settlement { plan, ..Settlement::new(run.claim, ending) };
    assert_eq!(settle(&db.client().await?, &[skipped], &[]).await?, [SettleResult::Written]);
    let after = get(&db, id).await?;
    assert_eq!((after.next_run_at, after.skipped), (changed.next_run_at, 0));
    assert_eq!(after.reason.as_deref(), Some("its cadence was changed"));
    let moved = "select count(*) from pitwheel.job join pitwheel.recurring on recurring.id = job.recurring
        where job.run_at = recurring.next_run_at";
    assert_eq!(db.count(moved).await?, 1);
    Ok(())
}

#[tokio::test]
async fn run_now_moves_the_next_run_and_leaves_the_planned_time() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = db.pitwheel().recurring();
    let later = SystemTime::now() + Duration::from_secs(600);
    let id = jobs.create(recurring("k", "every 15m")?.first_at(later)).await?.id;
    assert_eq!(jobs.run_now(id).await?, RunNow::Due);
    let run = db.claim_one().await?;
    assert_eq!(jobs.run_now(id).await?, RunNow::Running);
    ended(&db, &run, Outcome::Verdict(().into())).await?;
    let next = get(&db, id).await?.next_run_at.context("planned")?;
    assert_eq!(seconds(later, next + Duration::from_millis(1)), 0, "the planned time stays");
    jobs.disable(id).await?;
    assert!(matches!(jobs.run_now(id).await, Err(Error::Invalid(_))));
    assert!(matches!(jobs.run_now(999).await, Err(Error::NotFound(..))));
    Ok(())
}

#[tokio::test]
async fn a_waiting_run_that_is_cancelled_is_skipped() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = db.pitwheel().recurring();
    for change in [pitwheel::Change::Cancel, pitwheel::Change::Delete] {
        let later = SystemTime::now() + Duration::from_secs(600);
        let id = jobs.create(recurring("k", "every 15m")?.first_at(later)).await?.id;
        let run = jobs.runs(id, None, 1).await?;
        db.pitwheel().change(&[run[0].id], change).await?;
        assert_eq!((get(&db, id).await?.skipped, db.count(LIVE).await?), (1, 0));
        assert_eq!(plan_runs(&db.client().await?, 0).await?.enqueued, 1);
        let next = get(&db, id).await?.next_run_at.context("planned")?;
        assert_eq!(seconds(later, next + Duration::from_millis(1)), 900);
        let run = jobs.runs(id, None, 1).await?;
        let moved = SystemTime::now() + Duration::from_secs(7000);
        db.pitwheel().change(&[run[0].id], pitwheel::Change::Reschedule(Some(moved))).await?;
        assert_eq!(get(&db, id).await?.reason.as_deref(), Some("rescheduled"));
        jobs.delete(id).await?;
    }
    Ok(())
}

#[tokio::test]
async fn cancelling_what_should_run_now_leaves_the_planned_time() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = db.pitwheel().recurring();
    for change in [pitwheel::Change::Cancel, pitwheel::Change::Delete] {
        let later = SystemTime::now() + Duration::from_secs(600);
        let id = jobs.create(recurring("k", "every 15m")?.first_at(later)).await?.id;
        jobs.run_now(id).await?;
        let run = jobs.runs(id, None, 1).await?;
        db.pitwheel().change(&[run[0].id], change).await?;
        let after = get(&db, id).await?;
        assert_eq!(seconds(later, after.next_run_at.context("planned")? + Duration::from_millis(1)), 0);
        assert_eq!((after.skipped, db.count(WAITING).await?), (0, 1), "no planned time was skipped");
        assert!(db.claim(1).await?.is_empty(), "it is not due");
        jobs.delete(id).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_cancelled_run_now_that_fails_or_snoozes_leaves_the_planned_time() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = db.pitwheel().recurring();
    for outcome in [failure(), Outcome::Verdict(Verdict::Snooze(Duration::from_secs(1)))] {
        let later = SystemTime::now() + Duration::from_secs(600);
        let id = jobs.create(recurring("k", "every 15m")?.first_at(later)).await?.id;
        jobs.run_now(id).await?;
        let run = db.claim_one().await?;
        db.pitwheel().cancel(run.claim.id).await?;
        ended(&db, &run, outcome).await?;
        let next = get(&db, id).await?.next_run_at.context("planned")?;
        assert_eq!(seconds(later, next + Duration::from_millis(1)), 0);
        assert!(db.claim(1).await?.is_empty(), "it is not due");
        assert_eq!(db.count(WAITING).await?, 1);
        jobs.delete(id).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_cadence_that_cannot_be_read_disables_with_the_reason() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let sql = "select id from pitwheel.create_recurring('test', 'k', 'cron 99 * * * *')";
    let id: i64 = client.query_one(sql, &[]).await?.get(0);
    assert_eq!(plan_runs(&client, 0).await?.enqueued, 0);
    let after = get(&db, id).await?;
    assert!(!after.enabled);
    assert!(after.reason.context("a reason")?.contains("the minute `99`"));
    Ok(())
}

#[tokio::test]
async fn the_sql_functions_refuse_a_long_cadence() -> Result<()> {
    let db = TestDb::new().await?;
    let id = create(&db, "every 15m").await?;
    let long = format!("cron {} * * * * UTC", vec!["0"; 300].join(","));
    for call in [
        format!("create_recurring('test', 'new', '{long}')"),
        format!("create_recurring('test', 'k', '{long}')"),
        format!("change_recurring({id}, '{long}')"),
    ] {
        let refused = db.client().await?.query(&format!("select from pitwheel.{call}"), &[]).await;
        let code = refused.err().and_then(|error| error.code().cloned());
        assert_eq!(code.as_ref().map(|code| code.code()), Some("23514"), "{call}");
    }
    Ok(())
}

#[tokio::test]
async fn the_sql_functions_refuse_times_that_are_not_within_a_hundred_years() -> Result<()> {
    let db = TestDb::new().await?;
    let id = create(&db, "every 15m").await?;
    for time in ["infinity", "-infinity", "2500-01-01"] {
        for call in [
            format!("create_recurring('test', 'new', 'every 15m', first_run_at => '{time}')"),
            format!("create_recurring('test', 'new', 'every 15m', first_anchor_at => '{time}')"),
            format!("create_recurring('test', 'k', 'every 1h', changed_run_at => '{time}')"),
            format!("change_recurring({id}, 'every 1h', run_at => '{time}')"),
            format!("change_recurring({id}, 'every 1h', anchor_at => '{time}')"),
        ] {
            let refused = db.client().await?.query(&format!("select from pitwheel.{call}"), &[]).await;
            let code = refused.err().and_then(|error| error.code().cloned());
            assert_eq!(code.as_ref().map(|code| code.code()), Some("22023"), "{call}");
        }
    }
    assert_eq!(db.count("select count(*) from pitwheel.recurring where cadence = 'every 15m'").await?, 1);
    Ok(())
}

#[tokio::test]
async fn deleting_ends_it_and_lists_and_audit_show_what_was_done() -> Result<()> {
    let db = TestDb::new().await?;
    let pitwheel = db.pitwheel().acting_as("ada");
    let jobs = pitwheel.recurring();
    let id = create(&db, "every 15m").await?;
    let found = jobs.find("test", "k").await?.context("it is there")?;
    assert_eq!(found.summary.id, id);
    assert!(jobs.find("test", "other").await?.is_none());
    let page = jobs.list(&pitwheel::RecurringFilter { enabled: Some(true), ..Default::default() }).await?;
    assert_eq!((page.recurring.len(), page.next), (1, None));
    let none = jobs.list(&pitwheel::RecurringFilter { enabled: Some(false), ..Default::default() }).await?;
    assert!(none.recurring.is_empty());
    jobs.disable(id).await?;
    jobs.disable(id).await?;
    assert!(jobs.delete(id).await?);
    assert!(!jobs.delete(id).await?);
    assert_eq!(db.count(LIVE).await?, 0);
    assert!(matches!(jobs.get(id).await, Err(Error::NotFound(..))));
    let actions: Vec<(String, String)> =
        db.pitwheel().audit(None, 0).await?.into_iter().map(|entry| (entry.actor, entry.action)).collect();
    let ada = |action: &str| ("ada".to_owned(), action.to_owned());
    assert_eq!(actions[..2], [ada("recurring.delete"), ada("recurring.disable")]);
    Ok(())
}
