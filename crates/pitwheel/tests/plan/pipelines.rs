//! The statements for pipelines touch a few pages for each step, beside many pipelines that run or have ended.

use anyhow::{Result, ensure};
use pitwheel_testkit::TestDb;
use serde_json::Value;
use tokio_postgres::Client;

use crate::explain::{MODES, Statement, nodes, pages, plan};

/// Steps of a batch.
const BATCH: i64 = 10;
/// How many pages a statement may touch: for each step some in each of the indexes of job, step, pipeline and the history, for it and
/// for the job that follows. One scan of all steps for each would touch ten times as many.
const PAGES_MAX: i64 = 120 * BATCH;

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

const STEPS: Statement = statement!("operate/steps.sql", "bigint", "77");

const STATEMENTS: [Statement; 16] = [
    statement!(
        "engine/finish.sql",
        "bigint[], bigint[], text[], text[], text[], bigint[], bigint[], bigint[], text[], text[], text[], bigint[], bigint[],
            smallint[], int[], bigint[], text[], text[], bool[], bigint[], bigint[], text[], bool[], text[]",
        "ids(), fences(), of('done'::text), '{}', of('1'::text), '{}', ids(), fences(), of('next'::text), of('{}'::text),
            of('default'::text), of(0::bigint), '{}', of(0::smallint), of(1), '{}', '{}', ids()::text[], of(false),
            of(1::bigint), of(1::bigint), '{}', '{}', of('more'::text)"
    ),
    statement!(
        "engine/claim.sql",
        "bigint, text[], int[], int[], timestamptz[], bigint[], text[]",
        "1, '{default}', '{10}', '{1}',
            array_fill(now() - interval '10 minutes', array[19]), array_fill(0::bigint, array[19]), '{test}'"
    ),
    statement!("engine/step_contexts.sql", "bigint[], text[]", "waiting(), array_fill('s2'::text, array[10])"),
    statement!("engine/lock_claim.sql", "bigint, bigint, bigint", "(ids())[1], 1, 1"),
    statement!("engine/lock_claims.sql", "bigint[], bigint[], bigint[]", "ids(), fences(), of(1::bigint)"),
    statement!("engine/lost_steps.sql", "bigint, bigint, bigint", "500, 20, 10000"),
    statement!("engine/repair_pipelines.sql", "bigint[]", "waiting()"),
    statement!("engine/prune_pipelines.sql", "float8", "3600"),
    statement!("operate/cancel.sql", "bigint[], text", "waiting(), 'ada'"),
    statement!("operate/delete.sql", "bigint[], text", "waiting(), 'ada'"),
    statement!("operate/create_pipelines.sql", "text[]", "array_fill(definition(), array[10])"),
    statement!("operate/cancel_pipeline.sql", "bigint, text", "77, 'ada'"),
    statement!("operate/retry_pipeline.sql", "bigint, text", "88, 'ada'"),
    statement!("operate/pipeline.sql", "bigint", "77"),
    STEPS,
    statement!("operate/pipelines.sql", "bigint, text, text, bigint, bigint", "9000, null, null, 50, 50"),
];

/// Pipelines of five steps, one after the other, whose first steps are live: ten of them run, some are due, the others later. The last
/// ten have ended. The first step of pipeline 88 is dead.
const FILL: &str = r#"
    alter table pitwheel.job set (autovacuum_enabled = off);
    alter table pitwheel.pipeline set (autovacuum_enabled = off);
    alter table pitwheel.step set (autovacuum_enabled = off);
    insert into pitwheel.worker (id, name, lease, lease_until) overriding system value
        values (1, 'alive', '1 hour', now() + interval '1 hour');
    insert into pitwheel.pipeline (name, on_failure, steps, open, finished_at)
    select 'p', 'stop', 5, case when n > 19990 then 0 else 5 end, case when n > 19990 then now() - interval '2 hours' end
    from generate_series(1, 20000) as n;
    insert into pitwheel.step (pipeline, n, name, parents, children, waiting, state, job_id, kind, queue, payload, delay_ms,
        priority, max_attempts)
    select pipeline.id, n, 's' || n, case n when 1 then '{}' else array['s' || n - 1] end,
        case n when 5 then '{}' else array['s' || n + 1] end, (n > 1)::int,
        case when pipeline.open = 0 then 'done' when n > 1 then 'waiting' else 'live' end, case n when 1 then pipeline.id end,
        'test', 'default', '{}', 0, 0, 20
    from pitwheel.pipeline cross join generate_series(1, 5) as n;
    insert into pitwheel.job (id, pipeline, step, run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
    select id, id, 's1', now() + case when id > 100 then interval '1 day' else '0' end, now(), 20, 0, 'default', 'test', '{}'
    from pitwheel.pipeline where open > 0;
    select setval('pitwheel.job_id_seq', 100000);
    update pitwheel.job set holder = 1, fence = 1, attempt = 1, claimed_at = now() where id between 201 and 210;
    delete from pitwheel.job where pipeline = 88;
    update pitwheel.step set state = case n when 1 then 'dead' else 'skipped' end where pipeline = 88;
    update pitwheel.pipeline set open = 0, failed = 1 where id = 88;
    create function ids() returns bigint[] return (select array_agg(id order by id) from pitwheel.job where holder = 1);
    create function fences() returns bigint[] return (select array_agg(fence order by id) from pitwheel.job where holder = 1);
    create function waiting() returns bigint[] return (select array_agg(n) from generate_series(301, 310) as n);
    create function of(value anyelement) returns anyarray language sql
        as 'select array_fill(value, array[cardinality(ids())])';
    create function definition() returns text return
        '{"name": "p", "steps": [{"name": "a", "job": {"kind": "k"}}, {"name": "b", "after": ["a"], "job": {"kind": "k"}}]}';"#;

/// Pipelines of one step, each of which has had a job.
const DEAD: &str = "
    insert into pitwheel.pipeline (name, on_failure, steps, open) select 'gone', 'stop', 1, 1 from generate_series(1, 300000);
    insert into pitwheel.step (pipeline, n, name, parents, children, waiting, state, kind, queue, payload, delay_ms, priority,
        max_attempts)
    select id, 1, 's1', '{}', '{}', 0, 'live', 'test', 'default', '{}', 0, 0, 20 from pitwheel.pipeline where id > 20000;
    insert into pitwheel.job (pipeline, step, run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
    select id, 's1', now() - interval '1 hour', now(), 20, 0, 'default', 'test', '{}' from pitwheel.pipeline where id > 20000;
    delete from pitwheel.step where pipeline > 20000;
    delete from pitwheel.job where pipeline > 20000;
    delete from pitwheel.pipeline where id > 20000";

fn check(statement: &Statement, plan: &Value) -> Result<()> {
    let nodes = nodes(plan);
    let touched = nodes.iter().map(|node| pages(node)).max().unwrap_or_default();
    ensure!(touched <= PAGES_MAX, "it touches {touched} pages\n{plan:#}");
    ensure!(plan["Actual Rows"] != 0, "{} found nothing", statement.name);
    for node in nodes {
        let table = node["Relation Name"].as_str().unwrap_or_default();
        let whole = match node["Index Name"].as_str() {
            Some(_) => node["Index Cond"].is_null(),
            None => node["Node Type"] == "Seq Scan",
        };
        ensure!(
            !whole || !["job", "pipeline", "step"].contains(&table),
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
async fn beside_20_000_pipelines() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    for table in ["job", "pipeline", "step"] {
        client.batch_execute(&format!("vacuum analyze pitwheel.{table}")).await?;
    }
    client.batch_execute(FILL).await?;
    check_all(&client, "analyzed while the tables were empty").await?;
    client.batch_execute("analyze pitwheel.job; analyze pitwheel.pipeline; analyze pitwheel.step").await?;
    check_all(&client, "analyzed").await
}

#[tokio::test]
async fn past_300_000_dead_entries_behind_a_pinned_snapshot() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    for table in ["job", "pipeline", "step"] {
        client.batch_execute(&format!("vacuum analyze pitwheel.{table}")).await?;
    }
    let pin = db.client().await?;
    pin.batch_execute("begin isolation level repeatable read; select from pitwheel.job").await?;
    client.batch_execute(FILL).await?;
    client.batch_execute(DEAD).await?;
    check_all(&client, "300,000 dead entries").await?;
    pin.batch_execute("rollback").await?;
    Ok(())
}

#[tokio::test]
async fn results_beyond_the_limit_are_not_read() -> Result<()> {
    const STEPS_COUNT: i64 = 200;
    /// A result of 256 KiB has 35 pages: all of them 7,000, those within the limit and the steps themselves 750.
    const PAGES_OF_RESULTS_MAX: i64 = 2000;
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute("alter table pitwheel.step alter column result set storage external").await?;
    let fill = "insert into pitwheel.step (pipeline, n, name, parents, children, waiting, state, kind, queue, payload, delay_ms,
            priority, max_attempts, result)
        select 77, n, 's' || n, '{}', '{}', 0, 'done', 'test', 'default', '{}', 0, 0, 20, to_json(repeat('x', 262142))
        from generate_series(1, $1::bigint) as n";
    client.execute(fill, &[&STEPS_COUNT]).await?;
    for mode in MODES {
        let plan = plan(&client, &STEPS, mode, "analyze, buffers").await?;
        ensure!(plan["Actual Rows"] == STEPS_COUNT, "{plan:#}");
        let touched = nodes(&plan).iter().map(|node| pages(node)).max().unwrap_or_default();
        ensure!(touched <= PAGES_OF_RESULTS_MAX, "it touches {touched} pages\n{plan:#}");
    }
    Ok(())
}
