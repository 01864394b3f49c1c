//! Claims of one job by its id, and the recovery of a job whose worker is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use pitwheel::engine::{Claimed, claim_by_id};
use pitwheel::{Change, ClaimRefusal, Context, Error, Lane, NewJob, Settled, State, Worker};
use pitwheel_testkit::{TestDb, Work, start_worker, wait_until, work, worker};
use tokio_postgres::Client;

const STALE: Duration = Duration::from_secs(1800);

fn kinds() -> Vec<String> {
    vec!["test".to_owned()]
}

async fn claim(client: &Client, worker: i64, id: i64) -> Result<Result<Claimed, ClaimRefusal>> {
    Ok(claim_by_id(client, worker, id, &kinds(), None).await?)
}

async fn refusal(client: &Client, worker: i64, id: i64) -> Result<Option<ClaimRefusal>> {
    Ok(claim(client, worker, id).await?.err())
}

#[tokio::test]
async fn a_claim_makes_the_job_current_and_clears_the_former() -> Result<()> {
    let db = TestDb::new().await?;
    let (client, worker) = (db.client().await?, db.register().await?);
    let lane = Lane::from("combination");
    let job = || NewJob::raw("test", "{}").lane(lane.clone());
    let first = db.pitwheel().enqueue(job()).await?.id;
    let claimed = claim(&client, worker, first).await?;
    let claimed = claimed.map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
    assert_eq!(db.state(first).await?, Some(State::Running));
    assert_eq!(db.complete(&claimed).await?, Settled::Written);
    let second = db.pitwheel().enqueue(job()).await?.id;
    let current = async || -> Result<Option<i64>> {
        Ok(db.pitwheel().lane_current(&lane).await?.map(|current| current.id))
    };
    assert_eq!(current().await?, Some(first));
    assert!(claim(&client, worker, second).await?.is_ok());
    assert_eq!(current().await?, Some(second));
    assert_eq!(db.count("select count(*) from pitwheel.current").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_claim_that_is_refused_changes_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let (client, worker) = (db.client().await?, db.register().await?);
    let taken = db.job().lane("\"a\"").insert().await?;
    let busy = db.job().lane("\"a\"").insert().await?;
    db.promote().await?;
    assert!(claim(&client, worker, taken).await?.is_ok());
    let spent = db.job().attempts(3, 3).insert().await?;
    let finished = db.job().insert().await?;
    db.pitwheel().cancel(finished).await?;
    let other = db.job().kind("other").insert().await?;
    let paused = db.job().queue("paused").insert().await?;
    db.pitwheel().pause(Some("paused")).await?;
    let rows = "select sum(hashtext(job::text))::bigint from pitwheel.job";
    let before = db.count(rows).await?;
    for (id, why) in [
        (taken, ClaimRefusal::Taken),
        (busy, ClaimRefusal::LaneBusy),
        (spent, ClaimRefusal::OutOfAttempts),
        (finished, ClaimRefusal::Finished),
        (other, ClaimRefusal::NoHandler),
        (paused, ClaimRefusal::Paused),
    ] {
        assert_eq!(refusal(&client, worker, id).await?, Some(why));
    }
    assert_eq!(db.count(rows).await?, before);
    let missing = claim_by_id(&client, worker, 4711, &kinds(), None).await;
    assert!(matches!(missing, Err(Error::NotFound(4711, _))));
    assert_eq!(db.pitwheel().lane_current(&Lane::from("a")).await?.map(|current| current.id), Some(taken));
    Ok(())
}

#[tokio::test]
async fn of_claims_at_once_one_gets_the_job_and_one_the_lane() -> Result<()> {
    let db = TestDb::new().await?;
    let lane = Lane::of(serde_json::json!(["module", null, "csv", 2026]))?;
    for _ in 0..20 {
        let job = || NewJob::raw("test", "{}").lane(lane.clone());
        let jobs = db.pitwheel().enqueue_many([job(), job()]).await?;
        let mut tasks = Vec::new();
        for at in 0..6 {
            let (client, worker, id) = (db.client().await?, db.register().await?, jobs[at % 2].id);
            tasks.push(tokio::spawn(async move { claim(&client, worker, id).await }));
        }
        let mut claimed = Vec::new();
        for task in tasks {
            claimed.extend(task.await??.ok());
        }
        assert_eq!(claimed.len(), 1);
        assert_eq!(db.count("select count(*) from pitwheel.job where holder is not null").await?, 1);
        assert_eq!(db.complete(&claimed[0]).await?, Settled::Written);
        let next = db.claim_one().await?;
        assert_eq!(db.complete(&next).await?, Settled::Written);
        db.promote().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_worker_runs_one_job_by_its_id_unless_it_is_refused() -> Result<()> {
    let db = TestDb::new().await?;
    let ran = Arc::new(AtomicUsize::new(0));
    let one = || {
        let ran = ran.clone();
        Worker::new(db.pitwheel()).handle(move |_: Work, _: Context| {
            ran.fetch_add(1, Ordering::SeqCst);
            async { Ok::<(), String>(()) }
        })
    };
    let later = db.pitwheel().enqueue(work(1).delay(Duration::from_secs(3600))).await?.id;
    let other = db.pitwheel().enqueue(work(2)).await?.id;
    let stats = one().run_job(later, std::future::pending()).await?;
    assert!(stats.is_ok());
    assert_eq!((db.state(later).await?, db.state(other).await?), (Some(State::Done), Some(State::Waiting)));
    assert_eq!(ran.load(Ordering::SeqCst), 1, "no other job");
    let again = one().run_job(later, std::future::pending()).await?;
    assert_eq!(again.err(), Some(ClaimRefusal::Finished));
    db.pitwheel().change(&[other], Change::Cancel).await?;
    assert_eq!(one().run_job(other, std::future::pending()).await?.err(), Some(ClaimRefusal::Finished));
    assert!(matches!(one().run_job(4711, std::future::pending()).await, Err(Error::NotFound(..))));
    assert_eq!(ran.load(Ordering::SeqCst), 1, "the handler is not called for a refused job");
    assert_eq!(db.count("select count(*) from pitwheel.worker where dead_at is null").await?, 0);
    Ok(())
}

/// Lets the last renewal of the job's worker be this long ago.
async fn silent_since(db: &TestDb, job: &Claimed, seconds: i32) -> Result<()> {
    let sql = format!(
        "update pitwheel.worker set lease_until = clock_timestamp() + lease - interval '{seconds} seconds' where id = {}",
        job.claim.holder
    );
    Ok(db.client().await?.batch_execute(&sql).await?)
}

#[tokio::test]
async fn a_stale_job_is_recovered_and_its_former_holder_is_fenced_out() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.job().attempts(2, 3).lane("\"a\"").insert().await?;
    db.promote().await?;
    let lost = db.claim_one().await?;
    silent_since(&db, &lost, 1801).await?;
    db.pitwheel().acting_as("ada").recover(id, STALE).await?;
    let job = db.pitwheel().job(id).await?;
    assert_eq!((job.summary.state, job.summary.attempt), (State::Waiting, 0));
    assert_eq!(db.complete(&lost).await?, Settled::Lost);
    let audit = db.pitwheel().audit(None, 1).await?.remove(0);
    assert_eq!((&*audit.actor, &*audit.action, audit.job_ids), ("ada", "job.recover", Some(vec![id])));
    let second = db.claim_one().await?;
    assert_eq!((second.claim.id, second.attempt), (id, 1));
    assert_eq!(db.complete(&second).await?, Settled::Written);
    Ok(())
}

#[tokio::test]
async fn what_is_not_stale_is_not_recovered() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.job().insert().await?;
    let recover = async || db.pitwheel().recover(id, STALE).await.map_err(|error| error.to_string());
    let not = |why: &str| Err(format!("job {id} cannot be recovered: {why}"));
    assert_eq!(recover().await, not("it is not running"));
    let job = db.claim_one().await?;
    silent_since(&db, &job, 1700).await?;
    assert_eq!(recover().await, not("its worker renewed its lease 1700 s ago, which is less than 1800 s"));
    assert_eq!(db.complete(&job).await?, Settled::Written);
    assert_eq!(recover().await, not("it is finished"));
    assert!(matches!(db.pitwheel().recover(4711, STALE).await, Err(Error::NotFound(..))));
    Ok(())
}

#[tokio::test]
async fn an_orphan_is_found_without_help() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client
        .execute("select pitwheel.enqueue('work', '{\"n\": 1}', lane => '[\"orphan\", null]')", &[])
        .await?;
    let done = async |_: Work, _: Context| Ok::<(), String>(());
    let running = start_worker(worker(db.pitwheel()).handle(done));
    wait_until("it has run", async || Ok(db.count("select count(*) from pitwheel.job").await? == 0)).await?;
    running.stop().await?;
    Ok(())
}
