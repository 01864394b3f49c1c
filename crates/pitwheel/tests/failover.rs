//! After a failover to a server that had not received the last commits, jobs go on, and what the workers remember does no harm.

use std::sync::Arc;

use anyhow::Result;
use pitwheel::engine::{Ending, restore_holds, settle_abandoned};
use pitwheel::{Context, History, State};
use pitwheel_testkit::{TestDb, Work, start_worker, wait_until, work, worker};
use tokio::sync::Semaphore;

const DONE: &str = "select count(*) from pitwheel.job_history where state = 'done'";
const HOLDS: &str = "select count(*) from pitwheel.hold";
/// What the standby has: the running jobs as they are now.
const REPLICATE: &str = "create table standby as table pitwheel.job";
/// The failover: the endings that were written since are lost. The worker has deleted the hold with a later batch.
const FAIL_OVER: &str = "delete from pitwheel.job_history; delete from pitwheel.hold;
    insert into pitwheel.job overriding system value select * from standby";

#[tokio::test]
async fn a_job_whose_ending_was_lost_runs_again() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let gate = Arc::new(Semaphore::new(0));
    let handler = |gate: Arc<Semaphore>| {
        move |_: Work, _: Context| {
            let gate = gate.clone();
            async move { gate.acquire().await.map(drop).map_err(|closed| closed.to_string()) }
        }
    };
    let first = start_worker(worker(db.pitwheel()).handle(handler(gate.clone())));
    db.pitwheel().enqueue(work(1)).await?;
    wait_until("it runs", async || Ok(db.count("select count(holder) from pitwheel.job").await? == 1))
        .await?;
    client.batch_execute(REPLICATE).await?;
    gate.add_permits(1000);
    wait_until("it is done", async || Ok(db.count(DONE).await? == 1)).await?;

    client.batch_execute(FAIL_OVER).await?;
    // All nodes look for such jobs when they find another server. This server is the same, but a node that starts looks too.
    let second = start_worker(worker(db.pitwheel()).handle(handler(gate)));
    wait_until("it is done again", async || Ok(db.count(DONE).await? == 1)).await?;
    wait_until("no hold is left", async || Ok(db.count(HOLDS).await? == 0)).await?;
    first.stop().await?;
    second.stop().await?;
    Ok(())
}

#[tokio::test]
async fn so_does_one_whose_worker_has_died_or_is_forgotten_since() -> Result<()> {
    for worker_is_gone in ["update pitwheel.worker set dead_at = now()", "delete from pitwheel.worker"] {
        let db = TestDb::new().await?;
        let client = db.client().await?;
        db.job().insert().await?;
        let claimed = db.claim_one().await?;
        client.batch_execute(REPLICATE).await?;
        let _ = db.settle(&claimed, Ending::done(History::All, Some(claimed.ctid))).await?;
        client.batch_execute(FAIL_OVER).await?;
        client.batch_execute(worker_is_gone).await?;
        settle_abandoned(&client, 0).await?;
        assert_eq!(db.state(claimed.claim.id).await?, Some(State::Running), "nothing finds it");

        restore_holds(&client, 0).await?;
        settle_abandoned(&client, 0).await?;
        let job = db.pitwheel().job(claimed.claim.id).await?;
        assert_eq!((job.summary.state, job.crashes), (State::Waiting, 1), "{worker_is_gone}");
        assert_eq!(db.count(HOLDS).await?, 0);
    }
    Ok(())
}

#[tokio::test]
async fn a_look_at_all_jobs_ends_and_changes_none_that_has_its_hold() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client
        .batch_execute(
            "insert into pitwheel.job (kind, payload, queue, run_at, enqueued_at, priority, max_attempts)
            select 'test', '{}', 'default', now(), now(), 0, 20 from generate_series(1, 12000)",
        )
        .await?;
    let first = db.claim(400).await?;
    let second = db.claim(400).await?;
    let (mut above, mut looks) = (0, 0);
    loop {
        above = restore_holds(&client, above).await?;
        looks += 1;
        if above == 0 {
            break;
        }
    }
    assert_eq!((db.count(HOLDS).await?, looks), (2, 4), "three pages, and one that is empty");

    // All holds are gone: each is restored with at most 500 jobs.
    client
        .batch_execute(
            "update pitwheel.job set holder = (select min(id) from pitwheel.worker) where holder is not null",
        )
        .await?;
    client.batch_execute("delete from pitwheel.hold").await?;
    restore_holds(&client, 0).await?;
    let held = db.count("select count(*) from pitwheel.hold, unnest(job_ids)").await?;
    assert_eq!((db.count(HOLDS).await?, held as usize), (2, first.len() + second.len()));
    assert_eq!(db.count("select max(cardinality(job_ids))::bigint from pitwheel.hold").await?, 500);
    Ok(())
}
