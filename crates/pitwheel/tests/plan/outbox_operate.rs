//! What an operator does with the outbox reads a bounded number of rows per statement, however many events wait or are kept. The statements
//! are functions, whose plans cannot be explained, so the rows that they read are counted.

use anyhow::Result;
use pitwheel_testkit::TestDb;
use tokio_postgres::Client;

use crate::explain::MODES;

/// Events that wait, and as many that were delivered, all of the shard of `e`, which has one at the end of each and is parked.
const EVENTS: i64 = 100_000;

/// Ids that a statement may look at in these tests.
const SPAN: i64 = 2000;

const FILL: &str = "
    alter table pitwheel.outbox set (autovacuum_enabled = off);
    alter table pitwheel.outbox_parked_event set (autovacuum_enabled = off);
    create table other as select 'other-' || n as key from generate_series(1, 1000) as n
        where hashtextextended('other-' || n, 0) & 63 = hashtextextended('e', 0) & 63 order by n limit 1;
    insert into pitwheel.outbox (entity_key, topic, type)
    select case n when 100000 then 'e' else other.key end, 'orders', 'changed' from other, generate_series(1, 100000) as n;
    insert into pitwheel.outbox_sent (id, created_at, entity_key, topic, type)
    select 1000000 + n, now(), case n when 100000 then 'e' else other.key end, 'orders', 'changed' from other, generate_series(1, 100000) as n;
    insert into pitwheel.outbox_parked (entity_key, shard, event_id, topic, reason)
    values ('e', (hashtextextended('e', 0) & 63)::smallint, 2000001, 'orders', 'too large');
    insert into pitwheel.outbox_parked_event (entity_key, id, created_at, topic, type)
    select key, 2000000 + n, now(), 'orders', 'changed' from generate_series(1, 100000) as n, unnest(array['e', 'f']) as key";

/// Index entries and rows of sequential scans that this session has read and not reported yet. It reports between transactions, at times.
const READ: &str = "select sum(pg_stat_get_xact_tuples_returned(oid))::bigint from pg_class
    where relnamespace = 'pitwheel'::regnamespace and relname like 'outbox%'";

/// The rows that a call reads. It is rolled back.
async fn read(client: &Client, mode: &str, call: &str) -> Result<i64> {
    client.batch_execute(&format!("begin; set local plan_cache_mode = {mode}")).await?;
    let before: i64 = client.query_one(READ, &[]).await?.get(0);
    client.batch_execute(call).await?;
    let after: i64 = client.query_one(READ, &[]).await?.get(0);
    client.batch_execute("rollback").await?;
    Ok(after - before)
}

/// Replaces the parameters of a statement.
fn with(sql: &str, values: &[&str]) -> String {
    let numbered = values.iter().enumerate();
    numbered.fold(sql.to_owned(), |sql, (n, value)| sql.replace(&format!("${}", n + 1), value))
}

#[tokio::test]
async fn a_statement_of_replay_and_unpark_reads_a_bounded_number_of_rows() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute("analyze pitwheel.outbox; analyze pitwheel.outbox_parked_event").await?;
    client.batch_execute(FILL).await?;
    let replay = |first: &str, since: &str, key: &str| {
        let values = [first, since, key, "2000", "500", "'test'"];
        with(include_str!("../../sql/operate/replay.sql"), &values)
    };
    let tomorrow = "(extract(epoch from now() + interval '1 day') * 1000000)::bigint";
    let events = include_str!("../../sql/operate/unpark_events.sql");
    let drop_waiting = include_str!("../../sql/operate/drop_waiting.sql");
    let end = include_str!("../../sql/operate/end_parking.sql");
    let unpark = |how: &str| with(events, &["'pitwheel.outbox'", "array['e']", how, "500"]);
    let ends = |how: &str| with(end, &["'pitwheel.outbox'", "array['e']", how, "'test'"]);
    let calls = [
        replay("0", "null", "'e'"),
        replay("1000001", tomorrow, "null"),
        replay("1000001", "null", "null"),
        unpark("'retry'"),
        unpark("'skip'"),
        unpark("'drop'"),
        with(drop_waiting, &["array['e']", "null", "2000"]),
        with(drop_waiting, &["array['e']", "50000", "2000"]),
        ends("'retry'"),
        ends("'skip'"),
        ends("'drop'"),
    ];
    for when in ["analyzed while empty", "analyzed"] {
        for mode in MODES {
            for call in &calls {
                let rows = read(&client, mode, call).await?;
                // The found rows are read again to be written, and the shard is found.
                assert!(rows <= 3 * SPAN, "{when}, {mode}: {rows} rows read by {call}");
            }
            // Without pages, one statement reads all that is kept.
            let whole = "select from pitwheel.replay(0, null, 'e', 500, 'test')";
            assert!(read(&client, mode, whole).await? >= EVENTS);
        }
        client.batch_execute("analyze").await?;
    }
    Ok(())
}
