//! Settles and renewals beside sweeps and cancels: only one of the two is written.

use anyhow::Result;
use pitwheel::Claim;
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};

use crate::sessions::{FIRST, cancels, complete_first, sweep, sweeps, sweeps_by_statement};

/// Completes job 1 by the place of its row, as a worker does.
fn completes() -> Session {
    Session::new("a")
        .step("read", async |connection: &mut Connection| connection.read_ctid(FIRST.id).await)
        .sql("begin")
        .step("settle", complete_first)
        .sql("commit")
}

/// Completes job 1 by its id, as a worker does if the row has moved.
fn completes_by_id() -> Session {
    Session::transaction("a", "settle", complete_first)
}

fn retries() -> Session {
    Session::transaction("a", "settle", async |connection: &mut Connection| connection.retry(FIRST).await)
}

/// Adds a history row for job 1, as wrong statements do.
const ADD_TO_HISTORY: &str =
    "insert into pitwheel.job_history (id, finished_at, run_at, enqueued_at, fence, attempt,
        max_attempts, priority, crashes, state, queue, kind, payload)
    select id, now(), now(), now(), 0, 0, 1, 0, 0, 'cancelled', 'default', 'test', '{}'";

#[tokio::test]
async fn a_settle_and_a_sweep_never_both_write() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).expired(1).running(1, 1);
    // Written: the job is done. Lost: the sweep gave the job back.
    let both = |run: &Run| {
        let swept = ["1", "written"].contains(&run.output("s.sweep"));
        let right = match run.output("a.settle") {
            "written" => run.end() == "1 done" && !swept,
            "lost" => run.end() == "1 waiting" && swept,
            _ => false,
        };
        run.failed() || !right
    };

    let right = start("complete × sweep").session(completes()).session(sweeps()).explore().await?;
    right.never(both);
    right.sometimes(|run| run.output("a.settle") == "written");
    right.sometimes(|run| run.output("a.settle") == "lost");
    start("complete by id × sweep").session(completes_by_id()).session(sweeps()).explore().await?.never(both);
    start("complete × sweep by statement")
        .session(completes())
        .session(sweeps_by_statement())
        .explore()
        .await?
        .never(both);

    start("complete × sweep, unfenced")
        .session(Session::new("a").sql("begin").sql_as(
            "settle",
            format!(
                "with gone as (delete from pitwheel.job where id = 1 returning id) {ADD_TO_HISTORY} from gone returning 'written'"
            ),
        ).sql("commit"))
        .session(sweeps())
        .explore()
        .await?
        .sometimes(|run| run.output("a.settle") == "written" && run.output("s.sweep") == "1");
    Ok(())
}

#[tokio::test]
async fn a_claim_that_a_failover_lost_is_never_written_beside_the_one_with_its_fence() -> Result<()> {
    let db = TestDb::new().await?;
    // Worker 1 has a claim that the standby has never seen. Worker 2 has the same fence, and completes or is swept.
    let start = |title| Explorer::new(&db, title).worker(1).expired(2).running(1, 2);
    let second = Claim { holder: 2, ..FIRST };
    let completes_second = || {
        Session::transaction("b", "settle", async move |connection: &mut Connection| {
            connection.complete(second).await
        })
    };
    let lost = |run: &Run| run.failed() || run.output("a.settle") != "lost";

    for (title, lost_claim) in
        [("complete of a lost claim", completes_by_id()), ("retry of a lost claim", retries())]
    {
        let right = start(title).session(lost_claim).session(completes_second()).explore().await?;
        right.never(|run| lost(run) || run.output("b.settle") != "written" || run.end() != "1 done");
    }
    start("complete of a lost claim by its place × sweep")
        .session(completes())
        .session(sweeps())
        .explore()
        .await?
        .never(|run| lost(run) || run.end() != "1 waiting");

    let unnamed = "update pitwheel.job set holder = null where id = 1 and fence = 1 and holder is not null returning 'written'";
    start("retry of a lost claim, holder not compared")
        .session(Session::new("a").sql("begin").sql_as("settle", unnamed).sql("commit"))
        .session(completes_second())
        .explore()
        .await?
        .sometimes(|run| run.output("a.settle") == "written" && run.output("b.settle") == "lost");
    Ok(())
}

#[tokio::test]
async fn a_settle_that_rolls_back_leaves_the_job_to_the_next_sweep() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).expired(1).running(1, 1);
    let stranded = |run: &Run| run.failed() || run.end() != "1 waiting";
    let rolls_back = || Session::new("a").sql("begin").step("settle", complete_first).sql("rollback");

    start("complete, rolled back × sweep")
        .session(rolls_back())
        .session(sweeps())
        .afterwards("next sweep", sweep)
        .explore()
        .await?
        .never(stranded);
    start("complete, rolled back × sweep by statement")
        .session(rolls_back())
        .session(sweeps_by_statement())
        .afterwards("next sweep", sweep)
        .explore()
        .await?
        .never(stranded);

    // Deletes the hold although it skipped a locked job of it.
    let deletes_hold = Session::new("s")
        .sql_as("sweep", "update pitwheel.worker set dead_at = now() where lease_until < now()")
        .sql_as(
            "take",
            "with free as materialized (select id from pitwheel.job where holder = 1 for no key update skip locked)
            update pitwheel.job set holder = null from free where job.id = free.id",
        )
        .sql_as("drop", "delete from pitwheel.hold where worker = 1");
    start("complete, rolled back × sweep, hold deleted")
        .session(rolls_back())
        .session(deletes_hold)
        .afterwards("next sweep", sweep)
        .explore()
        .await?
        .sometimes(stranded);
    Ok(())
}

#[tokio::test]
async fn a_worker_that_renewed_is_not_declared_dead() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).expired(1).running(1, 1);
    let renews =
        || Session::transaction("r", "renew", async |connection: &mut Connection| connection.renew(1).await);
    let wrong = |run: &Run| {
        let right = match run.output("r.renew") {
            "written" => run.end() == "1 running by 1",
            "lost" => run.end() == "1 waiting",
            _ => false,
        };
        run.failed() || !right
    };

    let right = start("renew × sweep").session(renews()).session(sweeps()).explore().await?;
    right.never(wrong);
    right.sometimes(|run| run.output("r.renew") == "written");
    right.sometimes(|run| run.output("r.renew") == "lost");
    start("renew × sweep by statement")
        .session(renews())
        .session(sweeps_by_statement())
        .explore()
        .await?
        .never(wrong);

    // Finds the expired workers, then declares them dead by id: a renewal can fall in between.
    let by_id = Session::new("s")
        .sql("begin")
        .sql_as(
            "find",
            "create temp table if not exists late (id bigint); delete from late;
            insert into late select id from pitwheel.worker where lease_until < clock_timestamp()",
        )
        .sql_as(
            "sweep",
            "update pitwheel.worker set dead_at = clock_timestamp() where id in (select id from late)",
        )
        .sql("commit");
    start("renew × sweep, find then declare")
        .session(renews())
        .session(by_id)
        .explore()
        .await?
        .sometimes(|run| run.output("r.renew") == "written" && run.end().contains("(dead)"));
    Ok(())
}

#[tokio::test]
async fn a_job_that_completes_is_done_also_if_it_is_cancelled() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).running(1, 1);
    let wrong = |run: &Run| run.failed() || run.output("a.settle") != "written" || run.end() != "1 done";

    let right = start("cancel × complete").session(cancels()).session(completes()).explore().await?;
    right.never(wrong);
    right.sometimes(|run| run.output("c.cancel") == "requested");
    right.sometimes(|run| run.output("c.cancel").is_empty());
    start("cancel × complete by id")
        .session(cancels())
        .session(completes_by_id())
        .explore()
        .await?
        .never(wrong);

    // Adds the job to the history as cancelled, then removes it.
    let two_statements = Session::new("c")
        .sql("begin")
        .sql_as("cancel", format!("{ADD_TO_HISTORY} from pitwheel.job where id = 1"))
        .sql_as("remove", "delete from pitwheel.job where id = 1")
        .sql("commit");
    start("cancel × complete, copy then remove")
        .session(two_statements)
        .session(completes())
        .explore()
        .await?
        .sometimes(|run| run.end() == "1 cancelled | 1 done");
    Ok(())
}

#[tokio::test]
async fn a_cancelled_job_is_not_retried() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).running(1, 1);
    let retried = |run: &Run| run.failed() || run.end() != "1 cancelled";

    let right = start("cancel × retry").session(cancels()).session(retries()).explore().await?;
    right.never(retried);
    right.sometimes(|run| run.output("c.cancel") == "requested");
    right.sometimes(|run| run.output("c.cancel") == "at once");

    let unchecked = "update pitwheel.job set holder = null, run_at = clock_timestamp()
        where id = 1 and fence = 1 and holder is not null returning 'written'";
    start("cancel × retry, cancel not checked")
        .session(cancels())
        .session(Session::new("a").sql("begin").sql_as("settle", unchecked).sql("commit"))
        .explore()
        .await?
        .sometimes(retried);
    Ok(())
}

#[tokio::test]
async fn two_sweeps_never_take_a_job_from_its_next_holder() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| {
        Explorer::new(&db, title)
            .expired(1)
            .worker(2)
            .running(1, 1)
            .session(Session::new("t").step("sweep", sweep))
            .session(
                Session::new("b")
                    .step("claim", async |connection: &mut Connection| connection.claim(2, 1).await),
            )
    };
    let wrong = |run: &Run| {
        let right = if run.output("b.claim") == "1" { "1 running by 2" } else { "1 waiting" };
        run.failed() || run.end() != right
    };

    let right = start("sweep by statement × sweep × claim").session(sweeps_by_statement()).explore().await?;
    right.never(wrong);
    right.sometimes(|run| run.output("s.sweep") == "lost" && run.end() == "1 running by 2");

    // Finds the jobs of dead workers, then gives them back by id, without the fence.
    let by_id = Session::new("s")
        .sql_as("declare", "update pitwheel.worker set dead_at = now() where lease_until < clock_timestamp()")
        .sql_as(
            "find",
            "create temp table if not exists held (id bigint); delete from held; insert into held
            select job.id from pitwheel.job join pitwheel.worker on worker.id = job.holder where dead_at is not null",
        )
        .sql_as("sweep", "update pitwheel.job set holder = null where id in (select id from held)");
    start("sweep by statement × sweep × claim, by id").session(by_id).explore().await?.sometimes(wrong);
    Ok(())
}

#[tokio::test]
async fn a_retry_beside_a_lock_that_changes_nothing_is_a_retry() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).running(1, 1);
    // Holds the row for a while, as a user who looks at it with `for update` does, or changes what the settle does not read.
    let locks = |title: &'static str, sql: &'static str| {
        let lock = Session::new("l").sql("begin").sql_as("lock", sql).sql("commit");
        start(title).session(lock).session(retries())
    };
    for (title, sql) in [
        ("lock × retry", "select from pitwheel.job where id = 1 for update"),
        ("progress × retry", "update pitwheel.job set progress = 0.5, note = 'half' where id = 1"),
    ] {
        let explored = locks(title, sql).explore().await?;
        explored.never(|run| run.failed() || run.output("a.settle") != "written" || run.end() != "1 waiting");
    }
    for (title, sql) in [
        ("lock × complete", "select from pitwheel.job where id = 1 for update"),
        ("progress × complete", "update pitwheel.job set progress = 0.5, note = 'half' where id = 1"),
    ] {
        let lock = Session::new("l").sql("begin").sql_as("lock", sql).sql("commit");
        let explored = start(title).session(lock).session(completes_by_id()).explore().await?;
        explored.never(|run| run.failed() || run.output("a.settle") != "written" || run.end() != "1 done");
    }
    Ok(())
}
