//! Entities are claimed and read by the index on the key and the id: a statement costs what it returns, not what waits.

use anyhow::Result;
use pitwheel_testkit::TestDb;
use tokio_postgres::Client;

use crate::explain::{MODES, Statement, nodes, pages, plan};

const BEGIN: &str = "
    alter table pitwheel.outbox set (autovacuum_enabled = off);
    alter table pitwheel.outbox_claim set (autovacuum_enabled = off);
    create index on pitwheel.outbox (entity_key, id);
    insert into pitwheel.outbox_relay (relay, name, source, strategy, lease, lease_until)
    values ('00000000-0000-0000-0000-00000000000a', 'a', 'pitwheel.outbox', 'advisory', '1 hour', now() + interval '1 hour');
    create function keys() returns text[] immutable as 'select array_agg(''order-'' || n order by n) from generate_series(1, 200) as n' language sql;
    create function leases() returns text[] immutable as
        'select array_fill(''00000000-0000-0000-0000-0000000000aa''::text, array[200])' language sql;
    create function first_ids() returns bigint[] stable as
        'select array_agg((select min(id) from pitwheel.outbox where entity_key = key)) from unnest(keys()) as key' language sql;
    vacuum analyze pitwheel.outbox; vacuum analyze pitwheel.outbox_claim";

const CLAIM: &str = "insert into pitwheel.outbox_claim (source, entity_key, relay, lease)
    select 'pitwheel.outbox', key, '00000000-0000-0000-0000-00000000000a', '00000000-0000-0000-0000-0000000000aa' from unnest(keys()) as key";

/// Claims that came and went behind a pinned snapshot.
const CHURN: &str = "insert into pitwheel.outbox_claim (source, entity_key, relay, lease)
    select 'pitwheel.outbox', 'gone-' || n, gen_random_uuid(), gen_random_uuid() from generate_series(1, 100000) as n;
    delete from pitwheel.outbox_claim where entity_key like 'gone-%'";

/// An entity with more events than a batch takes.
const HOT: &str = "insert into pitwheel.outbox (entity_key, topic, type) select 'order-1', 'orders', 'changed' from generate_series(1, 50000)";

fn fill(events: u32) -> String {
    format!(
        "insert into pitwheel.outbox (entity_key, topic, type, payload)
        select 'order-' || n % 20000, 'orders', 'order.changed', convert_to(repeat('x', 200), 'UTF8')
        from generate_series(1, {events}) as n"
    )
}

/// A statement for the outbox of Pitwheel.
fn statement(template: &str) -> &'static str {
    let finish = "delete from pitwheel.outbox as source";
    let columns = ["topic", "type", "payload", "headers", "created_at"];
    let sql = template.replace("{finish}", finish).replace("{table}", "pitwheel.outbox");
    let sql = sql.replace("{key}", "entity_key").replace("{id}", "id").replace("{waiting}", "true");
    let with_column =
        |sql: String, name: &str| sql.replace(&format!("{{{name}}}"), &format!("source.{name}"));
    columns.into_iter().fold(sql, with_column).leak()
}

/// Each with the number of pages that it may touch for 200 entities.
fn statements() -> [(Statement, i64); 6] {
    [
        (
            Statement {
                name: "candidates",
                sql: statement(include_str!("../../sql/outbox/candidates.sql")),
                types: "text, bigint, text",
                values: "'', 200, 'pitwheel.outbox'",
            },
            3000,
        ),
        (
            Statement {
                name: "lock_heads",
                sql: statement(include_str!("../../sql/outbox/lock_heads.sql")),
                types: "text[]",
                values: "keys()",
            },
            3000,
        ),
        (
            Statement {
                name: "read_entities",
                sql: statement(include_str!("../../sql/outbox/read_entities.sql")),
                types: "text, text[], text[], bigint, bigint",
                values: "'pitwheel.outbox', keys(), leases(), 10, 1000000",
            },
            5000,
        ),
        (
            Statement {
                name: "sent_entities",
                sql: statement(include_str!("../../sql/outbox/sent_entities.sql")),
                types: "text, text[], text[], text[], bigint[], text[]",
                values: "'pitwheel.outbox', keys(), leases(), keys(), first_ids(), keys()",
            },
            5000,
        ),
        (
            Statement {
                name: "locked_entities",
                sql: statement(include_str!("../../sql/outbox/locked_entities.sql")),
                types: "text[], bigint[]",
                values: "keys(), first_ids()",
            },
            3000,
        ),
        (
            Statement {
                name: "free_unknown",
                sql: include_str!("../../sql/outbox/free_unknown.sql"),
                types: "text, text[]",
                values: "'00000000-0000-0000-0000-00000000000a', leases()",
            },
            500,
        ),
    ]
}

async fn check_all(client: &Client, when: &str) -> Result<()> {
    for mode in MODES {
        for (statement, most) in statements() {
            let plan = plan(client, &statement, mode, "analyze, buffers").await?;
            let touched = nodes(&plan).iter().map(|node| pages(node)).max().unwrap_or_default();
            println!("{}, {when}, {mode}: {touched} pages", statement.name);
            assert!(touched <= most, "{}, {when}, {mode}: {touched} pages", statement.name);
        }
    }
    Ok(())
}

#[tokio::test]
async fn with_few_and_with_300_000_events_on_tables_analyzed_while_they_were_empty() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    for statement in BEGIN.split_inclusive(';') {
        client.batch_execute(statement).await?;
    }
    client.batch_execute(&fill(300)).await?;
    client.batch_execute(CLAIM).await?;
    check_all(&client, "300 events").await?;
    client.batch_execute(&fill(300_000)).await?;
    client.batch_execute(HOT).await?;
    check_all(&client, "analyzed while empty").await?;
    client.batch_execute("analyze pitwheel.outbox; analyze pitwheel.outbox_claim").await?;
    check_all(&client, "analyzed").await?;

    let pin = db.client().await?;
    pin.batch_execute("begin isolation level repeatable read; select from pitwheel.outbox").await?;
    client.batch_execute(CHURN).await?;
    check_all(&client, "behind 100,000 dead claims").await?;
    pin.batch_execute("rollback").await?;
    Ok(())
}
