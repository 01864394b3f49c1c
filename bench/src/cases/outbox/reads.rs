//! The pages that one read touches, with a short and with a long backlog.

use anyhow::{Context as _, Result};
use pitwheel::engine::outbox::Strategy;
use serde_json::Value;

use super::events::LEASE;
use super::relay::shards;
use crate::engine::fresh;
use crate::report::Row;
use crate::session::Session;

const SHORT: i64 = 10_000;
const LONG: i64 = 10_000_000;
const READ: &str = include_str!("../../../../crates/pitwheel/sql/outbox/read_shards.sql");

pub(super) async fn reads(url: &str) -> Result<Row> {
    let (pitwheel, session) = fresh(url).await?;
    // Takes the shards: only their holder may read them.
    let mut holder = shards(&pitwheel, LEASE)?;
    session.client.batch_execute("set jit = off").await?;
    let short = pages(&session, 1, SHORT, &mut holder).await?;
    let long = pages(&session, SHORT + 1, LONG, &mut holder).await?;
    session.client.batch_execute("truncate pitwheel.outbox").await?;
    holder.release().await?;
    session.close().await?;
    let name = "outbox: pages per read of 2,000 events, 10,000,000 waiting";
    Ok(Row::new(name, long, "pages").against("10,000 waiting", short).at_most(2.0))
}

/// Inserts events, and reads the first of each shard.
async fn pages(session: &Session, from: i64, to: i64, holder: &mut impl Strategy) -> Result<f64> {
    let insert = "insert into pitwheel.outbox (entity_key, topic, type, payload)
        select 'entity-' || n % 20000, 'reads', 'changed', '{}' from generate_series($1::bigint, $2::bigint) as n";
    session.client.execute(insert, &[&from, &to]).await?;
    session.client.batch_execute("vacuum analyze pitwheel.outbox").await?;
    holder.take(1).await?;
    let held = "select array_agg(shard order by shard)::text, array_agg(lease::text order by shard)::text,
        array_agg(restart order by shard)::text from pitwheel.outbox_shard where relay is not null";
    let row = session.client.query_one(held, &[]).await?;
    let (held, leases, restarts): (String, String, String) = (row.get(0), row.get(1), row.get(2));
    let shards = held.split(',').count();
    let each = |value: i64| format!("array_fill({value}::bigint, array[{shards}])");
    let read = [
        ("$1", format!("'{held}'")),
        ("$2", format!("'{leases}'")),
        ("$3", format!("'{restarts}'")),
        ("$4", each(0)),
        ("$5", each(2000 / shards as i64)),
        ("$6", "33554432".to_owned()),
        ("$7", "'{}'".to_owned()),
    ]
    .iter()
    .fold(READ.to_owned(), |sql, (name, value)| sql.replace(name, value));
    let row =
        session.client.query_one(&format!("explain (analyze, buffers, format json) {read}"), &[]).await?;
    let plan: Value = row.get(0);
    let count = |name: &str| plan[0]["Plan"][name].as_f64().with_context(|| format!("no {name}"));
    Ok(count("Shared Hit Blocks")? + count("Shared Read Blocks")?)
}
