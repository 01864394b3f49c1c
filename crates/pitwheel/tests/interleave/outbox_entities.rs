//! Relays that claim entities one by one: an entity has one holder until its events are acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};
use tokio_postgres::types::Type;

const LOCK_ADVISORY: &str = include_str!("../../sql/outbox/lock_advisory.sql");
const LOCK_HEADS: &str = include_str!("../../sql/outbox/lock_heads.sql");
const CLAIM: &str = include_str!("../../sql/outbox/claim_entities.sql");
const PARK: &str = include_str!("../../sql/outbox/park_entity.sql");

const SOURCE: &str = "pitwheel.outbox";
const A: &str = "00000000-0000-0000-0000-00000000000a";
const B: &str = "00000000-0000-0000-0000-00000000000b";
const LEASE: &str = "00000000-0000-0000-0000-0000000000aa";

/// Two relays, and two events of the entity `e`.
const SETUP: &str = "
    delete from pitwheel.outbox; delete from pitwheel.outbox_relay; delete from pitwheel.outbox_claim; delete from pitwheel.outbox_parked;
    insert into pitwheel.outbox_relay (relay, name, source, strategy, lease, lease_until)
    select id::uuid, id, 'pitwheel.outbox', 'advisory', '1 hour', clock_timestamp() + interval '1 hour'
    from unnest(array['00000000-0000-0000-0000-00000000000a', '00000000-0000-0000-0000-00000000000b']) as id;
    insert into pitwheel.outbox (entity_key, topic, type) values ('e', 'orders', 'first'), ('e', 'orders', 'second')";

const END: &str = "select 'claims ' || (select count(*) from pitwheel.outbox_claim)
    || ', parked ' || (select count(*) from pitwheel.outbox_parked)";

/// Takes the lock of `e`, then claims it, as two statements of one transaction.
fn claims(name: &'static str, relay: &'static str, by_row: bool) -> Session {
    let locked = Arc::new(AtomicBool::new(false));
    let is_locked = locked.clone();
    Session::new(name)
        .sql("begin")
        .step("lock", async move |connection: &mut Connection| {
            let keys = vec!["e"];
            let rows = if by_row {
                let sql = LOCK_HEADS.replace("{table}", SOURCE).replace("{waiting}", "true");
                let sql = sql.replace("{id}", "id").replace("{key}", "entity_key");
                connection.client.query_typed(&sql, &[(&keys, Type::TEXT_ARRAY)]).await?
            } else {
                let params = [(&keys as _, Type::TEXT_ARRAY), (&SOURCE as _, Type::TEXT)];
                connection.client.query_typed(LOCK_ADVISORY, &params).await?
            };
            locked.store(!rows.is_empty(), Ordering::SeqCst);
            Ok(rows.len().to_string())
        })
        .step("claim", async move |connection: &mut Connection| {
            let keys = if is_locked.load(Ordering::SeqCst) { vec!["e"] } else { Vec::new() };
            let params =
                [(&SOURCE as _, Type::TEXT), (&keys as _, Type::TEXT_ARRAY), (&relay as _, Type::TEXT)];
            Ok(connection.client.query_typed(CLAIM, &params).await?.len().to_string())
        })
        .sql("commit")
}

#[tokio::test]
async fn an_entity_is_claimed_by_one_relay() -> Result<()> {
    let db = TestDb::new().await?;
    let both = |run: &Run| run.output("a.claim") == "1" && run.output("b.claim") == "1";
    for by_row in [false, true] {
        let right = Explorer::from_scratch(&db, "claim × claim of entities")
            .setup(SETUP)
            .end(END)
            .session(claims("a", A, by_row))
            .session(claims("b", B, by_row))
            .explore()
            .await?;
        right.never(|run| run.failed() || both(run) || run.end() != "claims 1, parked 0");
        right.sometimes(|run| run.output("b.lock") == "0");
    }

    // The source design: the lock ends with the claim, and a later event of the entity goes to another worker.
    let table = "create table if not exists source (id bigint generated always as identity, entity_key text, status text default 'NEW',
            worker text);
        truncate source; insert into source (entity_key) values ('e')";
    let claim = |worker: &str| {
        format!(
            "with candidate as (select distinct entity_key from source where status = 'NEW' order by entity_key limit 200),
            locked as (select entity_key from candidate where pg_try_advisory_xact_lock(1, hashtext(entity_key)) limit 50)
            update source set status = 'PROCESSING', worker = '{worker}' from locked
            where source.entity_key = locked.entity_key and source.status = 'NEW'"
        )
    };
    let sent = "update source set status = 'SENT' where worker = 'a'";
    Explorer::from_scratch(&db, "claim × claim of entities, as in the source design")
        .setup(table)
        .session(Session::new("a").sql_as("claim", claim("a")).sql_as("sent", sent))
        .session(
            Session::new("b")
                .sql_as("insert", "insert into source (entity_key) values ('e')")
                .sql_as("claim", claim("b"))
                .sql_as("look", "select count(distinct worker) from source where status = 'PROCESSING'"),
        )
        .explore()
        .await?
        .sometimes(|run| run.output("b.look") == "2");
    Ok(())
}

#[tokio::test]
async fn an_entity_that_is_parked_while_another_relay_waits_for_it_is_not_read() -> Result<()> {
    let db = TestDb::new().await?;
    let held = "insert into pitwheel.outbox_claim (source, entity_key, relay, lease)
        values ('pitwheel.outbox', 'e', '00000000-0000-0000-0000-00000000000a', '00000000-0000-0000-0000-0000000000aa')";
    let parks = Session::transaction("a", "park", async |connection: &mut Connection| {
        let params = [
            (&SOURCE as _, Type::TEXT),
            (&"e" as _, Type::TEXT),
            (&LEASE as _, Type::TEXT),
            (&1_i64 as _, Type::INT8),
            (&"orders" as _, Type::TEXT),
            (&"refused" as _, Type::TEXT),
        ];
        Ok(connection.client.query_typed(PARK, &params).await?[0].get::<_, bool>(0).to_string())
    });
    let reads = "select count(*) from pitwheel.outbox_claim as claim
        where claim.relay = '00000000-0000-0000-0000-00000000000b' and not exists (
            select from pitwheel.outbox_parked as parked where parked.entity_key = claim.entity_key)";
    let explored = Explorer::from_scratch(&db, "park × claim of entities")
        .setup(SETUP)
        .setup(held)
        .end(END)
        .session(parks)
        .session(claims("b", B, false).sql_as("read", reads))
        .explore()
        .await?;
    explored.never(|run| run.failed() || run.output("b.read") == "1" && run.end().contains("parked 1"));
    // The claim alone does not see the parking that it waited for: read_entities.sql has to look again.
    explored.sometimes(|run| run.output("b.claim") == "1" && run.end().contains("parked 1"));
    Ok(())
}
