//! Finished jobs are kept for a time, then dropped a day at a time.

use std::time::Duration;

use anyhow::Result;
use pitwheel::engine::{Ctid, prune_all};
use pitwheel::{Context, Error, Filter, NewJob, State};
use pitwheel_testkit::{TestDb, Work, start_worker, wait_until, work, worker};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

const DAY: Duration = Duration::from_secs(24 * 3600);
const DAYS: &str = "select count(*) from pg_class where relname ~ '^job_history_[0-9]{8}$' and relkind = 'r'";

#[tokio::test]
async fn old_partitions_are_dropped_and_those_of_the_coming_days_exist() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    assert_eq!(db.count(DAYS).await?, 8, "today and the coming week");
    client
        .batch_execute(
            "create table pitwheel.job_history_20200101 (like pitwheel.job_history including constraints);
             alter table pitwheel.job_history attach partition pitwheel.job_history_20200101
             for values from ('2020-01-01 00:00Z') to ('2020-01-02 00:00Z')",
        )
        .await?;
    assert_eq!(db.pitwheel().prune_history(DAY * 7).await?, 1);
    assert_eq!(db.pitwheel().prune_history(DAY * 7).await?, 0);
    assert_eq!(db.count(DAYS).await?, 8);
    Ok(())
}

/// As `pg_dump` does. A prune that waits for it would hold up every settle.
#[tokio::test]
async fn a_reader_of_the_history_delays_the_drop_of_old_days_and_fails_no_prune() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client
        .batch_execute(
            "create table pitwheel.job_history_20200101 (like pitwheel.job_history including constraints);
             alter table pitwheel.job_history attach partition pitwheel.job_history_20200101
             for values from ('2020-01-01 00:00Z') to ('2020-01-02 00:00Z')",
        )
        .await?;
    let mut other = db.client().await?;
    let reader = other.transaction().await?;
    reader.query("select from pitwheel.job_history", &[]).await?;
    assert_eq!(db.pitwheel().prune_history(DAY * 7).await?, 0);
    let left = prune_all(&client, DAY * 7).await.expect_err("the maintenance tries again soon");
    assert!(left.is_transient() && left.to_string().contains("created yet: 1"), "{left}");
    let waits = "select count(*) from pg_proc where proname = 'prune_history' and 'lock_timeout=50ms' = any (proconfig)";
    assert_eq!(db.count(waits).await?, 1, "less than a settle waits for a lock");
    reader.rollback().await?;
    assert_eq!(db.pitwheel().prune_history(DAY * 7).await?, 1);
    prune_all(&client, DAY * 7).await?;
    Ok(())
}

#[tokio::test]
async fn a_day_that_cannot_be_created_is_reported_unless_the_default_partition_has_it() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let tomorrow = "to_char((now() at time zone 'utc')::date + 1, 'YYYYMMDD')";
    let drop = format!("do $$ begin execute 'drop table pitwheel.job_history_' || {tomorrow}; end $$");
    client.batch_execute(&drop).await?;
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.batch_execute("lock table pitwheel.job_history in access exclusive mode").await?;
    assert!(prune_all(&client, DAY * 7).await.is_err(), "it is tried again soon");
    lock.rollback().await?;
    prune_all(&client, DAY * 7).await?;

    client.batch_execute(&drop).await?;
    let row = "insert into pitwheel.job_history (id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes,
            state, queue, kind, payload)
        values (1, now() + interval '1 day', now(), now(), 1, 1, 1, 0, 0, 'done', 'default', 'test', '{}')";
    client.batch_execute(row).await?;
    prune_all(&client, DAY * 7).await?;
    Ok(())
}

#[tokio::test]
async fn a_day_is_dropped_when_all_of_it_is_too_old_and_not_before() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    for day in ["20200101", "20200102", "20200103"] {
        client
            .batch_execute(&format!(
                "create table pitwheel.job_history_{day} (like pitwheel.job_history including constraints);
                alter table pitwheel.job_history attach partition pitwheel.job_history_{day}
                for values from (timestamp '{day}' at time zone 'utc')
                    to ((timestamp '{day}' + interval '1 day') at time zone 'utc')"
            ))
            .await?;
    }
    // Jobs are kept from half an hour before the end of the second day on, then from half an hour after it.
    for (minutes, dropped) in [(-30, 1), (30, 1)] {
        let kept_from = format!("timestamptz '2020-01-03 00:00Z' + interval '{minutes} minutes'");
        let age = db.count(&format!("select extract(epoch from now() - ({kept_from}))::bigint")).await?;
        let keep = Duration::from_secs(age.unsigned_abs());
        assert_eq!(db.pitwheel().prune_history(keep).await?, dropped, "{minutes} minutes");
    }
    let last = "select count(*) from pg_class where relname = 'job_history_20200103'";
    assert_eq!(db.count(last).await?, 1, "it has jobs to keep");
    Ok(())
}

#[tokio::test]
async fn jobs_in_the_default_partition_are_pruned_too() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.pitwheel().enqueue(NewJob::raw("test", "{}")).await?.id;
    db.pitwheel().cancel(id).await?;
    let old = "update pitwheel.job_history set finished_at = '2020-01-01'";
    db.client().await?.batch_execute(old).await?;
    assert_eq!(db.count("select count(*) from pitwheel.job_history_default").await?, 1);
    db.pitwheel().prune_history(DAY * 7).await?;
    assert_eq!(db.state(id).await?, None);
    Ok(())
}

/// Rows of the default partition that are too old, and one that is not.
async fn fill_default(client: &Client, old: i64) -> Result<()> {
    let sql = format!(
        "insert into pitwheel.job_history_default (id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes,
            state, queue, kind, payload)
        select n, case when n = 7 then now() else '2020-01-01' end, now(), now(), 1, 1, 1, 0, 0, 'done', 'default', 'test', '{{}}'
        from generate_series(1, {old} + 1) as n"
    );
    client.batch_execute(&format!("drop table pitwheel.job_history_{}", today(client).await?)).await?;
    Ok(client.batch_execute(&sql).await?)
}

async fn today(client: &Client) -> Result<String> {
    let sql = "select to_char(now() at time zone 'utc', 'YYYYMMDD')";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// A drop of a partition locks the whole history until the end of its transaction.
#[tokio::test]
async fn a_full_default_partition_is_pruned_in_short_statements_apart_from_the_drops() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    fill_default(&client, 25_000).await?;
    let left = "select count(*) from pitwheel.job_history_default";
    client.query("select pitwheel.prune_history('7 days')", &[]).await?;
    assert_eq!(db.count(left).await?, 25_001, "the drops leave it");

    let page = include_str!("../sql/engine/prune_default.sql");
    let (week, start, rows) = (7.0 * 86400.0, Ctid::default(), 10_000);
    let params = [(&week as _, Type::FLOAT8), (&start as _, Type::TID), (&rows as _, Type::INT4)];
    client.query_typed(page, &params).await?;
    assert_eq!(db.count(left).await?, 15_002, "10,000 rows, of which one is not too old");
    prune_all(&client, DAY * 7).await?;
    assert_eq!(db.count(left).await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_worker_that_starts_after_weeks_creates_the_partition_of_today_before_it_settles() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client
        .batch_execute(
            "do $$ declare part text; begin
                for part in select relname from pg_class where relname ~ '^job_history_[0-9]{8}$' loop
                    execute format('drop table pitwheel.%I', part);
                end loop;
            end $$",
        )
        .await?;
    db.pitwheel().enqueue_many((0..500).map(work)).await?;
    let running = start_worker(worker(db.pitwheel()).handle(async |_: Work, _: Context| Ok::<_, String>(())));
    wait_until("all are done", async || Ok(db.count("select count(*) from pitwheel.job").await? == 0))
        .await?;
    running.stop().await?;
    assert_eq!(
        db.count(&format!("select count(*) from pitwheel.job_history_{}", today(&client).await?)).await?,
        500
    );
    Ok(())
}

#[tokio::test]
async fn a_retried_dead_job_keeps_its_id_its_errors_and_its_fence() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().key("k").attempts(2, 3).insert().await?;
    let job = db.claim_one().await?;
    let error = r#"{"cause": "error", "message": "no", "attempt": 3, "worker": "w"}"#;
    let dead = pitwheel::engine::Ending::dead(error.to_owned());
    assert_eq!(db.settle(&job, dead).await?, pitwheel::Settled::Written);
    assert!(matches!(db.pitwheel().cancel(job.claim.id).await, Err(Error::NotFound(..))));

    let other = db.pitwheel().enqueue(NewJob::raw("test", "{}").key("k")).await?.id;
    assert!(matches!(db.pitwheel().retry(job.claim.id).await, Err(Error::KeyTaken(_))));
    assert_eq!(db.state(job.claim.id).await?, Some(State::Dead), "a refused retry changes nothing");
    db.pitwheel().cancel(other).await?;

    db.pitwheel().retry(job.claim.id).await?;
    let again = db.claim_one().await?;
    assert_eq!((again.claim.id, again.attempt), (job.claim.id, 1));
    assert!(again.claim.fence > job.claim.fence);
    assert_eq!(db.pitwheel().job(job.claim.id).await?.errors[0]["message"], "no");
    assert_eq!(db.complete(&again).await?, pitwheel::Settled::Written);
    assert!(
        matches!(db.pitwheel().retry(job.claim.id).await, Err(Error::NotFound(..))),
        "a done job cannot be retried"
    );
    Ok(())
}

#[tokio::test]
async fn lists_page_through_live_and_finished_jobs() -> Result<()> {
    let db = TestDb::new().await?;
    let ids: Vec<i64> = db
        .pitwheel()
        .enqueue_many((0..9).map(|n| NewJob::raw(if n % 2 == 0 { "even" } else { "odd" }, "{}")))
        .await?
        .iter()
        .map(|job| job.id)
        .collect();
    for id in &ids[..4] {
        db.pitwheel().cancel(*id).await?;
    }
    let mut seen = Vec::new();
    let mut filter = Filter { limit: 2, ..Filter::default() };
    loop {
        let page = db.pitwheel().jobs(&filter).await?;
        seen.extend(page.jobs.iter().map(|job| job.id));
        filter.before = page.next;
        if page.next.is_none() {
            break;
        }
    }
    assert_eq!(seen, ids.iter().rev().copied().collect::<Vec<_>>());
    let count = async |kind: Option<&str>, state| {
        let filter = Filter { kind: kind.map(str::to_owned), state, ..Filter::default() };
        db.pitwheel().jobs(&filter).await.map(|page| page.jobs.len())
    };
    assert_eq!(count(Some("even"), None).await?, 5);
    assert_eq!(count(None, Some(State::Cancelled)).await?, 4);
    assert_eq!(count(Some("odd"), Some(State::Waiting)).await?, 2);
    assert_eq!(count(None, Some(State::Done)).await?, 0);
    assert!(matches!(
        db.pitwheel().jobs(&Filter { limit: 5000, ..Filter::default() }).await,
        Err(Error::Invalid(_))
    ));
    Ok(())
}
