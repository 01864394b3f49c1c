//! Floors that are impossible, locks that are looked for, leases that are too long: the statements of a relay that repair or avoid something,
//! beside those that they can meet.

use anyhow::{Context, Result};
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};
use tokio_postgres::types::Type;

const RESET: &str = include_str!("../../sql/outbox/reset_floors.sql");
const SAVE: &str = include_str!("../../sql/outbox/save_floors.sql");
const RELEASE: &str = include_str!("../../sql/outbox/release_shards.sql");
const LOCKED_EVENTS: &str = include_str!("../../sql/outbox/locked_events.sql");
const LOCKED_ENTITIES: &str = include_str!("../../sql/outbox/locked_entities.sql");
const SWEEP: &str = include_str!("../../sql/outbox/sweep_relays.sql");
const RENEW: &str = include_str!("../../sql/outbox/renew_relay.sql");
const END_RELAY: &str = include_str!("../../sql/outbox/end_relay.sql");

const A: &str = "00000000-0000-0000-0000-00000000000a";
const LEASE_OF_A: &str = "00000000-0000-0000-0000-0000000000aa";

/// The last id is 100, and the floors of the shards 0 and 1 are above it. The relay A holds both.
const FLOORS: &str = "
    delete from pitwheel.outbox; delete from pitwheel.outbox_sent; delete from pitwheel.outbox_parked; delete from pitwheel.outbox_parked_event;
    select setval('pitwheel.outbox_id_seq', 100);
    update pitwheel.outbox_shard set relay = null, lease = null, floor = 0, restart = 0;
    update pitwheel.outbox_shard set relay = '00000000-0000-0000-0000-00000000000a', lease = '00000000-0000-0000-0000-0000000000aa', floor = 500
    where shard in (0, 1)";

const FLOORS_END: &str = "select string_agg(floor || ' restart ' || restart, ', ' order by shard)
    from pitwheel.outbox_shard where shard in (0, 1)";

fn floors<'a>(db: &'a TestDb, title: &'static str) -> Explorer<'a> {
    Explorer::from_scratch(db, title).setup(FLOORS).end(FLOORS_END)
}

fn resets(sql: &str) -> Session {
    Session::new("r").sql("begin").sql_as("reset", sql).sql("commit")
}

/// The reset found both floors; it returns them in no particular order.
fn both_reset(run: &Run) -> bool {
    ["0;1", "1;0"].contains(&run.output("r.reset"))
}

/// The holder writes its floor, 900, of the shard 0; returns how many were written.
fn writes_floor(sql: &'static str) -> Session {
    Session::transaction("a", "write", async move |connection: &mut Connection| {
        let (shards, leases, restarts, floors) = (vec![0_i16], vec![LEASE_OF_A], vec![0_i64], vec![900_i64]);
        let params = [
            (&shards as _, Type::INT2_ARRAY),
            (&leases as _, Type::TEXT_ARRAY),
            (&restarts as _, Type::INT8_ARRAY),
            (&floors as _, Type::INT8_ARRAY),
        ];
        Ok(connection.client.query_typed(sql, &params).await?.len().to_string())
    })
}

#[tokio::test]
async fn a_floor_that_was_reset_is_not_written_again_by_its_holder() -> Result<()> {
    let db = TestDb::new().await?;
    let impossible = |run: &Run| run.end() != "0 restart 1, 0 restart 1";
    for (title, sql) in [("reset × save", SAVE), ("reset × release", RELEASE)] {
        let right = floors(&db, title).session(resets(RESET)).session(writes_floor(sql)).explore().await?;
        right.never(|run| run.failed() || impossible(run));
        right.sometimes(|run| both_reset(run) && run.before("a.commit", "r.reset"));
        right.sometimes(|run| run.before("r.commit", "a.write"));
    }

    let silent = RESET.replace(", restart = shard.restart + 1", "");
    assert_ne!(silent, RESET);
    floors(&db, "reset × save, without a restart")
        .session(resets(&silent))
        .session(writes_floor(SAVE))
        .explore()
        .await?
        .sometimes(|run| run.end().starts_with("900"));
    Ok(())
}

#[tokio::test]
async fn a_reset_of_floors_does_not_deadlock_with_an_operator() -> Result<()> {
    let db = TestDb::new().await?;
    // Two delivered events, of the shards 0 and 1.
    let sent = "drop table if exists entity; create table entity as
        select distinct on (shard) shard, key from (
            select (hashtextextended('e-' || n, 0) & 63)::smallint as shard, 'e-' || n as key from generate_series(1, 2000) as n
        ) as one where shard in (0, 1) order by shard, key;
        insert into pitwheel.outbox_sent (id, created_at, entity_key, topic, type)
        select 10 + shard, now(), key, 'orders', 'changed' from entity";
    let replays = || {
        let replay =
            |id: u32| format!("select events from pitwheel.replay_page({id}, null, null, 1, 10, 'test')");
        Session::new("o").sql("begin").sql_as("first", replay(10)).sql_as("second", replay(11)).sql("commit")
    };
    let right =
        floors(&db, "reset × replay").setup(sent).session(resets(RESET)).session(replays()).explore().await?;
    right.never(|run| run.failed() || run.output("o.first") != "1" || run.output("o.second") != "1");
    // No floor hides an event that was put back.
    right.never(|run| !["0 restart 2, 0 restart 2", "9 restart 1, 10 restart 1"].contains(&run.end()));
    right.sometimes(both_reset);
    right.sometimes(|run| run.output("r.reset").is_empty());

    let downwards = RESET.replace("order by shard.shard", "order by shard.shard desc");
    assert_ne!(downwards, RESET);
    floors(&db, "reset × replay, in the other order")
        .setup(sent)
        .session(resets(&downwards))
        .session(replays())
        .explore()
        .await?
        .sometimes(Run::failed);
    Ok(())
}

/// An event of the outbox, and a row of a team's own table.
const ROWS: &str = "
    delete from pitwheel.outbox;
    insert into pitwheel.outbox (id, entity_key, topic, type) overriding system value values (1, 'e', 'orders', 'changed');
    create table if not exists own (id bigint primary key, entity_key text not null, status text not null default 'NEW');
    create index if not exists own_entity on own (entity_key, id);
    truncate own; insert into own values (1, 'e')";

/// Looks for locks on the row 1; returns the ids that are locked.
fn looks(sql: String) -> Session {
    Session::new("a").step("look", async move |connection: &mut Connection| {
        let ids = vec![1_i64];
        let rows = if sql.contains("smallint[]") {
            let shard = "select (hashtextextended('e', 0) & 63)::smallint";
            let shards: Vec<i16> = vec![connection.client.query_one(shard, &[]).await?.get(0)];
            let params = [(&shards as _, Type::INT2_ARRAY), (&ids as _, Type::INT8_ARRAY)];
            connection.client.query_typed(&sql, &params).await?
        } else {
            let keys = vec!["e"];
            let params = [(&keys as _, Type::TEXT_ARRAY), (&ids as _, Type::INT8_ARRAY)];
            connection.client.query_typed(&sql, &params).await?
        };
        let ids: Vec<String> = rows.iter().map(|row| row.get::<_, i64>(0).to_string()).collect();
        Ok(ids.join(","))
    })
}

fn own(sql: &str) -> String {
    sql.replace("{table}", "own").replace("{key}", "entity_key").replace("{id}", "id")
}

#[tokio::test]
async fn a_look_for_locks_waits_for_none_and_keeps_none() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::from_scratch(&db, title).setup(ROWS);
    let meets = |write: &str| Session::new("w").sql("begin").sql_as("write", write).sql("commit");
    // What another transaction has locked is named, and nothing else.
    let during = |run: &Run| run.before("w.write", "a.look") && run.before("a.look", "w.commit");
    let wrong = |run: &Run| run.output("a.look") != if during(run) { "1" } else { "" };
    let of_outbox = ["select id from pitwheel.outbox for update", "delete from pitwheel.outbox"];
    let of_own = ["select id from own for update", "delete from own", "update own set status = 'SENT'"];
    let cases = of_outbox
        .map(|write| ("look for locks × write", LOCKED_EVENTS.to_owned(), write))
        .into_iter()
        .chain(of_own.map(|write| ("look for locks × write, own table", own(LOCKED_ENTITIES), write)));
    for (title, sql, write) in cases {
        let right = start(title).session(looks(sql.clone())).session(meets(write)).explore().await?;
        right.never(|run| run.failed() || wrong(run));
        right.sometimes(during);

        // After a delete, one that has waited finds no row and answers the same.
        if write.starts_with("delete") {
            continue;
        }
        let waits = sql.replace("skip locked", "");
        assert_ne!(waits, sql);
        start("look for locks × write, waits")
            .session(looks(waits))
            .session(meets(write))
            .explore()
            .await?
            .sometimes(wrong);
    }
    Ok(())
}

/// The lease of A has expired, and that of B ends much later than it may: the clock jumped back.
const LEASES: &str = "
    delete from pitwheel.outbox_relay; delete from pitwheel.outbox_claim;
    insert into pitwheel.outbox_relay (relay, name, source, strategy, lease, lease_until) values
        ('00000000-0000-0000-0000-00000000000a', 'a', 'pitwheel.outbox', 'shards', '1 hour', clock_timestamp() - interval '1 second'),
        ('00000000-0000-0000-0000-00000000000b', 'b', 'pitwheel.outbox', 'shards', '1 hour', clock_timestamp() + interval '10 hours')";

const LEASES_END: &str = "select coalesce(string_agg(name || case
        when lease_until > clock_timestamp() + lease then ' too long'
        when lease_until < clock_timestamp() then ' expired' else '' end, ', ' order by name), 'none')
    from pitwheel.outbox_relay";

fn leases<'a>(db: &'a TestDb, title: &'static str) -> Explorer<'a> {
    Explorer::from_scratch(db, title).setup(LEASES).end(LEASES_END)
}

fn sweeps(sql: &str) -> Session {
    Session::new("s").sql("begin").sql_as("sweep", sql).sql("commit")
}

/// A statement of the relay with this id.
fn relay(name: &'static str, sql: &'static str, id: &'static str) -> Session {
    Session::transaction(name, "write", async move |connection: &mut Connection| {
        Ok(connection.client.query_typed(sql, &[(&id, Type::TEXT)]).await?.len().to_string())
    })
}

#[tokio::test]
async fn a_sweep_cuts_a_lease_that_is_too_long_and_revives_no_relay() -> Result<()> {
    let db = TestDb::new().await?;
    let b = "00000000-0000-0000-0000-00000000000b";
    let cut = leases(&db, "sweep × renewal of a lease that is too long")
        .session(sweeps(SWEEP))
        .session(relay("b", RENEW, b))
        .explore()
        .await?;
    cut.never(|run| run.failed() || run.end() != "b" || run.output("b.write") != "1");

    let ended = leases(&db, "sweep × end of a relay whose lease is too long")
        .session(sweeps(SWEEP))
        .session(relay("b", END_RELAY, b))
        .explore()
        .await?;
    ended.never(|run| run.failed() || run.end() != "none");

    let renewed = leases(&db, "sweep × late renewal")
        .session(sweeps(SWEEP))
        .session(relay("a", RENEW, A))
        .explore()
        .await?;
    // The relay lives if and only if it was told so.
    renewed.never(|run| run.failed() || run.end() != if run.output("a.write") == "1" { "a, b" } else { "b" });
    renewed.sometimes(|run| run.end() == "b");
    renewed.sometimes(|run| run.end() == "a, b");

    let two = leases(&db, "sweep × sweep")
        .session(sweeps(SWEEP))
        .session(Session::new("t").sql("begin").sql_as("sweep", SWEEP).sql("commit"))
        .explore()
        .await?;
    two.never(|run| run.failed() || run.end() != "b");

    // Declares dead only.
    let (before, after) = (SWEEP.find("cut as ("), SWEEP.find("dead as ("));
    let (before, after) = (before.context("no cut")?, after.context("no dead")?);
    let without_cut = format!("{}{}", &SWEEP[..before], &SWEEP[after..]);
    leases(&db, "sweep × late renewal, without the cut")
        .session(sweeps(&without_cut))
        .session(relay("a", RENEW, A))
        .explore()
        .await?
        .sometimes(|run| run.end().ends_with("b too long"));
    // Decides by one statement and deletes by the next.
    let expired =
        "select count(*) from pitwheel.outbox_relay where name = 'a' and lease_until < clock_timestamp()";
    let two_steps = Session::new("s")
        .sql_as("look", expired)
        .sql_as("delete", "delete from pitwheel.outbox_relay where name = 'a'");
    leases(&db, "sweep × late renewal, in two statements")
        .session(two_steps)
        .session(relay("a", RENEW, A))
        .explore()
        .await?
        .sometimes(|run| {
            run.output("s.look") == "1" && run.output("a.write") == "1" && run.end().starts_with('b')
        });
    Ok(())
}
