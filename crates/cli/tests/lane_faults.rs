//! Two nodes and three workers race for the same lanes for a minute while all of them but one worker are killed in turn, again and
//! again: never two running jobs of one lane, never a lane without its current job, and the order is kept.

#[path = "faults/nodes.rs"]
mod nodes;
#[path = "cli/support.rs"]
#[allow(dead_code, reason = "this binary uses a part of it")]
mod support;
#[path = "faults/worker_process.rs"]
mod worker_process;

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use pitwheel::NewJob;
use pitwheel_testkit::{ChildProcess, Nap, ScratchFolder, TestDb, wait_until};

use crate::nodes::{start_node, url};
use crate::support::Node;
use crate::worker_process::{start_library, start_remote};

/// Lanes of a producer that enqueues one job after the other. In the third, users' transactions overlap.
const LANES: [&str; 2] = ["a", "b"];
/// The length of a job.
const NAP: Nap = Nap { ms: 10 };
/// The time between two jobs of a lane. A lane whose worker was killed waits for a lease, and must catch up before the end.
const PACE: Duration = Duration::from_millis(100);
/// How long jobs are enqueued, and processes are killed.
const LOAD: Duration = Duration::from_secs(60);
/// Between two kills: shorter than the lease, so that some happen while jobs wait for the sweep.
const KILLS: Duration = Duration::from_secs(4);

/// Each process twice.
const KILLS_MIN: usize = 8;
/// Live jobs, above which no more are enqueued: a slow machine must not get more than it can run.
const LIVE_MAX: i64 = 150;

const RUNNING_TWICE: &str = "select count(*) from (
    select from pitwheel.job where lane is not null and holder is not null group by lane having count(*) > 1) as twice";
const CURRENT: &str = "select count(distinct lane) from pitwheel.current";
const EARLY: &str = "select count(*) from (
    select id < lag(id) over (partition by lane order by finished_at, id) as is_early
    from pitwheel.job_history where lane <> '\"user\"') as job where is_early";
/// Jobs that were claimed before the one before them in their lane had ended.
const OVERLAPPING: &str = "select count(*) from (
    select claimed_at < lag(finished_at) over (partition by lane order by finished_at, id) as is_beside
    from pitwheel.job_history) as job where is_beside";

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
        let few = async || Ok(db.count("select count(*) from pitwheel.job").await? <= LIVE_MAX);
        wait_until("the workers keep up", few).await?;
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

/// The processes that are killed in turn. Each is started again at once.
struct Victims<'a> {
    db: &'a TestDb,
    folder: &'a ScratchFolder,
    nodes: [Node; 2],
    remote: ChildProcess,
    library: ChildProcess,
}

impl Victims<'_> {
    fn kill(&mut self, turn: usize) -> Result<()> {
        match turn % 4 {
            0 => {
                self.remote.kill()?;
                self.remote = start_remote(&url(&self.nodes[0]), None)?;
            }
            1 => self.kill_node(1)?,
            2 => {
                self.library.kill()?;
                self.library = start_library(self.db.url(), None)?;
            }
            _ => self.kill_node(0)?,
        }
        Ok(())
    }

    fn kill_node(&mut self, at: usize) -> Result<()> {
        let address = self.nodes[at].address.to_string();
        self.nodes[at].process.kill()?;
        self.nodes[at] = start_node(self.db, self.folder, &address)?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_keep_their_order_while_workers_and_nodes_are_killed_for_a_minute() -> Result<()> {
    let db = TestDb::new().await?;
    let folder = ScratchFolder::create()?;
    let nodes = [start_node(&db, &folder, "127.0.0.1:0")?, start_node(&db, &folder, "127.0.0.1:0")?];
    let _other = start_remote(&url(&nodes[1]), None)?;
    let (remote, library) = (start_remote(&url(&nodes[0]), None)?, start_library(db.url(), None)?);
    let mut victims = Victims { db: &db, folder: &folder, nodes, remote, library };
    let kills = async {
        let (begun, mut turns) = (Instant::now(), 0);
        while begun.elapsed() + KILLS < LOAD || turns < KILLS_MIN {
            tokio::time::sleep(KILLS).await; // the processes have run some jobs
            tokio::task::block_in_place(|| victims.kill(turns))?;
            turns += 1;
        }
        anyhow::Ok(turns)
    };
    let work = async {
        let (enqueued, killed) = tokio::join!(load(&db), kills);
        let left = async || Ok(db.count("select count(*) from pitwheel.job").await? == 0);
        wait_until("all jobs are done", left).await?;
        anyhow::Ok((enqueued?, killed?))
    };
    let (enqueued, killed) = tokio::select! {
        done = work => done?,
        wrong = watch(&db) => return Err(wrong.err().unwrap_or_else(|| anyhow!("the watch ended"))),
    };
    println!("{enqueued} jobs, {killed} processes killed");
    let done = db.count("select count(*) from pitwheel.job_history where state = 'done'").await?;
    assert_eq!(done, enqueued, "lost, or settled twice");
    assert_eq!(db.count(EARLY).await?, 0, "jobs ran before their turn");
    assert_eq!(db.count(OVERLAPPING).await?, 0, "two jobs of a lane ran at a time");
    Ok(())
}
