//! Batches of recurring jobs: whoever changes several locks them in the order of their ids.

use anyhow::Result;
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};
use tokio_postgres::types::Type;

/// Two recurring jobs, whose keys are in the other order than their ids, and their runs.
const CROSSED: &str = "
    insert into pitwheel.recurring (id, kind, key, queue, cadence, misfire, payload, priority, planned, next_run_at, anchor_at)
    overriding system value
    select id, 'test', key, 'default', 'every 15m', 'one', '{}', 0, true, clock_timestamp(), clock_timestamp()
    from (values (1, 'b'), (2, 'a')) as new(id, key);
    insert into pitwheel.job (id, recurring, run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
    select id, id, clock_timestamp(), clock_timestamp(), 1000, 0, 'default', 'test', '{}' from generate_series(1, 2) as id";

/// Creates both again, as the library does.
async fn create(connection: &mut Connection) -> Result<String> {
    let sql = include_str!("../../sql/operate/create_recurring.sql");
    let both = |text: &'static str| vec![text; 2];
    let (none, number): (Vec<Option<i64>>, Vec<i32>) = (vec![None; 2], vec![0; 2]);
    let (metadata, limits): (Vec<Option<&str>>, Vec<Option<i32>>) = (vec![None; 2], vec![None; 2]);
    let rows = connection
        .client
        .query_typed(
            sql,
            &[
                (&both("test"), Type::TEXT_ARRAY),
                (&vec!["b", "a"], Type::TEXT_ARRAY),
                (&both("every 15m"), Type::TEXT_ARRAY),
                (&both("{}"), Type::TEXT_ARRAY),
                (&both("one"), Type::TEXT_ARRAY),
                (&both("default"), Type::TEXT_ARRAY),
                (&number, Type::INT4_ARRAY),
                (&limits, Type::INT4_ARRAY),
                (&none, Type::INT8_ARRAY),
                (&metadata, Type::TEXT_ARRAY),
                (&none, Type::INT8_ARRAY),
                (&none, Type::INT8_ARRAY),
                (&none, Type::INT8_ARRAY),
                (&none, Type::INT8_ARRAY),
                (&none, Type::INT8_ARRAY),
                (&"test", Type::TEXT),
            ],
        )
        .await?;
    Ok(rows.len().to_string())
}

/// Cancels the runs of both.
async fn cancel(connection: &mut Connection) -> Result<String> {
    let sql = include_str!("../../sql/operate/cancel.sql");
    let params = [(&vec![1_i64, 2] as _, Type::INT8_ARRAY), (&"test" as _, Type::TEXT)];
    Ok(connection.client.query_typed(sql, &params).await?.len().to_string())
}

/// Explores a creation of both beside a cancel of both. A third session holds the first for a while, so that each of the two can
/// come between the locks of the other.
async fn beside_a_cancel(
    db: &TestDb,
    title: &'static str,
    creates: Session,
) -> Result<pitwheel_testkit::Explored> {
    let first = "select from pitwheel.recurring where id = 1 for no key update";
    Explorer::new(db, title)
        .setup(CROSSED)
        .end("select string_agg(id::text, ' ' order by id) from pitwheel.recurring where enabled")
        .session(Session::new("h").sql("begin").sql_as("lock", first).sql("commit"))
        .session(creates)
        .session(Session::new("x").step("cancel", cancel))
        .explore()
        .await
}

#[tokio::test]
async fn a_batch_of_creations_and_a_batch_of_cancels_never_deadlock() -> Result<()> {
    let db = TestDb::new().await?;
    let right = beside_a_cancel(&db, "create × cancel", Session::new("c").step("create", create)).await?;
    right.never(|run| run.failed() || run.end() != "1 2" || run.output("c.create") != "2");

    let by_key = "select id from pitwheel.create_recurring('test', 'a', 'every 15m')
        union all select id from pitwheel.create_recurring('test', 'b', 'every 15m')";
    let by_key = Session::new("c").sql_as("create", by_key);
    beside_a_cancel(&db, "create in the order of the keys × cancel", by_key).await?.sometimes(Run::failed);
    Ok(())
}
