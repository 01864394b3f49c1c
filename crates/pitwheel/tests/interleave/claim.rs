//! Claims against what may happen beside them, in every order of their statements.

use anyhow::Result;
use pitwheel_testkit::{Explorer, Run, Session, Stage, TestDb};
use tokio_postgres::types::Type;

use crate::{cancels, claims, deals, sweeps, sweeps_by_statement};

/// A claim the way it is often written: look, then take what was seen.
fn look_then_take(name: &'static str, worker: i64) -> Session {
    let look = "create temp table if not exists seen (id bigint); delete from seen; insert into seen
        select id from pitwheel.job where holder is null and run_at <= now() order by run_at, id limit 1";
    let take = format!(
        "update pitwheel.job set holder = {worker}, fence = fence + 1 where id in (select id from seen) returning id"
    );
    Session::new(name).sql("begin").sql_as("look", look).sql_as("claim", take).sql("commit")
}

/// A claim whose subquery locks nothing: a claim that waited for the row takes it again.
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
        let (a, b) = (run.said("a.claim"), run.said("b.claim"));
        run.failed() || a.split(',').any(|id| !id.is_empty() && b.split(',').any(|other| id == other))
    };

    let right =
        start("claim × claim").session(claims("a", 1, 2)).session(claims("b", 2, 2)).explore().await?;
    right.never(both);
    // One that meets the other's locks takes what is left.
    right.sometimes(|run| run.end() == "1 running by 1 | 2 running by 1 | 3 running by 2");

    start("claim_for_workers × claim")
        .session(deals("a", &[1, 1]))
        .session(claims("b", 2, 2))
        .explore()
        .await?
        .never(both)
        .sometimes(|run| run.end() == "1 running by 1 | 2 running by 1 | 3 running by 2");
    start("claim_for_workers × claim_for_workers")
        .session(deals("a", &[1, 2]))
        .session(deals("b", &[2, 1]))
        .explore()
        .await?
        .never(both)
        .sometimes(|run| run.end() == "1 running by 1 | 2 running by 2 | 3 running by 2");

    let looked = start("claim × claim, look then take")
        .session(look_then_take("a", 1))
        .session(look_then_take("b", 2))
        .explore()
        .await?;
    looked.sometimes(both);
    let unlocked = start("claim × claim, no row lock")
        .session(take_without_lock("a", 1))
        .session(take_without_lock("b", 2))
        .explore()
        .await?;
    unlocked.sometimes(both);
    Ok(())
}

#[tokio::test]
async fn what_a_dying_worker_claims_is_given_back_by_the_next_sweep() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).expired(1).waiting(1);
    let stranded = |run: &Run| run.failed() || !["1 waiting", "1 running by 1"].contains(&run.end());
    let sweep = async |stage: &mut Stage| stage.sweep().await;

    start("claim × sweep")
        .session(claims("a", 1, 1))
        .session(sweeps())
        .afterwards("next sweep", sweep)
        .explore()
        .await?
        .never(stranded)
        .sometimes(|run| run.said("a.claim") == "1" && run.end() == "1 waiting");
    start("claim_for_workers × sweep")
        .session(deals("a", &[1]))
        .session(sweeps())
        .afterwards("next sweep", sweep)
        .explore()
        .await?
        .never(stranded)
        .sometimes(|run| run.said("a.claim") == "1" && run.end() == "1 waiting");
    start("claim_for_workers × sweep by statement")
        .session(deals("a", &[1]))
        .session(sweeps_by_statement())
        .afterwards("next sweep", sweep)
        .explore()
        .await?
        .never(stranded);
    start("claim × sweep by statement")
        .session(claims("a", 1, 1))
        .session(sweeps_by_statement())
        .afterwards("next sweep", sweep)
        .explore()
        .await?
        .never(stranded);

    // A sweep that sees only to the workers it declared dead itself.
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
        .afterwards("next sweep", async move |stage: &mut Stage| stage.ask(once).await)
        .explore()
        .await?
        .sometimes(stranded);
    Ok(())
}

#[tokio::test]
async fn a_cancel_ends_the_job_or_asks_its_holder() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).waiting(1);
    let ignored = |run: &Run| {
        let taken = run.said("a.claim") == "1";
        let right = if taken { "1 running by 1 to cancel" } else { "1 cancelled" };
        run.failed() || run.end() != right
    };

    let right = start("cancel × claim").session(cancels()).session(claims("a", 1, 1)).explore().await?;
    right.never(ignored);
    right.sometimes(|run| run.end() == "1 cancelled");
    right.sometimes(|run| run.end() == "1 running by 1 to cancel");

    // Asks the holder if there is one, then removes the job if there is none: a claim fits between.
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
        .sometimes(ignored);
    Ok(())
}

#[tokio::test]
async fn a_claim_that_begins_after_a_pause_takes_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).waiting(1);
    let ran_on =
        |run: &Run| run.failed() || (run.before("p.commit", "a.claim") && !run.said("a.claim").is_empty());
    let pauses = || {
        Session::transaction("p", "pause", async |stage: &mut Stage| {
            let sql = include_str!("../../sql/operate/pause.sql");
            stage.client.execute_typed(sql, &[(&"default", Type::TEXT), (&"test", Type::TEXT)]).await?;
            Ok(String::new())
        })
    };

    let right = start("pause × claim").session(pauses()).session(claims("a", 1, 1)).explore().await?;
    right.never(ran_on);
    right.sometimes(|run| run.said("a.claim") == "1");
    let dealt =
        start("pause × claim_for_workers").session(pauses()).session(deals("a", &[1])).explore().await?;
    dealt.never(ran_on);
    dealt.sometimes(|run| run.said("a.claim") == "1");

    // The pause is read first, in a statement of its own, and the claim goes by what that saw.
    let look = "create temp table if not exists seen (id bigint); delete from seen; insert into seen
        select id from pitwheel.job where holder is null
            and not exists (select from pitwheel.queue where name = 'default' and paused_at is not null)";
    let take = "update pitwheel.job set holder = 1 where id in (select id from seen) and holder is null returning id";
    start("pause × claim, read before")
        .session(pauses())
        .session(Session::new("a").sql("begin").sql_as("look", look).sql_as("claim", take).sql("commit"))
        .explore()
        .await?
        .sometimes(ran_on);
    Ok(())
}
