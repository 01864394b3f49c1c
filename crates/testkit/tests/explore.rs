//! The explorer itself: it runs every feasible order, and knows which sessions wait for a lock.

use anyhow::Result;
use pitwheel_testkit::{Explorer, Session, TestDb};

const ROWS: &str = "create table if not exists row (id int primary key, n int); delete from row;
    insert into row values (1, 0), (2, 0)";

fn updates(name: &'static str, first: &'static str, second: &'static str) -> Session {
    Session::new(name).sql("begin").sql_as("first", first).sql_as("second", second).sql("commit")
}

#[tokio::test]
async fn sessions_that_share_nothing_run_in_every_order() -> Result<()> {
    let db = TestDb::unmigrated().await?;
    let two_steps = |name| Session::new(name).sql("select 1").sql("select 2");
    let explored = Explorer::from_scratch(&db, "independent")
        .session(two_steps("a"))
        .session(two_steps("b"))
        .explore()
        .await?;
    assert_eq!(explored.schedules(), 6);
    Ok(())
}

#[tokio::test]
async fn a_session_that_waits_for_a_lock_is_not_scheduled() -> Result<()> {
    let db = TestDb::unmigrated().await?;
    let adds =
        |name| Session::new(name).sql("begin").sql("update row set n = n + 1 where id = 1").sql("commit");
    let explored = Explorer::from_scratch(&db, "one row")
        .setup(ROWS)
        .session(adds("a"))
        .session(adds("b"))
        .end("select n from row where id = 1")
        .explore()
        .await?;
    // Of 20 orders, those in which the second commits while it waits for the first are not feasible.
    assert_eq!(explored.schedules(), 14);
    explored.never(|run| run.failed() || run.end() != "2");
    Ok(())
}

#[tokio::test]
async fn a_deadlock_ends_with_an_error_in_one_session() -> Result<()> {
    let db = TestDb::unmigrated().await?;
    let (one, two) = ("update row set n = n + 1 where id = 1", "update row set n = n + 1 where id = 2");
    let start = |title| Explorer::from_scratch(&db, title).setup(ROWS).end("select sum(n) from row");
    let opposite = start("opposite order")
        .session(updates("a", one, two))
        .session(updates("b", two, one))
        .explore()
        .await?;
    opposite.sometimes(|run| run.end() == "2" && run.failed());
    let same =
        start("same order").session(updates("a", one, two)).session(updates("b", one, two)).explore().await?;
    same.never(|run| run.failed() || run.end() != "4");
    Ok(())
}

#[tokio::test]
#[should_panic(expected = "for instance a.update")]
async fn a_bad_end_is_shown_with_a_schedule_that_leads_to_it() {
    let db = TestDb::unmigrated().await.unwrap();
    let explored = Explorer::from_scratch(&db, "bad")
        .setup(ROWS)
        .session(Session::new("a").sql("update row set n = 7 where id = 1"))
        .end("select n from row where id = 1")
        .explore()
        .await
        .unwrap();
    explored.never(|run| run.end() == "7");
}
