//! A remote worker made of single calls, whose results can go to another node than that of its stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use pitwheel_proto::v1;
use pitwheel_proto::v1::result::Outcome;
use pitwheel_proto::v1::stream_jobs_response::Event;
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use tokio::task::{JoinHandle, JoinSet};
use tonic::transport::Channel;

use crate::fleet::{KIND, NAP, WIRE_QUEUE};

/// The time between two reports of the same result, if the row of the job is locked.
const RETRY: Duration = Duration::from_millis(200);

type Client = WorkerServiceClient<Channel>;

/// A worker of the queue `wire`. It ends when this is dropped.
pub(crate) struct WireWorker {
    pub(crate) worker_id: i64,
    elsewhere: Arc<AtomicBool>,
    task: JoinHandle<Result<()>>,
}

impl WireWorker {
    /// Gets jobs from one node. Reports go there too, until they are told to go to the other.
    pub(crate) async fn start(node: &str, other: &str, slots: u32) -> Result<WireWorker> {
        let mut client = WorkerServiceClient::connect(node.to_owned()).await?;
        let other = WorkerServiceClient::connect(other.to_owned()).await?;
        let request = v1::StreamJobsRequest {
            worker: "wire".to_owned(),
            queues: vec![WIRE_QUEUE.to_owned()],
            kinds: vec![KIND.to_owned()],
            slots,
            ..v1::StreamJobsRequest::default()
        };
        let mut messages = client.stream_jobs(request).await?.into_inner();
        let first = messages.message().await?.and_then(|message| message.event);
        let Some(Event::Welcome(welcome)) = first else { bail!("expected a welcome, got {first:?}") };
        let every: Duration = welcome.heartbeat_every.context("no interval")?.try_into()?;
        let elsewhere = Arc::new(AtomicBool::new(false));
        let (nodes, chosen) = ([client.clone(), other], elsewhere.clone());
        let task = tokio::spawn(async move {
            let run = async {
                let mut jobs = JoinSet::new();
                while let Some(message) = messages.message().await? {
                    let Some(Event::Assignments(assigned)) = message.event else { continue };
                    for job in assigned.jobs {
                        jobs.spawn(run(job, nodes.clone(), chosen.clone()));
                    }
                    while let Some(reported) = jobs.try_join_next() {
                        reported??;
                    }
                }
                bail!("the stream ended")
            };
            let failed = tokio::select! {
                failed = run => failed,
                failed = heartbeats(client, welcome.worker_id, every) => failed,
            };
            failed.inspect_err(|error| println!("the wire worker ended: {error:#}"))
        });
        Ok(WireWorker { worker_id: welcome.worker_id, elsewhere, task })
    }

    pub(crate) fn report_to_the_other_node(&self, elsewhere: bool) {
        self.elsewhere.store(elsewhere, Ordering::Relaxed);
    }

    /// Fails if the worker has failed.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(!self.task.is_finished(), "the wire worker {} failed", self.worker_id);
        Ok(())
    }
}

impl Drop for WireWorker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Runs a job and reports it, in a call of its own, again if its row is locked. The result must be written.
async fn run(job: v1::Assignment, nodes: [Client; 2], elsewhere: Arc<AtomicBool>) -> Result<()> {
    tokio::time::sleep(NAP).await; // the job's work
    let claim = Some(v1::Claim { job_id: job.job_id, fence: job.fence, worker_id: job.worker_id });
    let results = vec![v1::Result {
        claim,
        outcome: Some(Outcome::Complete(v1::Complete::default())),
        ..v1::Result::default()
    }];
    let request = v1::ReportResultRequest { results };
    loop {
        let mut client = nodes[usize::from(elsewhere.load(Ordering::Relaxed))].clone();
        let answer = client.report_result(request.clone()).await?.into_inner();
        match answer.written.first().map(|written| v1::Written::try_from(*written)) {
            Some(Ok(v1::Written::Yes)) => return Ok(()),
            Some(Ok(v1::Written::Locked)) => tokio::time::sleep(RETRY).await, // between two reports
            other => bail!("job {}: {other:?}", job.job_id),
        }
    }
}

async fn heartbeats(mut client: Client, worker_id: i64, every: Duration) -> Result<()> {
    loop {
        tokio::time::sleep(every).await; // between two heartbeats
        let request = v1::HeartbeatRequest { worker_ids: vec![worker_id], ended: Vec::new() };
        let answer = client.heartbeat(request).await?.into_inner();
        ensure!(answer.dead_worker_ids.is_empty(), "a live worker was declared dead");
    }
}
