//! Whose turn it is in a lane when a job leaves it, comes late or gets another time.

use std::time::Duration;

use anyhow::{Context as _, Result};
use pitwheel::{Change, NewJob, NewPipeline, State};
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
