//! The stream of messages to one worker.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use pitwheel::Claim;
use pitwheel_proto::v1;
use pitwheel_proto::v1::stream_jobs_response::Event;
use tokio::sync::mpsc;
use tonic::Status;

use crate::dispatch::node::Node;
use crate::dispatch::reports::NotWritten;
use crate::dispatch::stream::StreamMessage;
use crate::grpc::messages::{assignment, claim_message};

/// Dropped when the worker is gone: jobs that were not sent are released then.
pub(crate) struct JobStream {
    node: Arc<Node>,
    worker: i64,
    welcome: Option<v1::Welcome>,
    messages: mpsc::Receiver<StreamMessage>,
}

impl JobStream {
    pub(crate) fn new(
        node: Arc<Node>,
        welcome: v1::Welcome,
        messages: mpsc::Receiver<StreamMessage>,
    ) -> JobStream {
        JobStream { node, worker: welcome.worker_id, welcome: Some(welcome), messages }
    }
}

fn event(message: StreamMessage) -> Event {
    match message {
        StreamMessage::Jobs(jobs) => {
            Event::Assignments(v1::Assignments { jobs: jobs.into_iter().map(assignment).collect() })
        }
        StreamMessage::Cancels(claims) => {
            Event::Cancels(v1::Cancels { claims: claims.into_iter().map(claim_message).collect() })
        }
    }
}

impl Stream for JobStream {
    type Item = Result<v1::StreamJobsResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = match self.welcome.take() {
            Some(welcome) => Event::Welcome(welcome),
            None => match ready!(self.messages.poll_recv(context)) {
                Some(message) => {
                    self.node.streams.lock().was_read(self.worker, message.job_bytes());
                    event(message)
                }
                None if self.node.is_stopping() => {
                    return Poll::Ready(Some(Err(NotWritten::Stopping.into())));
                }
                None => {
                    return Poll::Ready(Some(Err(Status::aborted(
                        "the worker was declared dead or its token was revoked: open a new stream",
                    ))));
                }
            },
        };
        Poll::Ready(Some(Ok(v1::StreamJobsResponse { event: Some(event) })))
    }
}

impl Drop for JobStream {
    fn drop(&mut self) {
        self.node.streams.lock().close(self.worker);
        self.messages.close();
        let mut unsent: Vec<Claim> = Vec::new();
        while let Ok(message) = self.messages.try_recv() {
            if let StreamMessage::Jobs(jobs) = message {
                unsent.extend(jobs.iter().map(|job| job.claim));
            }
        }
        self.node.release(unsent);
    }
}
