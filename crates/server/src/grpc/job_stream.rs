//! The stream of messages to one worker.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use pitwheel::engine::{AHEAD_MAX, Claimed};
use pitwheel_proto::v1;
use pitwheel_proto::v1::stream_jobs_response::Event;
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep};
use tokio_util::sync::DropGuard;
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
    /// Claimed jobs that wait for a free slot of the worker.
    ahead: VecDeque<Claimed>,
    /// Ends when they have waited for too long. Set while any waits.
    late: Option<Pin<Box<Sleep>>>,
    /// Says when the stream is gone.
    _lifetime: DropGuard,
}

impl JobStream {
    pub(crate) fn new(
        node: Arc<Node>,
        welcome: v1::Welcome,
        messages: mpsc::Receiver<StreamMessage>,
        lifetime: DropGuard,
    ) -> JobStream {
        let (worker, welcome) = (welcome.worker_id, Some(welcome));
        JobStream { node, worker, welcome, messages, ahead: VecDeque::new(), late: None, _lifetime: lifetime }
    }

    /// The next message to the worker; `None`: the stream was ended.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        loop {
            if let Some(jobs) = self.next_jobs(context) {
                let jobs = jobs.into_iter().map(assignment).collect();
                return Poll::Ready(Some(Event::Assignments(v1::Assignments { jobs })));
            }
            match ready!(self.messages.poll_recv(context)) {
                Some(StreamMessage::Jobs(jobs)) => self.ahead.extend(jobs),
                Some(StreamMessage::Cancels(claims)) => {
                    self.release_ahead(|job| claims.contains(&job.claim));
                    let claims = claims.into_iter().map(claim_message).collect();
                    return Poll::Ready(Some(Event::Cancels(v1::Cancels { claims })));
                }
                None => return Poll::Ready(None),
            }
        }
    }

    /// The jobs to send now. Those that have waited too long are released: another worker may be free.
    fn next_jobs(&mut self, context: &mut Context<'_>) -> Option<Vec<Claimed>> {
        if self.ahead.is_empty() {
            return None;
        }
        let started = self.node.streams.lock().start(self.worker, &mut self.ahead, context.waker());
        let Some(jobs) = started else {
            self.release_ahead(|_| true);
            return None;
        };
        if !jobs.is_empty() {
            self.late = None;
            return Some(jobs);
        }
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(AHEAD_MAX)));
        if late.as_mut().poll(context).is_ready() {
            self.late = None;
            self.node.streams.lock().forget_pace(self.worker);
            self.release_ahead(|_| true);
        }
        None
    }

    /// Gives back jobs that were not sent. One that was asked to cancel is cancelled by that.
    fn release_ahead(&mut self, which: impl Fn(&Claimed) -> bool) {
        let (unsent, ahead) = std::mem::take(&mut self.ahead).into_iter().partition(which);
        let unsent: VecDeque<Claimed> = unsent;
        self.ahead = ahead;
        let claims = self.node.streams.lock().give_up(self.worker, &unsent);
        self.node.release(claims);
    }
}

impl Stream for JobStream {
    type Item = Result<v1::StreamJobsResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = match self.welcome.take() {
            Some(welcome) => Event::Welcome(welcome),
            None => match ready!(self.poll_event(context)) {
                Some(event) => event,
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
        while let Ok(message) = self.messages.try_recv() {
            if let StreamMessage::Jobs(jobs) = message {
                self.ahead.extend(jobs);
            }
        }
        self.release_ahead(|_| true);
    }
}
