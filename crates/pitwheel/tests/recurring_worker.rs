//! Recurring jobs with workers that run: many that are due together, late ones, and runs completed in the handler's own transaction.
#![cfg(all(feature = "sqlx", feature = "tokio-postgres"))]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use pitwheel::transaction::{Completed, sqlx as with_sqlx, tokio_postgres as with_tokio_postgres};
use pitwheel::{Context, Misfire, NewRecurring, Settled, Verdict, Worker};
use pitwheel_testkit::{TestDb, Work, connect, start_worker, wait_until, work, worker};
use sqlx::Connection;

const DUE_TOGETHER: i64 = 2000;

fn recurring(n: i64, cadence: &str) -> Result<NewRecurring> {
    Ok(NewRecurring::of(&Work { n }, format!("key {n}"), cadence.parse()?))
}

#[tokio::test]
async fn many_that_are_due_in_the_same_second_run_once_each_and_starve_no_other_queue() -> Result<()> {
    let db = TestDb::new().await?;
    let due = db.pitwheel().now().await? + Duration::from_secs(1);
    let new: Result<Vec<_>> =
        (1..=DUE_TOGETHER).map(|n| Ok(recurring(n, "every 1d")?.first_at(due))).collect();
    db.pitwheel().recurring().create_many(new?).await?;
    let runs: Arc<Mutex<HashMap<i64, usize>>> = Arc::default();
    let before_other: Arc<Mutex<Option<usize>>> = Arc::default();
    let handler = {
        let (runs, before_other) = (runs.clone(), before_other.clone());
        move |work: Work, _: Context| {
            let mut runs = runs.lock().expect("no panic");
            match work.n {
                0 => *before_other.lock().expect("no panic") = Some(runs.len()),
                n => *runs.entry(n).or_default() += 1,
            }
            std::future::ready(Ok::<_, String>(()))
        }
    };
    // Two workers, so that they compete; few slots, so that the runs take many claims.
    let start = |handler| {
        start_worker(Worker::new(db.pitwheel()).queue("default", 10).queue("other", 1).handle(handler))
    };
    let workers = [start(handler.clone()), start(handler)];
    wait_until("the first have run", async || Ok(!runs.lock().expect("no panic").is_empty())).await?;
    db.pitwheel().enqueue(work(0).queue("other")).await?;
    let settled = "select count(*) from pitwheel.recurring_now where runs = 1";
    wait_until("all have run", async || Ok(db.count(settled).await? == DUE_TOGETHER)).await?;
    for worker in workers {
        assert_eq!(worker.stop().await?.lost, 0);
    }
    assert!(runs.lock().expect("no panic").values().all(|times| *times == 1), "none ran twice");
    assert_eq!(runs.lock().expect("no panic").len() as i64, DUE_TOGETHER);
    let before = before_other.lock().expect("no panic").context("the job of the other queue has run")?;
    assert!(before < DUE_TOGETHER as usize, "it ran after all the others");
    let planned = "select count(*) from pitwheel.job join pitwheel.recurring_now as recurring on recurring.id = job.recurring
        where job.holder is null and job.run_at = recurring.next_run_at";
    assert_eq!(db.count(planned).await?, DUE_TOGETHER);
    Ok(())
}

#[tokio::test]
async fn runs_that_are_done_write_nothing_to_their_recurring_jobs() -> Result<()> {
    let db = TestDb::new().await?;
    let new: Result<Vec<_>> = (1..=DUE_TOGETHER).map(|n| recurring(n, "every 1d")).collect();
    db.pitwheel().recurring().create_many(new?).await?;
    db.client()
        .await?
        .batch_execute("create table before as select id, xmin::text as written_by from pitwheel.recurring")
        .await?;
    let handler = |_: Work, _: Context| std::future::ready(Ok::<_, String>(()));
    let running = start_worker(Worker::new(db.pitwheel()).queue("default", 500).handle(handler));
    let settled = "select count(*) from pitwheel.recurring_now where runs = 1";
    wait_until("all have run", async || Ok(db.count(settled).await? == DUE_TOGETHER)).await?;
    running.stop().await?;
    let written = "select count(*) from pitwheel.recurring join before using (id) where recurring.xmin::text <> before.written_by";
    assert_eq!(db.count(written).await?, 0);
    Ok(())
}

/// A settle must not write new index entries of the recurring job, also when all of a page are settled at once.
#[tokio::test]
async fn the_settle_of_a_run_leaves_its_recurring_job_in_its_page() -> Result<()> {
    let db = TestDb::new().await?;
    let new: Result<Vec<_>> = (1..=DUE_TOGETHER).map(|n| recurring(n, "every 1d")).collect();
    db.pitwheel().recurring().create_many(new?).await?;
    // With a result, the settle takes the state back.
    let handler = |_: Work, _: Context| std::future::ready(Verdict::complete_with(&1));
    let running = start_worker(Worker::new(db.pitwheel()).queue("default", 500).handle(handler));
    let settled = "select count(*) from pitwheel.recurring_now where runs = 1";
    wait_until("all have run", async || Ok(db.count(settled).await? == DUE_TOGETHER)).await?;
    running.stop().await?;
    let statistics = "select n_tup_upd from pg_stat_user_tables where relname = 'recurring'";
    let updates = 2 * DUE_TOGETHER; // by the creation and the settle
    wait_until("the statistics are there", async || Ok(db.count(statistics).await? >= updates)).await?;
    let moved = "select n_tup_upd - n_tup_hot_upd from pg_stat_user_tables where relname = 'recurring'";
    assert_eq!(db.count(moved).await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_run_that_is_too_late_is_not_started_if_the_policy_is_to_skip_it() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = db.pitwheel().recurring();
    let id = jobs.create(recurring(1, "every 10m")?.misfire(Misfire::Skip)).await?.id;
    let older = "update pitwheel.recurring set anchor_at = anchor_at - interval '55 minutes';
        update pitwheel.job set run_at = run_at - interval '55 minutes', anchor_at = anchor_at - interval '55 minutes'";
    db.client().await?.batch_execute(older).await?;
    let started: Arc<Mutex<usize>> = Arc::default();
    let count = started.clone();
    let running = start_worker(worker(db.pitwheel()).handle(move |_: Work, _: Context| {
        *count.lock().expect("no panic") += 1;
        std::future::ready(Ok::<_, String>(()))
    }));
    wait_until("it was skipped", async || Ok(jobs.get(id).await?.summary.skipped > 0)).await?;
    let skipped = jobs.get(id).await?.summary;
    assert_eq!((skipped.skipped, skipped.runs, *started.lock().expect("no panic")), (6, 0, 0));
    assert_eq!(skipped.reason.as_deref(), Some("skipped 6 planned times"));
    jobs.run_now(id).await?;
    wait_until("it has run", async || Ok(jobs.get(id).await?.summary.runs == 1)).await?;
    running.stop().await?;
    let after = jobs.get(id).await?.summary;
    assert_eq!((after.next_run_at, after.skipped), (skipped.next_run_at, 6), "the planned time stays");
    Ok(())
}

#[tokio::test]
async fn the_next_run_starts_at_its_time_and_times_do_not_drift() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = db.pitwheel().recurring();
    let planned: Arc<Mutex<Vec<SystemTime>>> = Arc::default();
    let seen = planned.clone();
    jobs.create(recurring(1, "every 1s")?).await?;
    let running =
        start_worker(worker(db.pitwheel()).without_hints().handle(move |_: Work, context: Context| {
            seen.lock().expect("no panic").extend(context.recurring().map(|run| run.planned_at));
            std::future::ready(Ok::<_, String>(()))
        }));
    let second = Duration::from_secs(1);
    // On a slow machine a planned time may pass without a run, but not for long.
    wait_until("it has run in four seconds after each other", async || {
        let planned = planned.lock().expect("no panic");
        Ok(planned.windows(4).any(|times| times[3] == times[0] + 3 * second))
    })
    .await?;
    running.stop().await?;
    let planned = planned.lock().expect("no panic");
    let offsets = planned.iter().map(|time| time.duration_since(planned[0]));
    for offset in offsets {
        assert_eq!(offset?.subsec_nanos(), 0, "{planned:?}");
    }
    Ok(())
}

/// Completes a run in a transaction of each driver, and says what is written.
#[derive(Clone, Copy)]
enum Driver {
    Sqlx,
    TokioPostgres,
}

async fn complete_in_transaction(
    url: &str,
    driver: Driver,
    context: &Context,
    commit: bool,
) -> Result<Completed> {
    let completion = Verdict::complete().found(3);
    let effect = "insert into effect select 1";
    match driver {
        Driver::Sqlx => {
            let mut connection = sqlx::PgConnection::connect(url).await?;
            let mut transaction = connection.begin().await?;
            let completed = with_sqlx::complete_with(&mut transaction, context, completion).await?;
            sqlx::query(effect).execute(&mut *transaction).await?;
            if commit {
                transaction.commit().await?
            } else {
                transaction.rollback().await?
            }
            Ok(completed)
        }
        Driver::TokioPostgres => {
            let mut client = connect(url).await?;
            let transaction = client.transaction().await?;
            let completed = with_tokio_postgres::complete_with(&transaction, context, completion).await?;
            transaction.batch_execute(effect).await?;
            if commit {
                transaction.commit().await?
            } else {
                transaction.rollback().await?
            }
            Ok(completed)
        }
    }
}

#[tokio::test]
async fn a_run_completed_in_the_handlers_transaction_plans_the_next_one_or_nothing() -> Result<()> {
    for driver in [Driver::Sqlx, Driver::TokioPostgres] {
        let db = TestDb::new().await?;
        db.client().await?.batch_execute("create table effect (n bigint)").await?;
        let jobs = db.pitwheel().recurring();
        let id = jobs.create(recurring(1, "adaptive 1m..1h")?).await?.id;
        let written: Arc<Mutex<Vec<Completed>>> = Arc::default();
        let (seen, url) = (written.clone(), db.url().to_owned());
        let handler = move |_: Work, context: Context| {
            let (seen, url) = (seen.clone(), url.clone());
            async move {
                // The first attempt does not commit: that is a failed attempt.
                let commit = context.recurring().is_some_and(|run| run.consecutive_failures > 0);
                let completed = complete_in_transaction(&url, driver, &context, commit).await?;
                ensure!(completed.settled == Settled::Written, "lost");
                seen.lock().expect("no panic").push(completed);
                Ok::<_, anyhow::Error>(())
            }
        };
        let running = start_worker(worker(db.pitwheel()).handle(handler));
        let failed = async || Ok(jobs.get(id).await?.summary.consecutive_failures == 1);
        wait_until("the first attempt has failed", failed).await?;
        jobs.run_now(id).await?;
        wait_until("it has run", async || Ok(jobs.get(id).await?.summary.runs == 1)).await?;
        assert_eq!(running.stop().await?.lost, 0);
        let after = jobs.get(id).await?.summary;
        let last = written.lock().expect("no panic").last().cloned().context("it was completed")?;
        let next = last.next_run.context("the next run is planned")?;
        assert_eq!(
            (Some(next.at), Some(next.reason)),
            (after.next_run_at, after.reason),
            "as it was written"
        );
        assert_eq!((after.consecutive_failures, db.count("select count(*) from effect").await?), (0, 1));
        assert_eq!(db.count("select count(*) from pitwheel.job where recurring is not null").await?, 1);
    }
    Ok(())
}

#[tokio::test]
async fn a_transaction_creates_enables_and_disables_with_your_rows_or_not_at_all() -> Result<()> {
    let db = TestDb::new().await?;
    let mut connection = sqlx::PgConnection::connect(db.url()).await?;
    let new = recurring(1, "every 1h")?.first_at(SystemTime::now() + Duration::from_secs(600));
    let mut transaction = connection.begin().await?;
    assert!(with_sqlx::create_recurring(&mut transaction, &new).await?.is_new);
    transaction.rollback().await?;
    assert_eq!(db.count("select count(*) from pitwheel.recurring").await?, 0);

    let mut transaction = connection.begin().await?;
    let created = with_sqlx::create_recurring(&mut transaction, &new).await?;
    transaction.commit().await?;
    let mut transaction = connection.begin().await?;
    assert!(with_sqlx::disable_recurring(&mut transaction, created.id).await?);
    assert!(!with_sqlx::disable_recurring(&mut transaction, created.id).await?);
    transaction.commit().await?;
    let mut client = db.client().await?;
    let transaction = client.transaction().await?;
    let next = with_tokio_postgres::enable_recurring(&transaction, created.id).await?.context("planned")?;
    assert_eq!(Some(next.at), created.next_run.map(|next| next.at), "the time was kept");
    assert!(with_tokio_postgres::disable_recurring(&transaction, created.id).await?);
    assert!(!with_tokio_postgres::create_recurring(&transaction, &new).await?.is_new);
    transaction.commit().await?;
    assert!(db.pitwheel().recurring().get(created.id).await?.summary.enabled);
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 1);
    Ok(())
}
