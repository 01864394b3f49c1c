//! One worker at a time stops claiming to run a suspect alone.

use anyhow::Result;
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};
use tokio_postgres::types::Type;

/// Takes the turn for ten seconds; its output is `taken`, or nothing.
fn takes_turn(name: &'static str, worker: i64) -> Session {
    Session::transaction(name, "take", async move |connection: &mut Connection| {
        let sql = include_str!("../../sql/engine/take_turn.sql");
        let params = [(&worker as _, Type::INT8), (&10_000_i64 as _, Type::INT8)];
        let rows = connection.client.query_typed(sql, &params).await?;
        Ok(if rows.is_empty() { String::new() } else { "taken".to_owned() })
    })
}

#[tokio::test]
async fn two_workers_never_have_the_turn_at_once() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| {
        Explorer::new(&db, title)
            .worker(1)
            .worker(2)
            .setup("update pitwheel.alone_turn set worker = 0, until = '-infinity'")
    };
    let both =
        |run: &Run| run.failed() || (run.output("a.take") == "taken") == (run.output("b.take") == "taken");

    let right =
        start("turn × turn").session(takes_turn("a", 1)).session(takes_turn("b", 2)).explore().await?;
    right.never(both);
    right.sometimes(|run| run.output("a.take") == "taken");
    right.sometimes(|run| run.output("b.take") == "taken");

    // Reads whether the turn is free, then takes it.
    let reads_first = Session::new("a")
        .sql("begin")
        .sql_as(
            "read",
            "create temp table if not exists free (yes boolean); delete from free;
            insert into free select until < clock_timestamp() from pitwheel.alone_turn",
        )
        .sql_as(
            "take",
            "update pitwheel.alone_turn set worker = 1, until = clock_timestamp() + interval '10 s'
            where (select yes from free) returning 'taken'",
        )
        .sql("commit");
    start("turn × turn, read first")
        .session(reads_first)
        .session(takes_turn("b", 2))
        .explore()
        .await?
        .sometimes(both);
    Ok(())
}
