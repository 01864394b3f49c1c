//! What the tests of recurring jobs share: creating one, and settling a run as a worker does.

use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};
use pitwheel::engine::{
    Attempt, Cause, Claimed, Failure, Outcome, SettleResult, Settlement, decide_run, settle,
};
use pitwheel::{History, NewRecurring, RecurringJob, Settled};
use pitwheel_testkit::TestDb;

pub(crate) const LIVE: &str = "select count(*) from pitwheel.job where recurring is not null";
pub(crate) const WAITING: &str =
    "select count(*) from pitwheel.job where recurring is not null and holder is null";

pub(crate) fn recurring(key: &str, cadence: &str) -> Result<NewRecurring> {
    Ok(NewRecurring::raw("test", "{}", key, cadence.parse()?))
}

pub(crate) async fn create(db: &TestDb, cadence: &str) -> Result<i64> {
    Ok(db.pitwheel().recurring().create(recurring("k", cadence)?).await?.id)
}

pub(crate) async fn get(db: &TestDb, id: i64) -> Result<RecurringJob> {
    Ok(db.pitwheel().recurring().get(id).await?.summary)
}

/// Settles a run as a worker does.
pub(crate) async fn end(db: &TestDb, job: &Claimed, outcome: Outcome) -> Result<Settled> {
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
    let settlement = Settlement { plan, ..Settlement::new(job.claim, ending) };
    match settle(&db.client().await?, &[settlement], &[]).await?.first() {
        Some(SettleResult::Written) => Ok(Settled::Written),
        Some(SettleResult::Already | SettleResult::Lost) => Ok(Settled::Lost),
        other => bail!("neither written nor lost: {other:?}"),
    }
}

/// Settles a run, whose claim must hold.
pub(crate) async fn ended(db: &TestDb, job: &Claimed, outcome: Outcome) -> Result<()> {
    assert_eq!(end(db, job, outcome).await?, Settled::Written);
    Ok(())
}

pub(crate) async fn complete(db: &TestDb, job: &Claimed) -> Result<Settled> {
    end(db, job, Outcome::Verdict(().into())).await
}

pub(crate) fn failure() -> Outcome {
    Outcome::Failed(Failure { cause: Cause::Error, message: "no answer".into() })
}

/// Makes the next run, its planned time included, older.
pub(crate) async fn make_older(db: &TestDb, span: &str) -> Result<()> {
    let older = format!(
        "update pitwheel.recurring set anchor_at = anchor_at - interval '{span}', next_run_at = next_run_at - interval '{span}';
         update pitwheel.job set run_at = run_at - interval '{span}', anchor_at = anchor_at - interval '{span}',
            next_run_at = next_run_at - interval '{span}' where recurring is not null"
    );
    Ok(db.client().await?.batch_execute(&older).await?)
}

pub(crate) fn seconds(from: SystemTime, to: SystemTime) -> i64 {
    match to.duration_since(from) {
        Ok(span) => span.as_secs() as i64,
        Err(error) => -(error.duration().as_secs() as i64) - 1,
    }
}
