//! Plans of statements, as `explain` shows them.

use anyhow::Result;
use serde_json::Value;
use tokio_postgres::Client;

/// A statement with the types and values of its parameters, as `prepare` and `execute` take them.
pub(crate) struct Statement {
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
    pub(crate) types: &'static str,
    pub(crate) values: &'static str,
}

/// Plans for the values of one call, and for any values.
pub(crate) const MODES: [&str; 2] = ["force_custom_plan", "force_generic_plan"];

/// The plan in a session of the engine; with `analyze, buffers` for `how` the statement is run and rolled back, and the plan has its
/// cost.
pub(crate) async fn plan(client: &Client, statement: &Statement, mode: &str, how: &str) -> Result<Value> {
    // As session_settings.sql pins it.
    let pinned = "set local enable_seqscan = off; set local enable_bitmapscan = off;";
    plan_with(client, pinned, statement, mode, how).await
}

/// The plan with these settings of the session; `how` as in [`plan`].
pub(crate) async fn plan_with(
    client: &Client,
    settings: &str,
    statement: &Statement,
    mode: &str,
    how: &str,
) -> Result<Value> {
    let Statement { sql, types, values, .. } = statement;
    let prepare =
        format!("begin; set local plan_cache_mode = {mode}; {settings} prepare hot({types}) as {sql}");
    client.batch_execute(&prepare).await?;
    let explain = format!("explain ({how}, format json) execute hot({values})");
    let explained: Value = client.query_one(&explain, &[]).await?.get(0);
    client.batch_execute("rollback; deallocate hot").await?;
    Ok(explained[0]["Plan"].clone())
}

/// All nodes of a plan.
pub(crate) fn nodes(plan: &Value) -> Vec<&Value> {
    let below = plan["Plans"].as_array().into_iter().flatten().flat_map(nodes);
    std::iter::once(plan).chain(below).collect()
}

/// How many pages the node and those below it touched. A statement's writes in `with` are not part of its first node.
pub(crate) fn pages(node: &Value) -> i64 {
    let of = |key: &str| node[key].as_i64().unwrap_or_default();
    of("Shared Hit Blocks") + of("Shared Read Blocks")
}
