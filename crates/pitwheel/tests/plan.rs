//! The hot statements keep their plan, whatever the planner believes about the tables.

use std::time::SystemTime;

use anyhow::{Result, ensure};
use pitwheel::engine::{self, Ask, Cursor};
use pitwheel_testkit::TestDb;
use serde_json::Value;
use tokio_postgres::Client;

/// A statement with values for its parameters, in the words of `prepare` and `execute`.
struct Statement {
    sql: &'static str,
    types: &'static str,
    values: &'static str,
}

/// Worker 1 asks for 100 of `default`, on all its levels, from the bottom.
const CLAIM: Statement = Statement {
    sql: include_str!("../sql/claim.sql"),
    types: "bigint, text[], int[], text[], smallint[], timestamptz[], bigint[], text[]",
    values: "1, array['default'], array[100],
        array_fill('default'::text, array[19]), '{9,8,7,6,5,4,3,2,1,0,-1,-2,-3,-4,-5,-6,-7,-8,-9}',
        array_fill(timestamptz 'epoch', array[19]), array_fill(0::bigint, array[19]), array['test']",
};

/// The same levels, from the bottom to an hour ago, where nothing is.
const LOOK_BACK: Statement = Statement {
    sql: include_str!("../sql/look_back.sql"),
    types: "text[], smallint[], timestamptz[], bigint[], timestamptz[], bigint[], text[]",
    values: "array_fill('default'::text, array[19]), '{9,8,7,6,5,4,3,2,1,0,-1,-2,-3,-4,-5,-6,-7,-8,-9}',
        array_fill(timestamptz 'epoch', array[19]), array_fill(0::bigint, array[19]),
        array_fill(now() - interval '1 hour', array[19]), array_fill(0::bigint, array[19]), array['test']",
};

const MODES: [&str; 2] = ["force_custom_plan", "force_generic_plan"];

/// A connection to a database in which worker 1 lives and nobody vacuums or analyzes behind the test's back.
async fn quiet(db: &TestDb) -> Result<Client> {
    let client = db.client().await?;
    client
        .batch_execute(
            "alter table pitwheel.job set (autovacuum_enabled = off, vacuum_truncate = off);
            insert into pitwheel.job (id, run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
            select -n, 'epoch', 'epoch', 1, 0, '-', '-', to_json(repeat('-', 1800)) from generate_series(1, 128) as n;
            delete from pitwheel.job;
            insert into pitwheel.worker (id, name, lease, lease_until) overriding system value
            values (1, 'test', '1 hour', now() + interval '1 hour')",
        )
        .await?;
    Ok(client)
}

/// Adds due jobs, each a little later than the one before.
async fn fill(client: &Client, jobs: usize) -> Result<()> {
    let sql = format!(
        "insert into pitwheel.job (run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
        select now() - interval '1 minute' + n * interval '1 microsecond', now(), 20, 0, 'default', 'test', '{{}}'
        from generate_series(1, {jobs}) as n"
    );
    Ok(client.batch_execute(&sql).await?)
}

/// The plan, run and rolled back.
async fn plan(client: &Client, statement: &Statement, mode: &str) -> Result<Value> {
    let Statement { sql, types, values } = statement;
    client
        .batch_execute(&format!("begin; set local plan_cache_mode = {mode}; prepare hot({types}) as {sql}"))
        .await?;
    let explain = format!("explain (analyze, buffers, format json) execute hot({values})");
    let explained: Value = client.query_one(&explain, &[]).await?.get(0);
    client.batch_execute("rollback; deallocate hot").await?;
    Ok(explained[0]["Plan"].clone())
}

/// All nodes of a plan.
fn nodes(plan: &Value) -> Vec<&Value> {
    let below = plan["Plans"].as_array().into_iter().flatten().flat_map(nodes);
    std::iter::once(plan).chain(below).collect()
}

/// How the job table is read, and whether anything is sorted.
fn check(plan: &Value, when: &str) -> Result<()> {
    let nodes = nodes(plan);
    let is = |node: &Value, what: &str| node["Node Type"].as_str().is_some_and(|kind| kind.contains(what));
    let of_job = |node: &Value| node["Relation Name"] == "job";
    let sorted = nodes.iter().any(|node| is(node, "Sort"));
    let scanned = nodes.iter().any(|node| of_job(node) && is(node, "Seq Scan"));
    let indexed = nodes
        .iter()
        .any(|node| of_job(node) && node["Node Type"] == "Index Scan" && node["Index Name"] == "job_due");
    ensure!(
        indexed && !sorted && !scanned,
        "{when}: job_due used {indexed}, sorted {sorted}, whole table read {scanned}\n{plan:#}"
    );
    Ok(())
}

#[tokio::test]
async fn ten_jobs_are_claimed_by_the_index() -> Result<()> {
    let db = TestDb::new().await?;
    let client = quiet(&db).await?;
    println!("pages {}", client.query_one("select pg_relation_size('pitwheel.job')/8192", &[]).await?.get::<_, i64>(0));
    fill(&client, 10).await?;
    for (statistics, when) in [("", "never analyzed"), ("vacuum analyze pitwheel.job", "analyzed")] {
        client.batch_execute(statistics).await?;
        for mode in MODES {
            check(&plan(&client, &CLAIM, mode).await?, &format!("{when}, {mode}"))?;
        }
    }
    Ok(())
}

/// Pages that a statement touched.
fn pages(plan: &Value) -> i64 {
    let of = |key: &str| plan[key].as_i64().unwrap_or_default();
    of("Shared Hit Blocks") + of("Shared Read Blocks")
}

#[tokio::test]
async fn a_million_jobs_behind_change_neither_plan_nor_price() -> Result<()> {
    /// An index of a million is one page deeper than one of 20,000; each level of the queue goes down and may cross over.
    const DEEPER: i64 = 2 * 19;
    let db = TestDb::new().await?;
    let client = quiet(&db).await?;
    client.batch_execute("vacuum analyze pitwheel.job").await?;
    let conditions = [
        (20_000, "", "20,000 jobs, statistics of none"),
        (0, "analyze pitwheel.job", "20,000 jobs, analyzed"),
        (980_000, "", "1,000,000 jobs, statistics of 20,000"),
        (0, "analyze pitwheel.job", "1,000,000 jobs, analyzed"),
    ];
    let mut prices = Vec::new();
    for (more, statistics, when) in conditions {
        fill(&client, more).await?;
        client.batch_execute(statistics).await?;
        for mode in MODES {
            let claim = plan(&client, &CLAIM, mode).await?;
            check(&claim, &format!("claim, {when}, {mode}"))?;
            assert_eq!(claim["Actual Rows"], 100);
            prices.push(pages(&claim));
            check(&plan(&client, &LOOK_BACK, mode).await?, &format!("look back, {when}, {mode}"))?;
        }
    }
    println!("pages touched by a claim of 100: {prices:?}");
    let (few, many) = prices.split_at(prices.len() / 2);
    assert!(many.iter().max() <= few.iter().max().map(|most| most + DEEPER).as_ref());
    Ok(())
}

/// What the planner may be told to do without.
const SWITCHES: [&str; 7] = [
    "enable_hashjoin",
    "enable_mergejoin",
    "enable_nestloop",
    "enable_material",
    "enable_hashagg",
    "enable_sort",
    "enable_tidscan",
];

#[tokio::test]
async fn a_claim_of_five_takes_five_however_it_is_planned() -> Result<()> {
    let db = TestDb::new().await?;
    let client = quiet(&db).await?;
    fill(&client, 1000).await?;
    client.batch_execute("vacuum analyze pitwheel.job").await?;
    // The shape one finds everywhere. Its subquery may run once for every row of the table.
    let limited = "update pitwheel.job set holder = 1 where id in (
            select id from pitwheel.job where holder is null order by id limit 5 for update skip locked
        ) returning id";
    let mut most_limited = 0;
    for off in 0..1_u32 << SWITCHES.len() {
        client.batch_execute("begin").await?;
        for (_, switch) in SWITCHES.iter().enumerate().filter(|(at, _)| off >> at & 1 == 1) {
            client.batch_execute(&format!("set local {switch} = off")).await?;
        }
        client.batch_execute("savepoint start").await?;
        let asks = [Ask { queue: "default", slots: 5 }];
        let mut cursor = Cursor::new(["default"].into_iter());
        let kinds = ["test".to_owned()];
        let claimed = engine::claim(&client, 1, &asks, &kinds, &mut cursor, SystemTime::now()).await?;
        assert_eq!(claimed.len(), 5, "switches off: {off:b}");
        client.batch_execute("rollback to start").await?;
        most_limited = most_limited.max(client.query(limited, &[]).await?.len());
        client.batch_execute("rollback").await?;
    }
    assert!(most_limited > 5, "no plan makes the usual shape take more than its limit");
    Ok(())
}
