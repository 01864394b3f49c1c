//! Work goes on beside whatever stands still: dead workers, locked rows, suspects, failed claims.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use pitwheel::engine::{self, Cursor, Pool, Registration, Session, Settlement, Sql, settle};
use pitwheel::{Claim, Context, Error, NewJob, Pitwheel, State, Worker};
use pitwheel_testkit::{TestDb, Work, start_worker, wait_until, work, worker};
use tokio::sync::Notify;

/// The callers of a pool get the connection that was used last.
#[tokio::test]
async fn a_statement_that_was_given_up_holds_up_no_other_caller() -> Result<()> {
    let db = TestDb::new().await?;
    let mut options = pitwheel::Options::default();
    options.connections = 2;
    let pitwheel = Pitwheel::connect_with(db.url(), options).await?;
    let id = db.job().insert().await?;
    let mut client = db.client().await?;
    let lock = client.transaction().await?;
    lock.query("select from pitwheel.job where id = $1 for update", &[&id]).await?;
    let cancel = tokio::spawn({
        let pitwheel = pitwheel.clone();
        async move { pitwheel.cancel(id).await }
    });
    let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
    wait_until("it waits for the lock", async || Ok(db.count(waits).await? == 1)).await?;
    cancel.abort();
    assert!(cancel.await.is_err_and(|error| error.is_cancelled()));
    for _ in 0..3 {
        tokio::time::timeout(Duration::from_secs(5), pitwheel.queues()).await??;
    }
    lock.rollback().await?;
    // Its connection is not lost: both are used at a time.
    wait_until("it was answered", async || Ok(db.count(waits).await? == 0)).await?;
    let both = async { tokio::join!(pitwheel.queues(), pitwheel.queues()) };
    let (one, two) = tokio::time::timeout(Duration::from_secs(5), both).await?;
    one.and(two)?;
    Ok(())
}

/// It may not commit after the worker has looked for the jobs of a claim that was given up.
#[tokio::test]
async fn a_step_that_is_given_up_ends_at_the_server_too() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().insert().await?;
    let mut client = db.client().await?;
    let lock = client.transaction().await?;
    lock.query("select from pitwheel.job for update", &[]).await?;
    let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
    let given_up = async {
        let waited = wait_until("it waits for the lock", async || Ok(db.count(waits).await? == 1)).await;
        Error::Invalid(format!("given up: {waited:?}"))
    };
    let pool = Pool::new(db.url(), "test", 1)?;
    let update =
        async |client: Arc<Session>| client.rows("update pitwheel.job set fence = fence + 1", &[]).await;
    let ended = pool.run_until(given_up, update).await.expect_err("it was given up").to_string();
    assert!(ended.contains("given up: Ok(())"), "{ended}");
    let begun = Instant::now();
    wait_until("it has ended", async || Ok(db.count(waits).await? == 0)).await?;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    lock.rollback().await?;
    assert_eq!(db.count("select fence from pitwheel.job").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_gap_moves_leases_on_by_its_length_and_no_more() -> Result<()> {
    let db = TestDb::new().await?;
    let (dead, alive) = (db.register().await?, db.register().await?);
    let client = db.client().await?;
    // Nothing was swept for two hours. One worker was silent for an hour before that; the other renewed just before.
    let sql = "update pitwheel.worker
        set lease_until = clock_timestamp() - case when id = $1 then interval '3 hours' else interval '1 hour' end";
    client.execute(sql, &[&dead]).await?;
    client
        .batch_execute("update pitwheel.sweep_tick set ticked_at = clock_timestamp() - interval '2 hours'")
        .await?;
    let first = db.sweep().await?;
    assert!(first.leases_extended && first.dead.is_empty(), "{first:?}");
    assert_eq!(db.sweep().await?.dead.len(), 1, "the one that was silent before the gap");
    assert_eq!(engine::alive_workers(&client, &[dead, alive]).await?, HashMap::from([(alive, false)]));
    Ok(())
}

#[tokio::test]
async fn locked_jobs_of_dead_workers_do_not_keep_the_others_from_being_released() -> Result<()> {
    let db = TestDb::new().await?;
    let holder = db.register().await?;
    for _ in 0..45 {
        db.job().insert().await?;
        assert_eq!(db.claim_as(holder, 1).await?.len(), 1);
    }
    db.expire(holder).await?;
    let mut client = db.client().await?;
    let lock = client.transaction().await?;
    lock.execute("select from pitwheel.job order by id limit 25 for update", &[]).await?;
    assert_eq!(db.sweep().await?.released, 20, "those that are not locked, on the second and third page");
    lock.rollback().await?;
    assert_eq!(db.sweep().await?.released, 25);
    Ok(())
}

#[tokio::test]
async fn a_locked_table_of_recurring_jobs_does_not_delay_the_sweeps() -> Result<()> {
    let db = TestDb::new().await?;
    // Expired before the sweeps begin: one that met the row locked would give it a whole lease.
    db.job().insert().await?;
    let dead = db.register().await?;
    assert_eq!(db.claim_as(dead, 1).await?.len(), 1);
    db.expire(dead).await?;
    let mut client = db.client().await?;
    let lock = client.transaction().await?;
    lock.batch_execute("lock table pitwheel.recurring in access exclusive mode").await?;
    let handler = async |_: Work, _: Context| Ok::<_, String>(());
    // Between two sweeps, more than a quarter of this lease would be a gap that extends all leases.
    let running = start_worker(worker(db.pitwheel()).lease(Duration::from_secs(1)).handle(handler));
    let released = "select count(*) from pitwheel.job where holder is null and crashes = 1";
    wait_until("its job is released", async || Ok(db.count(released).await? == 1)).await?;
    lock.rollback().await?;
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_suspect_in_a_paused_queue_stops_no_other_job() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    db.job().insert().await?;
    client.batch_execute("update pitwheel.job set crashes = 2").await?;
    let look = Cursor::new(["default"].into_iter()).next_look(false);
    let suspects =
        async || Ok(engine::look_back(&client, &["test".to_owned()], &look).await?.suspects) as Result<bool>;
    assert!(suspects().await?);
    for queue in [Some("default"), None] {
        db.pitwheel().pause(queue).await?;
        assert!(!suspects().await?, "{queue:?}");
        db.pitwheel().resume(queue).await?;
    }
    assert!(suspects().await?);
    Ok(())
}

#[tokio::test]
async fn many_suspects_do_not_keep_other_jobs_from_running() -> Result<()> {
    let db = TestDb::new().await?;
    db.pitwheel().enqueue_many((0..200).map(|_| work(-1))).await?;
    db.client().await?.batch_execute("update pitwheel.job set crashes = 2").await?;
    let handler = async |_: Work, _: Context| Ok::<_, String>(());
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    let done = "select count(*) from pitwheel.job_history where crashes = 0";
    for round in 1..=5 {
        db.pitwheel().enqueue_many((0..50).map(work)).await?;
        wait_until("the others are done", async || Ok(db.count(done).await? == round * 50)).await?;
    }
    let suspects_left = db.count("select count(*) from pitwheel.job where crashes = 2").await?;
    assert!(suspects_left > 0, "the others did not wait for all suspects");
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn jobs_claimed_ahead_of_a_slow_one_are_given_to_a_worker_that_is_free() -> Result<()> {
    let db = TestDb::new().await?;
    let slow = Arc::new(Notify::new());
    let end = slow.clone();
    let handler = move |job: Work, _: Context| {
        let end = end.clone();
        async move {
            if job.n == 100 {
                end.notified().await;
            }
            Ok::<_, String>(())
        }
    };
    let one_slot = || Worker::new(db.pitwheel()).queue("default", 1).handle(handler.clone());
    db.pitwheel().enqueue_many((0..200).map(work)).await?;
    let busy = start_worker(one_slot());
    let done = async || db.count("select count(*) from pitwheel.job_history").await;
    wait_until("the slow one has started", async || Ok(done().await? >= 100)).await?;
    let free = start_worker(one_slot());
    wait_until("the others are done", async || Ok(done().await? == 199)).await?;
    slow.notify_one();
    busy.stop().await?;
    free.stop().await?;
    Ok(())
}

#[tokio::test]
async fn jobs_of_a_claim_that_failed_are_released_while_the_last_handlers_run() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let (gate, started, stopped) =
        (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (open, begun, stops) = (gate.clone(), started.clone(), stopped.clone());
    let (stop, told) = tokio::sync::oneshot::channel::<()>();
    let handler = move |_: Work, _: Context| {
        let open = open.clone();
        begun.notify_one();
        async move {
            open.notified().await;
            Ok::<_, String>(())
        }
    };
    let running = tokio::spawn(worker(db.pitwheel()).handle(handler).run(async move {
        let _ = told.await;
        stops.notify_one();
    }));
    db.pitwheel().enqueue(work(1)).await?;
    started.notified().await;
    // Claims and looks for unknown holds fail from here on.
    client.batch_execute("begin; lock table pitwheel.hold in access exclusive mode").await?;
    wait_until("a claim waits", async || Ok(db.lock_waits().await? > 0)).await?;
    wait_until("it has failed", async || Ok(db.lock_waits().await? == 0)).await?;
    // The last claim was committed all the same.
    let lost = "insert into pitwheel.job (id, run_at, enqueued_at, max_attempts, priority, queue, kind, payload, holder, fence, attempt,
            claimed_at)
        select 7, now(), now(), 20, 0, 'default', 'work', '{\"n\":7}', max(id), 1, 1, now() from pitwheel.worker;
        insert into pitwheel.hold (worker, job_ids) select holder, array[7] from pitwheel.job where id = 7";
    client.batch_execute(lost).await?;
    let _ = stop.send(());
    stopped.notified().await;
    client.batch_execute("commit").await?;
    let released = "select count(*) from pitwheel.job where id = 7 and holder is null and crashes = 0";
    wait_until("it waits again", async || Ok(db.count(released).await? == 1)).await?;
    assert_eq!(
        db.count("select count(*) from pitwheel.job where holder is not null").await?,
        1,
        "the other runs"
    );
    gate.notify_one();
    running.await??;
    Ok(())
}

#[tokio::test]
async fn jobs_held_unknowingly_are_released_without_an_error_before() -> Result<()> {
    let db = TestDb::new().await?;
    let handler = async |_: Work, _: Context| Ok::<_, String>(());
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    let workers = "select count(*) from pitwheel.worker where dead_at is null";
    wait_until("it is registered", async || Ok(db.count(workers).await? == 1)).await?;
    // A claim that was committed, and whose result never arrived: paused meanwhile, so that it is not claimed before.
    db.pitwheel().pause(None).await?;
    let id = db.pitwheel().enqueue(work(1)).await?.id;
    let client = db.client().await?;
    client
        .batch_execute(
            "update pitwheel.job set holder = (select id from pitwheel.worker), fence = 1, attempt = 1;
            insert into pitwheel.hold (worker, job_ids) select holder, array[id] from pitwheel.job",
        )
        .await?;
    db.pitwheel().resume(None).await?;
    wait_until("it is released and run", async || {
        Ok(db.pitwheel().job(id).await?.summary.finished_at.is_some())
    })
    .await?;
    assert_eq!(db.pitwheel().job(id).await?.fence, 2);
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_claim_finds_its_jobs_among_many_queues_and_kinds() -> Result<()> {
    let db = TestDb::new().await?;
    let queues: Vec<String> = (0..100).map(|n| format!("queue-{n}")).collect();
    let kinds: Vec<String> = (0..1000).map(|n| format!("kind-{n}")).collect();
    let worker = Registration {
        name: "many".to_owned(),
        lease: Duration::from_secs(60),
        transport: "direct",
        queues: queues.clone(),
        kinds: kinds.clone(),
        slots: 100,
        token: None,
    };
    let client = db.client().await?;
    let id = engine::register(&client, &worker).await?;
    let pitwheel: &Pitwheel = db.pitwheel();
    pitwheel
        .enqueue_many([
            NewJob::raw("kind-999", "{}").queue("queue-99").priority(-9),
            NewJob::raw("kind-0", "{}").queue("queue-0").priority(9),
            NewJob::raw("unknown", "{}").queue("queue-50"),
            NewJob::raw("kind-500", "{}").queue("other"),
        ])
        .await?;
    let slots: Vec<_> =
        queues.iter().map(|queue| engine::QueueSlots { queue: queue.clone(), slots: 1 }).collect();
    let mut cursor = Cursor::new(queues.iter().map(String::as_str));
    let bounds = cursor.bounds();
    let mut claimed = engine::claim(&client, id, &slots, &kinds, &bounds).await?;
    claimed.sort_by_key(|job| job.claim.id);
    let found: Vec<(&str, &str)> = claimed.iter().map(|job| (&*job.queue, &*job.kind)).collect();
    assert_eq!(found, [("queue-99", "kind-999"), ("queue-0", "kind-0")]);
    cursor.after(&bounds, &slots, &claimed, SystemTime::now());
    let bounds = cursor.bounds();
    assert!(engine::claim(&client, id, &slots, &kinds, &bounds).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_slot_that_a_claim_did_not_fill_is_claimed_for_again_at_once() -> Result<()> {
    let db = TestDb::new().await?;
    let handler = async |_: Work, _: Context| Ok::<_, String>(());
    let running = start_worker(Worker::new(db.pitwheel()).queue("default", 1).handle(handler));
    let mut rounds = Vec::new();
    // One after the other, so that most claims find nothing.
    for round in 1..=30 {
        let begun = Instant::now();
        db.pitwheel().enqueue(work(round)).await?;
        let done = "select count(*) from pitwheel.job_history";
        wait_until("it is done", async || Ok(db.count(done).await? == round)).await?;
        rounds.push(begun.elapsed());
    }
    rounds.sort_unstable();
    // The next poll comes after a second.
    assert!(rounds[rounds.len() / 2] < Duration::from_millis(500), "{rounds:?}");
    running.stop().await?;
    Ok(())
}

/// A job is put back and claimed again by the same worker before its first hold is deleted, which then stays.
#[tokio::test]
async fn a_job_is_not_released_because_an_old_hold_names_it_too() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let worker = db.register().await?;
    for _ in 0..2 {
        db.job().insert().await?;
    }
    let first = db.claim_as(worker, 2).await?;
    let put_back: Vec<Settlement> = first.iter().map(|job| Settlement::release(job.claim)).collect();
    settle(&client, &put_back, &[]).await?;
    let again = db.claim_as(worker, 1).await?.pop().expect("a job");
    settle(&client, &[], &[first[0].hold]).await?;
    assert_eq!(db.count("select count(*) from pitwheel.hold").await?, 2, "the first hold stays");

    let is_known = |claim: &Claim| *claim == again.claim;
    assert_eq!(engine::release_unknown(&client, &[worker], &[again.hold], is_known).await?, 0);
    let unknown = db.claim_as(worker, 1).await?.pop().expect("the other job");
    assert_eq!(engine::release_unknown(&client, &[worker], &[again.hold], is_known).await?, 1);
    assert_eq!(db.state(unknown.claim.id).await?, Some(State::Waiting));
    assert_eq!(db.state(again.claim.id).await?, Some(State::Running));
    Ok(())
}

/// The row that brings the holds is that of the first job. It changes after the claim has begun, so it is not among the claimed ones.
#[tokio::test]
async fn a_claim_for_workers_without_its_holds_fails_and_is_released() -> Result<()> {
    let db = TestDb::new().await?;
    let first = db.job().insert().await?;
    db.job().insert().await?;
    let worker = db.register().await?;
    let test = db.client().await?;
    let database: String = test.query_one("select current_database()::text", &[]).await?.get(0);
    // As this role, a claim that has begun waits before it reads jobs, as long as the lock is held.
    let setup = format!(
        "create role waits_{database};
         grant usage on schema pitwheel to waits_{database};
         grant select, insert, update, delete on all tables in schema pitwheel to waits_{database};
         alter table pitwheel.worker enable row level security;
         create policy waits on pitwheel.worker using (pg_advisory_xact_lock_shared(7)::text is not null);
         select pg_advisory_lock(7)"
    );
    test.batch_execute(&setup).await?;
    let slow = db.client().await?;
    slow.batch_execute(&format!("set role waits_{database}")).await?;
    let (slots, queues, kinds) = ([worker; 2], ["default".to_owned()], ["test".to_owned()]);
    let bounds = Cursor::new(["default"].into_iter()).bounds();
    let claim = engine::claim_for_workers(&slow, &slots, &queues, &kinds, &bounds);
    let change = async {
        wait_until("the claim waits", async || Ok(db.lock_waits().await? == 1)).await?;
        test.execute("update pitwheel.job set run_at = run_at where id = $1", &[&first]).await?;
        anyhow::Ok(test.batch_execute("select pg_advisory_unlock(7)").await?)
    };
    let (claimed, changed) = tokio::join!(claim, change);
    changed?;

    assert!(claimed.is_err_and(|error| error.is_transient()));
    assert_eq!(engine::release_unknown(&test, &[worker], &[], |_| false).await?, 1);
    slow.batch_execute(&format!("reset role; drop owned by waits_{database}; drop role waits_{database}"))
        .await?;
    Ok(())
}
