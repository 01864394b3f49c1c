//! Enqueues with one key: one live job, everybody gets its id, nobody's transaction fails.

use anyhow::Result;
use pitwheel_testkit::{Explorer, Run, Session, Stage, TestDb};

use crate::FIRST;

/// The live jobs that have the key.
const LIVE: &str =
    "select coalesce(string_agg(id::text, ',' order by id), 'none') from pitwheel.job where key = 'key 1'";

fn enqueues(name: &'static str) -> Session {
    Session::new(name).step("enqueue", async |stage: &mut Stage| stage.begin_and_enqueue("key 1").await)
}

fn calls_enqueue(name: &'static str) -> Session {
    Session::new(name).sql("begin").sql_as("enqueue", "select pitwheel.enqueue('test', key => 'key 1')")
}

/// The way it is often written: insert unless a job was seen.
fn looks_then_inserts(name: &'static str) -> Session {
    Session::new(name)
        .sql("begin")
        .sql_as(
            "look",
            "create temp table if not exists seen (id bigint); delete from seen;
            insert into seen select id from pitwheel.job where kind = 'test' and key = 'key 1'",
        )
        .sql_as(
            "enqueue",
            "with added as (
                insert into pitwheel.job (run_at, enqueued_at, max_attempts, priority, queue, kind, key, payload)
                select now(), now(), 20, 0, 'default', 'test', 'key 1', '{}' where not exists (select from seen)
                returning id
            )
            select id from added union all select id from seen",
        )
}

/// Takes a lock that is held for a job that is there.
fn tries_lock(name: &'static str) -> Session {
    Session::new(name).sql("begin").sql_as(
        "enqueue",
        "with lock as materialized (select pg_try_advisory_xact_lock(7) as got)
        insert into pitwheel.job (run_at, enqueued_at, max_attempts, priority, queue, kind, key, payload)
        select now(), now(), 20, 0, 'default', 'test', 'key 1', '{}' from lock where got
        on conflict (kind, key) where key is not null do nothing
        returning id",
    )
}

#[tokio::test]
async fn two_enqueues_with_one_key_give_one_job() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).end(LIVE);
    let torn =
        |run: &Run| run.failed() || run.said("a.enqueue") != run.end() || run.said("b.enqueue") != run.end();

    start("enqueue × enqueue")
        .session(enqueues("a").sql("commit"))
        .session(enqueues("b").sql("commit"))
        .explore()
        .await?
        .never(torn)
        .sometimes(|run| run.before("b.enqueue", "a.commit") && run.before("a.enqueue", "b.commit"));
    start("pitwheel.enqueue × pitwheel.enqueue")
        .session(calls_enqueue("a").sql("commit"))
        .session(calls_enqueue("b").sql("commit"))
        .explore()
        .await?
        .never(torn);
    start("enqueue × enqueue, look then insert")
        .session(looks_then_inserts("a").sql("commit"))
        .session(looks_then_inserts("b").sql("commit"))
        .explore()
        .await?
        .sometimes(torn);
    Ok(())
}

#[tokio::test]
async fn an_enqueue_that_rolls_back_leaves_the_key_to_the_other() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).end(LIVE);
    let torn = |run: &Run| run.failed() || run.said("b.enqueue") != run.end();

    start("enqueue, rolled back × enqueue")
        .session(enqueues("a").sql("rollback"))
        .session(enqueues("b").sql("commit"))
        .explore()
        .await?
        .never(torn);
    start("pitwheel.enqueue, rolled back × pitwheel.enqueue")
        .session(calls_enqueue("a").sql("rollback"))
        .session(calls_enqueue("b").sql("commit"))
        .explore()
        .await?
        .never(torn);
    start("enqueue, rolled back × enqueue, tried lock")
        .session(tries_lock("a").sql("rollback"))
        .session(tries_lock("b").sql("commit"))
        .explore()
        .await?
        .sometimes(torn);
    Ok(())
}

#[tokio::test]
async fn an_enqueue_beside_the_end_of_the_live_job_gives_that_job_or_a_new_one() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).running(1, 1).end(LIVE);
    let completes =
        || Session::transaction("a", "settle", async |stage: &mut Stage| stage.complete(FIRST).await);
    // The old id only as long as that job was live; afterwards a new job, which is there.
    let torn = |run: &Run| {
        let right = match run.said("b.enqueue") {
            "1" => run.end() == "none" && run.before("b.enqueue", "a.commit"),
            new => run.end() == new,
        };
        run.failed() || !right
    };

    let right = start("enqueue × complete")
        .session(completes())
        .session(enqueues("b").sql("commit"))
        .explore()
        .await?;
    right.never(torn);
    right.sometimes(|run| run.said("b.enqueue") == "1");
    right.sometimes(|run| run.said("b.enqueue") != "1");
    start("pitwheel.enqueue × complete")
        .session(completes())
        .session(calls_enqueue("b").sql("commit"))
        .explore()
        .await?
        .never(torn);
    start("enqueue × complete, look then insert")
        .session(completes())
        .session(looks_then_inserts("b").sql("commit"))
        .explore()
        .await?
        .sometimes(torn);
    Ok(())
}
