//! Heartbeats of many workers in one statement, beside sweeps, cancels and the heartbeats of other nodes.

use anyhow::Result;
use pitwheel::engine;
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};

use crate::sessions::{cancels, sweep, sweeps, sweeps_by_statement};

/// The two ways the planner finds many workers by id: by an index scan, in the order of their ids; or by a bitmap scan,
/// in the order of their rows in the table. It prefers the second until the table is analyzed.
const BY_INDEX: &str = "set local enable_seqscan = off; set local enable_bitmapscan = off";
const BY_PAGE: &str = "set local enable_seqscan = off; set local enable_indexscan = off";

/// Returns the workers that are alive, those that are locked, and after `stop` the jobs that are to be cancelled.
async fn heartbeat(connection: &Connection, workers: &[i64]) -> Result<String> {
    let answer = engine::heartbeat(&connection.client, workers).await?;
    let mut alive: Vec<String> = answer.alive.iter().map(i64::to_string).collect();
    alive.extend(answer.locked.iter().map(|worker| format!("{worker} locked")));
    alive.sort_unstable();
    let cancelled = engine::cancel_requests(&connection.client, &answer.alive).await?;
    let stop: Vec<String> = cancelled.iter().map(|(_, claim)| format!(" stop {}", claim.id)).collect();
    Ok(format!("{}{}", alive.join(","), stop.concat()))
}

/// The heartbeats of these workers, as one node writes them together.
fn heartbeats(name: &'static str, workers: &'static [i64]) -> Session {
    Session::transaction(name, "heartbeat", async move |connection: &mut Connection| {
        heartbeat(connection, workers).await
    })
}

/// The same, with the transaction begun in the same step and with this plan.
fn heartbeats_by_plan(name: &'static str, plan: &'static str, workers: &'static [i64]) -> Session {
    let call = async move |connection: &mut Connection| {
        connection.query(&format!("begin; {plan}")).await?;
        heartbeat(connection, workers).await
    };
    Session::new(name).step("heartbeat", call).sql("commit")
}

/// Whether the answer to the heartbeat contradicts the worker's job: alive and holding it, or dead and swept. That it is locked says
/// neither.
fn contradicts(run: &Run, worker: i64) -> bool {
    let answer = run.output("h.heartbeat").split(',').find(|one| one.starts_with(&worker.to_string()));
    let right = match answer {
        Some(alive) if alive == worker.to_string() => format!("{worker} running by {worker}"),
        Some(_) => return run.failed(),
        None => format!("{worker} waiting"),
    };
    run.failed() || !run.end().split(" | ").any(|one| one == right)
}

/// Whether this heartbeat of the workers 1 and 2 says that one of them is dead.
fn says_dead(run: &Run, output: &str) -> bool {
    let answers: Vec<&str> = run.output(output).split(',').collect();
    !["1", "2"].iter().all(|worker| answers.iter().any(|answer| answer.starts_with(worker)))
}

#[tokio::test]
async fn a_worker_that_is_alive_by_its_heartbeat_is_not_declared_dead() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).expired(1).running(1, 1);
    let wrong = |run: &Run| contradicts(run, 1);

    let right = start("heartbeat × sweep").session(heartbeats("h", &[1])).session(sweeps()).explore().await?;
    right.never(wrong);
    right.sometimes(|run| run.output("h.heartbeat") == "1");
    right.sometimes(|run| run.output("h.heartbeat").is_empty());
    start("heartbeat × sweep by statement")
        .session(heartbeats("h", &[1]))
        .session(sweeps_by_statement())
        .explore()
        .await?
        .never(wrong);

    // Reads which workers are dead, then renews the leases of the others: a sweep can fall in between.
    let reads_first = Session::new("h")
        .sql("begin")
        .sql_as("heartbeat", "select id from pitwheel.worker where id = any('{1}') and dead_at is null")
        .sql_as(
            "renew",
            "update pitwheel.worker set lease_until = clock_timestamp() + lease where id = any('{1}')",
        )
        .sql("commit");
    start("heartbeat × sweep, read then renew")
        .session(reads_first)
        .session(sweeps())
        .explore()
        .await?
        .sometimes(wrong);
    Ok(())
}

/// Locks one worker's row for a while and leaves it as it was, so that the others wait and keep the locks they have.
fn locks(worker: i64) -> Session {
    let lock = format!("begin; update pitwheel.worker set name = name where id = {worker}");
    Session::new("x").sql_as("lock", lock).sql("rollback")
}

#[tokio::test]
async fn heartbeats_and_a_sweep_of_the_same_workers_never_deadlock() -> Result<()> {
    let db = TestDb::new().await?;
    // The row of the second worker comes before that of the first, as happens after a few renewals.
    let start = |title| Explorer::new(&db, title).expired(2).expired(1).running(1, 1).running(2, 2);
    let sweeps = || Session::new("s").step("sweep", sweep);
    let wrong = |run: &Run| contradicts(run, 1) || contradicts(run, 2);

    for (plan, title) in [(BY_INDEX, "heartbeats by index × sweep"), (BY_PAGE, "heartbeats by page × sweep")]
    {
        for locked in [1, 2] {
            let right = start(title)
                .session(heartbeats_by_plan("h", plan, &[1, 2]))
                .session(sweeps())
                .session(locks(locked))
                .afterwards("next sweep", sweep)
                .explore()
                .await?;
            right.never(wrong);
            right.sometimes(|run| run.output("h.heartbeat") == "1,2");
            right.sometimes(|run| run.output("h.heartbeat").is_empty());
        }
    }
    // After an outage the sweep extends all leases while all workers send heartbeats again.
    let outage = "update pitwheel.sweep_tick set ticked_at = clock_timestamp() - interval '1 day'";
    for (plan, title) in [
        (BY_INDEX, "heartbeats by index × sweep after an outage"),
        (BY_PAGE, "heartbeats by page × sweep after an outage"),
    ] {
        for locked in [1, 2] {
            start(title)
                .setup(outage)
                .session(heartbeats_by_plan("h", plan, &[1, 2]))
                .session(sweeps())
                .session(locks(locked))
                .explore()
                .await?
                .never(|run| wrong(run) || says_dead(run, "h.heartbeat") || run.end().contains("waiting"));
        }
    }

    // One statement locks the rows in ascending order, the other in descending order.
    let renew = "update pitwheel.worker set lease_until = clock_timestamp() + lease where id = any('{1,2}')";
    let declare = "with late as materialized (
            select id from pitwheel.worker where lease_until < clock_timestamp() order by id desc for no key update
        )
        update pitwheel.worker set dead_at = clock_timestamp() from late where worker.id = late.id";
    start("heartbeats × sweep, in opposite orders")
        .session(Session::new("h").sql_as("heartbeat", format!("begin; {BY_INDEX}; {renew}")).sql("commit"))
        .session(Session::new("s").sql_as("sweep", declare))
        .session(locks(1))
        .explore()
        .await?
        .sometimes(Run::failed);
    Ok(())
}

#[tokio::test]
async fn heartbeats_of_the_same_workers_on_two_nodes_never_deadlock() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(2).worker(1);
    let wrong = |run: &Run| run.failed() || says_dead(run, "a.heartbeat") || says_dead(run, "b.heartbeat");

    for (one, other, title) in [
        (BY_INDEX, BY_INDEX, "heartbeats by index × heartbeats by index"),
        (BY_PAGE, BY_PAGE, "heartbeats by page × heartbeats by page"),
        (BY_INDEX, BY_PAGE, "heartbeats by index × heartbeats by page"),
    ] {
        for locked in [1, 2] {
            start(title)
                .session(heartbeats_by_plan("a", one, &[1, 2]))
                .session(heartbeats_by_plan("b", other, &[2, 1]))
                .session(locks(locked))
                .explore()
                .await?
                .never(wrong);
        }
    }

    // Renewals that wait for each other.
    let renew = |worker: i64| {
        format!("update pitwheel.worker set lease_until = clock_timestamp() + lease where id = {worker}")
    };
    let one_by_one = |name, first: i64, second: i64| {
        Session::new(name)
            .sql("begin")
            .sql_as("first", renew(first))
            .sql_as("second", renew(second))
            .sql("commit")
    };
    start("heartbeats × heartbeats, one by one in opposite orders")
        .session(one_by_one("a", 1, 2))
        .session(one_by_one("b", 2, 1))
        .explore()
        .await?
        .sometimes(Run::failed);
    Ok(())
}

#[tokio::test]
async fn a_heartbeat_returns_every_cancel_that_was_committed_before() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).running(1, 1).session(cancels());
    let wrong = |run: &Run| {
        let right = if run.before("c.commit", "h.heartbeat") { "1 stop 1" } else { "1" };
        run.failed() || run.output("h.heartbeat") != right || run.output("next heartbeat") != "1 stop 1"
    };

    start("heartbeat × cancel")
        .session(heartbeats("h", &[1]))
        .afterwards("next heartbeat", async |connection: &mut Connection| heartbeat(connection, &[1]).await)
        .explore()
        .await?
        .never(wrong)
        .sometimes(|run| run.output("h.heartbeat") == "1 stop 1")
        .sometimes(|run| run.output("h.heartbeat") == "1");

    // Returns the cancels requested since the last heartbeat: one requested before it and committed after it is missed.
    let since =
        "with before as materialized (select lease_until - lease as at from pitwheel.worker where id = 1),
        renewed as (
            update pitwheel.worker set lease_until = clock_timestamp() + lease where id = 1 returning id
        )
        select renewed.id || coalesce(' stop ' || job.id, '')
        from before
        cross join renewed
        left join pitwheel.job on job.holder = renewed.id and job.cancel_requested_at > before.at";
    start("heartbeat × cancel, since the last one")
        .session(Session::new("h").sql("begin").sql_as("heartbeat", since).sql("commit"))
        .afterwards("next heartbeat", async move |connection: &mut Connection| connection.query(since).await)
        .explore()
        .await?
        .sometimes(|run| run.output("h.heartbeat") == "1" && run.output("next heartbeat") == "1");
    Ok(())
}
