//! Sessions and steps that several scenarios use.

use anyhow::Result;
use pitwheel::Claim;
use pitwheel_testkit::{Connection, Session};
use tokio_postgres::types::Type;

/// The claim of the job that `Explorer::running(1, _)` adds.
pub(crate) const FIRST: Claim = Claim { id: 1, fence: 1, holder: 1 };

/// Claims for one worker, in a transaction.
pub(crate) fn claims(name: &'static str, worker: i64, slots: usize) -> Session {
    Session::transaction(name, "claim", async move |connection: &mut Connection| {
        connection.claim(worker, slots).await
    })
}

/// Claims as a node does for its streams, in a transaction.
pub(crate) fn claims_for_workers(name: &'static str, slots_by_worker: &'static [i64]) -> Session {
    Session::transaction(name, "claim", async move |connection: &mut Connection| {
        connection.claim_for_workers(slots_by_worker).await
    })
}

/// A broken twin of a claim: reads in one statement which jobs to claim, and claims them for worker 1 in another.
pub(crate) fn claims_what_was_read(name: &'static str, read: &str) -> Session {
    let read = format!(
        "create temp table if not exists seen (id bigint); delete from seen; insert into seen {read}"
    );
    let claim = "update pitwheel.job set holder = 1 where id in (select id from seen) and holder is null returning id";
    Session::new(name).sql("begin").sql_as("read", read).sql_as("claim", claim).sql("commit")
}

/// A step that sweeps; its output is how many jobs were given back or buried.
pub(crate) async fn sweep(connection: &mut Connection) -> Result<String> {
    connection.sweep().await
}

/// Sweeps in a transaction.
pub(crate) fn sweeps() -> Session {
    Session::transaction("s", "sweep", sweep)
}

/// Sweeps as the engine does: each statement is committed by itself.
pub(crate) fn sweeps_by_statement() -> Session {
    Session::new("s")
        .step("declare", async |connection: &mut Connection| {
            let sql = include_str!("../../sql/engine/sweep.sql");
            let limits = [(&0_i64 as _, Type::INT8), (&3_600_000_i64 as _, Type::INT8)];
            connection.client.query_typed(sql, &limits).await?;
            Ok(String::new())
        })
        .step("find", async |connection: &mut Connection| {
            let sql = include_str!("../../sql/engine/abandoned_jobs.sql");
            let rows =
                connection.client.query_typed(sql, &[(&20_i64, Type::INT8), (&0_i64, Type::INT8)]).await?;
            let held = rows.iter().filter_map(|row| {
                let id: Option<i64> = row.get("id");
                id.map(|id| Claim { id, fence: row.get("fence"), holder: row.get("holder") })
            });
            connection.claims.extend(held);
            Ok(String::new())
        })
        .step("sweep", async |connection: &mut Connection| match connection.claims.first() {
            Some(&claim) => connection.retry(claim).await,
            None => Ok(String::new()),
        })
        .step("drop", async |connection: &mut Connection| {
            let sql = include_str!("../../sql/engine/drop_holds.sql");
            let rows = connection.client.query("select id from pitwheel.hold", &[]).await?;
            let holds: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            connection.client.query_typed(sql, &[(&holds, Type::INT8_ARRAY)]).await?;
            Ok(String::new())
        })
}

/// Cancels job 1; the output is `requested`, `at once`, or nothing if there is no such job.
pub(crate) fn cancels() -> Session {
    Session::transaction("c", "cancel", async |connection: &mut Connection| {
        let sql = include_str!("../../sql/operate/cancel.sql");
        let ids = vec![1_i64];
        let rows =
            connection.client.query_typed(sql, &[(&ids, Type::INT8_ARRAY), (&"test", Type::TEXT)]).await?;
        Ok(match rows.first().map(|row| row.get(1)) {
            Some(true) => "requested".to_owned(),
            Some(false) => "at once".to_owned(),
            None => String::new(),
        })
    })
}

/// A step that completes job 1 under its first claim; its output is `written` or `lost`.
pub(crate) async fn complete_first(connection: &mut Connection) -> Result<String> {
    connection.complete(FIRST).await
}

/// A step that completes the first job this session claimed; no output if it claimed none.
pub(crate) async fn complete_claimed(connection: &mut Connection) -> Result<String> {
    match connection.claims.first() {
        Some(&claim) => connection.complete(claim).await,
        None => Ok(String::new()),
    }
}
