//! The list of queues reads a bounded number of rows, whatever names producers invent.

use anyhow::Result;
use pitwheel_testkit::TestDb;

use crate::explain::{MODES, Statement, pages, plan};

/// 3,000 invented queues; one with 50,000 jobs that a worker takes, and 99 without jobs that it takes too.
const FILL: &str = "
    insert into pitwheel.job (run_at, enqueued_at, kind, queue, payload, priority, max_attempts)
    select now(), now(), 'work', case when n <= 3000 then n::text else 'work' end, '{}', 0, 20 from generate_series(1, 53000) as n;
    insert into pitwheel.worker (name, lease, lease_until, queues)
    select 'alive', '30 s', now() + '30 s', array_agg(n || 'empty') || '{work}' from generate_series(1, 99) as n";

/// A thousand queues, three pages of the index and one of the table for each look; more jobs than the limit of all are never counted.
const PAGES_MAX: i64 = 25_000;

const QUEUES: Statement = Statement {
    name: "queues",
    sql: include_str!("../../sql/operate/queues.sql"),
    types: "bigint, bigint",
    values: "10000, 1000",
};

#[tokio::test]
async fn the_list_of_queues_reads_few_jobs_of_each() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute("analyze pitwheel.job; analyze pitwheel.worker").await?;
    client.batch_execute(FILL).await?;
    for when in ["analyzed while empty", "analyzed"] {
        for mode in MODES {
            let plan = plan(&client, &QUEUES, mode, "analyze, buffers").await?;
            assert!(pages(&plan) < PAGES_MAX, "{when}, {mode}: {} pages\n{plan:#}", pages(&plan));
            assert_eq!(plan["Actual Rows"].as_f64(), Some(1000.0), "{when}, {mode}");
        }
        client.batch_execute("analyze pitwheel.job; analyze pitwheel.worker").await?;
    }
    Ok(())
}
