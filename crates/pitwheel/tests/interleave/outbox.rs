//! The outbox: one holder of a shard, no event lost, none left behind.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use pitwheel::Pitwheel;
use pitwheel::engine::outbox::{RelayOptions, Shards, Strategy};
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};
use tokio::sync::Mutex;
use tokio_postgres::types::Type;

const ACQUIRE: &str = include_str!("../../sql/outbox/acquire_shards.sql");
const ACKNOWLEDGE: &str = include_str!("../../sql/outbox/acknowledge.sql");
const ACKNOWLEDGE_KEEP: &str = include_str!("../../sql/outbox/acknowledge_keep.sql");
pub(crate) const PARK: &str = include_str!("../../sql/outbox/park.sql");

/// The lease of the relay that holds the shard of the entity `e`, and is dead.
const LEASE_OF_A: &str = "00000000-0000-0000-0000-0000000000aa";
const B: &str = "00000000-0000-0000-0000-00000000000b";

/// The shard of `e` is held by a relay that is dead, all others by a relay that lives.
const SETUP: &str = "
    delete from pitwheel.outbox; delete from pitwheel.outbox_relay; delete from pitwheel.outbox_parked;
    delete from pitwheel.outbox_parked_event; delete from pitwheel.outbox_sent; delete from pitwheel.outbox_claim;
    select setval('pitwheel.outbox_id_seq', 100);
    insert into pitwheel.outbox_relay (relay, name, source, strategy, lease, lease_until)
    select id::uuid, 'test', 'pitwheel.outbox', 'shards', '1 hour', clock_timestamp() + interval '1 hour'
    from unnest(array['00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-00000000000b']) as id;
    update pitwheel.outbox_shard set relay = '00000000-0000-0000-0000-000000000001', lease = gen_random_uuid(), floor = 0, restart = 0;
    update pitwheel.outbox_shard set relay = '00000000-0000-0000-0000-00000000000a', lease = '00000000-0000-0000-0000-0000000000aa'
    where shard = (hashtextextended('e', 0) & 63)";

const END: &str = "select 'waiting ' || (select count(*) from pitwheel.outbox)
    || ', sent ' || (select count(*) from pitwheel.outbox_sent)
    || ', parked ' || (select count(*) from pitwheel.outbox_parked)
    || ', moved ' || (select count(*) from pitwheel.outbox_parked_event)";

pub(crate) fn start<'a>(db: &'a TestDb, title: &'static str) -> Explorer<'a> {
    Explorer::from_scratch(db, title).setup(SETUP).end(END)
}

pub(crate) fn event(id: i64) -> String {
    format!(
        "insert into pitwheel.outbox (id, entity_key, topic, type, payload) overriding system value
        values ({id}, 'e', 'orders', 'changed', 'x')"
    )
}

async fn shard(connection: &Connection) -> Result<i16> {
    let row = connection.client.query_one("select (hashtextextended('e', 0) & 63)::smallint", &[]).await?;
    Ok(row.get(0))
}

/// Takes free shards; returns `taken` or `none`.
async fn acquire(connection: &mut Connection, relay: &str) -> Result<String> {
    let rows = connection.client.query_typed(ACQUIRE, &[(&relay, Type::TEXT)]).await?;
    let taken = rows.iter().any(|row| row.get::<_, Option<i16>>(0).is_some());
    Ok(if taken { "taken" } else { "none" }.to_owned())
}

fn acquires(name: &'static str, relay: &'static str) -> Session {
    Session::transaction(name, "acquire", async move |connection: &mut Connection| {
        acquire(connection, relay).await
    })
}

/// Keeps where the event 1 is, as a read does.
async fn read(connection: &mut Connection) -> Result<String> {
    let rows = connection.client.query("select ctid from pitwheel.outbox where id = 1", &[]).await?;
    connection.ctid = rows.first().map(|row| row.get(0));
    Ok(rows.len().to_string())
}

/// Acknowledges the event 1; returns how many were deleted.
async fn acknowledge(connection: &mut Connection, sql: &str, lease: &str) -> Result<String> {
    let (shards, ctids) = (vec![shard(connection).await?], Vec::from_iter(connection.ctid));
    let row = connection
        .client
        .query_typed(
            sql,
            &[
                (&shards, Type::INT2_ARRAY),
                (&vec![lease], Type::TEXT_ARRAY),
                (&ctids, Type::TID_ARRAY),
                (&shards, Type::INT2_ARRAY),
                (&vec![1_i64], Type::INT8_ARRAY),
            ],
        )
        .await?;
    Ok(row.first().context("no row")?.get::<_, i64>(1).to_string())
}

/// Moves the event `id`, and parks the entity if there is a reason.
pub(crate) async fn park(
    connection: &mut Connection,
    sql: &str,
    reason: Option<&str>,
    id: i64,
) -> Result<String> {
    let shard = shard(connection).await?;
    let row = connection
        .client
        .query_typed(
            sql,
            &[
                (&shard, Type::INT2),
                (&LEASE_OF_A, Type::TEXT),
                (&0_i64, Type::INT8),
                (&"e", Type::TEXT),
                (&id, Type::INT8),
                (&reason, Type::TEXT),
                (&vec![id], Type::INT8_ARRAY),
                (&"orders", Type::TEXT),
            ],
        )
        .await?;
    Ok(row.first().context("no row")?.get::<_, bool>(0).to_string())
}

#[tokio::test]
async fn two_relays_never_take_one_shard() -> Result<()> {
    let db = TestDb::new().await?;
    let both = |run: &Run| run.output("x.acquire") == "taken" && run.output("y.acquire") == "taken";
    let register = "insert into pitwheel.outbox_relay (relay, name, source, strategy, lease, lease_until)
        values ('00000000-0000-0000-0000-00000000000c', 'c', 'pitwheel.outbox', 'shards', '1 hour', clock_timestamp() + interval '1 hour')";
    let comes = Session::new("x")
        .sql("begin")
        .sql_as("register", register)
        .step("acquire", async |connection: &mut Connection| {
            acquire(connection, "00000000-0000-0000-0000-00000000000c").await
        })
        .sql("commit");
    let right = start(&db, "acquire × acquire").session(comes).session(acquires("y", B)).explore().await?;
    right.never(|run| run.failed() || both(run));
    right.sometimes(|run| run.output("x.acquire") == "taken");
    right.sometimes(|run| run.output("y.acquire") == "taken");

    // Looks whether the holder lives, on the row as it is after the wait: a relay that came meanwhile looks dead.
    let looks = |relay: &str| {
        format!(
            "update pitwheel.outbox_shard set relay = '{relay}', lease = gen_random_uuid()
            where shard = (hashtextextended('e', 0) & 63) and (relay is null or not exists (
                select from pitwheel.outbox_relay where outbox_relay.relay = outbox_shard.relay))
            returning 'taken'"
        )
    };
    let comes = Session::new("x")
        .sql("begin")
        .sql_as("register", register)
        .sql_as("acquire", looks("00000000-0000-0000-0000-00000000000c"))
        .sql("commit");
    start(&db, "acquire × acquire, looks for the holder")
        .session(comes)
        .session(Session::new("y").sql_as("acquire", looks(B)))
        .explore()
        .await?
        .sometimes(both);
    Ok(())
}

/// A relay that is made anew in each schedule.
type SharedRelay = Arc<Mutex<Option<Shards>>>;

/// Takes and acknowledges; returns the ids.
async fn deliver(pitwheel: &Pitwheel, shared: &SharedRelay, is_new: bool) -> Result<String> {
    let mut shared = shared.lock().await;
    if is_new {
        let pool = pitwheel.pool_for_loops(1, Duration::from_secs(10))?;
        let options = RelayOptions { lease: Duration::from_secs(600), ..RelayOptions::default() };
        *shared = Some(Shards::new(pool, options)?);
    }
    let relay = shared.as_mut().context("the relay was not started")?;
    relay.turn_soon();
    let events = relay.take(1000).await?.events;
    let lost = relay.acknowledge(&events).await?.lost;
    let ids: Vec<String> = events.iter().map(|event| event.id.to_string()).collect();
    Ok(if lost == 0 { ids.join(",") } else { format!("{lost} lost") })
}

/// Two events of one entity, of which the first may be committed last.
pub(crate) fn two_writers(explorer: Explorer<'_>) -> Explorer<'_> {
    let insert = "insert into pitwheel.outbox (entity_key, topic, type) values ('e', 'orders', 'changed')";
    explorer
        .session(Session::new("w").sql("begin").sql_as("insert", insert).sql("commit"))
        .session(Session::new("v").sql_as("insert", insert))
}

#[tokio::test]
async fn an_event_that_is_committed_late_is_never_missed() -> Result<()> {
    let db = TestDb::new().await?;
    let relay = SharedRelay::default();
    let step = |is_new: bool| {
        let (relay, pitwheel) = (relay.clone(), db.pitwheel().clone());
        async move |_: &mut Connection| deliver(&pitwheel, &relay, is_new).await
    };
    let free =
        "delete from pitwheel.outbox_relay; update pitwheel.outbox_shard set relay = null, lease = null";
    let right = two_writers(start(&db, "read × late commit").setup(free))
        .session(Session::new("r").step("start", step(true)).step("again", step(false)))
        .afterwards("later", step(false))
        .explore()
        .await?;
    right.never(|run| run.failed() || !run.end().starts_with("waiting 0"));
    right.sometimes(|run| run.output("r.again") == "102" && run.output("later") == "101");

    // Remembers the last id and never looks back.
    let cursor = "with read as (
            delete from pitwheel.outbox where id > (select last from cursor) returning id
        )
        update cursor set last = greatest(last, (select max(id) from read))";
    db.client().await?.batch_execute("create table cursor (last bigint)").await?;
    let empty = "delete from cursor; insert into cursor values (0)";
    two_writers(start(&db, "read × late commit, by a cursor").setup(empty))
        .session(Session::new("r").sql_as("start", cursor).sql_as("again", cursor))
        .afterwards("later", async move |connection: &mut Connection| connection.query(cursor).await)
        .explore()
        .await?
        .sometimes(|run| run.end().starts_with("waiting 1"));
    Ok(())
}

#[tokio::test]
async fn an_acknowledgement_after_a_takeover_deletes_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let takes_over = || {
        Session::new("b")
            .step("acquire", async |connection: &mut Connection| acquire(connection, B).await)
            .step("deliver", async |connection: &mut Connection| {
                read(connection).await?;
                let sql = "select lease::text from pitwheel.outbox_shard where shard = (hashtextextended('e', 0) & 63)";
                let lease: String = connection.client.query_one(sql, &[]).await?.get(0);
                acknowledge(connection, ACKNOWLEDGE_KEEP, &lease).await
            })
            .sql_as("replay", "select events from pitwheel.replay(1, null, null, 10, 'test')")
    };
    let lost = |run: &Run| run.output("b.replay") == "1" && !run.end().starts_with("waiting 1");
    let late = Session::new("a")
        .step("read", read)
        .sql("begin")
        .step("acknowledge", async |connection: &mut Connection| {
            acknowledge(connection, ACKNOWLEDGE, LEASE_OF_A).await
        })
        .sql("commit");
    let right = start(&db, "acknowledge × takeover")
        .setup(&event(1))
        .session(late)
        .session(takes_over())
        .explore()
        .await?;
    right.never(|run| run.failed() || lost(run));
    right.sometimes(|run| run.output("a.acknowledge") == "1");
    right.sometimes(|run| run.output("a.acknowledge") == "0" && run.output("b.replay") == "1");

    start(&db, "acknowledge × takeover, without the lease")
        .setup(&event(1))
        .session(Session::new("a").sql_as("acknowledge", "delete from pitwheel.outbox where id = 1"))
        .session(takes_over())
        .explore()
        .await?
        .sometimes(lost);
    Ok(())
}

#[tokio::test]
async fn a_relay_that_was_taken_over_parks_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| start(&db, title).setup(&event(1));
    let takes_over = || {
        Session::new("b").step("acquire", async |connection: &mut Connection| acquire(connection, B).await).sql_as(
            "look",
            "select (select count(*) from pitwheel.outbox_parked), (select count(*) from pitwheel.outbox)",
        )
    };
    // The new holder sends the event, and the old one has put it aside.
    let sent_and_parked = |run: &Run| {
        run.output("b.acquire") == "taken" && run.output("b.look") == "0,1" && run.end().contains("parked 1")
    };
    let right = start("park × takeover")
        .session(Session::transaction("a", "park", async |connection: &mut Connection| {
            park(connection, PARK, Some("too large"), 1).await
        }))
        .session(takes_over())
        .explore()
        .await?;
    right.never(|run| run.failed() || sent_and_parked(run));
    right.sometimes(|run| run.output("a.park") == "true" && run.output("b.acquire") == "taken");
    right.sometimes(|run| run.output("a.park") == "false");

    let unlocked = PARK.replace("for no key update", "");
    start("park × takeover, without a lock")
        .session(Session::transaction("a", "park", async move |connection: &mut Connection| {
            park(connection, &unlocked, Some("too large"), 1).await
        }))
        .session(takes_over())
        .explore()
        .await?
        .sometimes(sent_and_parked);
    Ok(())
}

#[tokio::test]
async fn an_event_that_joins_a_parked_entity_is_not_left_behind_by_its_retry() -> Result<()> {
    let db = TestDb::new().await?;
    let parked = "insert into pitwheel.outbox_parked (entity_key, shard, event_id, topic, reason)
        values ('e', (hashtextextended('e', 0) & 63)::smallint, 1, 'orders', 'too large');
        insert into pitwheel.outbox_parked_event (entity_key, id, created_at, topic, type) values ('e', 1, now(), 'orders', 'changed')";
    let start = |title| start(&db, title).setup(parked).setup(&event(2));
    let joins = || {
        Session::transaction("a", "join", async |connection: &mut Connection| {
            park(connection, PARK, None, 2).await
        })
    };
    let left_behind = |run: &Run| run.end().contains("parked 0") && !run.end().contains("moved 0");
    let right = start("join × retry")
        .session(joins())
        .session(
            Session::new("o")
                .sql("begin")
                .sql_as(
                    "retry",
                    "select events from pitwheel.unpark('pitwheel.outbox', array['e'], 'retry', 'test')",
                )
                .sql("commit"),
        )
        .explore()
        .await?;
    right.never(|run| run.failed() || left_behind(run) || !run.end().starts_with("waiting 2"));
    right.sometimes(|run| run.output("a.join") == "false");
    right.sometimes(|run| run.output("o.retry") == "2");

    // The parts of unpark, as the library sends them; a page is one event.
    let args = "'pitwheel.outbox', array['e'], 'retry'";
    let events = format!("select entity_key, events from pitwheel.unpark_events({args}, 1)");
    let end = format!("select from pitwheel.end_parking({args}, 'test')");
    let parts = |session: Session| {
        let lock = "select pitwheel.lock_parked('pitwheel.outbox', array['e'])";
        session.sql_as("lock", lock).sql_as("events", &events).sql_as("more", &events).sql_as("end", &end)
    };
    let in_one = parts(Session::new("o").sql("begin")).sql("commit");
    let right = start("join × retry in pages").session(joins()).session(in_one).explore().await?;
    right.never(|run| run.failed() || left_behind(run) || !run.end().starts_with("waiting 2"));
    right.sometimes(|run| run.output("a.join") == "false");
    right.sometimes(|run| run.output("o.more") == "e,1");
    let one_by_one = parts(Session::new("o"));
    let wrong = start("join × retry in pages, each committed").session(joins()).session(one_by_one);
    wrong.explore().await?.sometimes(left_behind);

    // One statement: its snapshot is older than the lock that it waits for.
    let at_once = "with ended as (delete from pitwheel.outbox_parked returning shard),
        gone as (delete from pitwheel.outbox_parked_event returning entity_key, id),
        back as (
            insert into pitwheel.outbox (id, entity_key, topic, type) overriding system value
            select id, entity_key, 'orders', 'changed' from gone
        )
        update pitwheel.outbox_shard set restart = restart + 1 where shard in (select shard from ended)";
    start("join × retry, in one statement")
        .session(joins())
        .session(Session::new("o").sql_as("retry", at_once))
        .explore()
        .await?
        .sometimes(left_behind);
    Ok(())
}

#[tokio::test]
async fn a_prune_of_delivered_events_loses_none_that_waits() -> Result<()> {
    let db = TestDb::new().await?;
    let old = "create table if not exists pitwheel.outbox_sent_20200101 partition of pitwheel.outbox_sent
        for values from ('2020-01-01Z') to ('2020-01-02Z')";
    let right = start(&db, "acknowledge × prune × insert")
        .setup(old)
        .setup(&event(1))
        .session(
            Session::new("a")
                .step("read", read)
                .sql("begin")
                .step("acknowledge", async |connection: &mut Connection| {
                    acknowledge(connection, ACKNOWLEDGE_KEEP, LEASE_OF_A).await
                })
                .sql("commit"),
        )
        .session(Session::new("p").sql_as("prune", "select pitwheel.prune_outbox('1 day')"))
        .session(Session::new("w").sql_as("insert", event(2)))
        .explore()
        .await?;
    right.never(|run| run.failed() || run.end() != "waiting 1, sent 1, parked 0, moved 0");
    right.sometimes(|run| run.output("p.prune") == "1");

    // Looks whether all was delivered, then truncates.
    start(&db, "truncate × insert")
        .session(
            Session::new("t")
                .sql_as("look", "select 1 / case when count(*) = 0 then 1 else 0 end from pitwheel.outbox")
                .sql_as("truncate", "truncate pitwheel.outbox"),
        )
        .session(Session::new("w").sql("begin").sql_as("insert", event(2)).sql("commit"))
        .explore()
        .await?
        .sometimes(|run| run.end().starts_with("waiting 0"));
    Ok(())
}
