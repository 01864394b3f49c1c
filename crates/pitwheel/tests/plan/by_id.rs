//! Statements that name jobs or holds probe an index once per row: also in a queue that was empty when it was analyzed, and
//! past the dead entries that a pinned snapshot keeps.
//!
//! Once a table was analyzed without rows, Postgres expects one row in it, however large it grows. Then a scan of a whole
//! index seems to cost as much as a probe, and so does a probe of the wrong index: if job_due ended with the id, `id = 7` could
//! be looked for in all of it.

use anyhow::{Result, ensure};
use pitwheel_testkit::TestDb;
use serde_json::Value;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::explain::{MODES, Statement, nodes, pages, plan_with};
use crate::statements::STATEMENTS;

/// How many jobs a batch names.
const BATCH: i64 = 10;
/// How many pages a statement may touch: for each job of the batch some in each of five indexes, in the table, in the history
/// and its two indexes, in the audit log; a claim descends 19 priorities. A scan of 20,000 jobs touches twice as many.
const PAGES_MAX: i64 = 40 * BATCH;

/// Worker 1 lives and holds jobs, and has an empty hold. Worker 2 is dead and holds jobs.
const WORKERS: &str = "
    alter table pitwheel.job set (autovacuum_enabled = off);
    alter table pitwheel.hold set (autovacuum_enabled = off);
    insert into pitwheel.worker (id, name, lease, lease_until, dead_at, token) overriding system value values
        (1, 'alive', '1 hour', now() + interval '1 hour', null, 7), (2, 'dead', '1 hour', now(), now(), null);";
/// The parameters of the statements: what worker 1 holds, some waiting jobs, and an array with one value for each held job.
const PARAMETERS: &str = "
    create function ids() returns bigint[]
        return (select array_agg(id order by id) from pitwheel.job where holder = 1);
    create function fences() returns bigint[]
        return (select array_agg(fence order by id) from pitwheel.job where holder = 1);
    create function ctids() returns tid[]
        return (select array_agg(ctid order by id) from pitwheel.job where holder = 1);
    create function waiting() returns bigint[] return array(
        select id from pitwheel.job where holder is null order by id desc limit 5);
    create function dead() returns bigint[]
        return (select array_agg(id) from pitwheel.job_history where id < 0);
    create function holds() returns bigint[]
        return (select array_agg(id) from pitwheel.hold where worker = 1);
    create function keys() returns text[]
        return (select array_agg(key order by id) from pitwheel.job where holder = 1);
    create function of(value anyelement) returns anyarray language sql
        as 'select array_fill(value, array[cardinality(ids())])'";
const ANALYZE: &str = "analyze pitwheel.job; analyze pitwheel.hold";

/// Adds waiting jobs that are due since about this long.
async fn fill(client: &Client, jobs: i64, since: &str) -> Result<()> {
    let sql = format!(
        "insert into pitwheel.job (run_at, enqueued_at, max_attempts, priority, queue, kind, payload, key)
        select now() - interval '{since}' + n * interval '1 microsecond', now(), 20, 0, 'default', 'test', '{{}}', n
        from generate_series(1, {jobs}) as n"
    );
    Ok(client.batch_execute(&sql).await?)
}

/// Lets the two workers hold jobs; a cancel of one is requested, a waiting one is a suspect, and ten are dead.
async fn hold(client: &Client, alive: i64, dead: i64) -> Result<()> {
    for (worker, jobs) in [(1, alive), (2, dead)] {
        let sql = format!(
            "with taken as (
                update pitwheel.job set holder = {worker}, fence = 1, attempt = 1, claimed_at = now()
                where id = any (array(select id from pitwheel.job where holder is null order by id limit {jobs}))
                returning id
            )
            insert into pitwheel.hold (worker, job_ids) select {worker}, array_agg(id) from taken"
        );
        client.batch_execute(&sql).await?;
    }
    let sql = "insert into pitwheel.hold (worker, job_ids) select 1, array_agg(-n) from generate_series(1, 10) as n;
        update pitwheel.job set cancel_requested_at = now() where id = (select (ids())[1]);
        update pitwheel.job set crashes = 2 where id = (select (waiting())[1]);
        insert into pitwheel.job_history (id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, state,
            queue, kind, payload)
        select -n, now(), now(), now(), 1, 1, 20, 0, 0, 'dead', 'default', 'test', '{}' from generate_series(1, 10) as n";
    Ok(client.batch_execute(sql).await?)
}

/// A database with the two workers and without jobs.
async fn start() -> Result<(TestDb, Client)> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute(WORKERS).await?;
    client.batch_execute(PARAMETERS).await?;
    Ok((db, client))
}

/// A session with the settings of the engine, and one with those of a user's connection.
async fn sessions(db: &TestDb) -> Result<[(Client, Whose); 2]> {
    let engine = db.client().await?;
    let settings = include_str!("../../sql/postgres/session_settings.sql");
    let params = [(&"1min" as _, Type::TEXT), (&"0" as _, Type::TEXT), (&false as _, Type::BOOL)];
    engine.query_typed(settings, &params).await?;
    Ok([(engine, Whose::Engine), (db.client().await?, Whose::User)])
}

/// Runs every statement in both sessions.
async fn run_all(db: &TestDb, when: &str) -> Result<()> {
    check_all(&sessions(db).await?, "analyze, buffers", when).await
}

/// Plans every statement in both sessions; with `analyze, buffers` for `how` it is run too.
async fn check_all(sessions: &[(Client, Whose)], how: &str, when: &str) -> Result<()> {
    let mut wrong = Vec::new();
    for statement in &STATEMENTS {
        // The statements of `operate` run only in sessions of the engine, whose plans are generic.
        let modes = if statement.name.starts_with("operate/") { &MODES[1..] } else { &MODES };
        for mode in modes {
            for (client, whose) in sessions {
                let plan = plan_with(client, "", statement, mode, how).await?;
                let by_ctid = ["engine/done.sql", "engine/complete.sql"].contains(&statement.name);
                let ran = if how.contains("analyze") { check_run(statement, &plan) } else { Ok(()) };
                let checked = ran.and_then(|()| check_probes(&plan, *whose));
                let checked = if by_ctid { checked.and_then(|()| check_by_ctid(&plan)) } else { checked };
                if let Err(error) = checked {
                    wrong.push(format!("{}, {when}, {mode}, {whose:?}: {error}", statement.name));
                }
            }
        }
    }
    ensure!(wrong.is_empty(), "{} plans are wrong:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

/// Whose session it is. That of a user may read a table of few pages whole.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Whose {
    Engine,
    User,
}

/// Fails if a statement that was run touched many pages, or found nothing.
fn check_run(statement: &Statement, plan: &Value) -> Result<()> {
    let touched = nodes(plan).iter().map(|node| pages(node)).max().unwrap_or_default();
    // It moves jobs from the history to `job`.
    let pages_max = if statement.name == "operate/retry.sql" { 2 * PAGES_MAX } else { PAGES_MAX };
    ensure!(touched <= pages_max, "it touches {touched} pages\n{plan:#}");
    // A hold with a running job stays, and the claims of worker 1 have not ended.
    let finds_nothing = ["engine/drop_holds.sql", "engine/already_settled.sql"].contains(&statement.name);
    ensure!(plan["Actual Rows"] != 0 || finds_nothing, "it found nothing");
    Ok(())
}

/// Fails if a table or an index would be read whole, or a list from its start for every row.
fn check_probes(plan: &Value, whose: Whose) -> Result<()> {
    for node in nodes(plan) {
        let kind = node["Node Type"].as_str().unwrap_or_default();
        let table = node["Relation Name"].as_str().unwrap_or_default();
        let condition = node["Index Cond"].as_str().unwrap_or_default();
        let filter = node["Filter"].as_str().unwrap_or_default();
        ensure!(!filter.contains("<> ALL ($"), "it compares every row with every known one: {filter}");
        let probes = match node["Index Name"].as_str() {
            Some("job_pkey" | "job_key" | "hold_pkey" | "hold_worker") => !condition.is_empty(),
            Some("job_due") => condition.contains("priority"),
            Some(_) if table.starts_with("job_history") => !condition.is_empty(),
            // They have few entries: suspects, and jobs whose cancel was requested.
            Some(_) => true,
            None => kind != "Seq Scan" || !["job", "hold"].contains(&table) || whose == Whose::User,
        };
        ensure!(probes, "it reads the whole of a table or an index: {node:#}");
    }
    Ok(())
}

/// Fails unless the rows are found by ctid alone, and their claims in a hash table. A filter that has the ctids, or a subplan that is
/// not hashed, compares every row with every claim of the batch.
fn check_by_ctid(plan: &Value) -> Result<()> {
    let nodes = nodes(plan);
    let scans: Vec<_> =
        nodes.iter().filter(|node| node["Relation Name"] == "job" && !node["Filter"].is_null()).collect();
    ensure!(scans.len() == 1, "{} scans of job have a filter\n{plan:#}", scans.len());
    let filter = scans[0]["Filter"].as_str().unwrap_or_default();
    ensure!(scans[0]["Node Type"] == "Tid Scan", "it is no Tid Scan\n{plan:#}");
    ensure!(filter.contains("hashed SubPlan") && !filter.contains("ctid"), "its filter is {filter}");
    let joins = nodes.iter().any(|node| {
        node["Node Type"].as_str().is_some_and(|kind| kind.contains("Join") || kind == "Nested Loop")
    });
    ensure!(!joins, "it joins the rows with the batch\n{plan:#}");
    Ok(())
}

#[tokio::test]
async fn with_ten_jobs() -> Result<()> {
    let (db, client) = start().await?;
    fill(&client, 10, "1 minute").await?;
    hold(&client, 5, 2).await?;
    run_all(&db, "never analyzed").await?;
    client.batch_execute(ANALYZE).await?;
    run_all(&db, "analyzed").await
}

#[tokio::test]
async fn with_20_000_jobs_on_tables_analyzed_while_they_were_empty() -> Result<()> {
    let (db, client) = start().await?;
    client.batch_execute("vacuum analyze pitwheel.job").await?;
    client.batch_execute("vacuum analyze pitwheel.hold").await?;
    fill(&client, 20_000, "1 minute").await?;
    let others = "insert into pitwheel.hold (worker, job_ids) select 10 + n, '{-1}' from generate_series(1, 5000) as n";
    client.batch_execute(others).await?;
    hold(&client, BATCH, BATCH).await?;
    run_all(&db, "20,000 jobs").await
}

#[tokio::test]
async fn past_300_000_dead_entries_behind_a_pinned_snapshot() -> Result<()> {
    let (db, client) = start().await?;
    let pin = db.client().await?;
    pin.batch_execute("begin isolation level repeatable read; select from pitwheel.job").await?;
    fill(&client, 300_000, "1 hour").await?;
    let others = "insert into pitwheel.hold (worker, job_ids)
        select 10 + n % 1000, '{-1}' from generate_series(1, 300000) as n";
    client.batch_execute(others).await?;
    client.batch_execute("delete from pitwheel.job; delete from pitwheel.hold").await?;
    client.batch_execute(ANALYZE).await?;
    fill(&client, 30, "1 minute").await?;
    hold(&client, BATCH, BATCH).await?;
    run_all(&db, "300,000 dead entries").await?;
    pin.batch_execute("rollback").await?;
    Ok(())
}

/// A session plans with the height that an index had when the session last read it. One that read job_due when it was small, and
/// job_pkey since, takes job_due for the smaller index.
#[tokio::test]
async fn in_sessions_that_read_job_due_when_it_was_small() -> Result<()> {
    let (db, client) = start().await?;
    let pin = db.client().await?;
    pin.batch_execute("begin isolation level repeatable read; select from pitwheel.job").await?;
    fill(&client, 1, "1 hour").await?;
    // The first vacuum counts the entries of the indexes, which makes all sessions read their heights again; the second does not.
    client.batch_execute("vacuum pitwheel.job").await?;
    let sessions = sessions(&db).await?;
    let reads = [
        ("job_due", "select from pitwheel.job where queue = 'default' and priority = 0"),
        ("job_pkey", "select crashes from pitwheel.job where id = 1"),
    ];
    for (index, read) in reads {
        for (session, _) in &sessions {
            read_by(session, index, read).await?;
        }
        client.batch_execute("delete from pitwheel.job").await?;
        fill(&client, 20_000, "1 hour").await?;
    }
    client.batch_execute("delete from pitwheel.job").await?;
    client.batch_execute("vacuum pitwheel.job").await?;
    fill(&client, 30, "1 minute").await?;
    hold(&client, BATCH, BATCH).await?;
    check_all(&sessions, "costs on", "job_due was small").await?;
    pin.batch_execute("rollback").await?;
    Ok(())
}

/// Runs a statement and fails unless it uses this index.
async fn read_by(session: &Client, index: &str, sql: &str) -> Result<()> {
    session.batch_execute("begin; set local enable_seqscan = off; set local enable_bitmapscan = off").await?;
    let plan: Value = session.query_one(&format!("explain (analyze, format json) {sql}"), &[]).await?.get(0);
    session.batch_execute("commit").await?;
    ensure!(nodes(&plan[0]["Plan"]).iter().any(|node| node["Index Name"] == index), "{plan:#}");
    Ok(())
}
