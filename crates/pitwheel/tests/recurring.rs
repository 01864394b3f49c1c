//! Recurring jobs: one live job each, planned by the settle of the last run.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use pitwheel::engine::{
    Attempt, Cause, Claimed, Failure, Outcome, SettleResult, Settlement, decide_run, plan_runs,
    restore_lost_runs, settle,
};
use pitwheel::{Error, History, Misfire, NewRecurring, RecurringJob, RunNow, Settled, State, Verdict};
use pitwheel_testkit::TestDb;

const LIVE: &str = "select count(*) from pitwheel.job where recurring is not null";
const WAITING: &str = "select count(*) from pitwheel.job where recurring is not null and holder is null";

fn recurring(key: &str, cadence: &str) -> Result<NewRecurring> {
    Ok(NewRecurring::raw("test", "{}", key, cadence.parse()?))
}

async fn create(db: &TestDb, cadence: &str) -> Result<i64> {
    Ok(db.pitwheel().recurring().create(recurring("k", cadence)?).await?.id)
}

async fn get(db: &TestDb, id: i64) -> Result<RecurringJob> {
    Ok(db.pitwheel().recurring().get(id).await?.summary)
}

/// Settles a run as a worker does.
async fn end(db: &TestDb, job: &Claimed, outcome: Outcome) -> Result<Settled> {
    let recurrence = job.recurrence.as_deref().context("the job is a run")?;
    let attempt = Attempt {
        number: job.attempt,
        max: job.max_attempts,
        history: History::All,
        ctid: Some(job.ctid),
        worker: "test",
        cancelled: false,
    };
    let (ending, plan) = decide_run(outcome, &attempt, recurrence, 0.5);
    let settlement = Settlement { claim: job.claim, ending, plan, in_lane: false };
    match settle(&db.client().await?, &[settlement], &[]).await?.first() {
        Some(SettleResult::Written) => Ok(Settled::Written),
        Some(SettleResult::Already | SettleResult::Lost) => Ok(Settled::Lost),
        other => bail!("neither written nor lost: {other:?}"),
    }
}

/// Settles a run, whose claim must hold.
async fn ended(db: &TestDb, job: &Claimed, outcome: Outcome) -> Result<()> {
    assert_eq!(end(db, job, outcome).await?, Settled::Written);
    Ok(())
}

async fn complete(db: &TestDb, job: &Claimed) -> Result<Settled> {
    end(db, job, Outcome::Verdict(().into())).await
}

fn failure() -> Outcome {
    Outcome::Failed(Failure { cause: Cause::Error, message: "no answer".into() })
}

/// Makes the next run, its planned time included, older.
async fn make_older(db: &TestDb, span: &str) -> Result<()> {
    let older = format!(
        "update pitwheel.recurring set anchor_at = anchor_at - interval '{span}', next_run_at = next_run_at - interval '{span}';
         update pitwheel.job set run_at = run_at - interval '{span}' where recurring is not null"
    );
    Ok(db.client().await?.batch_execute(&older).await?)
}

fn seconds(from: SystemTime, to: SystemTime) -> i64 {
    match to.duration_since(from) {
        Ok(span) => span.as_secs() as i64,
        Err(error) => -(error.duration().as_secs() as i64) - 1,
    }
}

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
    assert_eq!(plan_runs(&client).await?, 1);
    assert_eq!(plan_runs(&client).await?, 0);
    assert_eq!(db.count(WAITING).await?, 1);
    let now = db.pitwheel().now().await?;
    assert!(seconds(now, get(&db, id).await?.next_run_at.context("planned")?) > 800);

    client.execute("delete from pitwheel.job", &[]).await?;
    assert_eq!((plan_runs(&client).await?, db.count(WAITING).await?), (0, 0), "it does not look for it");
    assert_eq!(restore_lost_runs(&client, 0).await?, id);
    assert_eq!(restore_lost_runs(&client, id).await?, 0, "it starts again");
    assert_eq!(db.count(WAITING).await?, 1);
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
        assert_eq!(plan_runs(&db.client().await?).await?, 1);
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
async fn a_cadence_that_cannot_be_read_disables_with_the_reason() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let sql = "select id from pitwheel.create_recurring('test', 'k', 'cron 99 * * * *')";
    let id: i64 = client.query_one(sql, &[]).await?.get(0);
    assert_eq!(plan_runs(&client).await?, 0);
    let after = get(&db, id).await?;
    assert!(!after.enabled);
    assert!(after.reason.context("a reason")?.contains("the minute `99`"));
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
    assert_eq!((plan_runs(&client).await?, db.count(WAITING).await?), (1, 1));
    assert_eq!(get(&db, id).await?.consecutive_failures, 1);
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
