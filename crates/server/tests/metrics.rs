//! The metrics of a node. A test binary of its own, because they count for the whole process.

mod support;

use std::time::Duration;

use anyhow::Result;
use pitwheel::{Context, Verdict, Worker};
use pitwheel_testkit::{Http, TestDb, Work, start_worker, wait_until};
use serde_json::json;

use crate::support::Node;

const LEASE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn every_documented_metric_is_served_and_counts() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let http = Http::new(node.address);
    let handler = async |work: Work, _: Context| match work.n {
        // No second attempt before the test ends.
        0 => Ok::<_, String>(Verdict::retry_after(Duration::from_secs(3600), "no")),
        _ => Ok(Verdict::complete().into()),
    };
    let running = start_worker(Worker::remote(&node.url()).queue("counted", 5).handle(handler));
    wait_until("its stream is open", async || {
        Ok(http.get("/metrics").await?.text.contains("pitwheel_grpc_streams 1"))
    })
    .await?;
    let zero = http.get("/metrics").await?.text;
    let failed = r#"pitwheel_jobs_finished_total{queue="counted",kind="work",outcome="failed"}"#;
    assert!(zero.contains(&format!("{failed} 0")), "series start at 0: {zero}");
    for n in [0, 1, 2] {
        http.post(
            "/api/v1/jobs",
            &json!({ "jobs": [{ "kind": "work", "queue": "counted", "payload": { "n": n } }] }),
        )
        .await?;
    }
    db.job().queue("left").insert().await?;
    wait_until("all are counted", async || {
        let text = http.get("/metrics").await?.text;
        Ok(text
            .contains(r#"pitwheel_jobs_finished_total{queue="counted",kind="work",outcome="completed"} 2"#)
            && text.contains(&format!("{failed} 1")))
    })
    .await?;
    let left = r#"pitwheel_jobs{queue="left",state="waiting"} 1"#;
    wait_until("the database is read again", async || Ok(http.get("/metrics").await?.text.contains(left)))
        .await?;
    let text = http.get("/metrics").await?.text;
    let newest = pitwheel::engine::MIGRATIONS.last().map_or(0, |migration| migration.version);
    let version = format!("pitwheel_schema_version {newest}");
    for line in [
        r#"pitwheel_jobs_enqueued_total{queue="counted",kind="work"} 3"#,
        r#"pitwheel_job_retries_total{queue="counted",kind="work"} 1"#,
        r#"pitwheel_job_wait_seconds_count{queue="counted",kind="work"} 3"#,
        r#"pitwheel_job_duration_seconds_count{queue="counted",kind="work",outcome="completed"} 2"#,
        left,
        r#"pitwheel_workers{state="alive",transport="grpc"} 1"#,
        "pitwheel_worker_slots 5",
        "pitwheel_worker_slots_in_use 0",
        &version,
        r#"pitwheel_http_requests_total{route="/api/v1/jobs",code="201"} "#,
        r#"pitwheel_db_errors_total{class="unreachable"} 0"#,
        "pitwheel_db_pool_connections{state=\"waited_for\"} 0",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let documented = include_str!("../../../docs/metrics.md");
    let names: Vec<&str> = documented.split('`').filter(|word| word.starts_with("pitwheel_")).collect();
    assert!(names.len() > 25, "{names:?}");
    for name in &names {
        assert!(text.contains(&format!("# TYPE {name} ")), "{name} is documented but not served");
    }
    let shown = text.lines().filter_map(|line| line.strip_prefix("# TYPE pitwheel_")?.split(' ').next());
    for name in shown {
        assert!(names.contains(&format!("pitwheel_{name}").as_str()), "pitwheel_{name} is not documented");
    }
    running.stop().await?;
    node.stop().await
}
