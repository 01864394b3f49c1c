//! Endings and renewals against the sweep and against cancels: exactly one of them has the last word.

use anyhow::Result;
use pitwheel_testkit::{Explorer, Run, Session, Stage, TestDb};

use crate::{FIRST, cancels, sweeps, sweeps_by_statement};

/// By the place the row had at first, as a worker does.
fn completes() -> Session {
    Session::new("a")
        .step("look", async |stage: &mut Stage| stage.look_up(FIRST.id).await)
        .sql("begin")
        .step("settle", async |stage: &mut Stage| stage.complete(FIRST).await)
        .sql("commit")
}

/// By its id, as it is done when the row has moved.
fn completes_by_id() -> Session {
    Session::transaction("a", "settle", async |stage: &mut Stage| stage.complete(FIRST).await)
}

fn retries() -> Session {
    Session::transaction("a", "settle", async |stage: &mut Stage| stage.retry(FIRST).await)
}

/// A history row for job 1, as wrong statements write it.
const REMEMBER: &str =
    "insert into pitwheel.job_history (id, finished_at, run_at, enqueued_at, fence, attempt,
        max_attempts, priority, crashes, state, queue, kind, payload)
    select id, now(), now(), now(), 0, 0, 1, 0, 0, 'cancelled', 'default', 'test', '{}'";

#[tokio::test]
async fn a_settle_and_a_sweep_never_both_write() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).expired(1).running(1, 1);
    // Written: the settle's end stands. Lost: the sweep gave the job back.
    let both = |run: &Run| {
        let swept = ["1", "written"].contains(&run.said("s.sweep"));
        let right = match run.said("a.settle") {
            "written" => run.end() == "1 done" && !swept,
            "lost" => run.end() == "1 waiting" && swept,
            _ => false,
        };
        run.failed() || !right
    };

    let right = start("complete × sweep").session(completes()).session(sweeps()).explore().await?;
    right.never(both);
    right.sometimes(|run| run.said("a.settle") == "written");
    right.sometimes(|run| run.said("a.settle") == "lost");
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
                "with gone as (delete from pitwheel.job where id = 1 returning id) {REMEMBER} from gone returning 'written'"
            ),
        ).sql("commit"))
        .session(sweeps())
        .explore()
        .await?
        .sometimes(|run| run.said("a.settle") == "written" && run.said("s.sweep") == "1");
    Ok(())
}

#[tokio::test]
async fn a_settle_that_rolls_back_leaves_the_job_to_the_next_sweep() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).expired(1).running(1, 1);
    let stranded = |run: &Run| run.failed() || run.end() != "1 waiting";
    let rolls_back = || {
        Session::new("a")
            .sql("begin")
            .step("settle", async |stage: &mut Stage| stage.complete(FIRST).await)
            .sql("rollback")
    };
    let sweep = async |stage: &mut Stage| stage.sweep().await;

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

    // Forgets the hold although a job of it was passed over.
    let forgets = Session::new("s")
        .sql_as("sweep", "update pitwheel.worker set dead_at = now() where lease_until < now()")
        .sql_as(
            "take",
            "with free as materialized (select id from pitwheel.job where holder = 1 for no key update skip locked)
            update pitwheel.job set holder = null from free where job.id = free.id",
        )
        .sql_as("drop", "delete from pitwheel.hold where worker = 1");
    start("complete, rolled back × sweep, hold forgotten")
        .session(rolls_back())
        .session(forgets)
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
    let renews = || Session::transaction("r", "renew", async |stage: &mut Stage| stage.renew(1).await);
    let deceived = |run: &Run| {
        let right = match run.said("r.renew") {
            "written" => run.end() == "1 running by 1",
            "lost" => run.end() == "1 waiting",
            _ => false,
        };
        run.failed() || !right
    };

    let right = start("renew × sweep").session(renews()).session(sweeps()).explore().await?;
    right.never(deceived);
    right.sometimes(|run| run.said("r.renew") == "written");
    right.sometimes(|run| run.said("r.renew") == "lost");
    start("renew × sweep by statement")
        .session(renews())
        .session(sweeps_by_statement())
        .explore()
        .await?
        .never(deceived);

    // Finds the expired, then declares them dead by id: a renewal fits between.
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
        .sometimes(|run| run.said("r.renew") == "written" && run.end().contains("(dead)"));
    Ok(())
}

#[tokio::test]
async fn a_job_that_completes_is_done_whoever_cancels_it() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).running(1, 1);
    let torn = |run: &Run| run.failed() || run.said("a.settle") != "written" || run.end() != "1 done";

    let right = start("cancel × complete").session(cancels()).session(completes()).explore().await?;
    right.never(torn);
    right.sometimes(|run| run.said("c.cancel") == "requested");
    right.sometimes(|run| run.said("c.cancel").is_empty());
    start("cancel × complete by id")
        .session(cancels())
        .session(completes_by_id())
        .explore()
        .await?
        .never(torn);

    // Remembers the job as cancelled, then removes it.
    let two_statements = Session::new("c")
        .sql("begin")
        .sql_as("cancel", format!("{REMEMBER} from pitwheel.job where id = 1"))
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
async fn a_job_that_somebody_cancelled_is_not_tried_again() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).running(1, 1);
    let tried_again = |run: &Run| run.failed() || run.end() != "1 cancelled";

    let right = start("cancel × retry").session(cancels()).session(retries()).explore().await?;
    right.never(tried_again);
    right.sometimes(|run| run.said("c.cancel") == "requested");
    right.sometimes(|run| run.said("c.cancel") == "at once");

    let heedless = "update pitwheel.job set holder = null, run_at = clock_timestamp()
        where id = 1 and fence = 1 and holder is not null returning 'written'";
    start("cancel × retry, heedless")
        .session(cancels())
        .session(Session::new("a").sql("begin").sql_as("settle", heedless).sql("commit"))
        .explore()
        .await?
        .sometimes(tried_again);
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
            .session(Session::new("t").step("sweep", async |stage: &mut Stage| stage.sweep().await))
            .session(Session::new("b").step("claim", async |stage: &mut Stage| stage.claim(2, 1).await))
    };
    let robbed = |run: &Run| {
        let right = if run.said("b.claim") == "1" { "1 running by 2" } else { "1 waiting" };
        run.failed() || run.end() != right
    };

    let right = start("sweep by statement × sweep × claim").session(sweeps_by_statement()).explore().await?;
    right.never(robbed);
    right.sometimes(|run| run.said("s.sweep") == "lost" && run.end() == "1 running by 2");

    // Finds what the dead hold, then gives it back by id alone.
    let by_id = Session::new("s")
        .sql_as("declare", "update pitwheel.worker set dead_at = now() where lease_until < clock_timestamp()")
        .sql_as(
            "find",
            "create temp table if not exists held (id bigint); delete from held; insert into held
            select job.id from pitwheel.job join pitwheel.worker on worker.id = job.holder where dead_at is not null",
        )
        .sql_as("sweep", "update pitwheel.job set holder = null where id in (select id from held)");
    start("sweep by statement × sweep × claim, by id").session(by_id).explore().await?.sometimes(robbed);
    Ok(())
}
