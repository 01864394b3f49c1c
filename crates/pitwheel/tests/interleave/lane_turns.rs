//! Whose turn it is in a lane: a job waits neither for one that has left the lane, nor for one behind it.

use anyhow::Result;
use pitwheel::engine::claim_by_id;
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};
use tokio_postgres::types::Type;

use crate::lanes::{LANE, completes, enqueues_in_sql, promote, promotes};
use crate::sessions::claims;

/// Cancels job 2.
async fn cancel(connection: &mut Connection) -> Result<String> {
    let sql = include_str!("../../sql/operate/cancel.sql");
    let ids = vec![2_i64];
    let rows = connection.client.query_typed(sql, &[(&ids, Type::INT8_ARRAY), (&"test", Type::TEXT)]).await?;
    Ok(rows.len().to_string())
}

/// The head 1 waits and lets others pass, job 2 waits longer and lets none pass, and job 3 is due behind both. The lane is to be looked at.
fn start<'a>(db: &'a TestDb, title: &'static str) -> Explorer<'a> {
    Explorer::new(db, title)
        .worker(1)
        .in_lane(1, LANE)
        .in_lane(2, LANE)
        .in_lane(3, LANE)
        .setup("update pitwheel.job set run_at = clock_timestamp() + interval '10 hours', lane_pass = true where id = 1")
        .setup("update pitwheel.job set lane_at = clock_timestamp() + interval '20 hours' where id = 2")
        .setup(&format!("insert into pitwheel.lane_check (xid, lane) values (pg_current_xact_id(), '{LANE}')"))
        .afterwards("maintenance", promote)
}

#[tokio::test]
async fn a_cancel_of_a_blocked_job_strands_none_behind_it() -> Result<()> {
    let db = TestDb::new().await?;
    let cancels = || Session::transaction("c", "cancel", cancel);
    let stranded = |run: &Run| run.end() == "1 waiting | 2 cancelled | 3 blocked";
    let right = start(&db, "cancel × promote").session(cancels()).session(promotes("p")).explore().await?;
    right.never(|run| run.failed() || run.end() != "1 blocked | 2 cancelled | 3 waiting");
    right.sometimes(|run| run.output("p.promote") == "1");
    right.sometimes(|run| run.output("maintenance") == "1");
    start(&db, "cancel × settle of the head")
        .claimed(1, 1)
        .session(cancels())
        .session(completes())
        .explore()
        .await?
        .never(|run| run.failed() || run.end() != "1 done | 2 cancelled | 3 waiting");
    start(&db, "cancel × enqueue")
        .session(cancels())
        .session(enqueues_in_sql("b"))
        .explore()
        .await?
        .never(|run| run.failed() || run.end() != "1 blocked | 101 blocked | 2 cancelled | 3 waiting");

    // A cancel that leaves no row to look at.
    let forgets = Session::new("c")
        .sql("begin")
        .step("cancel", cancel)
        .sql_as("forget", "delete from pitwheel.lane_check where xid = pg_current_xact_id()")
        .sql("commit");
    start(&db, "cancel × promote, nothing left to look at")
        .session(forgets)
        .session(promotes("p"))
        .explore()
        .await?
        .sometimes(stranded);
    Ok(())
}

/// Claims job 2 by its id, also before its time.
fn claims_head(name: &'static str) -> Session {
    Session::transaction(name, "claim", async |connection: &mut Connection| {
        let claimed = claim_by_id(&connection.client, 1, 2, &["test".to_owned()], None).await?;
        Ok(claimed.map_or_else(|refusal| format!("{refusal:?}"), |_| "claimed".to_owned()))
    })
}

/// The head 2 waits and lets no others pass, and job 1 is due before it.
#[tokio::test]
async fn a_head_is_claimed_or_gives_way_to_a_job_before_it() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| {
        Explorer::new(&db, title)
            .worker(1)
            .worker(2)
            .in_lane(2, LANE)
            .setup("update pitwheel.job set run_at = clock_timestamp() + interval '5 hours' where id = 2")
            .setup(&format!(
                "insert into pitwheel.job (id, run_at, enqueued_at, max_attempts, priority, queue, kind, payload, lane)
                values (1, clock_timestamp(), clock_timestamp(), 20, 0, 'default', 'test', '{{}}', '{LANE}')"
            ))
            .afterwards("maintenance", promote)
    };
    let heads = |run: &Run| run.end().matches("waiting").count() + run.end().matches("running").count();
    let wrong = |run: &Run| run.failed() || heads(run) != 1;
    let right =
        start("promote × claim by id").session(promotes("p")).session(claims_head("b")).explore().await?;
    right.never(|run| {
        wrong(run) || (run.output("b.claim") == "claimed") != (run.end() == "1 blocked | 2 running by 1")
    });
    right.sometimes(|run| run.end() == "1 waiting | 2 blocked");
    right.sometimes(|run| run.output("b.claim") == "claimed");
    start("promote × claim")
        .session(promotes("p"))
        .session(claims("b", 2, 10))
        .explore()
        .await?
        .never(|run| wrong(run) || run.end().contains("2 running"));
    start("promote × promote")
        .session(promotes("p"))
        .session(promotes("q"))
        .explore()
        .await?
        .never(|run| wrong(run) || run.end() != "1 waiting | 2 blocked");
    start("promote × enqueue")
        .session(promotes("p"))
        .session(enqueues_in_sql("b"))
        .explore()
        .await?
        .never(|run| wrong(run) || run.end() != "1 waiting | 101 blocked | 2 blocked");

    // A promotion that does not look whether the head has been claimed since it was read.
    let read = "create temp table if not exists seen (id bigint); delete from seen;
        insert into seen select id from pitwheel.job where id = 2 and holder is null";
    let replace =
        "update pitwheel.job set lane_at = run_at, run_at = 'infinity' where id in (select id from seen)";
    let unchecked = Session::new("p")
        .sql("begin")
        .sql_as("read", read)
        .sql_as("replace", replace)
        .sql_as("promote", "update pitwheel.job set run_at = clock_timestamp(), lane_at = null where id = 1")
        .sql("commit");
    start("promote × claim by id, holder not checked")
        .session(unchecked)
        .session(claims_head("b"))
        .explore()
        .await?
        .sometimes(|run| run.end() == "1 waiting | 2 running by 1");
    Ok(())
}
