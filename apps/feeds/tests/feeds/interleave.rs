//! Subscribe against unsubscribe, in every order of their statements.

use anyhow::Result;
use pitwheel_testkit::{Connection, Explorer, Run, Session};

use crate::support::TestFeeds;

const LOCK_SOURCE: &str = include_str!("../../sql/lock_source.sql");
const SUBSCRIBE: &str = include_str!("../../sql/subscribe.sql");
const UNSUBSCRIBE: &str = include_str!("../../sql/unsubscribe.sql");
const HAS_SUBSCRIBERS: &str = include_str!("../../sql/has_subscribers.sql");
const ENABLE: &str = "select next_run_at::text from pitwheel.enable_recurring($1)";
const DISABLE: &str = "select changed from pitwheel.disable_recurring($1)";

/// One subscriber, `ada`, to source 1, whose recurring job is 1.
const SETUP: &str = "
    delete from feeds.source;
    delete from pitwheel.recurring;
    insert into feeds.source (id, url, name, priority, fetch_interval_minutes, recurring_id) overriding system value
        values (1, 'https://a.example/', 'a', 0, 60, 1);
    insert into feeds.subscription (source_id, subscriber) values (1, 'ada');
    insert into pitwheel.recurring
        (id, kind, key, queue, cadence, payload, priority, misfire, planned, next_run_at, anchor_at) overriding system value
        values (1, 'fetch_feed', '1', 'feeds', 'every 1h', '{\"source_id\": 1}', 0, 'one', true, now(), now());
    select pitwheel.place_run(1)";

/// Whether the source has subscribers, its recurring job is enabled, and has a live job.
const END: &str = "
    select concat_ws(', ',
        case when exists (select from feeds.subscription) then 'subscribed' end,
        (select case when enabled then 'enabled' else 'disabled' end from pitwheel.recurring),
        case when exists (select from pitwheel.job where recurring = 1) then 'live' end)";

/// `ben` subscribes as `Feeds::subscribe` does: the same statements in the same order.
fn subscribes() -> Session {
    Session::new("ben")
        .sql("begin")
        .step("lock", async |connection: &mut Connection| {
            connection.client.query_one(LOCK_SOURCE, &[&1_i64]).await?;
            Ok(String::new())
        })
        .step("subscribe", async |connection: &mut Connection| {
            connection.client.query(SUBSCRIBE, &[&1_i64, &"ben"]).await?;
            Ok(String::new())
        })
        .step("enable", async |connection: &mut Connection| {
            connection.client.query_one(ENABLE, &[&1_i64]).await?;
            Ok(String::new())
        })
        .sql("commit")
}

/// `ada` leaves as `Feeds::unsubscribe` does.
fn unsubscribes() -> Session {
    Session::new("ada")
        .sql("begin")
        .step("lock", async |connection: &mut Connection| {
            connection.client.query_one(LOCK_SOURCE, &[&1_i64]).await?;
            Ok(String::new())
        })
        .step("unsubscribe", async |connection: &mut Connection| {
            connection.client.query(UNSUBSCRIBE, &[&1_i64, &"ada"]).await?;
            Ok(String::new())
        })
        .step("disable", async |connection: &mut Connection| {
            let others: bool = connection.client.query_one(HAS_SUBSCRIBERS, &[&1_i64]).await?.get(0);
            if !others {
                connection.client.query_one(DISABLE, &[&1_i64]).await?;
            }
            Ok(others.to_string())
        })
        .sql("commit")
}

/// The form of the source design: the subscription first, and the job is enabled if it finds one.
fn unsubscribes_without_a_lock() -> Session {
    Session::new("ada")
        .sql("begin")
        .sql_as("unsubscribe", "delete from feeds.subscription where source_id = 1 and subscriber = 'ada'")
        .sql_as(
            "disable",
            "update pitwheel.recurring set enabled = exists (select from feeds.subscription where source_id = 1) where id = 1",
        )
        .sql("commit")
}

/// The form of the source design: the job first, then the subscription.
fn subscribes_without_a_lock() -> Session {
    Session::new("ben")
        .sql("begin")
        .sql_as("enable", "update pitwheel.recurring set enabled = true where id = 1")
        .sql_as("subscribe", "insert into feeds.subscription (source_id, subscriber) values (1, 'ben')")
        .sql("commit")
}

fn inconsistent(run: &Run) -> bool {
    run.failed() || run.end() != "subscribed, enabled, live"
}

#[tokio::test]
async fn a_subscriber_never_ends_up_with_a_disabled_job() -> Result<()> {
    let test = TestFeeds::new().await?;
    let start = |title| Explorer::new(&test.db, title).setup(SETUP).end(END);

    let right =
        start("subscribe × unsubscribe").session(subscribes()).session(unsubscribes()).explore().await?;
    right.never(inconsistent);
    right.sometimes(|run| run.output("ada.disable") == "true");
    right.sometimes(|run| run.output("ada.disable") == "false");

    start("subscribe × unsubscribe, not locked first")
        .session(subscribes_without_a_lock())
        .session(unsubscribes_without_a_lock())
        .explore()
        .await?
        .sometimes(|run| run.end().starts_with("subscribed, disabled"));
    Ok(())
}
