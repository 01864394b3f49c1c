//! The statements for recurring jobs touch a few pages for each run, beside many recurring jobs that are not due or disabled.

use anyhow::{Result, ensure};
use pitwheel_testkit::TestDb;
use serde_json::Value;
use tokio_postgres::Client;

use crate::explain::{MODES, Statement, nodes, pages, plan};

/// Recurring jobs, one half of them disabled: enough that reading all of them, or an index of them, touches far more pages than
/// is allowed.
const RECURRING: i64 = 100_000;
/// Runs of a batch.
const BATCH: i64 = 10;
/// How many pages a statement may touch: for each run some in each of the indexes of job, recurring and the history.
const PAGES_MAX: i64 = 100 * BATCH;

macro_rules! statement {
    ($path:literal, $types:literal, $values:literal) => {
        Statement {
            name: $path,
            sql: include_str!(concat!("../../sql/", $path)),
            types: $types,
            values: $values,
        }
    };
}

/// Each returns rows, but for the lists of what is to be repaired.
const STATEMENTS: [Statement; 18] = [
    statement!(
        "engine/done_runs.sql",
        "bigint[], bigint[], bigint[], tid[], bigint[], bool[], timestamptz[], timestamptz[], bigint[], bigint[], int[], text[]",
        "ids(), fences(), of(1::bigint), ctids(), '{}', of(true), of('2030-01-01'::timestamptz), of('2030-01-01'::timestamptz),
            of(0::bigint), of(0::bigint), of(1), '{r}'"
    ),
    statement!(
        "engine/finish_runs.sql",
        "bigint[], bigint[], text[], text[], text[], bigint[], bigint[], bigint[], text[], text[], text[], bigint[], bigint[],
            smallint[], int[], bigint[], text[], text[], bool[], bigint[], bigint[], text[], bool[], bigint[], bigint[], bigint[],
            text[], bigint[], bigint[]",
        "ids(), fences(), of('done'::text), '{}', of('1'::text), '{}', ids(), fences(), of('next'::text), of('{}'::text),
            of('default'::text), of(0::bigint), '{}', of(0::smallint), of(1), '{}', '{}', ids()::text[], of(false),
            of(1::bigint), of(1::bigint), '{}', '{}', of(0::bigint), of(1900000000000000), of(1900000000000000), of('r'::text), '{}',
            of(0::bigint)"
    ),
    statement!(
        "engine/put_back_runs.sql",
        "bigint[], bigint[], bigint[], bigint[], bool[], bool[], text[], bigint[], bigint[], text[], bigint[], bigint[]",
        "ids(), fences(), of(1::bigint), of(0::bigint), of(false), of(false), '{}', of(1900000000000000),
            of(1900000000000000), of('r'::text), of(0::bigint), of(0::bigint)"
    ),
    statement!("engine/lock_claim.sql", "bigint, bigint, bigint", "(ids())[1], 1, 1"),
    statement!("engine/recurrences.sql", "bigint[]", "running()"),
    statement!("engine/unplanned.sql", "bigint, bigint", "500, 0"),
    statement!(
        "engine/plan_runs.sql",
        "bigint[], bigint[], bigint[], bigint[], text[], bigint[], bigint[]",
        "unplanned(), array_fill(0::bigint, array[10]), array_fill(1900000000000000, array[10]),
            array_fill(1900000000000000, array[10]), array_fill('r'::text, array[10]), '{}', array_fill(0::bigint, array[10])"
    ),
    statement!("engine/lost_runs.sql", "bigint, bigint", "500, 20"),
    statement!("engine/restore_runs.sql", "bigint[]", "lost()"),
    statement!("operate/recurring.sql", "bigint, text, text", "77, null, null"),
    statement!("operate/recurring.sql", "bigint, text, text", "null, 'test', 'key 77'"),
    statement!("operate/recurring_list.sql", "bigint, text, text, bool, bigint, bigint", "9000, null, null, null, 50, 50"),
    statement!("operate/recurring_runs.sql", "bigint, bigint, bigint", "77, 9000000000, 50"),
    statement!("operate/enable_recurring.sql", "bigint, text", "78, 'test'"),
    statement!("operate/disable_recurring.sql", "bigint, text", "77, 'test'"),
    statement!(
        "operate/change_recurring.sql",
        "bigint, text, text, text, bigint, bigint, bigint",
        "77, 'test', 'every 1h', null, 1900000000000000, 1900000000000000, null"
    ),
    statement!("operate/run_recurring.sql", "bigint, text", "77, 'test'"),
    statement!("operate/delete_recurring.sql", "bigint, text", "77, 'test'"),
];

/// Odd ones are enabled and have a live job; ten of these run, ten others are to be planned, and ten have lost their live job.
const FILL: &str = "
    alter table pitwheel.job set (autovacuum_enabled = off);
    alter table pitwheel.recurring set (autovacuum_enabled = off);
    insert into pitwheel.worker (id, name, lease, lease_until) overriding system value
        values (1, 'alive', '1 hour', now() + interval '1 hour');
    insert into pitwheel.recurring (kind, key, queue, cadence, misfire, payload, priority, enabled, planned, next_run_at, anchor_at,
        carried)
    select 'test', 'key ' || n, 'default', 'every 1d', 'one', '{}', 0, n % 2 = 1, true, now() + interval '1 day', now(), n % 2 = 1
    from generate_series(1, 100000) as n;
    insert into pitwheel.job (recurring, run_at, enqueued_at, max_attempts, priority, queue, kind, payload, anchor_at, next_run_at,
        version, runs, skipped, recurring_key, cadence, misfire)
    select id, next_run_at, now(), 20, 0, 'default', 'test', '{}', anchor_at, next_run_at, 0, 0, 0, key, cadence, misfire
    from pitwheel.recurring where enabled order by id;
    update pitwheel.job set holder = 1, fence = 1, attempt = 1, claimed_at = now() where recurring between 201 and 220;
    delete from pitwheel.job where recurring between 301 and 320 or recurring between 501 and 520;
    update pitwheel.recurring set planned = false, next_run_at = null where id between 301 and 320 and enabled;
    create function ids() returns bigint[] return (select array_agg(id order by id) from pitwheel.job where holder = 1);
    create function fences() returns bigint[] return (select array_agg(fence order by id) from pitwheel.job where holder = 1);
    create function ctids() returns tid[] return (select array_agg(ctid order by id) from pitwheel.job where holder = 1);
    create function running() returns bigint[]
        return (select array_agg(recurring order by id) from pitwheel.job where holder = 1);
    create function of(value anyelement) returns anyarray language sql
        as 'select array_fill(value, array[cardinality(ids())])';
    create function unplanned() returns bigint[] return (select array_agg(id) from pitwheel.recurring where not planned);
    create function lost() returns bigint[] return (select array_agg(n) from generate_series(501, 519, 2) as n);";

/// More of them, of which each has had a job.
const DEAD: &str = "
    insert into pitwheel.recurring (kind, key, queue, cadence, misfire, payload, priority, enabled, planned, next_run_at, anchor_at,
        carried)
    select 'test', 'gone ' || n, 'default', 'every 1d', 'one', '{}', 0, true, true, now() + interval '1 day', now(), true
    from generate_series(1, 300000) as n;
    insert into pitwheel.job (recurring, run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
    select id, now() - interval '1 hour', now(), 20, 0, 'default', 'test', '{}' from pitwheel.recurring where id > 100000;
    delete from pitwheel.job where recurring > 100000;
    delete from pitwheel.recurring where id > 100000";

fn check(statement: &Statement, plan: &Value) -> Result<()> {
    let nodes = nodes(plan);
    let touched = nodes.iter().map(|node| pages(node)).max().unwrap_or_default();
    ensure!(touched <= PAGES_MAX, "it touches {touched} pages\n{plan:#}");
    ensure!(plan["Actual Rows"] != 0, "{} found nothing", statement.name);
    for node in nodes {
        let table = node["Relation Name"].as_str().unwrap_or_default();
        let whole = match node["Index Name"].as_str() {
            Some("recurring_unplanned") => false,
            Some(_) => node["Index Cond"].is_null(),
            None => node["Node Type"] == "Seq Scan",
        };
        ensure!(
            !whole || !["job", "recurring"].contains(&table),
            "it reads the whole of a table or an index: {node:#}"
        );
    }
    Ok(())
}

async fn check_all(client: &Client, when: &str) -> Result<()> {
    let mut wrong = Vec::new();
    for statement in &STATEMENTS {
        let modes = if statement.name.starts_with("operate/") { &MODES[1..] } else { &MODES };
        for mode in modes {
            let plan = plan(client, statement, mode, "analyze, buffers").await?;
            if let Err(error) = check(statement, &plan) {
                wrong.push(format!("{}, {when}, {mode}: {error}", statement.name));
            }
        }
    }
    ensure!(wrong.is_empty(), "{} plans are wrong:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

#[tokio::test]
async fn beside_100_000_recurring_jobs() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute("vacuum analyze pitwheel.job").await?;
    client.batch_execute("vacuum analyze pitwheel.recurring").await?;
    client.batch_execute(FILL).await?;
    assert_eq!(db.count("select count(*) from pitwheel.recurring").await?, RECURRING);
    check_all(&client, "analyzed while the tables were empty").await?;
    client.batch_execute("analyze pitwheel.job; analyze pitwheel.recurring").await?;
    check_all(&client, "analyzed").await
}

#[tokio::test]
async fn past_300_000_dead_entries_behind_a_pinned_snapshot() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute("vacuum analyze pitwheel.job").await?;
    client.batch_execute("vacuum analyze pitwheel.recurring").await?;
    let pin = db.client().await?;
    pin.batch_execute("begin isolation level repeatable read; select from pitwheel.job").await?;
    client.batch_execute(FILL).await?;
    client.batch_execute(DEAD).await?;
    check_all(&client, "300,000 dead entries").await?;
    pin.batch_execute("rollback").await?;
    Ok(())
}
