//! What the tests of the server share: a node on a port of its own, remote workers, and a bare client.

#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod http;

use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use pitwheel::{Job, Pitwheel, Stats, Worker};
use pitwheel_proto::v1;
use pitwheel_proto::v1::job_service_client::JobServiceClient;
use pitwheel_proto::v1::stream_jobs_response::Event;
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use pitwheel_server::Options;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;
use tonic::Streaming;
use tonic::transport::Channel;

/// Nothing here takes this long unless it is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize, Clone)]
pub(crate) struct Work {
    pub(crate) n: i64,
}

impl Job for Work {
    const KIND: &'static str = "work";
    const MAX_ATTEMPTS: u32 = 3;
}

/// A node that serves until it is stopped.
pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), pitwheel_server::Error>>,
}

impl Node {
    pub(crate) async fn start(pitwheel: &Pitwheel, lease: Duration) -> Result<Node> {
        Node::start_at(pitwheel, lease, "127.0.0.1:0".parse()?).await
    }

    pub(crate) async fn start_at(pitwheel: &Pitwheel, lease: Duration, address: SocketAddr) -> Result<Node> {
        let mut options = Options::default();
        options.lease = lease;
        Node::start_with(pitwheel, options, address).await
    }

    pub(crate) async fn start_with(
        pitwheel: &Pitwheel,
        options: Options,
        address: SocketAddr,
    ) -> Result<Node> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            let _ = stopped.await;
        };
        let task = tokio::spawn(pitwheel_server::run(pitwheel.clone(), listener, options, shutdown));
        Ok(Node { address, stop, task })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) async fn stop(self) -> Result<()> {
        let _ = self.stop.send(());
        Ok(tokio::time::timeout(PATIENCE, self.task).await???)
    }

    pub(crate) async fn workers(&self) -> Result<WorkerServiceClient<Channel>> {
        Ok(WorkerServiceClient::connect(self.url()).await?)
    }

    pub(crate) async fn jobs(&self) -> Result<JobServiceClient<Channel>> {
        Ok(JobServiceClient::connect(self.url()).await?)
    }

    /// A stream of a client of another language, as it were: it sends heartbeats, and does nothing else by itself.
    pub(crate) async fn stream(&self, slots: u32) -> Result<Bare> {
        Bare::open(self.workers().await?, slots).await
    }
}

pub(crate) struct Bare {
    pub(crate) client: WorkerServiceClient<Channel>,
    pub(crate) messages: Streaming<v1::StreamJobsResponse>,
    pub(crate) worker_id: i64,
    pub(crate) beating: AbortOnDropHandle<()>,
}

/// Heartbeats in the background.
fn beat(mut client: WorkerServiceClient<Channel>, welcome: &v1::Welcome) -> Result<AbortOnDropHandle<()>> {
    let every: Duration = welcome.heartbeat_every.context("no interval")?.try_into()?;
    let request = v1::HeartbeatRequest { worker_ids: vec![welcome.worker_id], ended: Vec::new() };
    Ok(AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            tokio::time::sleep(every).await; // between two heartbeats
            let _ = client.heartbeat(request.clone()).await;
        }
    })))
}

impl Bare {
    /// Opens a stream on a connection that others may use too.
    pub(crate) async fn open(mut client: WorkerServiceClient<Channel>, slots: u32) -> Result<Bare> {
        let request = v1::StreamJobsRequest {
            worker: "bare".into(),
            queues: vec!["default".into()],
            kinds: vec!["work".into()],
            slots,
        };
        let mut messages = client.stream_jobs(request).await?.into_inner();
        let Some(Event::Welcome(welcome)) = messages.message().await?.and_then(|message| message.event)
        else {
            bail!("no welcome");
        };
        let beating = beat(client.clone(), &welcome)?;
        Ok(Bare { client, messages, worker_id: welcome.worker_id, beating })
    }

    /// The next jobs that come down.
    pub(crate) async fn jobs(&mut self) -> Result<Vec<v1::Assignment>> {
        let message = tokio::time::timeout(PATIENCE, self.messages.message()).await??;
        match message.and_then(|message| message.event) {
            Some(Event::Assignments(assignments)) => Ok(assignments.jobs),
            other => bail!("no jobs came, but {other:?}"),
        }
    }

    /// Reports one outcome for a job; whether it was written.
    pub(crate) async fn report(
        &mut self,
        job: &v1::Assignment,
        outcome: v1::result::Outcome,
    ) -> Result<v1::Written> {
        let claim = v1::Claim { job_id: job.job_id, fence: job.fence };
        let results = vec![v1::Result { claim: Some(claim), outcome: Some(outcome) }];
        let answer = self.client.report_result(v1::ReportResultRequest { results }).await?.into_inner();
        let written = answer.written.first().context("no answer")?;
        Ok(v1::Written::try_from(*written)?)
    }

    pub(crate) async fn complete(&mut self, job: &v1::Assignment) -> Result<v1::Written> {
        self.report(job, v1::result::Outcome::Complete(v1::Complete::default())).await
    }
}

pub(crate) struct Handle {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Stats, pitwheel::Error>>,
}

impl Handle {
    pub(crate) async fn stop(self) -> Result<Stats> {
        let _ = self.stop.send(());
        Ok(tokio::time::timeout(PATIENCE, self.task).await???)
    }

    /// Waits for it to end of its own accord.
    pub(crate) async fn ended(self) -> Result<Stats> {
        let _stop = self.stop;
        Ok(tokio::time::timeout(PATIENCE, self.task).await???)
    }

    /// Ends without a word, as a killed process would.
    pub(crate) fn kill(self) {
        self.task.abort();
    }
}

/// Starts the worker in the background.
pub(crate) fn start(worker: Worker) -> Handle {
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(worker.run(async {
        let _ = stopped.await;
    }));
    Handle { stop, task }
}

/// Waits until the condition holds, looking again and again.
pub(crate) async fn until<F: Future<Output = Result<bool>>>(
    what: &str,
    condition: impl Fn() -> F,
) -> Result<()> {
    let begun = Instant::now();
    while !condition().await? {
        if begun.elapsed() > PATIENCE {
            bail!("waited in vain until {what}");
        }
        tokio::time::sleep(Duration::from_millis(10)).await; // between two looks
    }
    Ok(())
}
