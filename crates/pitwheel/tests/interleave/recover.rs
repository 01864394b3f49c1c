//! A recovery beside a settle or a renewal: only one of the two is written.

use anyhow::Result;
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};

use crate::sessions::complete_first;

const LANE: &str = "\"a\"";

/// Recovers job 1, in a transaction; the output is what became of it.
fn recovers(stale: &str) -> Session {
    let sql = format!("select outcome from pitwheel.recover(1, interval '{stale}', 'test')");
    Session::new("r").sql("begin").sql_as("recover", sql).sql("commit")
}

#[tokio::test]
async fn a_recovery_and_a_settle_never_both_write() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).expired(1).in_lane(1, LANE).in_lane(2, LANE).claimed(1, 1);
    let wrong = |run: &Run| {
        let right = match (run.output("a.settle"), run.output("r.recover")) {
            ("written", "finished" | "") => run.end() == "1 done | 2 waiting",
            ("lost", "recovered") => run.end() == "1 waiting | 2 blocked",
            _ => false,
        };
        run.failed() || !right
    };
    let right = start("settle × recover")
        .session(Session::transaction("a", "settle", complete_first))
        .session(recovers("1 minute"))
        .explore()
        .await?;
    right.never(wrong);
    right.sometimes(|run| run.output("a.settle") == "lost");
    right.sometimes(|run| run.output("a.settle") == "written");
    // By age alone, with the state read before.
    let by_age = Session::new("r")
        .sql("begin")
        .sql_as(
            "read",
            "create temp table if not exists seen (id bigint); delete from seen;
            insert into seen select id from pitwheel.job where id = 1 and holder is not null",
        )
        .sql_as(
            "recover",
            "insert into pitwheel.job (id, run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
            select id, now(), now(), 20, 0, 'default', 'test', '{}' from seen
            on conflict (id) do update set holder = null returning 'recovered'",
        )
        .sql("commit");
    start("settle × recover, by age")
        .session(Session::transaction("a", "settle", complete_first))
        .session(by_age)
        .explore()
        .await?
        .sometimes(|run| run.output("a.settle") == "written" && run.output("r.recover") == "recovered");
    Ok(())
}

#[tokio::test]
async fn a_job_whose_worker_renewed_is_not_recovered() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).expired(1).in_lane(1, LANE).claimed(1, 1);
    let renews =
        || Session::transaction("w", "renew", async |connection: &mut Connection| connection.renew(1).await);
    // A recovery that comes after the renewal sees it, also if it has begun before.
    let wrong = |run: &Run| {
        let recovered = run.output("r.recover") == "recovered";
        run.failed()
            || recovered && run.before("w.commit", "r.recover")
            || recovered != (run.end() == "1 waiting")
    };
    let right = start("renew × recover").session(renews()).session(recovers("1 minute")).explore().await?;
    right.never(wrong);
    right.sometimes(|run| run.output("r.recover") == "not_stale");
    right.sometimes(|run| run.output("r.recover") == "recovered");
    let unlocked = Session::new("r")
        .sql("begin")
        .sql_as("read", "create temp table if not exists stale (id bigint); delete from stale;
            insert into stale select id from pitwheel.worker where lease_until < clock_timestamp()")
        .sql_as("recover", "update pitwheel.job set holder = null where holder in (select id from stale) returning 'recovered'")
        .sql("commit");
    start("renew × recover, read then recover")
        .session(renews())
        .session(unlocked)
        .explore()
        .await?
        .sometimes(|run| run.output("r.recover") == "recovered" && run.before("w.commit", "r.recover"));
    Ok(())
}
