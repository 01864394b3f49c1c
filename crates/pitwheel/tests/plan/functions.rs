//! The SQL functions that settle one job find it by job_pkey, also in a queue that was empty when it was analyzed. Their statements
//! cannot be explained, so the scans of the indexes are counted.

use anyhow::Result;
use pitwheel_testkit::TestDb;

use crate::explain::MODES;

const SCANS: &str = "select pg_stat_get_xact_numscans('pitwheel.job_due'::regclass),
    pg_stat_get_xact_numscans('pitwheel.job_pkey'::regclass)";

#[tokio::test]
async fn the_sql_functions_probe_the_primary_key() -> Result<()> {
    for mode in MODES {
        for call in [
            "select pitwheel.complete(1, 1)",
            "select pitwheel.fail(1, 1, 'no')",
            "select pitwheel.fail(2, 1, 'the last attempt')",
        ] {
            let db = TestDb::new().await?;
            let client = db.client().await?;
            client.batch_execute("alter table pitwheel.job set (autovacuum_enabled = off)").await?;
            client.batch_execute("vacuum analyze pitwheel.job").await?;
            let fill = "insert into pitwheel.job
                    (run_at, enqueued_at, max_attempts, priority, queue, kind, payload, holder, fence, attempt, claimed_at)
                select now(), now(), 20, 0, 'default', 'test', '{}', 1, 1, case n when 2 then 20 else 1 end, now()
                from generate_series(1, 20000) as n";
            client.batch_execute(fill).await?;
            client.batch_execute(&format!("begin; set local plan_cache_mode = {mode}")).await?;
            let written: bool = client.query_one(call, &[]).await?.get(0);
            let scans = client.query_one(SCANS, &[]).await?;
            let (due, primary_key): (i64, i64) = (scans.get(0), scans.get(1));
            assert!(written && due == 0 && primary_key > 0, "{call}, {mode}: {due} scans of job_due");
        }
    }
    Ok(())
}
