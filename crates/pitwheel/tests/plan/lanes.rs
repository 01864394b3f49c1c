//! Lanes are read by job_lane: one probe for the head and one for the next job, however many jobs wait behind it, whatever the
//! statistics are, and past dead rows.

use anyhow::Result;
use pitwheel_testkit::TestDb;
use tokio_postgres::Client;

use crate::explain::{MODES, Statement, nodes, pages, plan};

/// Pages that a statement about one lane may touch. A scan of 20,000 jobs touches a hundred times as many.
const PAGES_MAX: i64 = 150;

const BEGIN: &str = "
    alter table pitwheel.job set (autovacuum_enabled = off);
    alter table pitwheel.lane_check set (autovacuum_enabled = off)";
/// Two lanes with 10,000 jobs each, and 20,000 jobs without a lane. The head of the first lane runs.
const FILL: &str = "
    insert into pitwheel.job (run_at, enqueued_at, max_attempts, priority, queue, kind, payload, lane)
    select now(), now(), 20, 0, 'default', 'test', '{}', case when n <= 20000 then to_json('lane ' || n % 2)::text end
    from generate_series(1, 40000) as n;
    select from pitwheel.promote_checked('0', 100);
    update pitwheel.job set holder = 1, fence = 1, attempt = 1, claimed_at = now()
    where lane = '\"lane 1\"' and run_at < 'infinity'";

const STATEMENTS: [Statement; 4] = [
    Statement {
        name: "promote_checked",
        sql: include_str!("../../sql/engine/promote_checked.sql"),
        types: "text, int",
        values: "'0', 100",
    },
    Statement {
        name: "promote_lanes",
        sql: include_str!("../../sql/engine/promote_lanes.sql"),
        types: "text[]",
        values: "array['\"lane 0\"', '\"lane 1\"', '\"none\"']",
    },
    Statement {
        name: "lane_current",
        sql: include_str!("../../sql/operate/lane_current.sql"),
        types: "text",
        values: "'\"lane 1\"'",
    },
    Statement {
        name: "lane_jobs",
        sql: include_str!("../../sql/operate/lane_jobs.sql"),
        types: "text, bigint, bigint, bool",
        values: "'\"lane 1\"', 1000000, 10, true",
    },
];

/// How often each index was scanned in this transaction: job_due, job_pkey, job_lane.
const SCANS: &str = "select pg_stat_get_xact_numscans('pitwheel.job_due'::regclass),
    pg_stat_get_xact_numscans('pitwheel.job_pkey'::regclass), pg_stat_get_xact_numscans('pitwheel.job_lane'::regclass)";

async fn check_all(client: &Client, when: &str) -> Result<()> {
    for mode in MODES {
        for statement in &STATEMENTS {
            let plan = plan(client, statement, mode, "analyze, buffers").await?;
            let touched = nodes(&plan).iter().map(|node| pages(node)).max().unwrap_or_default();
            assert!(touched <= PAGES_MAX, "{}, {when}, {mode}: {touched} pages\n{plan:#}", statement.name);
        }
        check_settle(client, when, mode).await?;
    }
    Ok(())
}

/// Deletes the running head of a lane, as a settle by id does, and settles it as one of many.
const SETTLES: [&str; 2] = [
    "with held as materialized (
        select ctid as tid from pitwheel.job
        where lane = '\"lane 1\"' and (case when run_at = 'infinity' then id else 0 end) = 0
    )
    delete from pitwheel.job where ctid = any (array(select tid from held))",
    "with held as materialized (
        select id, fence, holder, ctid as tid from pitwheel.job
        where lane = '\"lane 1\"' and (case when run_at = 'infinity' then id else 0 end) = 0
    )
    select from held
    cross join lateral pitwheel.done_in_lanes(
        array[held.id], array[held.fence], array[held.holder], array[held.tid], array[true])",
];

/// The settle of a head makes the next job the head, by statements in functions, which cannot be explained: the scans are counted.
async fn check_settle(client: &Client, when: &str, mode: &str) -> Result<()> {
    for settle in SETTLES {
        client
            .batch_execute(&format!(
                "begin; set local plan_cache_mode = {mode}; set local enable_seqscan = off; set local enable_bitmapscan = off"
            ))
            .await?;
        assert_eq!(client.execute(settle, &[]).await?, 1);
        let scans = client.query_one(SCANS, &[]).await?;
        let (due, key, lane): (i64, i64, i64) = (scans.get(0), scans.get(1), scans.get(2));
        let head = "select count(*) from pitwheel.job
            where lane = '\"lane 1\"' and (case when run_at = 'infinity' then id else 0 end) = 0";
        let heads: i64 = client.query_one(head, &[]).await?.get(0);
        assert!(
            heads == 1 && due == 0 && key == 0 && lane > 0,
            "{settle}, {when}, {mode}: {due} {key} {lane}, {heads} heads"
        );
        client.batch_execute("rollback").await?;
    }
    Ok(())
}

#[tokio::test]
async fn with_40_000_jobs_on_tables_analyzed_while_they_were_empty() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute(BEGIN).await?;
    for table in ["job", "lane_check", "lane"] {
        client.batch_execute(&format!("vacuum analyze pitwheel.{table}")).await?;
    }
    client.batch_execute(FILL).await?;
    check_all(&client, "analyzed while empty").await?;
    client.batch_execute("analyze pitwheel.job; analyze pitwheel.lane_check").await?;
    check_all(&client, "analyzed").await
}

#[tokio::test]
async fn past_100_000_dead_checks_behind_a_pinned_snapshot() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute(BEGIN).await?;
    let pin = db.client().await?;
    pin.batch_execute("begin isolation level repeatable read; select from pitwheel.job").await?;
    let dead = "insert into pitwheel.lane_check (xid, lane) select pg_current_xact_id(), n::text from generate_series(1, 100000) as n;
        delete from pitwheel.lane_check";
    client.batch_execute(dead).await?;
    // A node has read up to this transaction before, so it does not pass the dead rows again.
    let first: String = client.query_one("select pg_current_xact_id()::text", &[]).await?.get(0);
    client.batch_execute(FILL).await?;
    let values = format!("'{first}', 100");
    let statement = Statement { values: Box::leak(values.into_boxed_str()), ..STATEMENTS[0] };
    let plan = plan(&client, &statement, MODES[1], "analyze, buffers").await?;
    let touched = nodes(&plan).iter().map(|node| pages(node)).max().unwrap_or_default();
    assert!(touched <= PAGES_MAX, "{touched} pages\n{plan:#}");
    pin.batch_execute("rollback").await?;
    Ok(())
}
