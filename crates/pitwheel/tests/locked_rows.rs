//! A row that another transaction has locked delays its own job, and nothing else.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use pitwheel::engine::{
    Claimed, Ending, Renewed, SettleResult, Settlement, heartbeat, release_unknown, renew, settle,
};
use pitwheel::{Context, History, NewJob, Settled, State, Worker};
use pitwheel_testkit::{TestDb, WAIT_MAX, Work, start_worker, wait_until, worker};
use tokio::sync::Semaphore;
use tokio::time::timeout;

type Gated = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Jobs that run until the gate lets them end, and report progress all the time.
fn gated(gate: &Arc<Semaphore>) -> impl Fn(Work, Context) -> Gated + use<> {
    let gate = gate.clone();
    move |work, context| {
        let gate = gate.clone();
        Box::pin(async move {
            let mut n = 0;
            while work.n < 0 && gate.available_permits() == 0 {
                n += 1;
                context.progress(0.5, format!("round {n}"));
                tokio::time::sleep(Duration::from_millis(20)).await; // between two reports
            }
            Ok(())
        })
    }
}

async fn all_running(db: &TestDb, jobs: i64) -> Result<()> {
    let running = "select count(*) from pitwheel.job where holder is not null";
    wait_until("all run", async || Ok(db.count(running).await? == jobs)).await
}

#[tokio::test]
async fn a_locked_row_of_a_job_with_progress_costs_no_lease() -> Result<()> {
    let db = TestDb::new().await?;
    let gate = Arc::new(Semaphore::new(0));
    let ids = db.pitwheel().enqueue_many((0..10).map(|n| NewJob::of(&Work { n: -1 - n }))).await?;
    let lease = Duration::from_secs(2);
    let running = start_worker(worker(db.pitwheel()).lease(lease).handle(gated(&gate)));
    all_running(&db, 10).await?;

    let mut client = db.client().await?;
    let lock = client.transaction().await?;
    lock.execute("select from pitwheel.job where id = $1 for update", &[&ids[0].id]).await?;
    // The time that is tested: several leases with the row locked.
    let begun = Instant::now();
    while begun.elapsed() < 3 * lease {
        assert_eq!(db.count("select count(*) from pitwheel.worker where dead_at is not null").await?, 0);
        assert_eq!(db.count("select count(*) from pitwheel.job where crashes > 0").await?, 0);
        tokio::time::sleep(Duration::from_millis(100)).await; // between two checks
    }
    let noted = "select count(*) from pitwheel.job where note is not null";
    assert!(db.count(noted).await? >= 9, "the others' progress is written");
    lock.rollback().await?;
    gate.add_permits(1);
    let done = "select count(*) from pitwheel.job_history where state = 'done' and attempt = 1";
    wait_until("all are done", async || Ok(db.count(done).await? == 10)).await?;
    assert_eq!(running.stop().await?.lost, 0);
    Ok(())
}

#[tokio::test]
async fn locked_rows_hold_up_no_other_settle() -> Result<()> {
    let db = TestDb::new().await?;
    let gate = Arc::new(Semaphore::new(0));
    let ids = db.pitwheel().enqueue_many((0..3).map(|n| NewJob::of(&Work { n: -1 - n }))).await?;
    let running = start_worker(worker(db.pitwheel()).handle(gated(&gate)));
    all_running(&db, 3).await?;
    let mut client = db.client().await?;
    let lock = client.transaction().await?;
    lock.execute("select from pitwheel.job order by id for update", &[]).await?;
    gate.add_permits(1);

    // Settled many times over while the three are locked.
    for round in 0..20 {
        db.pitwheel().enqueue_many((0..50).map(|n| NewJob::of(&Work { n }))).await?;
        let done = "select count(*) from pitwheel.job_history";
        let begun = Instant::now();
        wait_until("the others are done", async || Ok(db.count(done).await? == (round + 1) * 50)).await?;
        assert!(begun.elapsed() < Duration::from_secs(5), "round {round} took {:?}", begun.elapsed());
    }
    for job in &ids {
        assert_eq!(db.state(job.id).await?, Some(State::Running));
    }
    lock.rollback().await?;
    wait_until("the locked ones are done", async || {
        Ok(db.count("select count(*) from pitwheel.job_history").await? == 1003)
    })
    .await?;
    let stats = running.stop().await?;
    assert_eq!((stats.settled, stats.lost), (1003, 0));
    Ok(())
}

#[tokio::test]
async fn a_worker_that_ends_settles_what_is_unlocked_in_time() -> Result<()> {
    let db = TestDb::new().await?;
    let gate = Arc::new(Semaphore::new(0));
    db.pitwheel().enqueue(&Work { n: -1 }).await?;
    let running = start_worker(worker(db.pitwheel()).handle(gated(&gate)));
    all_running(&db, 1).await?;
    let mut client = db.client().await?;
    let lock = client.transaction().await?;
    lock.execute("select from pitwheel.job for update", &[]).await?;
    gate.add_permits(1);
    let stopping = tokio::spawn(running.stop());
    tokio::time::sleep(Duration::from_millis(500)).await; // the settle meets the lock meanwhile
    lock.rollback().await?;
    assert_eq!(stopping.await??.settled, 1);
    assert_eq!(db.count("select count(*) from pitwheel.job_history where state = 'done'").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_claim_takes_the_jobs_beside_a_locked_one() -> Result<()> {
    let db = TestDb::new().await?;
    let mut ids = Vec::new();
    for crashes in [0, 0, 0, 0, 2, 2] {
        ids.push(db.job().crashes(crashes).insert().await?);
    }
    let mut client = db.client().await?;
    let lock = client.transaction().await?;
    for first in [ids[0], ids[4]] {
        lock.execute("select from pitwheel.job where id = $1 for update", &[&first]).await?;
    }
    let worker = db.register().await?;
    // A claim that waited for the lock would wait until the test ends.
    let claimed = timeout(WAIT_MAX, async {
        let one = db.claim_as(worker, 1).await?;
        let for_workers = db.claim_for_workers(&[worker, worker]).await?;
        let alone = db.claim_alone(worker).await?;
        Ok::<_, anyhow::Error>(one.into_iter().chain(for_workers).chain(alone))
    });
    let claimed: Vec<i64> = claimed.await??.map(|job| job.claim.id).collect();
    assert_eq!(claimed, [ids[1], ids[2], ids[3], ids[5]]);
    lock.rollback().await?;
    assert_eq!(db.claim_as(worker, 5).await?.len(), 1);
    Ok(())
}

/// The hold of a claim that has ended is deleted by a later settle, or by a look for unknown holds.
#[tokio::test]
async fn a_locked_hold_is_left_and_everything_else_is_written() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().insert().await?;
    let ended = db.claim_one().await?;
    assert_eq!(db.complete(&ended).await?, Settled::Written);
    let hold = db.count("select id from pitwheel.hold").await?;
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.execute("select from pitwheel.hold where id = $1 for update", &[&hold]).await?;

    let client = db.client().await?;
    client.batch_execute("set lock_timeout = '100ms'").await?;
    let endings: [fn(&Claimed) -> Settlement; 5] = [
        |job| Settlement::new(job.claim, Ending::done(History::All, Some(job.ctid))),
        |job| Settlement::new(job.claim, Ending::done(History::FailuresOnly, Some(job.ctid))),
        |job| Settlement {
            in_lane: true,
            ..Settlement::new(job.claim, Ending::done(History::All, Some(job.ctid)))
        },
        |job| Settlement::new(job.claim, Ending::dead("{}".into())),
        |job| Settlement::release(job.claim),
    ];
    for (n, ending) in endings.iter().enumerate() {
        db.pitwheel().enqueue(NewJob::raw("test", "{}").lane(format!("lane {n}"))).await?;
        let job = db.claim_one().await?;
        assert_eq!(settle(&client, &[ending(&job)], &[hold]).await?, [SettleResult::Written], "ending {n}");
    }
    assert_eq!(release_unknown(&client, &[ended.claim.holder], &[], |_| true).await?, 0);
    let left = format!("select count(*) from pitwheel.hold where id = {hold}");
    assert_eq!(db.count(&left).await?, 1);
    lock.rollback().await?;
    release_unknown(&client, &[ended.claim.holder], &[], |_| true).await?;
    assert_eq!(db.count(&left).await?, 0);
    Ok(())
}

/// Its hold is what finds it again.
#[tokio::test]
async fn a_locked_job_of_a_lost_claim_is_released_when_it_is_free() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().insert().await?;
    let job = db.claim_one().await?;
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.execute("select from pitwheel.job where id = $1 for update", &[&job.claim.id]).await?;

    let client = db.client().await?;
    assert_eq!(release_unknown(&client, &[job.claim.holder], &[], |_| false).await?, 0);
    lock.rollback().await?;
    assert_eq!(release_unknown(&client, &[job.claim.holder], &[], |_| false).await?, 1);
    assert_eq!(db.state(job.claim.id).await?, Some(State::Waiting));
    assert_eq!(db.count("select count(*) from pitwheel.hold").await?, 0);
    Ok(())
}

/// As by a `vacuum full`.
#[tokio::test]
async fn a_locked_table_of_jobs_costs_no_lease() -> Result<()> {
    let db = TestDb::new().await?;
    let worker = db.register().await?;
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.batch_execute("lock table pitwheel.job in access exclusive mode").await?;

    let client = db.client().await?;
    client.batch_execute("set lock_timeout = '100ms'").await?;
    assert_eq!(heartbeat(&client, &[worker]).await?.alive, [worker]);
    assert_eq!(renew(&client, worker).await?, Renewed::Alive);
    lock.rollback().await?;
    Ok(())
}

#[tokio::test]
async fn an_ending_that_met_a_lock_waits_for_none_when_it_is_written_again() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().insert().await?;
    let job = db.claim_one().await?;
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.execute("select from pitwheel.job where id = $1 for update", &[&job.claim.id]).await?;

    // Without a limit: a statement that waited would wait until the test ends.
    let client = db.client().await?;
    let mut ending = Settlement::new(job.claim, Ending::done(History::All, Some(job.ctid)));
    ending.forget_ctid();
    let again = timeout(WAIT_MAX, settle(&client, &[ending], &[])).await??;
    assert_eq!(again, [SettleResult::Locked]);
    lock.rollback().await?;
    Ok(())
}

/// A follower has the key of a job that another transaction has enqueued and not committed.
#[tokio::test]
async fn a_follower_that_waits_for_a_key_delays_its_own_job_only() -> Result<()> {
    let db = TestDb::new().await?;
    for _ in 0..10 {
        db.job().insert().await?;
    }
    let jobs = db.claim(10).await?;
    let batch: Vec<Settlement> = (0..).zip(&jobs).map(|(n, job)| follows(job, n == 7)).collect();
    let mut other = db.client().await?;
    let open = other.transaction().await?;
    open.execute("select pitwheel.enqueue('test', '{}', key => 'taken')", &[]).await?;

    let client = db.client().await?;
    client.batch_execute("set lock_timeout = '100ms'").await?;
    let results = settle(&client, &batch, &[]).await?;
    for (n, result) in results.iter().enumerate() {
        assert_eq!(*result, if n == 7 { SettleResult::Locked } else { SettleResult::Written }, "{n}");
    }
    open.rollback().await?;
    assert_eq!(settle(&client, &batch[7..8], &[]).await?, [SettleResult::Written]);
    assert_eq!(db.count("select count(*) from pitwheel.job where key = 'taken'").await?, 1);
    Ok(())
}

/// More endings than the waits of one bisection tell apart.
#[tokio::test]
async fn a_key_that_is_waited_for_delays_one_ending_of_a_large_batch() -> Result<()> {
    const JOBS: usize = 1000;
    let db = TestDb::new().await?;
    db.pitwheel().enqueue_many((0..JOBS).map(|_| NewJob::raw("test", "{}"))).await?;
    let jobs = db.claim(JOBS).await?;
    assert_eq!(jobs.len(), JOBS);
    let batch: Vec<Settlement> = (0..).zip(&jobs).map(|(n, job)| follows(job, n == 700)).collect();
    let mut other = db.client().await?;
    let open = other.transaction().await?;
    open.execute("select pitwheel.enqueue('test', '{}', key => 'taken')", &[]).await?;

    let client = db.client().await?;
    client.batch_execute("set lock_timeout = '100ms'").await?;
    let results = settle(&client, &batch, &[]).await?;
    let locked: Vec<usize> = (0..JOBS).filter(|&at| results[at] == SettleResult::Locked).collect();
    assert_eq!(locked, [700]);
    open.rollback().await?;
    Ok(())
}

/// So many keys that no batch with all their jobs is split until each of these stands alone.
#[tokio::test]
async fn keys_that_are_waited_for_delay_no_other_job_of_their_worker() -> Result<()> {
    const JOBS: i64 = 300;
    const WAIT: i64 = 10;
    let db = TestDb::new().await?;
    let gate = Arc::new(Semaphore::new(0));
    db.pitwheel().enqueue_many((0..JOBS).map(|n| NewJob::of(&Work { n }))).await?;
    let open_gate = gate.clone();
    let handler = move |work: Work, context: Context| {
        let gate = open_gate.clone();
        async move {
            gate.acquire().await.map_err(|error| error.to_string())?.forget();
            let follower = NewJob::raw("test", "{}");
            let waits = work.n % (JOBS / WAIT) == 0;
            context.then(if waits { follower.key(work.n.to_string()) } else { follower });
            Ok::<_, String>(())
        }
    };
    let slots = usize::try_from(JOBS)?;
    let running = start_worker(Worker::new(db.pitwheel()).queue("default", slots).handle(handler));
    all_running(&db, JOBS).await?;
    let mut other = db.client().await?;
    let open = other.transaction().await?;
    let keys = "select pitwheel.enqueue('test', '{}', queue => 'other', key => n::text)
        from generate_series(0, $1::bigint - 1, $2::bigint) as n";
    open.execute(keys, &[&JOBS, &(JOBS / WAIT)]).await?;
    gate.add_permits(slots);

    let done = "select count(*) from pitwheel.job_history where kind = 'work' and state = 'done'";
    wait_until("all but those that wait are done", async || Ok(db.count(done).await? == JOBS - WAIT)).await?;
    open.rollback().await?;
    wait_until("all are done", async || Ok(db.count(done).await? == JOBS)).await?;
    let stats = running.stop().await?;
    assert_eq!((stats.settled, stats.lost), (JOBS.unsigned_abs(), 0));
    Ok(())
}

/// Each ending would wait alone, if a batch were split until the locked one is found.
#[tokio::test]
async fn a_locked_table_costs_a_batch_a_few_waits() -> Result<()> {
    let db = TestDb::new().await?;
    db.pitwheel().enqueue_many((0..64).map(|n| NewJob::raw("test", "{}").lane(format!("lane {n}")))).await?;
    let jobs = db.claim(64).await?;
    let dead = |job: &Claimed| Settlement::new(job.claim, Ending::dead("{}".into()));
    let batch: Vec<Settlement> = jobs.iter().map(dead).collect();
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.batch_execute("lock table pitwheel.lane_check in share mode").await?;

    let client = db.client().await?;
    client.batch_execute("set lock_timeout = '10ms'").await?;
    let waits = async || -> Result<i64> {
        client.batch_execute("select pg_stat_force_next_flush()").await?;
        db.count("select xact_rollback from pg_stat_database where datname = current_database()").await
    };
    let before = waits().await?;
    assert_eq!(settle(&client, &batch, &[]).await?, vec![SettleResult::Locked; 64]);
    let waits = waits().await? - before;
    assert!(waits < 40, "{waits} statements waited for the table");
    lock.rollback().await?;
    assert_eq!(settle(&client, &batch, &[]).await?, vec![SettleResult::Written; 64]);
    Ok(())
}

/// The job is done, and another one follows.
fn follows(job: &Claimed, with_key: bool) -> Settlement {
    let follower = NewJob::raw("test", "{}");
    let then = vec![if with_key { follower.key("taken") } else { follower }];
    let ending = Ending::Done { history: History::All, ctid: None, result: None, then };
    Settlement::new(job.claim, ending)
}
