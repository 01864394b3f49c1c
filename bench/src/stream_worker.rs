//! A remote worker made of single calls, as a worker in another language is: its results can go to another node than that of
//! its stream, and the id of its stream is known.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use pitwheel_proto::v1;
use pitwheel_proto::v1::result::Outcome;
use pitwheel_proto::v1::stream_jobs_response::Event;
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::engine::kind;

pub(crate) type Client = WorkerServiceClient<Channel>;

/// Results in one report, the limit of a request.
const RESULTS_MAX: usize = 1000;

/// An open stream.
pub(crate) struct OpenStream {
    pub(crate) worker_id: i64,
    messages: Streaming<v1::StreamJobsResponse>,
    heartbeat_every: Duration,
}

impl OpenStream {
    pub(crate) async fn new(client: &mut Client, slots: u32) -> Result<OpenStream> {
        let request = v1::StreamJobsRequest {
            worker: "bench".to_owned(),
            queues: vec!["default".to_owned()],
            kinds: vec![kind(false).to_owned()],
            slots,
            ..v1::StreamJobsRequest::default()
        };
        let mut messages = client.stream_jobs(request).await?.into_inner();
        let Some(Event::Welcome(welcome)) = messages.message().await?.and_then(|message| message.event)
        else {
            bail!("the stream did not start with a welcome");
        };
        let every = welcome.heartbeat_every.context("the welcome has no heartbeat interval")?;
        Ok(OpenStream { worker_id: welcome.worker_id, messages, heartbeat_every: every.try_into()? })
    }

    /// The jobs of the next message.
    async fn jobs(&mut self) -> Result<Vec<v1::Assignment>> {
        match self.messages.message().await?.context("the stream ended")?.event {
            Some(Event::Assignments(assignments)) => Ok(assignments.jobs),
            _ => Ok(Vec::new()),
        }
    }

    /// Acts like an idle worker: sends heartbeats at the server's interval. Fails if a job arrives.
    pub(crate) async fn stay_idle(mut self, client: Client) -> Result<()> {
        let (worker_id, every) = (self.worker_id, self.heartbeat_every);
        tokio::select! {
            failed = heartbeats(client, worker_id, every) => failed,
            jobs = self.jobs() => bail!("the idle stream ended, or delivered a job: {jobs:?}"),
        }
    }
}

/// Sends heartbeats until one fails.
async fn heartbeats(mut client: Client, worker_id: i64, every: Duration) -> Result<()> {
    loop {
        let request = v1::HeartbeatRequest { worker_ids: vec![worker_id], ended: Vec::new() };
        let answer = client.heartbeat(request).await?.into_inner();
        ensure!(answer.dead_worker_ids.is_empty(), "the server declared a live worker dead");
        tokio::time::sleep(every).await;
    }
}

/// A worker whose handlers do nothing. It ends when this is dropped.
pub(crate) struct StreamWorker {
    pub(crate) worker_id: i64,
    written: Arc<AtomicU64>,
    task: JoinHandle<Result<()>>,
}

impl StreamWorker {
    /// Gets jobs from one node and reports their results to another, which may be the same.
    pub(crate) async fn start(streams: &str, reports: &str, slots: u32) -> Result<StreamWorker> {
        let mut client = WorkerServiceClient::connect(streams.to_owned()).await?;
        let reporter = WorkerServiceClient::connect(reports.to_owned()).await?;
        let mut stream = OpenStream::new(&mut client, slots).await?;
        let (worker_id, every) = (stream.worker_id, stream.heartbeat_every);
        let written = Arc::new(AtomicU64::new(0));
        let (ended, results) = mpsc::unbounded_channel();
        let report = report(reporter, results, written.clone());
        let task = tokio::spawn(async move {
            let run = async {
                loop {
                    for job in stream.jobs().await? {
                        ended.send(v1::Claim {
                            job_id: job.job_id,
                            fence: job.fence,
                            worker_id: job.worker_id,
                        })?;
                    }
                }
            };
            tokio::select! {
                failed = run => failed,
                failed = report => failed,
                failed = heartbeats(client, worker_id, every) => failed,
            }
        });
        Ok(StreamWorker { worker_id, written, task })
    }

    /// Returns when the results of this many jobs were written.
    pub(crate) async fn until(&self, jobs: u64) -> Result<()> {
        while self.written.load(Ordering::Relaxed) < jobs {
            ensure!(!self.task.is_finished(), "the worker failed");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

impl Drop for StreamWorker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reports what has ended, everything that is there in one call.
async fn report(
    mut client: Client,
    mut ended: mpsc::UnboundedReceiver<v1::Claim>,
    written: Arc<AtomicU64>,
) -> Result<()> {
    let mut claims = Vec::new();
    while ended.recv_many(&mut claims, RESULTS_MAX).await > 0 {
        let complete = || Some(Outcome::Complete(v1::Complete { forget: true, ..v1::Complete::default() }));
        let results: Vec<v1::Result> = claims
            .drain(..)
            .map(|claim| v1::Result { claim: Some(claim), outcome: complete(), ..v1::Result::default() })
            .collect();
        let count = results.len();
        let answer = client.report_result(v1::ReportResultRequest { results }).await?.into_inner();
        let yes = i32::from(v1::Written::Yes);
        ensure!(answer.written == vec![yes; count], "a result was not written: {:?}", answer.written);
        written.fetch_add(count as u64, Ordering::Relaxed);
    }
    Ok(())
}
