//! The engine works the same whatever the defaults of the database are.

use std::time::Duration;

use anyhow::Result;
use pitwheel::engine::Sql;
use pitwheel::{Context, NewJob, Pitwheel};
use pitwheel_testkit::{TestDb, Warnings, Work, start_worker, wait_until, worker};

/// Defaults that break a queue which does not pin its own.
const HOSTILE: [&str; 7] = [
    "default_transaction_isolation = 'serializable'",
    "default_transaction_read_only = on",
    "synchronous_commit = off",
    "datestyle = 'German'",
    "timezone = 'Asia/Kathmandu'",
    "statement_timeout = '1h'",
    "jit_above_cost = 0",
];

/// A database with these defaults, and a handle on it.
async fn hostile(db: &TestDb) -> Result<Pitwheel> {
    let client = db.client().await?;
    let name: String = client.query_one("select current_database()::text", &[]).await?.get(0);
    for setting in HOSTILE {
        client.batch_execute(&format!("alter database {name} set {setting}")).await?;
    }
    Ok(Pitwheel::connect(db.url()).await?)
}

#[tokio::test]
async fn a_session_pins_what_the_engine_depends_on() -> Result<()> {
    let db = TestDb::new().await?;
    let pitwheel = hostile(&db).await?;
    let pool = pitwheel.pool_for_loops(1, Duration::from_secs(6))?;
    for (setting, pinned) in [
        ("transaction_isolation", "read committed"),
        ("transaction_read_only", "off"),
        ("synchronous_commit", "on"),
        ("datestyle", "ISO, DMY"),
        ("timezone", "UTC"),
        ("statement_timeout", "5s"),
        ("lock_timeout", "200ms"),
        ("client_connection_check_interval", "2s"),
        ("tcp_user_timeout", "10000"),
        ("jit", "off"),
    ] {
        let sql = format!("select current_setting('{setting}')");
        let rows = pool.run(async |client| client.rows_once(&sql, &[]).await).await?;
        assert_eq!(rows[0].get::<_, &str>(0), pinned, "{setting}");
    }
    Ok(())
}

#[tokio::test]
async fn workers_share_a_queue_without_an_error_on_a_serializable_database() -> Result<()> {
    let db = TestDb::new().await?;
    let pitwheel = hostile(&db).await?;
    let warnings = Warnings::of_this_thread();
    let handler = async |_: Work, context: Context| {
        context.progress(0.5, "half");
        Ok::<_, String>(())
    };
    let workers: Vec<_> = (0..3).map(|_| start_worker(worker(&pitwheel).handle(handler))).collect();
    for n in 0..20 {
        pitwheel
            .enqueue_many((0..50).map(|at| NewJob::of(&Work { n: n * 50 + at }).key(at.to_string())))
            .await?;
    }
    wait_until("all are done", async || Ok(db.count("select count(*) from pitwheel.job").await? == 0))
        .await?;
    for worker in workers {
        assert_eq!(worker.stop().await?.lost, 0);
    }
    assert_eq!(warnings.texts(), [""; 0], "no statement failed");
    assert_eq!(pitwheel.prune_history(Duration::from_secs(86400)).await?, 0);
    let days = "select count(*) from pg_inherits where inhparent = 'pitwheel.job_history'::regclass";
    assert!(db.count(days).await? >= 9, "today, a week, and the default");
    Ok(())
}
