//! Every attempt that ended is counted once over all nodes, whichever node learns of it and when. The nodes of a test are in one process, so its
//! counters are their sum. Each test has a queue of its own, because the counters belong to the process.

mod support;

use std::time::Duration;

use anyhow::{Result, ensure};
use pitwheel_proto::v1;
use pitwheel_proto::v1::result::Outcome;
use pitwheel_testkit::{Http, TestDb, wait_until, work};

use crate::support::{Node, WorkerStream, result, stream_request};

const LEASE: Duration = Duration::from_secs(30);

/// Two nodes, and a stream of the first one that takes the jobs of one queue.
struct Nodes {
    db: TestDb,
    queue: &'static str,
    near: Node,
    far: Node,
    stream: WorkerStream,
}

impl Nodes {
    async fn start(queue: &'static str, slots: u32) -> Result<Nodes> {
        let db = TestDb::new().await?;
        let near = Node::start(db.pitwheel(), LEASE).await?;
        let far = Node::start(db.pitwheel(), LEASE).await?;
        let request = v1::StreamJobsRequest { queues: vec![queue.into()], ..stream_request(slots) };
        let stream = WorkerStream::open_with(near.workers().await?, request).await?;
        Ok(Nodes { db, queue, near, far, stream })
    }

    /// The next job, which is sent to the stream by the first node.
    async fn next_job(&mut self) -> Result<v1::Assignment> {
        self.db.pitwheel().enqueue(work(0).queue(self.queue)).await?;
        Ok(self.stream.jobs().await?.remove(0))
    }

    /// Completes the job as its handler does in a transaction of its own. Returns what its worker reports then.
    async fn complete_by_handler(&self, job: &v1::Assignment) -> Result<v1::Result> {
        let sql = "select pitwheel.complete($1, $2, holder => $3)";
        let row = self.db.client().await?.query_one(sql, &[&job.job_id, &job.fence, &job.worker_id]).await?;
        ensure!(row.get::<_, bool>(0), "the claim was lost");
        let fail = v1::Fail { error: "not committed".into(), ..v1::Fail::default() };
        Ok(v1::Result { completed_by_handler: true, ..result(job, Outcome::Fail(fail)) })
    }

    /// How many attempts were counted with this outcome.
    async fn counted(&self, outcome: &str) -> Result<f64> {
        let text = Http::new(self.near.address).get("/metrics").await?.text;
        let queue = self.queue;
        let series =
            format!(r#"pitwheel_jobs_finished_total{{queue="{queue}",kind="work",outcome="{outcome}"}}"#);
        let value = text.lines().find_map(|line| line.strip_prefix(&*series)?.trim().parse().ok());
        Ok(value.unwrap_or_default())
    }

    async fn stop(self) -> Result<()> {
        drop(self.stream);
        self.near.stop().await?;
        self.far.stop().await
    }
}

/// Reports a result to a node.
async fn report(node: &Node, result: &v1::Result) -> Result<v1::Written> {
    let request = v1::ReportResultRequest { results: vec![result.clone()] };
    let response = node.workers().await?.report_result(request).await?.into_inner();
    Ok(v1::Written::try_from(response.written[0])?)
}

#[tokio::test]
async fn a_job_that_its_handler_completed_is_counted_if_a_comparison_comes_before_its_report() -> Result<()> {
    let mut nodes = Nodes::start("compared", 1).await?;
    let job = nodes.next_job().await?;
    let reported = nodes.complete_by_handler(&job).await?;
    // The only slot is free again: the comparison has found that the first job is no longer held.
    nodes.next_job().await?;
    assert_eq!(nodes.counted("completed").await?, 0.0);
    for _ in 0..2 {
        assert_eq!(report(&nodes.near, &reported).await?, v1::Written::Already);
        assert_eq!(nodes.counted("completed").await?, 1.0);
    }
    nodes.stop().await
}

#[tokio::test]
async fn a_result_that_is_reported_to_another_node_is_counted() -> Result<()> {
    let mut nodes = Nodes::start("far", 10).await?;
    let hour = Some(prost_types::Duration { seconds: 3600, nanos: 0 });
    let outcomes = [
        ("completed", Outcome::Complete(v1::Complete::default())),
        ("failed", Outcome::Fail(v1::Fail { retry_after: hour, ..v1::Fail::default() })),
        ("dead", Outcome::Bury(v1::Bury::default())),
        ("snoozed", Outcome::Snooze(v1::Snooze { delay: hour })),
        ("released", Outcome::Release(v1::Release {})),
    ];
    for (counted_as, outcome) in outcomes {
        let job = nodes.next_job().await?;
        let reported = result(&job, outcome);
        assert_eq!(report(&nodes.far, &reported).await?, v1::Written::Yes, "{counted_as}");
        assert_eq!(nodes.counted(counted_as).await?, 1.0, "{counted_as}");
        for node in [&nodes.far, &nodes.near] {
            report(node, &reported).await?;
            assert_eq!(nodes.counted(counted_as).await?, 1.0, "a repeated report of {counted_as}");
        }
    }
    nodes.stop().await
}

#[tokio::test]
async fn a_job_that_its_handler_completed_is_counted_if_another_node_gets_its_report() -> Result<()> {
    let mut nodes = Nodes::start("far-handler", 10).await?;
    for count in [1.0, 2.0, 3.0] {
        let job = nodes.next_job().await?;
        let reported = nodes.complete_by_handler(&job).await?;
        assert_eq!(report(&nodes.far, &reported).await?, v1::Written::Already);
        wait_until("it is counted", async || Ok(nodes.counted("completed").await? >= count)).await?;
        // What a repeated report would add is seen by the next job at the latest: hints arrive in their order.
        for node in [&nodes.far, &nodes.near] {
            assert_eq!(report(node, &reported).await?, v1::Written::Already);
        }
        assert_eq!(nodes.counted("completed").await?, count);
    }
    nodes.stop().await
}

#[tokio::test]
async fn what_is_reported_after_its_stream_was_closed_is_counted() -> Result<()> {
    let mut nodes = Nodes::start("closed", 10).await?;
    let (first, second) = (nodes.next_job().await?, nodes.next_job().await?);
    let by_handler = nodes.complete_by_handler(&second).await?;
    let holding = vec![v1::Claim { job_id: first.job_id, fence: first.fence, worker_id: first.worker_id }];
    let ended = vec![v1::EndedStream { worker_id: first.worker_id, holding }];
    let heartbeat = v1::HeartbeatRequest { worker_ids: Vec::new(), ended };
    nodes.stream.client.heartbeat(heartbeat).await?;
    let complete = result(&first, Outcome::Complete(v1::Complete::default()));
    for _ in 0..2 {
        report(&nodes.near, &complete).await?;
        assert_eq!(nodes.counted("completed").await?, 1.0);
    }
    for _ in 0..2 {
        assert_eq!(report(&nodes.near, &by_handler).await?, v1::Written::Already);
        assert_eq!(nodes.counted("completed").await?, 2.0);
    }
    nodes.stop().await
}
