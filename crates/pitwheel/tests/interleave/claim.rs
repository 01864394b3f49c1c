//! Claims beside other claims, sweeps, cancels and pauses.

use anyhow::Result;
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};
use tokio_postgres::types::Type;

use crate::sessions::{
    cancels, claims, claims_for_workers, claims_what_was_read, sweep, sweeps, sweeps_by_statement,
};

/// A claim as it is often written: read the due jobs, then update what was read.
fn read_then_claim(name: &'static str, worker: i64) -> Session {
    let read = "create temp table if not exists seen (id bigint); delete from seen; insert into seen
        select id from pitwheel.job where holder is null and run_at <= now() order by run_at, id limit 1";
    let take = format!(
        "update pitwheel.job set holder = {worker}, fence = fence + 1 where id in (select id from seen) returning id"
    );
    Session::new(name).sql("begin").sql_as("read", read).sql_as("claim", take).sql("commit")
}

/// A claim whose subquery locks nothing: if it waits for a row that another claim took, it takes the row again.
fn take_without_lock(name: &'static str, worker: i64) -> Session {
    let take = format!(
        "update pitwheel.job set holder = {worker}, fence = fence + 1
        where id in (select id from pitwheel.job where holder is null and run_at <= now() order by run_at, id limit 1)
        returning id"
    );
    Session::new(name).sql("begin").sql_as("claim", take).sql("commit")
}

#[tokio::test]
async fn two_claims_never_take_one_job() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).worker(2).waiting(1).waiting(2).waiting(3);
    let both = |run: &Run| {
        let (a, b) = (run.output("a.claim"), run.output("b.claim"));
        run.failed() || a.split(',').any(|id| !id.is_empty() && b.split(',').any(|other| id == other))
    };

    let right =
        start("claim × claim").session(claims("a", 1, 2)).session(claims("b", 2, 2)).explore().await?;
    right.never(both);
    // A claim that meets the other's locks takes the jobs that are left.
    right.sometimes(|run| run.end() == "1 running by 1 | 2 running by 1 | 3 running by 2");

    start("claim_for_workers × claim")
        .session(claims_for_workers("a", &[1, 1]))
        .session(claims("b", 2, 2))
        .explore()
        .await?
        .never(both)
        .sometimes(|run| run.end() == "1 running by 1 | 2 running by 1 | 3 running by 2");
    start("claim_for_workers × claim_for_workers")
        .session(claims_for_workers("a", &[1, 2]))
        .session(claims_for_workers("b", &[2, 1]))
        .explore()
        .await?
        .never(both)
        .sometimes(|run| run.end() == "1 running by 1 | 2 running by 2 | 3 running by 2");

    let read_first = start("claim × claim, read then claim")
        .session(read_then_claim("a", 1))
        .session(read_then_claim("b", 2))
        .explore()
        .await?;
    read_first.sometimes(both);
    let unlocked = start("claim × claim, no row lock")
        .session(take_without_lock("a", 1))
        .session(take_without_lock("b", 2))
        .explore()
        .await?;
    unlocked.sometimes(both);
    Ok(())
}

#[tokio::test]
async fn what_an_expired_worker_claims_is_given_back_by_the_next_sweep() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).expired(1).waiting(1);
    let stranded = |run: &Run| run.failed() || !["1 waiting", "1 running by 1"].contains(&run.end());

    for (title, claim) in
        [("claim × sweep", claims("a", 1, 1)), ("claim_for_workers × sweep", claims_for_workers("a", &[1]))]
    {
        start(title)
            .session(claim)
            .session(sweeps())
            .afterwards("next sweep", sweep)
            .explore()
            .await?
            .never(stranded)
            .sometimes(|run| run.output("a.claim") == "1" && run.end() == "1 waiting");
    }
    for (title, claim) in [
        ("claim × sweep by statement", claims("a", 1, 1)),
        ("claim_for_workers × sweep by statement", claims_for_workers("a", &[1])),
    ] {
        start(title)
            .session(claim)
            .session(sweeps_by_statement())
            .afterwards("next sweep", sweep)
            .explore()
            .await?
            .never(stranded);
    }

    // A sweep that handles only the workers it declared dead itself.
    let once = "with dead as (
            update pitwheel.worker set dead_at = clock_timestamp()
            where dead_at is null and lease_until < clock_timestamp()
            returning id
        )
        update pitwheel.job set holder = null, claimed_at = null
        from pitwheel.hold join dead on dead.id = hold.worker
        where job.id = any(hold.job_ids) and job.holder = hold.worker
        returning job.id";
    start("claim × sweep, only its own dead")
        .session(claims("a", 1, 1))
        .session(Session::new("s").sql("begin").sql_as("sweep", once).sql("commit"))
        .afterwards("next sweep", async move |connection: &mut Connection| connection.query(once).await)
        .explore()
        .await?
        .sometimes(stranded);
    Ok(())
}

#[tokio::test]
async fn a_cancel_ends_the_job_or_asks_its_holder() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).waiting(1);
    let wrong = |run: &Run| {
        let taken = run.output("a.claim") == "1";
        let right = if taken { "1 running by 1 to cancel" } else { "1 cancelled" };
        run.failed() || run.end() != right
    };

    let right = start("cancel × claim").session(cancels()).session(claims("a", 1, 1)).explore().await?;
    right.never(wrong);
    right.sometimes(|run| run.end() == "1 cancelled");
    right.sometimes(|run| run.end() == "1 running by 1 to cancel");

    // Asks the holder if there is one, then removes the job if there is none: a claim can fall in between.
    start("cancel × claim, two statements")
        .session(
            Session::new("c")
                .sql_as(
                    "ask",
                    "update pitwheel.job set cancel_requested_at = now() where id = 1 and holder is not null",
                )
                .sql_as(
                    "remove",
                    "with gone as (delete from pitwheel.job where id = 1 and holder is null returning id)
                    insert into pitwheel.job_history (id, finished_at, run_at, enqueued_at, fence, attempt,
                        max_attempts, priority, crashes, state, queue, kind, payload)
                    select id, now(), now(), now(), 0, 0, 1, 0, 0, 'cancelled', 'default', 'test', '{}' from gone",
                ),
        )
        .session(claims("a", 1, 1))
        .explore()
        .await?
        .sometimes(wrong);
    Ok(())
}

#[tokio::test]
async fn a_claim_that_begins_after_a_pause_takes_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).waiting(1);
    let claimed_after_pause =
        |run: &Run| run.failed() || (run.before("p.commit", "a.claim") && !run.output("a.claim").is_empty());
    let pauses = || {
        Session::transaction("p", "pause", async |connection: &mut Connection| {
            let sql = include_str!("../../sql/operate/pause.sql");
            connection.client.execute_typed(sql, &[(&"default", Type::TEXT), (&"test", Type::TEXT)]).await?;
            Ok(String::new())
        })
    };

    let right = start("pause × claim").session(pauses()).session(claims("a", 1, 1)).explore().await?;
    right.never(claimed_after_pause);
    right.sometimes(|run| run.output("a.claim") == "1");
    let for_workers = start("pause × claim_for_workers")
        .session(pauses())
        .session(claims_for_workers("a", &[1]))
        .explore()
        .await?;
    for_workers.never(claimed_after_pause);
    for_workers.sometimes(|run| run.output("a.claim") == "1");

    // Reads the pause in an earlier statement, and claims by what that statement returned.
    let read = "select id from pitwheel.job where holder is null
            and not exists (select from pitwheel.queue where name = 'default' and paused_at is not null)";
    start("pause × claim, pause read before")
        .session(pauses())
        .session(claims_what_was_read("a", read))
        .explore()
        .await?
        .sometimes(claimed_after_pause);
    Ok(())
}
