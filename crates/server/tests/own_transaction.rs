//! A remote handler that completes its job in a transaction of its own: the job is done, and not lost. One test, because the
//! counters belong to the process.

mod support;

use std::time::Duration;

use anyhow::Result;
use pitwheel::{Context, Settled, Worker};
use pitwheel_proto::v1;
use pitwheel_proto::v1::result::Outcome;
use pitwheel_testkit::{Http, TestDb, Work, connect, start_worker, wait_until, work};

use crate::support::{Node, result};

#[tokio::test]
async fn a_job_that_its_handler_completed_counts_as_done() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), Duration::from_secs(30)).await?;
    let counted = async |series: &str| {
        let text = Http::new(node.address).get("/metrics").await?.text;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<f64>().ok());
        Ok::<_, anyhow::Error>(value.unwrap_or_default())
    };
    let completed = r#"pitwheel_jobs_finished_total{queue="default",kind="work",outcome="completed"}"#;

    let url = db.url().to_owned();
    let handler = move |_: Work, context: Context| {
        let url = url.clone();
        async move {
            let mut client = connect(&url).await?;
            let transaction = client.transaction().await?;
            let settled = pitwheel::transaction::tokio_postgres::complete(&transaction, &context).await?;
            anyhow::ensure!(settled == Settled::Written, "lost");
            transaction.commit().await?;
            Ok::<_, anyhow::Error>(())
        }
    };
    let running = start_worker(Worker::remote(&node.url()).queue("default", 2).handle(handler));
    db.pitwheel().enqueue_many((0..5).map(work)).await?;
    wait_until("five are counted", async || Ok(counted(completed).await? == 5.0)).await?;
    let stats = running.stop().await?;
    assert_eq!((stats.settled, stats.lost), (5, 0));

    let mut stream = node.stream(2).await?;
    db.pitwheel().enqueue_many((0..2).map(work)).await?;
    let jobs = stream.jobs_at_least(2).await?;
    let client = db.client().await?;
    for (job, (keep_history, written)) in
        jobs.iter().zip([(true, v1::Written::Already), (false, v1::Written::Lost)])
    {
        let sql = "select pitwheel.complete($1, $2, keep_history => $3, holder => $4)";
        let row = client.query_one(sql, &[&job.job_id, &job.fence, &keep_history, &job.worker_id]).await?;
        assert!(row.get::<_, bool>(0));
        let fail = v1::Fail { error: "not committed".into(), ..v1::Fail::default() };
        let results = vec![v1::Result { completed_by_handler: true, ..result(job, Outcome::Fail(fail)) }];
        let response = stream.client.report_result(v1::ReportResultRequest { results }).await?.into_inner();
        assert_eq!(response.written, [i32::from(written)]);
    }
    assert_eq!(counted(completed).await?, 6.0);
    assert_eq!(counted("pitwheel_jobs_lost_total").await?, 0.0);
    drop(stream);
    node.stop().await
}
