//! Relays that claim entities one by one: an entity has one holder until its events are acknowledged, and none is left behind.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use pitwheel::Pitwheel;
use pitwheel::engine::outbox::{Entities, EntityLock, RelayOptions, SourceTable, Strategy};
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};
use tokio::sync::Mutex;
use tokio_postgres::types::Type;

use crate::outbox::two_writers;

const LOCK_ADVISORY: &str = include_str!("../../sql/outbox/lock_advisory.sql");
const LOCK_HEADS: &str = include_str!("../../sql/outbox/lock_heads.sql");
const CLAIM: &str = include_str!("../../sql/outbox/claim_entities.sql");
pub(crate) const SWEEP: &str = include_str!("../../sql/outbox/sweep_relays.sql");

pub(crate) const SOURCE: &str = "pitwheel.outbox";
const A: &str = "00000000-0000-0000-0000-00000000000a";
pub(crate) const B: &str = "00000000-0000-0000-0000-00000000000b";

/// Two relays, and two events of the entity `e`.
pub(crate) const SETUP: &str = "
    delete from pitwheel.outbox; delete from pitwheel.outbox_relay; delete from pitwheel.outbox_claim; delete from pitwheel.outbox_parked;
    select setval('pitwheel.outbox_id_seq', 100);
    create index if not exists outbox_entity on pitwheel.outbox (entity_key, id);
    insert into pitwheel.outbox_relay (relay, name, source, strategy, lease, lease_until)
    select id::uuid, id, 'pitwheel.outbox', 'advisory', '1 hour', clock_timestamp() + interval '1 hour'
    from unnest(array['00000000-0000-0000-0000-00000000000a', '00000000-0000-0000-0000-00000000000b']) as id;
    insert into pitwheel.outbox (id, entity_key, topic, type) overriding system value
    values (1, 'e', 'orders', 'first'), (2, 'e', 'orders', 'second')";
/// The lease of the relay A has expired.
pub(crate) const EXPIRED: &str =
    "update pitwheel.outbox_relay set lease_until = clock_timestamp() - interval '1 second'
    where relay = '00000000-0000-0000-0000-00000000000a'";

pub(crate) const END: &str = "select 'claims ' || (select count(*) from pitwheel.outbox_claim)
    || ', parked ' || (select count(*) from pitwheel.outbox_parked)
    || ', waiting ' || (select count(*) from pitwheel.outbox)";

pub(crate) fn start<'a>(db: &'a TestDb, title: &'static str) -> Explorer<'a> {
    Explorer::from_scratch(db, title).setup(SETUP).end(END)
}

/// A statement for the outbox of Pitwheel.
pub(crate) fn statement(template: &str) -> String {
    let names = [("{table}", SOURCE), ("{key}", "entity_key"), ("{id}", "id"), ("{topic}", "source.topic")];
    let values =
        [("{type}", "source.type"), ("{payload}", "source.payload"), ("{headers}", "source.headers")];
    let others = [("{created_at}", "source.created_at"), ("{waiting}", "true")];
    let all = names.into_iter().chain(values).chain(others);
    all.fold(template.to_owned(), |sql, (name, value)| sql.replace(name, value))
}

/// What a session claimed: the lease of `e`.
pub(crate) type Lease = Arc<Mutex<Option<String>>>;

/// Takes the lock of `e`, then claims it, as two statements of one transaction.
pub(crate) fn claims(name: &'static str, relay: &'static str, lock: EntityLock, lease: &Lease) -> Session {
    let (lock_lease, claim_lease) = (lease.clone(), lease.clone());
    Session::new(name)
        .sql("begin")
        .step("lock", async move |connection: &mut Connection| {
            let keys = vec!["e"];
            let rows = match lock {
                EntityLock::Row => {
                    let sql = statement(LOCK_HEADS);
                    connection.client.query_typed(&sql, &[(&keys, Type::TEXT_ARRAY)]).await?
                }
                EntityLock::Advisory => {
                    let params = [(&keys as _, Type::TEXT_ARRAY), (&SOURCE as _, Type::TEXT)];
                    connection.client.query_typed(LOCK_ADVISORY, &params).await?
                }
            };
            *lock_lease.lock().await = (!rows.is_empty()).then(String::new);
            Ok(rows.len().to_string())
        })
        .step("claim", async move |connection: &mut Connection| {
            let mut lease = claim_lease.lock().await;
            let keys: Vec<&str> = lease.iter().map(|_| "e").collect();
            *lease = claim(connection, &keys, relay).await?;
            Ok(lease.iter().count().to_string())
        })
        .sql("commit")
}

/// Claims for a relay; returns the lease.
pub(crate) async fn claim(connection: &Connection, keys: &[&str], relay: &str) -> Result<Option<String>> {
    let params = [(&SOURCE as _, Type::TEXT), (&keys as _, Type::TEXT_ARRAY), (&relay as _, Type::TEXT)];
    let rows = connection.client.query_typed(CLAIM, &params).await?;
    Ok(rows.first().map(|row| row.get(1)))
}

pub(crate) const LOCKS: [EntityLock; 2] = [EntityLock::Advisory, EntityLock::Row];

#[tokio::test]
async fn an_entity_is_claimed_by_one_relay() -> Result<()> {
    let db = TestDb::new().await?;
    let both = |run: &Run| run.output("a.claim") == "1" && run.output("b.claim") == "1";
    for lock in LOCKS {
        let right = start(&db, "claim × claim of entities")
            .session(claims("a", A, lock, &Lease::default()))
            .session(claims("b", B, lock, &Lease::default()))
            .explore()
            .await?;
        right.never(|run| run.failed() || both(run) || !run.end().starts_with("claims 1, parked 0"));
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

/// A relay that is made anew in each schedule.
type SharedRelay = Arc<Mutex<Option<Entities>>>;

/// Takes and acknowledges; returns the ids.
async fn deliver(
    pitwheel: &Pitwheel,
    shared: &SharedRelay,
    lock: EntityLock,
    is_new: bool,
) -> Result<String> {
    let mut shared = shared.lock().await;
    if is_new {
        let pool = pitwheel.pool_for_loops(1, Duration::from_secs(10))?;
        let options = RelayOptions { lease: Duration::from_secs(600), ..RelayOptions::default() };
        *shared = Some(Entities::new(pool, options, SourceTable::pitwheel(), lock)?);
    }
    let relay = shared.as_mut().context("the relay was not started")?;
    let events = relay.take(1000).await?.events;
    let lost = relay.acknowledge(&events).await?.lost;
    let ids: Vec<String> = events.iter().map(|event| event.id.to_string()).collect();
    Ok(if lost == 0 { ids.join(",") } else { format!("{lost} lost") })
}

#[tokio::test]
async fn an_event_that_is_inserted_beside_a_claim_is_never_missed() -> Result<()> {
    let db = TestDb::new().await?;
    for lock in LOCKS {
        let relay = SharedRelay::default();
        let step = |is_new: bool| {
            let (relay, pitwheel) = (relay.clone(), db.pitwheel().clone());
            async move |_: &mut Connection| deliver(&pitwheel, &relay, lock, is_new).await
        };
        let right = two_writers(start(&db, "claim × insert").setup("delete from pitwheel.outbox"))
            .session(Session::new("r").step("start", step(true)).step("again", step(false)))
            .afterwards("later", step(false))
            .explore()
            .await?;
        right.never(|run| run.failed() || run.end() != "claims 0, parked 0, waiting 0");
        right.sometimes(|run| run.output("r.again") == "102" && run.output("later") == "101");
        right.sometimes(|run| run.output("r.start") == "101,102");
    }

    // A table of the entities that have events: the writer adds its entity, the relay deletes those without events.
    let ready = "create table if not exists ready (entity_key text primary key); delete from ready;
        delete from pitwheel.outbox; insert into ready values ('e')";
    let writer = Session::new("w")
        .sql("begin")
        .sql_as(
            "insert",
            "insert into pitwheel.outbox (entity_key, topic, type) values ('e', 'orders', 'changed')",
        )
        .sql_as("ready", "insert into ready values ('e') on conflict do nothing")
        .sql("commit");
    let retire = "delete from ready where not exists (
        select from pitwheel.outbox where outbox.entity_key = ready.entity_key) returning entity_key";
    start(&db, "claim × insert, with a table of entities")
        .setup(ready)
        .session(writer)
        .session(Session::new("r").sql_as("retire", retire))
        .afterwards("ready", async |connection: &mut Connection| {
            connection.query("select count(*) from ready").await
        })
        .explore()
        .await?
        .sometimes(|run| run.output("ready") == "0" && run.end().ends_with("waiting 1"));
    Ok(())
}

#[tokio::test]
async fn a_claim_that_is_committed_after_its_relay_was_declared_dead_is_taken_over() -> Result<()> {
    let db = TestDb::new().await?;
    for lock in LOCKS {
        let relay = SharedRelay::default();
        let pitwheel = db.pitwheel().clone();
        let right = start(&db, "claim × sweep")
            .setup(EXPIRED)
            .session(claims("a", A, lock, &Lease::default()))
            .session(Session::new("s").sql_as("sweep", SWEEP))
            .afterwards("other", async move |_: &mut Connection| deliver(&pitwheel, &relay, lock, true).await)
            .explore()
            .await?;
        right.never(|run| run.failed() || run.output("other") != "1,2");
        right.sometimes(|run| run.output("a.claim") == "1" && run.before("s.sweep", "a.commit"));
        right.sometimes(|run| run.output("a.claim") == "0");
    }

    // An entity with a claim is left to its holder, whether that lives or not.
    let free = "select count(*) from pitwheel.outbox as event where not exists (
        select from pitwheel.outbox_claim as claim where claim.entity_key = event.entity_key)";
    start(&db, "claim × sweep, holders not looked at")
        .setup(EXPIRED)
        .session(claims("a", A, EntityLock::Advisory, &Lease::default()))
        .session(Session::new("s").sql_as("sweep", SWEEP))
        .afterwards("other", async move |connection: &mut Connection| connection.query(free).await)
        .explore()
        .await?
        .sometimes(|run| run.output("other") == "0");
    Ok(())
}
