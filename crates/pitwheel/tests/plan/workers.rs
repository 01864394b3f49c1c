//! Workers that are dead, but not for long, are not read when others are forgotten.

use anyhow::Result;
use pitwheel_testkit::TestDb;

use crate::explain::{MODES, Statement, nodes, plan};

/// 20,000 workers that died less than ten minutes ago.
const FILL: &str = "
    insert into pitwheel.worker (name, lease, lease_until, dead_at)
    select 'dead', '30 s', now(), now() - n * interval '10 milliseconds' from generate_series(1, 20000) as n";

const FORGET: Statement = Statement {
    name: "forget_workers",
    sql: include_str!("../../sql/engine/forget_workers.sql"),
    // `prepare` takes at least one type.
    types: "int",
    values: "0",
};

#[tokio::test]
async fn a_look_for_workers_to_forget_reads_none_that_stays() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute("analyze pitwheel.worker; analyze pitwheel.hold").await?;
    client.batch_execute(FILL).await?;
    for when in ["analyzed while empty", "analyzed"] {
        for mode in MODES {
            let plan = plan(&client, &FORGET, mode, "analyze, buffers").await?;
            let removed = |node: &&serde_json::Value| node["Rows Removed by Filter"].as_i64();
            let removed: i64 = nodes(&plan).iter().filter_map(removed).sum();
            assert_eq!(removed, 0, "{when}, {mode}: it reads workers that stay\n{plan:#}");
        }
        client.batch_execute("analyze pitwheel.worker").await?;
    }
    Ok(())
}
