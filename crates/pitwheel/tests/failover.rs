//! After a failover to a server that had not received the last commits, jobs go on, and what the workers remember does no harm.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use pitwheel::engine::{Ending, restore_holds, settle_abandoned};
use pitwheel::{Context, History, Pitwheel, State, Worker};
use pitwheel_devdb::{Options as ServerOptions, Server};
use pitwheel_testkit::{TestDb, Work, connect, start_worker, wait_until, work, worker};
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

/// A copy of the server's data, as a replica has it that receives nothing more.
fn replicate(server: &Server) -> Result<PathBuf> {
    let copy = server.dir().join("replica");
    let backup = Command::new(server.programs().path("pg_basebackup"))
        .args(["--checkpoint=fast", "--dbname", &server.url(), "--pgdata"])
        .arg(&copy)
        .output()?;
    ensure!(backup.status.success(), "{}", String::from_utf8_lossy(&backup.stderr));
    Ok(copy)
}

/// The server crashes, and the replica takes its place.
fn fail_over(server: &mut Server, replica: &Path) -> Result<()> {
    server.crash()?;
    let data = server.dir().join("data");
    let owner = fs::metadata(&data)?;
    fs::remove_dir_all(&data)?;
    fs::rename(replica, &data)?;
    // As root, Postgres runs as another user.
    let owner = format!("{}:{}", owner.uid(), owner.gid());
    let chown = Command::new("chown").arg("-R").arg(owner).arg(&data).status()?;
    ensure!(chown.success(), "the files have another owner");
    Ok(server.start_again()?)
}

/// Jobs that each wait for their gate, and how often each was started.
#[derive(Clone, Default)]
struct Gates {
    gates: Arc<Mutex<HashMap<i64, Arc<Semaphore>>>>,
    starts: Arc<Mutex<Vec<i64>>>,
}

impl Gates {
    fn gate(&self, n: i64) -> Arc<Semaphore> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.entry(n).or_insert_with(|| Arc::new(Semaphore::new(0))).clone()
    }

    fn open(&self, n: i64) {
        self.gate(n).add_permits(100);
    }

    fn starts(&self, n: i64) -> usize {
        let starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        starts.iter().filter(|start| **start == n).count()
    }

    async fn have_started(&self, n: i64, times: usize) -> Result<()> {
        wait_until("it has started", async || Ok(self.starts(n) >= times)).await
    }

    async fn run(self, work: Work) -> Result<(), String> {
        self.starts.lock().unwrap_or_else(PoisonError::into_inner).push(work.n);
        self.gate(work.n).acquire().await.map(drop).map_err(|closed| closed.to_string())
    }
}

/// With a server that crashes and comes back without its last commits. The worker has two slots, and is alive all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_and_endings_that_were_lost_are_made_again_and_cost_no_slot() -> Result<()> {
    let mut server = Server::start(ServerOptions::temporary())?;
    let pitwheel = Pitwheel::connect(&server.url()).await?;
    pitwheel.migrate().await?;
    let done = async |id: i64| Ok(pitwheel.job(id).await.is_ok_and(|job| job.summary.state == State::Done));
    let gates = Gates::default();
    let handler = gates.clone();
    let worker = Worker::new(&pitwheel)
        .queue("default", 2)
        .handle(move |work: Work, _: Context| handler.clone().run(work));
    let running = start_worker(worker);
    let ended = pitwheel.enqueue(work(1)).await?.id;
    gates.have_started(1, 1).await?;
    let claimed = pitwheel.enqueue(work(2).delay(Duration::from_secs(2))).await?.id;
    let replica = tokio::task::block_in_place(|| replicate(&server))?;

    // The ending of the first job and the claim of the second are lost.
    gates.open(1);
    wait_until("the first is done", async || done(ended).await).await?;
    gates.have_started(2, 1).await?;
    tokio::task::block_in_place(|| fail_over(&mut server, &replica))?;
    wait_until("the first is done again", async || done(ended).await).await?;
    assert_eq!(gates.starts(1), 2);

    // The second was claimed again, under the same claim.
    let client = connect(&server.url()).await?;
    let sql = "select count(*) from pitwheel.job where holder is not null and attempt = 1";
    wait_until("the second is claimed again", async || {
        Ok(client.query_one(sql, &[]).await?.get::<_, i64>(0) == 1)
    })
    .await?;
    gates.open(2);
    wait_until("the second is done", async || done(claimed).await).await?;
    assert_eq!(gates.starts(2), 1, "it ran all the time");

    // Both slots are free.
    pitwheel.enqueue_many([work(3), work(4)]).await?;
    gates.have_started(3, 1).await?;
    gates.have_started(4, 1).await?;
    gates.open(3);
    gates.open(4);
    let stats = running.stop().await?;
    assert_eq!(stats.lost, 0);
    Ok(())
}
