//! Claims read the jobs in the order of job_due, and no further than they need.

use anyhow::{Result, ensure};
use pitwheel::engine::{self, Cursor, QueueSlots};
use pitwheel_testkit::TestDb;
use serde_json::Value;
use tokio_postgres::Client;

use crate::explain::{MODES, Statement, nodes, pages, plan};

/// Worker 1 claims 100 jobs of `default`, on all priorities, from the start.
const CLAIM: Statement = Statement {
    name: "claim",
    sql: include_str!("../../sql/engine/claim.sql"),
    types: "bigint, text[], int[], int[], timestamptz[], bigint[], text[]",
    values: "1, array['default'], array[100], array[1],
        array_fill(timestamptz 'epoch', array[19]), array_fill(0::bigint, array[19]), array['test']",
};

/// Worker 1 claims a job of each of 100 queues.
const CLAIM_OF_100_QUEUES: Statement = Statement {
    name: "claim of 100 queues",
    values: "1, queues(), array_fill(1, array[100]), first_levels(),
        array_fill(timestamptz 'epoch', array[1900]), array_fill(0::bigint, array[1900]), array['test']",
    ..CLAIM
};

/// The same, for the streams of a node.
const CLAIM_FOR_WORKERS: Statement = Statement {
    name: "claim_for_workers",
    sql: include_str!("../../sql/engine/claim_for_workers.sql"),
    types: "bigint[], bigint[], text[], int[], timestamptz[], bigint[], text[]",
    values: "array_fill(1::bigint, array[100]), array[1], array['default'], array[1],
        array_fill(timestamptz 'epoch', array[19]), array_fill(0::bigint, array[19]), array['test']",
};

/// The same priorities, from the start to an hour ago, where no job is.
const LOOK_BACK: Statement = Statement {
    name: "look_back",
    sql: include_str!("../../sql/engine/look_back.sql"),
    types: "text[], smallint[], timestamptz[], bigint[], timestamptz[], bigint[], text[]",
    values: "array_fill('default'::text, array[19]), '{9,8,7,6,5,4,3,2,1,0,-1,-2,-3,-4,-5,-6,-7,-8,-9}',
        array_fill(timestamptz 'epoch', array[19]), array_fill(0::bigint, array[19]),
        array_fill(now() - interval '1 hour', array[19]), array_fill(0::bigint, array[19]), array['test']",
};

/// A connection to a database with worker 1, in which jobs have had all priorities, and without autovacuum, which would analyze the
/// table during the test.
async fn without_autovacuum(db: &TestDb) -> Result<Client> {
    let client = db.client().await?;
    client
        .batch_execute(
            "alter table pitwheel.job set (autovacuum_enabled = off);
            insert into pitwheel.worker (id, name, lease, lease_until) overriding system value
            values (1, 'test', '1 hour', now() + interval '1 hour');
            insert into pitwheel.used_priority select generate_series(-9, 9)",
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

/// Fails unless the job table is read by the index `job_due`, and by no sequential scan or sort, the kinds are looked up in a hash table,
/// and the rows are updated by their ctids alone: a filter would compare each of them with all ctids.
fn check(plan: &Value, when: &str) -> Result<()> {
    let nodes = nodes(plan);
    let is = |node: &Value, what: &str| node["Node Type"].as_str().is_some_and(|kind| kind.contains(what));
    let of_job = |node: &Value| node["Relation Name"] == "job";
    let sorts = nodes.iter().filter(|node| is(node, "Sort"));
    let sorted = sorts.copied().flat_map(crate::explain::nodes).any(of_job);
    let scanned = nodes.iter().any(|node| of_job(node) && is(node, "Seq Scan"));
    let indexed = nodes
        .iter()
        .any(|node| of_job(node) && node["Node Type"] == "Index Scan" && node["Index Name"] == "job_due");
    let due = nodes.iter().filter(|node| of_job(node) && node["Index Name"] == "job_due");
    let hashed = due
        .clone()
        .all(|node| node["Filter"].as_str().is_some_and(|filter| filter.contains("hashed SubPlan")));
    let filtered = nodes.iter().any(|node| of_job(node) && is(node, "Tid Scan") && !node["Filter"].is_null());
    ensure!(
        indexed && hashed && !sorted && !scanned && !filtered,
        "{when}: job_due used {indexed}, kinds hashed {hashed}, sorted {sorted}, whole table read {scanned}, ctids filtered {filtered}
{plan:#}"
    );
    Ok(())
}

#[tokio::test]
async fn ten_jobs_are_claimed_by_the_index() -> Result<()> {
    let db = TestDb::new().await?;
    let client = without_autovacuum(&db).await?;
    fill(&client, 10).await?;
    for (statistics, when) in [("", "never analyzed"), ("vacuum analyze pitwheel.job", "analyzed")] {
        client.batch_execute(statistics).await?;
        for mode in MODES {
            for statement in [&CLAIM, &CLAIM_FOR_WORKERS] {
                let plan = plan(&client, statement, mode, "costs").await?;
                check(&plan, &format!("{}, {when}, {mode}", statement.name))?;
            }
        }
    }
    Ok(())
}

/// How many pages a claim of 100 touches. Only once per database: a claim that was rolled back leaves dead versions of
/// its rows, and what the next claim touches depends on whether they were pruned in between.
async fn pages_touched(client: &Client) -> Result<i64> {
    let plan = plan(client, &CLAIM, MODES[0], "analyze, buffers").await?;
    ensure!(plan["Actual Rows"] == 100, "the claim took {}", plan["Actual Rows"]);
    Ok(pages(&plan))
}

#[tokio::test]
async fn a_million_waiting_jobs_change_neither_plan_nor_pages_touched() -> Result<()> {
    /// An index of a million entries is one page deeper than one of 20,000; each priority descends once and may cross
    /// to a neighbouring page.
    const DEEPER: i64 = 2 * 19;
    let small = TestDb::new().await?;
    let few = without_autovacuum(&small).await?;
    fill(&few, 20_000).await?;
    few.batch_execute("analyze pitwheel.job").await?;

    let large = TestDb::new().await?;
    let many = without_autovacuum(&large).await?;
    many.batch_execute("vacuum analyze pitwheel.job").await?;
    for (more, statistics, when) in [
        (20_000, "", "20,000 jobs, statistics of none"),
        (980_000, "", "1,000,000 jobs, statistics of none"),
        (0, "analyze pitwheel.job", "1,000,000 jobs, analyzed"),
    ] {
        fill(&many, more).await?;
        many.batch_execute(statistics).await?;
        for mode in MODES {
            for statement in [&CLAIM, &CLAIM_FOR_WORKERS, &LOOK_BACK] {
                let plan = plan(&many, statement, mode, "costs").await?;
                check(&plan, &format!("{}, {when}, {mode}", statement.name))?;
            }
        }
    }

    let (few, many) = (pages_touched(&few).await?, pages_touched(&many).await?);
    println!("pages a claim of 100 touches: {few} with 20,000 behind it, {many} with 1,000,000");
    assert!(many <= few + DEEPER, "{few} pages with 20,000 behind it, {many} with 1,000,000");
    Ok(())
}

#[tokio::test]
async fn the_pages_of_a_claim_grow_with_its_queues_and_no_faster() -> Result<()> {
    let db = TestDb::new().await?;
    let client = without_autovacuum(&db).await?;
    client
        .batch_execute(
            "create function queues() returns text[]
                return array(select 'queue' || n from generate_series(1, 100) as n);
            create function first_levels() returns int[]
                return array(select 19 * n + 1 from generate_series(0, 99) as n);
            delete from pitwheel.used_priority; insert into pitwheel.used_priority values (0);
            insert into pitwheel.job (run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
            select now() - interval '1 minute', now(), 20, 0, 'queue' || n % 100 + 1, 'test', '{}' from generate_series(1, 20000) as n",
        )
        .await?;
    let plan = plan(&client, &CLAIM_OF_100_QUEUES, MODES[1], "analyze, buffers").await?;
    ensure!(plan["Actual Rows"] == 100, "the claim took {}", plan["Actual Rows"]);
    // For each queue: its pause, its level, and its row, which is locked and updated.
    assert!(pages(&plan) < 100 * 12, "{} pages", pages(&plan));
    Ok(())
}

/// Planner settings to turn off, in every combination.
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
    let client = without_autovacuum(&db).await?;
    fill(&client, 1000).await?;
    client.batch_execute("vacuum analyze pitwheel.job").await?;
    // The usual form of a claim. Its subquery may run once for every row of the table.
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
        let asks = [QueueSlots { queue: "default".to_owned(), slots: 5 }];
        let bounds = Cursor::new(["default"].into_iter()).bounds();
        let kinds = ["test".to_owned()];
        let claimed = engine::claim(&client, 1, &asks, &kinds, &bounds).await?;
        assert_eq!(claimed.len(), 5, "switches off: {off:b}");
        client.batch_execute("rollback to start").await?;
        most_limited = most_limited.max(client.query(limited, &[]).await?.len());
        client.batch_execute("rollback").await?;
    }
    assert!(most_limited > 5, "no plan makes the usual form take more than its limit");
    Ok(())
}
