//! Relays that register: those of one source hold shards, or they claim entities.

use anyhow::Result;
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};
use tokio_postgres::types::Type;

const LOCK: &str = include_str!("../../sql/outbox/lock_registration.sql");
const REGISTER: &str = include_str!("../../sql/outbox/register_relay.sql");
const SOURCE: &str = "pitwheel.outbox";
const END: &str = "select string_agg(strategy, ' ' order by strategy) from pitwheel.outbox_relay";

async fn register(connection: &Connection, strategy: &str) -> Result<String> {
    let (lease, shards) = (600_000_i64, None::<Vec<i16>>);
    let params = [
        (&"relay" as _, Type::TEXT),
        (&SOURCE as _, Type::TEXT),
        (&strategy as _, Type::TEXT),
        (&lease as _, Type::INT8),
        (&shards as _, Type::INT2_ARRAY),
    ];
    Ok(connection.client.query_typed(REGISTER, &params).await?.len().to_string())
}

fn relay(strategy: &'static str, locks: bool) -> Session {
    let mut session = Session::new(strategy).sql("begin");
    if locks {
        session = session.sql_as("lock", LOCK.replace("$1", "'pitwheel.outbox'"));
    }
    let step = async move |connection: &mut Connection| register(connection, strategy).await;
    session.step("register", step).sql("commit")
}

#[tokio::test]
async fn shards_and_claims_of_entities_never_share_a_source() -> Result<()> {
    let db = TestDb::new().await?;
    let start =
        |title| Explorer::from_scratch(&db, title).setup("delete from pitwheel.outbox_relay").end(END);
    let both = |run: &Run| run.end() == "advisory shards";
    let right = start("register × register")
        .session(relay("shards", true))
        .session(relay("advisory", true))
        .explore()
        .await?;
    right.never(|run| run.failed() || both(run));
    right.sometimes(|run| run.end() == "shards");
    right.sometimes(|run| run.end() == "advisory");

    start("register × register, without the lock")
        .session(relay("shards", false))
        .session(relay("advisory", false))
        .explore()
        .await?
        .sometimes(both);
    Ok(())
}
