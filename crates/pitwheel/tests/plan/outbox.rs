//! The outbox is read by its primary key: what a statement costs depends on what it returns, not on what waits.

use anyhow::Result;
use pitwheel_testkit::TestDb;
use tokio_postgres::Client;

use crate::explain::{MODES, Statement, nodes, pages, plan};

const BEGIN: &str = "
    alter table pitwheel.outbox set (autovacuum_enabled = off);
    update pitwheel.outbox_shard set relay = '00000000-0000-0000-0000-00000000000a', lease = '00000000-0000-0000-0000-0000000000aa';
    insert into pitwheel.outbox_relay (relay, name, source, strategy, lease, lease_until)
    values ('00000000-0000-0000-0000-00000000000a', 'a', 'pitwheel.outbox', 'shards', '1 hour', now() + interval '1 hour');
    create function shards() returns smallint[] immutable as 'select array_agg(n::smallint order by n) from generate_series(0, 63) as n' language sql;
    create function leases() returns text[] immutable as
        'select array_fill(''00000000-0000-0000-0000-0000000000aa''::text, array[64])' language sql;
    create function of(n bigint) returns bigint[] immutable as 'select array_fill(n, array[64])' language sql;
    create function first_events(out tids tid[], out shards smallint[], out ids bigint[]) stable as
        'select array_agg(ctid), array_agg(shard), array_agg(id)
        from (select ctid, shard, id from pitwheel.outbox order by shard, id limit 500) as event' language sql";

fn fill(events: u32) -> String {
    format!(
        "insert into pitwheel.outbox (entity_key, topic, type, payload)
        select 'order-' || n % 20000, 'orders', 'order.changed', convert_to(repeat('x', 200), 'UTF8')
        from generate_series(1, {events}) as n"
    )
}

const READ: Statement = Statement {
    name: "read_shards",
    sql: include_str!("../../sql/outbox/read_shards.sql"),
    types: "smallint[], text[], bigint[], bigint[], bigint[], bigint, text[]",
    values: "shards(), leases(), of(0), of(0), of(16), 1000000, array['order-1', 'order-2']",
};

/// Each with the number of pages that it may touch.
const STATEMENTS: [(Statement, i64); 8] = [
    // 1,024 events in as many pages, and 64 ways down the index.
    (READ, 2500),
    (
        Statement {
            name: "look_back",
            sql: include_str!("../../sql/outbox/look_back.sql"),
            types: "smallint[], bigint[], bigint[]",
            values: "shards(), of(0), of(1000000)",
        },
        600,
    ),
    (
        Statement {
            name: "acknowledge",
            sql: include_str!("../../sql/outbox/acknowledge.sql"),
            types: "smallint[], text[], tid[], smallint[], bigint[]",
            values: "shards(), leases(), (first_events()).tids, (first_events()).shards,
                (first_events()).ids",
        },
        2500,
    ),
    (
        Statement {
            name: "acknowledge_keep",
            sql: include_str!("../../sql/outbox/acknowledge_keep.sql"),
            types: "smallint[], text[], tid[], smallint[], bigint[]",
            values: "shards(), leases(), (first_events()).tids, (first_events()).shards,
                (first_events()).ids",
        },
        5000,
    ),
    (
        Statement {
            name: "find_events",
            sql: include_str!("../../sql/outbox/find_events.sql"),
            types: "smallint[], bigint[]",
            values: "(first_events()).shards, (first_events()).ids",
        },
        3000,
    ),
    (
        Statement {
            name: "locked_events",
            sql: include_str!("../../sql/outbox/locked_events.sql"),
            types: "smallint[], bigint[]",
            values: "(first_events()).shards, (first_events()).ids",
        },
        // Once down the index for each of 500 events, and a lock.
        4000,
    ),
    (
        Statement {
            name: "park",
            sql: include_str!("../../sql/outbox/park.sql"),
            types: "smallint, text, bigint, text, bigint, text, bigint[], text",
            values: "0, '00000000-0000-0000-0000-0000000000aa', 0, 'e', 1, 'why', (first_events()).ids[1:5], 't'",
        },
        200,
    ),
    (
        Statement {
            name: "trace_event",
            sql: include_str!("../../sql/operate/trace_event.sql"),
            types: "bigint",
            values: "5000",
        },
        600,
    ),
];

/// The pages that a statement touches, in the node that touches most.
async fn touched(client: &Client, statement: &Statement, mode: &str) -> Result<i64> {
    let plan = plan(client, statement, mode, "analyze, buffers").await?;
    Ok(nodes(&plan).iter().map(|node| pages(node)).max().unwrap_or_default())
}

async fn check_all(client: &Client, when: &str) -> Result<()> {
    for mode in MODES {
        for (statement, most) in &STATEMENTS {
            let pages = touched(client, statement, mode).await?;
            assert!(pages <= *most, "{}, {when}, {mode}: {pages} pages", statement.name);
        }
    }
    Ok(())
}

#[tokio::test]
async fn with_10_and_with_300_000_events_on_a_table_analyzed_while_it_was_empty() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute(BEGIN).await?;
    client.batch_execute("vacuum analyze pitwheel.outbox").await?;
    client.batch_execute(&fill(10)).await?;
    check_all(&client, "10 events").await?;
    client.batch_execute(&fill(9_990)).await?;
    let few = touched(&client, &READ, MODES[1]).await?;
    client.batch_execute(&fill(290_000)).await?;
    check_all(&client, "analyzed while empty").await?;
    let many = touched(&client, &READ, MODES[1]).await?;
    assert!(many <= 2 * few, "{many} pages with 300,000 events, {few} with 10,000");
    client.batch_execute("analyze pitwheel.outbox").await?;
    check_all(&client, "analyzed").await
}

#[tokio::test]
async fn past_100_000_dead_events_behind_a_pinned_snapshot() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute(BEGIN).await?;
    let pin = db.client().await?;
    pin.batch_execute("begin isolation level repeatable read; select from pitwheel.outbox").await?;
    client.batch_execute(&fill(100_000)).await?;
    client.batch_execute("delete from pitwheel.outbox").await?;
    client.batch_execute(&fill(1_000)).await?;
    // A relay has read up to there.
    let bound = Statement { values: "shards(), leases(), of(0), of(100000), of(16), 1000000, '{}'", ..READ };
    let pages = touched(&client, &bound, MODES[1]).await?;
    assert!(pages <= 2500, "{pages} pages");
    pin.batch_execute("rollback").await?;
    Ok(())
}
