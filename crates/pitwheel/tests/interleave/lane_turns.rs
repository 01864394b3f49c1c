//! Whose turn it is in a lane: a job never waits for one that has left the lane.

use anyhow::Result;
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};
use tokio_postgres::types::Type;

use crate::lanes::{LANE, completes, enqueues_in_sql, promote, promotes};

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
