//! Enqueues with the same key: one live job, its id for every caller, no failed transaction.

use anyhow::Result;
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};

use crate::sessions::{claims, claims_for_workers, complete_first};

/// The ids of the live jobs with the key.
const LIVE: &str =
    "select coalesce(string_agg(id::text, ',' order by id), 'none') from pitwheel.job where key = 'key 1'";

fn enqueues(name: &'static str) -> Session {
    Session::new(name)
        .step("enqueue", async |connection: &mut Connection| connection.begin_and_enqueue("key 1").await)
}

fn calls_enqueue(name: &'static str) -> Session {
    Session::new(name).sql("begin").sql_as("enqueue", "select pitwheel.enqueue('test', key => 'key 1')")
}

/// An enqueue as it is often written: read the jobs with the key, insert unless there is one.
fn reads_then_inserts(name: &'static str) -> Session {
    Session::new(name)
        .sql("begin")
        .sql_as(
            "read",
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

/// Takes a failed try for the lock as proof that the job exists.
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
async fn two_enqueues_with_one_key_create_one_job() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).end(LIVE);
    let wrong = |run: &Run| {
        run.failed() || run.output("a.enqueue") != run.end() || run.output("b.enqueue") != run.end()
    };

    start("enqueue × enqueue")
        .session(enqueues("a").sql("commit"))
        .session(enqueues("b").sql("commit"))
        .explore()
        .await?
        .never(wrong)
        .sometimes(|run| run.before("b.enqueue", "a.commit") && run.before("a.enqueue", "b.commit"));
    start("pitwheel.enqueue × pitwheel.enqueue")
        .session(calls_enqueue("a").sql("commit"))
        .session(calls_enqueue("b").sql("commit"))
        .explore()
        .await?
        .never(wrong);
    start("enqueue × enqueue, read then insert")
        .session(reads_then_inserts("a").sql("commit"))
        .session(reads_then_inserts("b").sql("commit"))
        .explore()
        .await?
        .sometimes(wrong);
    Ok(())
}

#[tokio::test]
async fn an_enqueue_that_rolls_back_leaves_the_key_to_the_other() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).end(LIVE);
    let wrong = |run: &Run| run.failed() || run.output("b.enqueue") != run.end();

    start("enqueue, rolled back × enqueue")
        .session(enqueues("a").sql("rollback"))
        .session(enqueues("b").sql("commit"))
        .explore()
        .await?
        .never(wrong);
    start("pitwheel.enqueue, rolled back × pitwheel.enqueue")
        .session(calls_enqueue("a").sql("rollback"))
        .session(calls_enqueue("b").sql("commit"))
        .explore()
        .await?
        .never(wrong);
    start("enqueue, rolled back × enqueue, tried lock")
        .session(tries_lock("a").sql("rollback"))
        .session(tries_lock("b").sql("commit"))
        .explore()
        .await?
        .sometimes(wrong);
    Ok(())
}

#[tokio::test]
async fn an_enqueue_while_the_live_job_completes_returns_that_job_or_a_new_one() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).running(1, 1).end(LIVE);
    let completes = || Session::transaction("a", "settle", complete_first);
    // The old id only while that job was live; afterwards a new job, which exists.
    let wrong = |run: &Run| {
        let right = match run.output("b.enqueue") {
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
    right.never(wrong);
    right.sometimes(|run| run.output("b.enqueue") == "1");
    right.sometimes(|run| run.output("b.enqueue") != "1");
    start("pitwheel.enqueue × complete")
        .session(completes())
        .session(calls_enqueue("b").sql("commit"))
        .explore()
        .await?
        .never(wrong);
    start("enqueue × complete, read then insert")
        .session(completes())
        .session(reads_then_inserts("b").sql("commit"))
        .explore()
        .await?
        .sometimes(wrong);
    Ok(())
}

/// The first job of a priority, in a transaction that commits or not.
fn enqueues_with_priority(name: &'static str, end: &'static str) -> Session {
    let enqueue = "select pitwheel.enqueue('test', priority => 5)";
    Session::new(name).sql("begin").sql_as("enqueue", enqueue).sql_as("end", end)
}

/// A waiting job gets a priority that no job had before.
fn changes_priority() -> Session {
    Session::new("a")
        .sql("begin")
        .sql_as("change", "update pitwheel.job set priority = 5 where holder is null")
        .sql("commit")
}

#[tokio::test]
async fn the_first_jobs_of_a_priority_are_claimed_and_wait_for_no_other() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| {
        Explorer::new(&db, title)
            .setup("delete from pitwheel.used_priority where priority <> 0")
            .worker(1)
            .worker(2)
    };
    let claims_rest = async |connection: &mut Connection| connection.claim(2, 10).await;
    let left = |run: &Run| run.failed() || run.end().contains("waiting");
    let together = |run: &Run| run.before("b.enqueue", "a.end") && run.before("a.enqueue", "b.end");

    for (title, end) in [
        ("enqueue with a priority × the same, committed", "commit"),
        ("enqueue with a priority × the same, rolled back", "rollback"),
    ] {
        start(title)
            .session(enqueues_with_priority("a", end))
            .session(enqueues_with_priority("b", "commit"))
            .afterwards("next claim", claims_rest)
            .explore()
            .await?
            .never(left)
            .sometimes(together);
    }
    for (title, claim) in [
        ("enqueue with a priority × claim", claims("c", 1, 1)),
        ("enqueue with a priority × claim_for_workers", claims_for_workers("c", &[1])),
    ] {
        start(title)
            .session(enqueues_with_priority("a", "commit"))
            .session(claim)
            .afterwards("next claim", claims_rest)
            .explore()
            .await?
            .never(left)
            .sometimes(|run| !run.output("c.claim").is_empty());
    }
    for (title, claim) in [
        ("change of a priority × claim", claims("c", 1, 1)),
        ("change of a priority × claim_for_workers", claims_for_workers("c", &[1])),
    ] {
        start(title)
            .setup("select pitwheel.enqueue('test')")
            .session(changes_priority())
            .session(claim)
            .afterwards("next claim", claims_rest)
            .explore()
            .await?
            .never(left)
            .sometimes(|run| run.before("a.change", "c.claim"));
    }

    // With a unique index the second transaction waits until the first has ended.
    start("enqueue with a priority × the same, unique")
        .setup("create unique index if not exists once on pitwheel.used_priority (priority)")
        .session(enqueues_with_priority("a", "commit"))
        .session(enqueues_with_priority("b", "commit"))
        .explore()
        .await?
        .never(together);
    Ok(())
}
