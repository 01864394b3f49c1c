//! Two nodes and three workers race for the same lanes while workers and a node are killed: never two running jobs of one lane, never
//! a lane without its current job, and the order is kept.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use pitwheel::NewJob;
use pitwheel_testkit::{Nap, ScratchFolder, TestDb, wait_until};

use crate::fleet::{start_node, url};
use crate::worker_process::{start_library, start_remote};

/// Lanes of a producer that enqueues one job after the other. In the third, users' transactions overlap.
const LANES: [&str; 2] = ["a", "b"];
/// The length of a job.
const NAP: Nap = Nap { ms: 10 };
/// The time between two jobs of a lane.
const PACE: Duration = Duration::from_millis(50);
/// How long jobs are enqueued.
const LOAD: Duration = Duration::from_secs(9);
/// Between two kills.
const KILLS: Duration = Duration::from_secs(2);

const RUNNING_TWICE: &str = "select count(*) from (
    select from pitwheel.job where lane is not null and holder is not null group by lane having count(*) > 1) as twice";
const CURRENT: &str = "select count(distinct lane) from pitwheel.current";
const EARLY: &str = "select count(*) from (
    select id < lag(id) over (partition by lane order by finished_at, id) as is_early
    from pitwheel.job_history where lane <> '\"user\"') as job where is_early";

/// Enqueues into the lanes until the load ends: through the library, and in users' transactions that stay open for a moment.
async fn load(db: &TestDb) -> Result<i64> {
    let client = db.client().await?;
    let (begun, mut enqueued) = (Instant::now(), 0);
    while begun.elapsed() < LOAD {
        let jobs = LANES.map(|lane| NewJob::of(&NAP).lane(lane));
        db.pitwheel().enqueue_many(jobs).await?;
        let sql = "begin; select pitwheel.enqueue('nap', '{\"ms\": 10}', lane => '\"user\"')";
        client.batch_execute(sql).await?;
        tokio::time::sleep(PACE).await; // the pace of the load, in which the transaction is open
        client.batch_execute("commit").await?;
        enqueued += 3;
    }
    Ok(enqueued)
}

/// Looks at the lanes again and again. Ends only if something is wrong.
async fn watch(db: &TestDb) -> Result<()> {
    wait_until("every lane has a current job", async || Ok(db.count(CURRENT).await? == 3)).await?;
    loop {
        ensure!(db.count(RUNNING_TWICE).await? == 0, "two jobs of one lane run");
        ensure!(db.count(CURRENT).await? == 3, "a lane has no current job");
        tokio::time::sleep(Duration::from_millis(10)).await; // between two looks
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_keep_their_order_while_workers_and_a_node_are_killed() -> Result<()> {
    let db = TestDb::new().await?;
    let folder = ScratchFolder::create()?;
    let first = start_node(&db, &folder, "127.0.0.1:0")?;
    let mut second = start_node(&db, &folder, "127.0.0.1:0")?;
    let mut remote = start_remote(&url(&first))?;
    let _other = start_remote(&url(&second))?;
    let mut library = start_library(db.url())?;
    let kills = async {
        tokio::time::sleep(KILLS).await; // some jobs have run
        remote.kill()?;
        remote = start_remote(&url(&first))?;
        tokio::time::sleep(KILLS).await; // the new worker has run some
        let address = second.address.to_string();
        second.process.kill()?;
        second = start_node(&db, &folder, &address)?;
        tokio::time::sleep(KILLS).await; // the new node has sent some
        library.kill()?;
        library = start_library(db.url())?;
        anyhow::Ok(())
    };
    let work = async {
        let (enqueued, killed) = tokio::join!(load(&db), kills);
        killed?;
        let left = async || Ok(db.count("select count(*) from pitwheel.job").await? == 0);
        wait_until("all jobs are done", left).await?;
        enqueued
    };
    let enqueued = tokio::select! {
        done = work => done?,
        wrong = watch(&db) => return Err(wrong.err().unwrap_or_else(|| anyhow!("the watch ended"))),
    };
    let done = db.count("select count(*) from pitwheel.job_history where state = 'done'").await?;
    assert_eq!(done, enqueued, "lost, or settled twice");
    assert_eq!(db.count(EARLY).await?, 0, "jobs ran before their turn");
    Ok(())
}
