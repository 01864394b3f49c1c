//! Whose turn it is in a lane when a job leaves it, comes late or gets another time.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use pitwheel::engine::{Cause, Ending, error_entry};
use pitwheel::{Change, NewJob, NewPipeline, Settled, State};
use pitwheel_testkit::TestDb;

const WAITING: Option<State> = Some(State::Waiting);
const BLOCKED: Option<State> = Some(State::Blocked);

/// A job of the lane that is due in so many hours.
fn in_hours(hours: u64) -> NewJob {
    NewJob::raw("test", "{}").lane("a").delay(Duration::from_secs(3600 * hours))
}

async fn enqueue(db: &TestDb, job: NewJob) -> Result<i64> {
    Ok(db.pitwheel().enqueue(job).await?.id)
}

async fn states<const N: usize>(db: &TestDb, ids: [i64; N]) -> Result<[Option<State>; N]> {
    let mut states = [None; N];
    for (state, id) in states.iter_mut().zip(ids) {
        *state = db.state(id).await?;
    }
    Ok(states)
}

/// How a blocked job leaves its lane.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Leaves {
    Cancelled,
    Deleted,
    DeletedByHand,
    CancelledWithItsPipeline,
}

#[tokio::test]
async fn jobs_that_wait_for_a_blocked_one_run_when_it_leaves() -> Result<()> {
    use Leaves::{Cancelled, CancelledWithItsPipeline, Deleted, DeletedByHand};
    let db = TestDb::new().await?;
    for leaves in [Cancelled, Deleted, DeletedByHand, CancelledWithItsPipeline] {
        let head = enqueue(&db, in_hours(10).lane_pass(true)).await?;
        let pipeline = if leaves == CancelledWithItsPipeline {
            let new = NewPipeline::new("p").step("a", in_hours(20));
            Some(db.pitwheel().pipelines().create(new).await?)
        } else {
            enqueue(&db, in_hours(20)).await?;
            None
        };
        let waits = db.count("select max(id) from pitwheel.job").await?;
        let due = enqueue(&db, in_hours(0)).await?;
        db.promote().await?;
        assert_eq!(states(&db, [head, waits, due]).await?, [WAITING, BLOCKED, BLOCKED], "{leaves:?}");
        match leaves {
            Cancelled => drop(db.pitwheel().cancel(waits).await?),
            Deleted => drop(db.pitwheel().change(&[waits], Change::Delete).await?),
            DeletedByHand => {
                let sql = "delete from pitwheel.job where id = $1";
                assert_eq!(db.client().await?.execute(sql, &[&waits]).await?, 1);
            }
            CancelledWithItsPipeline => {
                let id = pipeline.context("no pipeline")?;
                db.pitwheel().pipelines().cancel(id).await?;
            }
        }
        assert_eq!(db.promote().await?, 1, "{leaves:?}");
        assert_eq!(states(&db, [head, due]).await?, [BLOCKED, WAITING], "{leaves:?}");
        db.pitwheel().change(&[head, due], Change::Delete).await?;
        db.promote().await?;
    }
    Ok(())
}

/// Looks at the lane again: the number of new heads.
async fn look(db: &TestDb) -> Result<usize> {
    let sql = "insert into pitwheel.lane_check (xid, lane) values (pg_current_xact_id(), '\"a\"')";
    db.client().await?.execute(sql, &[]).await?;
    db.promote().await
}

#[tokio::test]
async fn a_job_that_is_rescheduled_does_not_wait_for_a_head_behind_it() -> Result<()> {
    let db = TestDb::new().await?;
    let before = enqueue(&db, in_hours(10).lane_pass(true)).await?;
    let head = enqueue(&db, in_hours(5)).await?;
    let behind = enqueue(&db, in_hours(0)).await?;
    assert_eq!(states(&db, [before, head, behind]).await?, [BLOCKED, WAITING, BLOCKED]);
    let reschedule = async |hours: u64| -> Result<usize> {
        let at = SystemTime::now() + Duration::from_secs(3600 * hours);
        db.pitwheel().change(&[before], Change::Reschedule(Some(at))).await?;
        db.promote().await
    };
    assert_eq!(reschedule(7).await?, 0, "the head comes first");
    for (hours, now) in [(3, [WAITING, BLOCKED, BLOCKED]), (8, [BLOCKED, WAITING, BLOCKED])] {
        assert_eq!(reschedule(hours).await?, 1);
        assert_eq!(states(&db, [before, head, behind]).await?, now, "in {hours} hours");
        assert_eq!(look(&db).await?, 0, "they do not take turns");
    }
    assert_eq!(reschedule(0).await?, 1);
    let claimed = db.claim_one().await?;
    assert_eq!(claimed.claim.id, before);
    assert_eq!(db.complete(&claimed).await?, Settled::Written);
    assert_eq!(db.promote().await?, 1);
    assert_eq!(states(&db, [head, behind]).await?, [WAITING, BLOCKED]);
    let own = "select count(*) from pitwheel.job where run_at between now() + interval '4 hours' and now() + interval '5 hours'";
    assert_eq!(db.count(own).await?, 1, "it has its own time again");
    Ok(())
}

#[tokio::test]
async fn a_job_that_is_committed_late_does_not_wait_for_a_head_behind_it() -> Result<()> {
    let db = TestDb::new().await?;
    let mut client = db.client().await?;
    let transaction = client.transaction().await?;
    let late: i64 =
        transaction.query_one("select pitwheel.enqueue('test', lane => '\"a\"')", &[]).await?.get(0);
    let head = enqueue(&db, in_hours(5)).await?;
    assert!(late < head);
    transaction.commit().await?;
    assert_eq!(db.promote().await?, 1);
    assert_eq!(states(&db, [late, head]).await?, [WAITING, BLOCKED]);
    Ok(())
}

#[tokio::test]
async fn a_head_that_waits_for_its_retry_keeps_its_turn() -> Result<()> {
    let db = TestDb::new().await?;
    let before = enqueue(&db, in_hours(10).lane_pass(true)).await?;
    let head = enqueue(&db, in_hours(0)).await?;
    assert_eq!(states(&db, [before, head]).await?, [BLOCKED, WAITING]);
    let error = error_entry(Cause::Error, "no", 1, "test");
    let retry = Ending::Retry { delay: Duration::from_secs(3600), error };
    assert_eq!(db.settle(&db.claim_one().await?, retry).await?, Settled::Written);
    db.pitwheel().change(&[before], Change::Reschedule(None)).await?;
    assert_eq!(db.promote().await?, 0);
    assert_eq!(states(&db, [before, head]).await?, [BLOCKED, WAITING]);
    Ok(())
}
