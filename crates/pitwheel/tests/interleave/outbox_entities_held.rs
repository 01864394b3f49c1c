//! What the holder of an entity writes: nothing after its claim was lost, and nothing that a later holder does not see.

use anyhow::{Context, Result};
use pitwheel::engine::outbox::EntityLock;
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};
use tokio_postgres::types::Type;

use crate::outbox_entities::{B, EXPIRED, LOCKS, Lease, SOURCE, SWEEP, claim, claims, start, statement};

const PARK: &str = include_str!("../../sql/outbox/park_entity.sql");
const READ: &str = include_str!("../../sql/outbox/read_entities.sql");
const SENT: &str = include_str!("../../sql/outbox/sent_entities.sql");
const SENT_BY_MARK: &str = include_str!("../../sql/outbox/sent_by_mark.sql");

const LEASE_OF_A: &str = "00000000-0000-0000-0000-0000000000aa";
/// The relay A holds `e`.
const HELD: &str = "insert into pitwheel.outbox_claim (source, entity_key, relay, lease)
    values ('pitwheel.outbox', 'e', '00000000-0000-0000-0000-00000000000a', '00000000-0000-0000-0000-0000000000aa')";

/// A table of a team's own, with one event of `e`. Its claims are stored under the name of Pitwheel's table, as all of this file.
const OWN_TABLE: &str = "
    create table if not exists own (id bigint primary key, entity_key text not null, status text not null default 'NEW');
    create index if not exists own_entity on own (entity_key, id) where status = 'NEW';
    truncate own; insert into own values (1, 'e')";
const OWN_END: &str = "select 'waiting ' || (select count(*) from own where status = 'NEW')
    || ', sent ' || (select count(*) from own where status = 'SENT')";

fn start_own<'a>(db: &'a TestDb, title: &'static str) -> Explorer<'a> {
    start(db, title).setup(HELD).setup(OWN_TABLE).end(OWN_END)
}

/// Marks the event 1 of the team's own table; returns how many entities were still held.
async fn acknowledge(connection: &Connection, lease: &str) -> Result<String> {
    let finish = SENT_BY_MARK.replace("{mark}", "status").replace("{sent}", "'SENT'");
    let sql = SENT.replace("{finish}", &finish).replace("{table}", "own");
    let sql = sql.replace("{key}", "entity_key").replace("{id}", "id");
    let (keys, leases, ids) = (vec!["e"], vec![lease], vec![1_i64]);
    let params = [
        (&SOURCE as _, Type::TEXT),
        (&keys as _, Type::TEXT_ARRAY),
        (&leases as _, Type::TEXT_ARRAY),
        (&keys as _, Type::TEXT_ARRAY),
        (&ids as _, Type::INT8_ARRAY),
        (&keys as _, Type::TEXT_ARRAY),
    ];
    let rows = connection.client.query_typed(&sql, &params).await?;
    Ok(rows.first().context("no row")?.get::<_, Vec<String>>(0).len().to_string())
}

fn acknowledges() -> Session {
    Session::transaction("a", "acknowledge", async |connection: &mut Connection| {
        acknowledge(connection, LEASE_OF_A).await
    })
}

#[tokio::test]
async fn an_acknowledgement_after_the_lease_has_expired_changes_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    // Another relay takes the entity over and delivers the event, and a person puts it back.
    let takes_over = || {
        Session::new("b")
            .sql_as("sweep", SWEEP)
            .step("deliver", async |connection: &mut Connection| match claim(connection, &["e"], B).await? {
                Some(lease) => acknowledge(connection, &lease).await,
                None => Ok("not claimed".to_owned()),
            })
            .sql_as("back", "update own set status = 'NEW' where status = 'SENT' returning id")
    };
    let lost = |run: &Run| run.output("b.back") == "1" && !run.end().starts_with("waiting 1");
    let start = |title| start_own(&db, title).setup(EXPIRED);
    let right =
        start("acknowledge × lease expiry").session(acknowledges()).session(takes_over()).explore().await?;
    right.never(|run| run.failed() || lost(run) || run.output("b.deliver") != "1");
    right.sometimes(|run| run.output("a.acknowledge") == "1");
    right.sometimes(|run| run.output("a.acknowledge") == "0" && run.output("b.back") == "1");

    start("acknowledge × lease expiry, without the lease")
        .session(Session::new("a").sql_as("acknowledge", "update own set status = 'SENT' where id = 1"))
        .session(takes_over())
        .explore()
        .await?
        .sometimes(lost);
    Ok(())
}

#[tokio::test]
async fn a_team_that_truncates_its_table_under_a_lock_loses_no_event() -> Result<()> {
    let db = TestDb::new().await?;
    let insert = || Session::new("w").sql_as("insert", "insert into own values (2, 'e')");
    let truncate =
        "do $$ begin if not exists (select from own where status = 'NEW') then truncate own; end if; end $$";
    let right = start_own(&db, "truncate × acknowledge × insert")
        .session(acknowledges())
        .session(
            Session::new("t")
                .sql("begin")
                .sql_as("lock", "lock table own in access exclusive mode")
                .sql_as("truncate", truncate)
                .sql("commit"),
        )
        .session(insert())
        .explore()
        .await?;
    right.never(|run| run.failed() || !run.end().starts_with("waiting 1"));
    right.sometimes(|run| run.end() == "waiting 1, sent 0");
    right.sometimes(|run| run.end() == "waiting 1, sent 1");

    start_own(&db, "truncate × acknowledge × insert, without a lock")
        .session(acknowledges())
        .session(
            Session::new("t")
                .sql_as(
                    "look",
                    "select 1 / case when count(*) = 0 then 1 else 0 end from own where status = 'NEW'",
                )
                .sql_as("truncate", "truncate own"),
        )
        .session(insert())
        .explore()
        .await?
        .sometimes(|run| run.end().starts_with("waiting 0"));
    Ok(())
}

fn parks(sql: String) -> Session {
    Session::transaction("a", "park", async move |connection: &mut Connection| {
        let params = [
            (&SOURCE as _, Type::TEXT),
            (&"e" as _, Type::TEXT),
            (&LEASE_OF_A as _, Type::TEXT),
            (&1_i64 as _, Type::INT8),
            (&"orders" as _, Type::TEXT),
            (&"refused" as _, Type::TEXT),
        ];
        let rows = connection.client.query_typed(&sql, &params).await?;
        Ok(rows.first().context("no row")?.get::<_, bool>(0).to_string())
    })
}

/// The events of `e` that a holder reads with this lease.
async fn read(connection: &Connection, sql: &str, lease: Option<&str>) -> Result<String> {
    let (keys, leases) = (vec!["e"], Vec::from_iter(lease));
    let params = [
        (&SOURCE as _, Type::TEXT),
        (&keys as _, Type::TEXT_ARRAY),
        (&leases as _, Type::TEXT_ARRAY),
        (&10_i64 as _, Type::INT8),
        (&1_000_000_i64 as _, Type::INT8),
    ];
    Ok(connection.client.query_typed(&statement(sql), &params).await?.len().to_string())
}

/// Claims `e` for the relay B and reads it.
fn claims_and_reads(lock: EntityLock, sql: String) -> Session {
    let lease = Lease::default();
    claims("b", B, lock, &lease).step("read", async move |connection: &mut Connection| {
        read(connection, &sql, lease.lock().await.as_deref()).await
    })
}

#[tokio::test]
async fn an_entity_that_is_parked_while_another_relay_waits_for_it_is_not_read() -> Result<()> {
    let db = TestDb::new().await?;
    let read_parked = |run: &Run| run.output("b.read") != "0" && run.end().contains("parked 1");
    for lock in LOCKS {
        let explored = start(&db, "park × claim of entities")
            .setup(HELD)
            .session(parks(PARK.to_owned()))
            .session(claims_and_reads(lock, READ.to_owned()))
            .explore()
            .await?;
        explored.never(|run| run.failed() || read_parked(run) || !run.end().contains("parked 1"));
        // The claim alone does not see the parking that it waited for.
        explored.sometimes(|run| run.output("b.claim") == "1");
    }

    let looks = |line: &&str| line.contains("outbox_parked");
    assert_eq!(READ.lines().filter(looks).count(), 1);
    let careless = READ.lines().filter(|line| !looks(line)).collect::<Vec<_>>().join("\n");
    start(&db, "park × claim of entities, read without a look")
        .setup(HELD)
        .session(parks(PARK.to_owned()))
        .session(claims_and_reads(EntityLock::Advisory, careless))
        .explore()
        .await?
        .sometimes(read_parked);
    Ok(())
}

#[tokio::test]
async fn a_relay_whose_entity_was_taken_over_parks_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let takes_over = || {
        Session::new("b").sql("begin").sql_as("sweep", SWEEP).sql("commit").step(
            "take",
            async |connection: &mut Connection| {
                let lease = claim(connection, &["e"], B).await?;
                read(connection, READ, lease.as_deref()).await
            },
        )
    };
    // The new holder sends the events, and the old one has parked them.
    let sent_and_parked = |run: &Run| run.output("b.take") == "2" && run.end().contains("parked 1");
    let start = |title| start(&db, title).setup(HELD).setup(EXPIRED);
    let right = start("park × takeover of entities")
        .session(parks(PARK.to_owned()))
        .session(takes_over())
        .explore()
        .await?;
    right.never(|run| run.failed() || sent_and_parked(run));
    right.sometimes(|run| run.output("a.park") == "true" && run.output("b.take") == "0");
    right.sometimes(|run| run.output("a.park") == "false" && run.output("b.take") == "2");

    start("park × takeover of entities, without a lock")
        .session(parks(PARK.replace("for update", "")))
        .session(takes_over())
        .explore()
        .await?
        .sometimes(sent_and_parked);
    Ok(())
}
