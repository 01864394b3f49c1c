//! The door for programs that run jobs.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use pitwheel::engine::{
    AttemptInfo, Registration, Settlement, attempts, claims_of_token, progress, workers_of_token,
};
use pitwheel::{Claim, Settled};
use pitwheel_proto::v1;
use pitwheel_proto::v1::stream_jobs_response::Event;
use pitwheel_proto::v1::worker_service_server::WorkerService;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use crate::auth::access::{Caller, Need, caller};
use crate::dispatch::beats;
use crate::dispatch::node::Node;
use crate::dispatch::streams::Message;
use crate::grpc::messages::{self, Reported};
use crate::limits;

pub(crate) struct Workers {
    node: Arc<Node>,
}

impl Workers {
    pub(crate) fn new(node: Arc<Node>) -> Workers {
        Workers { node }
    }

    /// Which attempts the failed ones are, so that the last is not tried again.
    async fn attempts(&self, reported: &[(Claim, Reported)]) -> Result<HashMap<i64, AttemptInfo>, Status> {
        let failed = reported.iter().filter(|(_, what)| what.depends_on_attempt()).map(|(claim, _)| *claim);
        let failed: Vec<Claim> = failed.collect();
        if failed.is_empty() {
            return Ok(HashMap::new());
        }
        let found = self.node.pool.run(async |client| attempts(&*client, &failed).await).await;
        found.map_err(|error| messages::status(&error))
    }

    /// Which of these workers came in with another token than the caller's. What is open here is known; the rest is asked
    /// of the database.
    async fn others(&self, caller: &Caller, workers: &[i64]) -> Result<HashSet<i64>, Status> {
        let Some(token) = caller.only_own() else { return Ok(HashSet::new()) };
        let unknown: Vec<i64> = {
            let streams = self.node.streams();
            workers.iter().filter(|worker| streams.token_of(**worker) != Some(token)).copied().collect()
        };
        if unknown.is_empty() {
            return Ok(HashSet::new());
        }
        let own = self.node.pool.run(async |client| workers_of_token(&*client, token, &unknown).await).await;
        let own = own.map_err(|error| messages::status(&error))?;
        Ok(unknown.into_iter().filter(|worker| !own.contains(worker)).collect())
    }

    /// Which of these claims are held by workers of others.
    async fn claims_of_others(
        &self,
        caller: &Caller,
        reported: &[(Claim, Reported)],
    ) -> Result<HashSet<Claim>, Status> {
        let Some(token) = caller.only_own() else { return Ok(HashSet::new()) };
        let unknown: Vec<Claim> = {
            let streams = self.node.streams();
            let claims = reported.iter().map(|(claim, _)| *claim);
            claims.filter(|claim| streams.token_of_claim(*claim) != Some(token)).collect()
        };
        if unknown.is_empty() {
            return Ok(HashSet::new());
        }
        let own = self.node.pool.run(async |client| claims_of_token(&*client, token, &unknown).await).await;
        let own = own.map_err(|error| messages::status(&error))?;
        Ok(unknown.into_iter().filter(|claim| !own.contains(claim)).collect())
    }
}

#[tonic::async_trait]
impl WorkerService for Workers {
    type StreamJobsStream = Assigned;

    async fn stream_jobs(
        &self,
        request: Request<v1::StreamJobsRequest>,
    ) -> Result<Response<Assigned>, Status> {
        let caller = caller(&request)?;
        caller.needs(Need::Work)?;
        let request = request.into_inner();
        let name = limits::worker_name(&request.worker)?;
        let slots = limits::slots(request.slots)?;
        let (queues, kinds) = (limits::queues(request.queues)?, limits::kinds(request.kinds)?);
        let node = &self.node;
        if node.is_stopping() {
            return Err(Status::unavailable("this node is ending: try another"));
        }
        if node.streams().len() >= limits::STREAMS_MAX {
            let max = limits::STREAMS_MAX;
            return Err(Status::resource_exhausted(format!(
                "this node has {max} streams already: try another"
            )));
        }
        if let Some(token) = caller.token
            && node.streams().of_token(token) >= limits::TOKEN_STREAMS_MAX
        {
            let max = limits::TOKEN_STREAMS_MAX;
            return Err(Status::resource_exhausted(format!(
                "{} has {max} streams here already: take another token, or another node",
                caller.name
            )));
        }
        let lease = node.options.lease;
        let token = caller.token;
        let worker = Registration { name, lease, transport: "grpc", queues, kinds, slots, token };
        let opened = node.open(worker).await;
        let (worker, messages) = opened.map_err(|error| messages::status(&error))?;
        let welcome = v1::Welcome {
            worker_id: worker,
            lease: Some(messages::duration(node.options.lease)),
            heartbeat_every: Some(messages::duration(node.heartbeat_every())),
        };
        let first = Some(v1::StreamJobsResponse { event: Some(Event::Welcome(welcome)) });
        Ok(Response::new(Assigned { node: node.clone(), worker, first, messages }))
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatResponse>, Status> {
        let caller = caller(&request)?;
        caller.needs(Need::Work)?;
        let request = request.into_inner();
        let mut workers = request.worker_ids;
        workers.extend(request.ended.iter().map(|ended| ended.worker_id));
        limits::batch("workers", workers.len())?;
        let others = self.others(&caller, &workers).await?;
        workers.retain(|worker| !others.contains(worker));
        let mut answer = self.node.beats.beat(workers).await.map_err(|error| messages::refusal(&error))?;
        // Of somebody else's worker nothing is told but that it is not theirs to keep.
        answer.dead.extend(&others);
        for ended in request.ended.into_iter().filter(|ended| !others.contains(&ended.worker_id)) {
            // Its connection broke, which we may not have noticed: nobody reads what would be sent down.
            self.node.streams().close(ended.worker_id);
            let holding: Vec<Claim> = ended.holding.into_iter().map(messages::claim).collect();
            let given_back = beats::ended(&self.node, ended.worker_id, &holding).await;
            given_back.map_err(|error| messages::refusal(&error))?;
        }
        Ok(Response::new(v1::HeartbeatResponse {
            cancelled: answer.cancelled.into_iter().map(messages::claim_message).collect(),
            dead_worker_ids: answer.dead,
            draining_worker_ids: answer.draining,
        }))
    }

    async fn report_result(
        &self,
        request: Request<v1::ReportResultRequest>,
    ) -> Result<Response<v1::ReportResultResponse>, Status> {
        let caller = caller(&request)?;
        caller.needs(Need::Work)?;
        let results = request.into_inner().results;
        limits::batch("results", results.len())?;
        let reported = results.into_iter().map(messages::reported).collect::<Result<Vec<_>, _>>()?;
        let others = self.claims_of_others(&caller, &reported).await?;
        let attempts = self.attempts(&reported).await?;
        let mut written = vec![v1::Written::Lost; reported.len()];
        let (mut endings, mut positions) = (Vec::new(), Vec::new());
        let (mut notes, mut noted_at) = (Vec::new(), Vec::new());
        for (at, (claim, what)) in reported.into_iter().enumerate() {
            if others.contains(&claim) {
                continue;
            }
            let ctid = self.node.streams().ctid(claim);
            match what.ending(attempts.get(&claim.id), ctid) {
                messages::Written::Ending(ending) => {
                    endings.push(Settlement { claim, ending });
                    positions.push(at);
                }
                messages::Written::Note(fraction, note) => {
                    notes.push((claim, fraction, note));
                    noted_at.push((claim, at));
                }
            }
        }
        if !notes.is_empty() {
            notes.sort_unstable_by_key(|(claim, ..)| claim.id);
            let noted = self.node.pool.run(async |client| progress(&client, &notes).await).await;
            let noted: HashSet<Claim> =
                noted.map_err(|error| messages::status(&error))?.into_iter().collect();
            let held = noted_at.into_iter().filter(|(claim, _)| noted.contains(claim));
            held.for_each(|(_, at)| written[at] = v1::Written::Yes);
        }
        if !endings.is_empty() {
            let settled =
                self.node.reports.settle(endings).await.map_err(|error| messages::refusal(&error))?;
            for (at, settled) in positions.into_iter().zip(settled) {
                if settled == Settled::Written {
                    written[at] = v1::Written::Yes;
                }
            }
        }
        Ok(Response::new(v1::ReportResultResponse { written: written.into_iter().map(i32::from).collect() }))
    }
}

/// What goes down one stream. Dropped when the worker is gone: then what was not sent is given back.
pub(crate) struct Assigned {
    node: Arc<Node>,
    worker: i64,
    first: Option<Message>,
    messages: mpsc::UnboundedReceiver<Message>,
}

impl Stream for Assigned {
    type Item = Result<Message, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        let message = std::task::ready!(self.messages.poll_recv(context));
        Poll::Ready(Some(match message {
            Some(message) => Ok(message),
            None if self.node.is_stopping() => Err(Status::unavailable("this node is ending: try another")),
            None => {
                Err(Status::aborted("this worker was declared dead, or its token revoked: open a new stream"))
            }
        }))
    }
}

impl Drop for Assigned {
    fn drop(&mut self) {
        self.node.streams().close(self.worker);
        self.messages.close();
        let mut unsent = Vec::new();
        while let Ok(message) = self.messages.try_recv() {
            if let Some(Event::Assignments(assignments)) = message.event {
                let claims = assignments.jobs.iter().map(|job| Claim { id: job.job_id, fence: job.fence });
                unsent.extend(claims);
            }
        }
        self.node.release(unsent);
    }
}
