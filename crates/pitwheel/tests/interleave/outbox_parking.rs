//! Ending the parking of entities in pages, beside a relay that parks: no event is left behind.

use anyhow::Result;
use pitwheel_testkit::{Connection, Run, Session, TestDb};

use crate::outbox::{PARK, event, park, start};

/// Event 1 of `e` is refused and moved aside while an operator ends the parking of `e`, which was parked before or not.
#[tokio::test]
async fn an_entity_that_is_parked_during_a_retry_in_pages_loses_no_event() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| start(&db, title).setup(&event(1));
    let parks = || {
        Session::transaction("a", "park", async |connection: &mut Connection| {
            park(connection, PARK, Some("too large"), 1).await
        })
    };
    let retries = |keys: &str| {
        let args = format!("'pitwheel.outbox', {keys}, 'retry'");
        let lock = "select set_config('test.keys', pitwheel.lock_parked('pitwheel.outbox', array['e'])::text, false)";
        Session::new("o")
            .sql("begin")
            .sql_as("lock", lock)
            .sql_as("events", format!("select entity_key, events from pitwheel.unpark_events({args}, 5000)"))
            .sql_as("end", format!("select entity_key from pitwheel.end_parking({args}, 'test')"))
            .sql("commit")
    };
    let left_behind = |run: &Run| run.end().contains("parked 0") && !run.end().contains("moved 0");
    let right = start("park × retry in pages")
        .session(parks())
        .session(retries("current_setting('test.keys')::text[]"))
        .explore()
        .await?;
    right.never(|run| run.failed() || left_behind(run));
    right.sometimes(|run| run.output("o.end") == "e");
    right.sometimes(|run| run.output("o.lock") == "{}" && run.before("a.commit", "o.end"));

    // The parts are given all keys, also those that were not parked when the shards were locked.
    start("park × retry in pages, of all keys")
        .session(parks())
        .session(retries("array['e']"))
        .explore()
        .await?
        .sometimes(left_behind);
    Ok(())
}
