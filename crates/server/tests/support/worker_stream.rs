//! A worker's stream that the test drives by hand, as a client in another language would.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use pitwheel_proto::v1;
use pitwheel_proto::v1::stream_jobs_response::Event;
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use pitwheel_testkit::WAIT_MAX;
use tokio_util::task::AbortOnDropHandle;
use tonic::Streaming;
use tonic::transport::Channel;

/// A stream that sends heartbeats. It does nothing else by itself.
pub(crate) struct WorkerStream {
    pub(crate) client: WorkerServiceClient<Channel>,
    pub(crate) messages: Streaming<v1::StreamJobsResponse>,
    pub(crate) worker_id: i64,
    pub(crate) heartbeats: AbortOnDropHandle<()>,
}

impl WorkerStream {
    /// Opens a stream on a connection that other streams may use too.
    pub(crate) async fn open(client: WorkerServiceClient<Channel>, slots: u32) -> Result<WorkerStream> {
        WorkerStream::open_with(client, stream_request(slots)).await
    }

    /// Opens a stream with this request.
    pub(crate) async fn open_with(
        mut client: WorkerServiceClient<Channel>,
        request: v1::StreamJobsRequest,
    ) -> Result<WorkerStream> {
        let mut messages = client.stream_jobs(request).await?.into_inner();
        let welcome = next_welcome(&mut messages).await?;
        let heartbeats = send_heartbeats(client.clone(), &welcome)?;
        Ok(WorkerStream { client, messages, worker_id: welcome.worker_id, heartbeats })
    }

    /// The jobs of the next message.
    pub(crate) async fn jobs(&mut self) -> Result<Vec<v1::Assignment>> {
        next_assignments(&mut self.messages).await
    }

    /// At least this many jobs, from as many messages as it takes.
    pub(crate) async fn jobs_at_least(&mut self, count: usize) -> Result<Vec<v1::Assignment>> {
        let mut jobs = Vec::new();
        while jobs.len() < count {
            jobs.extend(self.jobs().await?);
        }
        Ok(jobs)
    }

    /// Reports one outcome for a job; returns whether it was written.
    pub(crate) async fn report(
        &mut self,
        job: &v1::Assignment,
        outcome: v1::result::Outcome,
    ) -> Result<v1::Written> {
        let results = vec![result(job, outcome)];
        let response = self.client.report_result(v1::ReportResultRequest { results }).await?.into_inner();
        let written = response.written.first().context("no entry for the result")?;
        Ok(v1::Written::try_from(*written)?)
    }

    /// Reports that a job is done; returns whether it was written.
    pub(crate) async fn complete(&mut self, job: &v1::Assignment) -> Result<v1::Written> {
        self.report(job, v1::result::Outcome::Complete(v1::Complete::default())).await
    }
}

/// A request for a stream of the kind `work` from the queue `default`.
pub(crate) fn stream_request(slots: u32) -> v1::StreamJobsRequest {
    v1::StreamJobsRequest {
        worker: "by hand".into(),
        queues: vec!["default".into()],
        kinds: vec!["work".into()],
        slots,
        process: String::new(),
        job_id: None,
        keeps_ahead: false,
    }
}

/// The first message of a stream.
pub(crate) async fn next_welcome(messages: &mut Streaming<v1::StreamJobsResponse>) -> Result<v1::Welcome> {
    match next_event(messages).await? {
        Some(Event::Welcome(welcome)) => Ok(welcome),
        other => bail!("expected a welcome, got {other:?}"),
    }
}

/// The jobs of a stream's next message.
pub(crate) async fn next_assignments(
    messages: &mut Streaming<v1::StreamJobsResponse>,
) -> Result<Vec<v1::Assignment>> {
    match next_event(messages).await? {
        Some(Event::Assignments(assignments)) => Ok(assignments.jobs),
        other => bail!("expected jobs, got {other:?}"),
    }
}

async fn next_event(messages: &mut Streaming<v1::StreamJobsResponse>) -> Result<Option<Event>> {
    let message = tokio::time::timeout(WAIT_MAX, messages.message()).await??;
    Ok(message.and_then(|message| message.event))
}

/// The claim of a job that came down a stream.
pub(crate) fn claim_of(job: &v1::Assignment) -> v1::Claim {
    v1::Claim { job_id: job.job_id, fence: job.fence, worker_id: job.worker_id }
}

/// A job's outcome, to be reported.
pub(crate) fn result(job: &v1::Assignment, outcome: v1::result::Outcome) -> v1::Result {
    v1::Result { claim: Some(claim_of(job)), outcome: Some(outcome), ..v1::Result::default() }
}

/// Sends heartbeats in the background until the handle is dropped.
fn send_heartbeats(
    mut client: WorkerServiceClient<Channel>,
    welcome: &v1::Welcome,
) -> Result<AbortOnDropHandle<()>> {
    let every: Duration = welcome.heartbeat_every.context("no interval")?.try_into()?;
    let request = v1::HeartbeatRequest { worker_ids: vec![welcome.worker_id], ended: Vec::new() };
    Ok(AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            tokio::time::sleep(every).await; // between two heartbeats
            let _ = client.heartbeat(request.clone()).await;
        }
    })))
}
