//! Followers against sweeps, cancels and a second settle: they exist if and only if their completion was written.

use anyhow::Result;
use pitwheel::Claim;
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};

use crate::sessions::{FIRST, cancels, sweeps, sweeps_by_statement};

/// Completes job 1 with one follower, which is job 101.
fn completes(name: &'static str, claim: Claim) -> Session {
    Session::transaction(name, "settle", async move |connection: &mut Connection| {
        connection.complete_then(claim).await
    })
}

/// The same in SQL, as any language does it in its own transaction.
fn completes_in_sql(name: &'static str) -> Session {
    let sql = r#"select case when pitwheel.complete(1, 1, followers => '[{"kind": "test"}]') then 'written' else 'lost' end"#;
    Session::new(name).sql("begin").sql_as("settle", sql).sql("commit")
}

/// The completion as it is without followers in the settle: the job is enqueued first, by a statement of its own.
fn enqueues_first() -> Session {
    Session::new("a")
        .sql_as("enqueue", "select pitwheel.enqueue('test')")
        .sql("begin")
        .step("settle", async |connection: &mut Connection| connection.complete(FIRST).await)
        .sql("commit")
}

/// The follower exists without its completion, or the completion without its follower, or twice.
fn torn(run: &Run) -> bool {
    let right = match run.output("a.settle") {
        "written" => run.end() == "1 done | 101 waiting",
        "lost" => !run.end().contains("101"),
        _ => false,
    };
    run.failed() || !right
}

#[tokio::test]
async fn followers_of_a_lost_claim_do_not_exist_whenever_it_is_swept() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).expired(1).running(1, 1);

    let right = start("complete with follower × sweep")
        .session(completes("a", FIRST))
        .session(sweeps())
        .explore()
        .await?;
    right.never(torn);
    right.sometimes(|run| run.output("a.settle") == "written");
    right.sometimes(|run| run.output("a.settle") == "lost" && run.end() == "1 waiting");
    start("complete with follower × sweep by statement")
        .session(completes("a", FIRST))
        .session(sweeps_by_statement())
        .explore()
        .await?
        .never(torn);
    let in_sql =
        start("complete in SQL × sweep").session(completes_in_sql("a")).session(sweeps()).explore().await?;
    in_sql.never(torn);
    in_sql.sometimes(|run| run.output("a.settle") == "lost" && run.end() == "1 waiting");

    start("enqueue, then complete × sweep")
        .session(enqueues_first())
        .session(sweeps())
        .explore()
        .await?
        .sometimes(|run| run.output("a.settle") == "lost" && run.end() == "1 waiting | 101 waiting");
    Ok(())
}

#[tokio::test]
async fn a_completion_and_its_followers_are_written_whoever_cancels() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).running(1, 1);
    let lost = |run: &Run| torn(run) || run.output("a.settle") != "written";

    let right = start("cancel × complete with follower")
        .session(cancels())
        .session(completes("a", FIRST))
        .explore()
        .await?;
    right.never(lost);
    right.sometimes(|run| run.output("c.cancel") == "requested");
    right.sometimes(|run| run.output("c.cancel").is_empty());

    start("cancel × complete in SQL")
        .session(cancels())
        .session(completes_in_sql("a"))
        .explore()
        .await?
        .never(lost);

    // A completion that respects the cancel request and forgets that it did not write.
    let heedless = "with gone as (
            delete from pitwheel.job where id = 1 and fence = 1 and cancel_requested_at is null returning id
        )
        insert into pitwheel.job (id, kind, payload, queue, run_at, enqueued_at, priority, max_attempts)
        values (101, 'test', '{}', 'default', now(), now(), 0, 1) returning 'written'";
    start("cancel × complete, follower not joined")
        .session(cancels())
        .session(Session::new("a").sql("begin").sql_as("settle", heedless).sql("commit"))
        .explore()
        .await?
        .sometimes(|run| run.end() == "1 running by 1 to cancel | 101 waiting");
    Ok(())
}

#[tokio::test]
async fn a_second_settle_adds_no_second_follower() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).running(1, 1);
    let twice = |run: &Run| {
        let written = ["a.settle", "b.settle"].iter().filter(|who| run.output(who) == "written").count();
        run.failed() || written != 1 || run.end() != "1 done | 101 waiting"
    };

    let right = start("complete with follower × the same again")
        .session(completes("a", FIRST))
        .session(completes("b", FIRST))
        .explore()
        .await?;
    right.never(twice);
    right.sometimes(|run| run.output("a.settle") == "written");
    right.sometimes(|run| run.output("b.settle") == "written");

    start("complete with follower × complete in SQL")
        .session(completes("a", FIRST))
        .session(completes_in_sql("b"))
        .explore()
        .await?
        .never(twice);

    start("enqueue, then complete × the same again")
        .session(enqueues_first())
        .session(completes("b", FIRST))
        .explore()
        .await?
        .sometimes(|run| run.end().matches("waiting").count() == 2);
    Ok(())
}

#[tokio::test]
async fn a_late_holder_adds_no_follower_beside_the_next_one() -> Result<()> {
    let db = TestDb::new().await?;
    let second = Claim { id: 1, fence: 2, holder: 2 };
    // Worker 1 lost the job; worker 2 holds it under the next fence.
    let start = |title| {
        Explorer::new(&db, title).worker(1).worker(2).running(1, 2).setup("update pitwheel.job set fence = 2")
    };
    let right = start("late complete with follower × complete with follower")
        .session(completes("a", FIRST))
        .session(completes("b", second))
        .explore()
        .await?;
    right.never(|run| {
        run.failed()
            || run.output("a.settle") != "lost"
            || run.output("b.settle") != "written"
            || run.end() != "1 done | 101 waiting"
    });
    Ok(())
}

#[tokio::test]
async fn a_failure_in_sql_is_written_once_and_respects_a_cancel() -> Result<()> {
    let db = TestDb::new().await?;
    let fails = |name| {
        let sql = "select case when pitwheel.fail(1, 1, 'no', interval '0') then 'written' else 'lost' end";
        Session::new(name).sql("begin").sql_as("settle", sql).sql("commit")
    };
    let expired = |title| Explorer::new(&db, title).expired(1).running(1, 1);
    let both = |run: &Run| {
        let swept = run.output("s.sweep") == "1";
        run.failed() || run.end() != "1 waiting" || swept == (run.output("a.settle") == "written")
    };
    let right = expired("fail in SQL × sweep").session(fails("a")).session(sweeps()).explore().await?;
    right.never(both);
    right.sometimes(|run| run.output("a.settle") == "lost");
    right.sometimes(|run| run.output("a.settle") == "written");

    let running = |title| Explorer::new(&db, title).worker(1).running(1, 1);
    let right = running("fail in SQL × cancel").session(cancels()).session(fails("a")).explore().await?;
    right.never(|run| run.failed() || run.end() != "1 cancelled");
    right.sometimes(|run| run.output("c.cancel") == "requested");

    let twice = running("fail in SQL × complete")
        .session(fails("a"))
        .session(completes("b", FIRST))
        .explore()
        .await?;
    twice.never(|run| {
        let right = match (run.output("a.settle"), run.output("b.settle")) {
            ("written", "lost") => "1 waiting",
            ("lost", "written") => "1 done | 101 waiting",
            _ => return true,
        };
        run.failed() || run.end() != right
    });
    Ok(())
}
