//! A sweep gives back the jobs of dead workers, and declares no worker dead because sweeps were missed.

use std::time::Duration;

use anyhow::Result;
use pitwheel::engine::{Ending, declare_dead, forget_workers, heartbeat, settle_abandoned, sweep};
use pitwheel::{Settled, State};
use pitwheel_testkit::{TestDb, WAIT_MAX};
use tokio::time::timeout;

#[tokio::test]
async fn a_dead_workers_jobs_wait_again_uncharged() -> Result<()> {
    let db = TestDb::new().await?;
    for _ in 0..3 {
        db.job().insert().await?;
    }
    let jobs = db.claim(3).await?;
    assert_eq!(db.complete(&jobs[0]).await?, Settled::Written);
    db.expire_holder(&jobs[1]).await?;
    let swept = db.sweep().await?;
    assert_eq!((swept.released, swept.buried, swept.dead.len()), (2, 0, 1));
    let job = db.pitwheel().job(jobs[1].claim.id).await?;
    assert_eq!((job.summary.state, job.summary.attempt, job.crashes), (State::Waiting, 0, 1));
    assert_eq!(job.errors[0]["cause"], "crash");
    assert_eq!(db.count("select count(*) from pitwheel.hold").await?, 0);
    assert_eq!(db.complete(&jobs[1]).await?, Settled::Lost);
    Ok(())
}

#[tokio::test]
async fn after_a_gap_leases_are_extended_and_no_worker_is_declared_dead() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().insert().await?;
    let job = db.claim_one().await?;
    db.expire_holder(&job).await?;
    let client = db.client().await?;
    client.batch_execute("update pitwheel.sweep_tick set ticked_at = now() - interval '1 minute'").await?;
    let swept = sweep(&client, Duration::from_secs(1), Duration::from_secs(10)).await?;
    assert!(swept.leases_extended && swept.dead.is_empty() && swept.released == 0);
    assert_eq!(
        db.count("select count(*) from pitwheel.worker where lease_until > now() and dead_at is null")
            .await?,
        1
    );

    // The next tick is in time; a worker that is really dead has not renewed by then.
    db.expire_holder(&job).await?;
    client.batch_execute("update pitwheel.sweep_tick set ticked_at = now() - interval '5 seconds'").await?;
    let swept = sweep(&client, Duration::from_secs(1), Duration::from_secs(10)).await?;
    assert_eq!((swept.leases_extended, swept.released), (false, 1));
    Ok(())
}

#[tokio::test]
async fn a_second_sweep_right_after_the_first_finds_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute("update pitwheel.sweep_tick set ticked_at = now() - interval '5 seconds'").await?;
    db.job().insert().await?;
    let job = db.claim_one().await?;
    db.expire_holder(&job).await?;
    let first = sweep(&client, Duration::from_secs(1), Duration::from_secs(10)).await?;
    let second = sweep(&client, Duration::from_secs(1), Duration::from_secs(10)).await?;
    assert_eq!((first.dead.len(), second.dead.len()), (1, 0));
    Ok(())
}

/// It cannot renew its lease while it is locked, so that time does not count; and the others are not kept waiting.
#[tokio::test]
async fn a_locked_worker_is_not_declared_dead_and_others_are() -> Result<()> {
    let db = TestDb::new().await?;
    for _ in 0..3 {
        db.job().insert().await?;
    }
    let (locked, dead, alive) = (db.claim_one().await?, db.claim_one().await?, db.claim_one().await?);
    for job in [&locked, &dead, &alive] {
        db.expire_holder(job).await?;
    }
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.execute("select from pitwheel.worker where id = $1 for update", &[&locked.claim.holder]).await?;

    // One that waited for the lock would wait until the test ends.
    let client = db.client().await?;
    let beat = timeout(WAIT_MAX, heartbeat(&client, &[locked.claim.holder, alive.claim.holder])).await??;
    assert_eq!((beat.locked, beat.alive), (vec![locked.claim.holder], vec![alive.claim.holder]));
    let swept = timeout(WAIT_MAX, db.sweep()).await??;
    assert_eq!((swept.dead.len(), swept.released), (1, 1), "only one of them can be known to be dead");
    assert_eq!(db.state(dead.claim.id).await?, Some(State::Waiting));
    lock.rollback().await?;

    let swept = db.sweep().await?;
    assert_eq!((swept.dead.len(), swept.released), (0, 0), "it has a lease again");
    db.expire_holder(&locked).await?;
    assert_eq!(db.sweep().await?.dead.len(), 1, "now it had the time to renew");
    assert_eq!(db.complete(&alive).await?, Settled::Written);
    Ok(())
}

/// Inserts workers that died so long ago.
async fn insert_dead(db: &TestDb, count: i32, ago: &str) -> Result<()> {
    let sql = format!(
        "insert into pitwheel.worker (name, lease, lease_until, dead_at)
        select 'dead', '30 s', now(), now() - interval '{ago}' - n * interval '1 microsecond' from generate_series(1, {count}) as n"
    );
    Ok(db.client().await?.batch_execute(&sql).await?)
}

#[tokio::test]
async fn a_sweep_reads_no_worker_that_is_dead_already() -> Result<()> {
    let db = TestDb::new().await?;
    for statistics in ["", "vacuum analyze pitwheel.worker"] {
        db.client().await?.batch_execute(statistics).await?;
        insert_dead(&db, 20_000, "1 hour").await?;
        db.job().insert().await?;
        db.expire_holder(&db.claim_one().await?).await?;
        let client = db.client().await?;
        client
            .batch_execute("update pitwheel.sweep_tick set ticked_at = now() - interval '5 seconds'")
            .await?;
        client.batch_execute("begin").await?;
        let swept = declare_dead(&client, Duration::from_secs(1), Duration::from_secs(10)).await?;
        assert_eq!(swept.map_or(0, |swept| swept.dead.len()), 1);
        let read = "select pg_stat_get_xact_tuples_returned('pitwheel.worker'::regclass)
            + pg_stat_get_xact_tuples_fetched('pitwheel.worker'::regclass)";
        let read: i64 = client.query_one(read, &[]).await?.get(0);
        client.batch_execute("commit").await?;
        assert!(read < 100, "it reads {read} workers, {statistics:?}");
    }
    Ok(())
}

#[tokio::test]
async fn workers_that_are_dead_for_long_or_too_many_are_forgotten() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    insert_dead(&db, 3000, "25 hours").await?;
    insert_dead(&db, 10, "23 hours").await?;
    db.job().insert().await?;
    let job = db.claim_one().await?;
    let holder = format!(
        "update pitwheel.worker set dead_at = now() - interval '2 days' where id = {}",
        job.claim.holder
    );
    client.batch_execute(&holder).await?;
    assert_eq!(forget_workers(&client).await?, 3000, "those of the last day stay, and one that holds a job");
    insert_dead(&db, 9_995, "11 minutes").await?;
    assert_eq!(
        forget_workers(&client).await?,
        4,
        "all but the last ten thousand, and the one that holds a job"
    );
    insert_dead(&db, 1000, "5 minutes").await?;
    insert_dead(&db, 1000, "1 minute").await?;
    assert_eq!(forget_workers(&client).await?, 2000, "of older than ten minutes");
    Ok(())
}

#[tokio::test]
async fn a_clock_that_jumped_back_does_not_stop_the_sweep() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().insert().await?;
    let job = db.claim_one().await?;
    let client = db.client().await?;
    client
        .batch_execute(
            "update pitwheel.sweep_tick set ticked_at = now() + interval '1 hour';
             update pitwheel.worker set lease_until = now() + interval '10 hours'",
        )
        .await?;
    sweep(&client, Duration::from_secs(1), Duration::from_secs(10)).await?;
    assert_eq!(
        db.count("select count(*) from pitwheel.sweep_tick where ticked_at <= clock_timestamp()").await?,
        1
    );
    assert_eq!(
        db.count("select count(*) from pitwheel.worker where lease_until <= clock_timestamp() + lease")
            .await?,
        1
    );
    assert_eq!(db.complete(&job).await?, Settled::Written);
    Ok(())
}

#[tokio::test]
async fn a_job_whose_worker_died_three_times_is_buried() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.job().crashes(2).insert().await?;
    let worker = db.register().await?;
    let client = db.client().await?;
    let kinds = ["test".to_owned()];
    assert!(db.claim_as(worker, 10).await?.is_empty(), "a job that crashed twice is not claimed with others");
    let alone = pitwheel::engine::claim_alone(&client, worker, &["default".to_owned()], &kinds).await?;
    assert_eq!(alone.map(|job| job.claim.id), Some(id));
    db.expire(worker).await?;
    let swept = db.sweep().await?;
    assert_eq!((swept.released, swept.buried), (0, 1));
    let job = db.pitwheel().job(id).await?;
    assert_eq!(job.summary.state, State::Dead);
    assert!(job.errors[0]["message"].as_str().is_some_and(|message| message.contains("its worker died")));
    Ok(())
}

#[tokio::test]
async fn a_job_with_a_cancel_request_is_cancelled_when_its_worker_dies() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().insert().await?;
    let job = db.claim_one().await?;
    db.pitwheel().cancel(job.claim.id).await?;
    db.expire_holder(&job).await?;
    db.sweep().await?;
    assert_eq!(db.state(job.claim.id).await?, Some(State::Cancelled));
    assert_eq!(db.count("select count(*) from pitwheel.hold").await?, 0);
    Ok(())
}

#[tokio::test]
async fn an_open_settle_in_a_users_transaction_does_not_stop_the_sweep() -> Result<()> {
    let db = TestDb::new().await?;
    for _ in 0..2 {
        db.job().insert().await?;
    }
    let jobs = db.claim(2).await?;
    let client = db.client().await?;
    client.batch_execute("begin").await?;
    client.execute("delete from pitwheel.job where id = $1", &[&jobs[0].claim.id]).await?;
    db.expire_holder(&jobs[0]).await?;
    let swept = db.sweep().await?;
    assert_eq!(swept.released, 1);
    assert_eq!(
        db.count("select count(*) from pitwheel.hold").await?,
        1,
        "kept for the job that is still held"
    );

    client.batch_execute("rollback").await?;
    assert_eq!(db.sweep().await?.released, 1);
    assert_eq!(db.count("select count(*) from pitwheel.hold").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_released_job_keeps_its_attempts_and_gets_a_new_run_at() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().insert().await?;
    let job = db.claim_one().await?;
    assert_eq!(db.settle(&job, Ending::Release).await?, Settled::Written);
    let fresh = "select count(*) from pitwheel.job where run_at > enqueued_at and attempt = 0 and fence = 1 and holder is null";
    assert_eq!(db.count(fresh).await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_settle_by_an_old_ctid_changes_no_other_job() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    db.job().insert().await?;
    let first = db.claim_one().await?;
    // Its row is gone, and its ctid now belongs to another job that is running under the same fence.
    client.execute("delete from pitwheel.job where id = $1", &[&first.claim.id]).await?;
    client.batch_execute("vacuum pitwheel.job").await?;
    let fill = "insert into pitwheel.job (run_at, enqueued_at, max_attempts, priority, queue, kind, payload, holder, fence)
        select now(), now(), 1, 0, 'default', 'test', '{}', 1, $1 from generate_series(1, 5000)";
    client.execute(fill, &[&first.claim.fence]).await?;
    let there = client.query("select from pitwheel.job where ctid = $1", &[&first.ctid]).await?;
    assert_eq!(there.len(), 1, "no job has the old ctid");
    assert_eq!(db.complete(&first).await?, Settled::Lost);
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 5000);
    Ok(())
}

#[tokio::test]
async fn a_settle_finds_a_row_that_has_moved() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().insert().await?;
    let job = db.claim_one().await?;
    db.client().await?.execute("update pitwheel.job set note = 'half', progress = 0.5", &[]).await?;
    assert_eq!(db.complete(&job).await?, Settled::Written);
    assert_eq!(db.state(job.claim.id).await?, Some(State::Done));
    Ok(())
}

#[tokio::test]
async fn jobs_that_postgres_refuses_to_release_keep_none_behind_them_held() -> Result<()> {
    // Refused values, and a damaged row.
    for code in ["P0001", "XX001"] {
        keep_none_behind_them_held(code).await?;
    }
    Ok(())
}

async fn keep_none_behind_them_held(code: &str) -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let dead = db.register().await?;
    let held = "insert into pitwheel.job (id, run_at, enqueued_at, max_attempts, priority, queue, kind, payload, holder, fence, attempt)
        select n, now(), now(), 20, 0, 'default', case when n <= 1200 then 'refused' else 'test' end, '{}', $1::bigint, 1, 1
        from generate_series(1, 1201) as n";
    client.execute(held, &[&dead]).await?;
    // More than a page of holds.
    let holds = "insert into pitwheel.hold (worker, job_ids) select $1::bigint, array_agg(n) from generate_series(1, 1201) as n group by n / 40";
    client.execute(holds, &[&dead]).await?;
    client
        .batch_execute(&format!(
            "create sequence tries;
            create function refuse() returns trigger language plpgsql as $$
            begin
                perform nextval('tries');
                raise exception 'this is refused' using errcode = '{code}';
            end $$;
            create trigger refuse before update on pitwheel.job for each row when (old.kind = 'refused') execute function refuse();"
        ))
        .await?;
    db.expire(dead).await?;
    declare_dead(&client, Duration::ZERO, Duration::from_secs(3600)).await?;
    let (mut above, mut released) = (0, 0);
    loop {
        let before = db.count("select last_value from tries").await?;
        let abandoned = settle_abandoned(&client, above).await?;
        let tries = db.count("select last_value from tries").await? - before;
        assert!(tries <= 1500, "a sweep ends, however many are refused: {tries} statements");
        (above, released) = (abandoned.next, released + abandoned.released);
        if above == 0 {
            break;
        }
    }
    assert_eq!(released, 1, "the one behind them");
    Ok(())
}
