//! The service for programs that run jobs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::stream::{self, BoxStream, StreamExt};
use pitwheel::engine::{
    AttemptInfo, Ctid, Registration, SettleResult, Settlement, attempts, claims_of_token, progress,
    workers_of_token,
};
use pitwheel::{Claim, Error, Recurrence};
use pitwheel_proto::v1;
use pitwheel_proto::v1::stream_jobs_response::Event;
use pitwheel_proto::v1::worker_service_server::WorkerService;
use tonic::{Request, Response, Status};

use crate::auth::caller::{Caller, Permission};
use crate::dispatch::ended::Running;
use crate::dispatch::node::Node;
use crate::dispatch::not_claimed::NotClaimed;
use crate::dispatch::reports::{Endings, NotWritten};
use crate::dispatch::source::Source;
use crate::dispatch::stream::StreamOptions;
use crate::dispatch::streams::places::{Full, Place};
use crate::grpc::job_stream::JobStream;
use crate::grpc::messages::{claim_message, claim_refused, duration, ended_streams};
use crate::grpc::results::{self, Reported, Write};
use crate::grpc::status::status;
use crate::limits;
use crate::listen::admission::Admitted;
use crate::listen::bodies::Room;
use crate::listen::lifetimes::Lifetime;
use crate::listen::unwritten::Unwritten;
use crate::problem::Problem;

pub(crate) struct Workers {
    node: Arc<Node>,
}

impl Workers {
    pub(crate) fn new(node: Arc<Node>) -> Workers {
        Workers { node }
    }

    /// Takes a place for a stream of the caller, unless this node or the caller's token has too many already.
    fn take_place(&self, caller: &Caller) -> Result<Place, Problem> {
        self.node.streams.take_place(caller.token()).map_err(|full| match full {
            Full::Node => Problem::busy(format!(
                "this node already has {} streams: use another node",
                limits::STREAMS_MAX
            )),
            Full::Token => Problem::busy(format!(
                "`{}` already has {} streams on this node: use another token or another node",
                caller.name(),
                limits::TOKEN_STREAMS_MAX
            )),
        })
    }

    /// Frees the slots of what was reported, before it is written: here, and by a hint at the nodes that sent the others.
    fn free_slots(&self, reported: &[(Claim, Source, Reported)], of_others: &HashSet<Claim>) {
        let ended =
            reported.iter().filter(|(claim, _, result)| result.is_ending() && !of_others.contains(claim));
        let ended = ended.map(|(claim, ..)| *claim);
        let mut streams = self.node.streams.lock();
        let elsewhere = streams.not_sent_from_here(ended.clone());
        streams.reported(ended);
        drop(streams);
        self.node.claim_hints.reported(elsewhere);
    }

    /// The attempts of failed results, because the last attempt of a job must not be retried, and of jobs that were sent by another
    /// node, because they may be runs of recurring jobs, and this node knows neither where their rows are nor how to count them.
    async fn attempts(
        &self,
        reported: &[(Claim, Source, Reported)],
    ) -> Result<HashMap<i64, AttemptInfo>, Error> {
        let unknown: Vec<Claim> = {
            let streams = self.node.streams.lock();
            let unknown = reported.iter().filter(|(claim, _, result)| {
                result.depends_on_attempt() || !result.is_progress() && streams.sent(*claim).is_none()
            });
            unknown.map(|(claim, ..)| *claim).collect()
        };
        if unknown.is_empty() {
            return Ok(HashMap::new());
        }
        self.node.pool.run(async |client| attempts(&*client, &unknown).await).await
    }

    /// What is known of a claim that was sent from here.
    fn sent(&self, claim: Claim) -> Sent {
        match self.node.streams.lock().sent(claim) {
            Some(job) => Sent {
                claim: Claim { holder: job.worker, ..claim },
                ctid: job.ctid,
                run: job.recurrence.clone(),
                in_lane: job.in_lane,
            },
            None => Sent { claim, ctid: None, run: None, in_lane: false },
        }
    }

    /// Those of these workers that the caller may not act for, because they were opened with another token. Only workers
    /// whose streams are not open here are looked up in the database, with `own`.
    async fn workers_of_others(
        &self,
        caller: &Caller,
        workers: &[i64],
        own: impl AsyncFnOnce(i64, &[i64]) -> Result<Vec<i64>, Error>,
    ) -> Result<HashSet<i64>, Error> {
        let Some(token) = caller.limited_to_token() else { return Ok(HashSet::new()) };
        let unknown: Vec<i64> = {
            let streams = self.node.streams.lock();
            workers.iter().filter(|worker| streams.token_of(**worker) != Some(token)).copied().collect()
        };
        if unknown.is_empty() {
            return Ok(HashSet::new());
        }
        let own = own(token, &unknown).await?;
        Ok(unknown.into_iter().filter(|worker| !own.contains(worker)).collect())
    }

    /// The same for claims. A claim that names its worker belongs to that worker's token, whoever has the job now. One that names
    /// none is looked up.
    async fn claims_of_others(
        &self,
        caller: &Caller,
        reported: &[(Claim, Source, Reported)],
    ) -> Result<HashSet<Claim>, Error> {
        let Some(token) = caller.limited_to_token() else { return Ok(HashSet::new()) };
        let claims = reported.iter().map(|(claim, ..)| *claim);
        let (named, mut unnamed): (Vec<Claim>, Vec<Claim>) = claims.partition(|claim| claim.holder != 0);
        let mut workers: Vec<i64> = named.iter().map(|claim| claim.holder).collect();
        workers.sort_unstable();
        workers.dedup();
        let own = async |token: i64, workers: &[i64]| {
            self.node.pool.run(async |client| workers_of_token(&*client, token, workers).await).await
        };
        let workers = self.workers_of_others(caller, &workers, own).await?;
        let mut of_others: HashSet<Claim> =
            named.into_iter().filter(|claim| workers.contains(&claim.holder)).collect();
        {
            let streams = self.node.streams.lock();
            unnamed.retain(|claim| streams.token_of_claim(*claim) != Some(token));
        }
        if !unnamed.is_empty() {
            let own =
                self.node.pool.run(async |client| claims_of_token(&*client, token, &unnamed).await).await?;
            of_others.extend(unnamed.into_iter().filter(|claim| !own.contains(claim)));
        }
        Ok(of_others)
    }

    /// Claims the only job of a new stream. If it is not claimed, the worker ends, and the stream has one message: the reason.
    async fn claim_for_stream(
        &self,
        worker: i64,
        job: i64,
        stream: JobStream,
    ) -> Result<BoxStream<'static, Result<v1::StreamJobsResponse, Status>>, Status> {
        let claimed = self.node.claim_job(worker, job, None).await;
        if let Ok(Ok(())) = claimed {
            return Ok(stream.boxed());
        }
        drop(stream);
        self.node.ended.settle(vec![(worker, Running::new())]).await?;
        match claimed.map_err(status)? {
            Err(NotClaimed::Refused(refusal)) => {
                let event = Event::ClaimRefused(claim_refused(refusal));
                Ok(stream::iter([Ok(v1::StreamJobsResponse { event: Some(event) })]).boxed())
            }
            // The stream has ended meanwhile.
            _ => Err(NotWritten::Stopping.into()),
        }
    }

    /// Writes progress. Returns the claims that are still held.
    async fn write_progress(&self, mut notes: Vec<(Claim, f32, String)>) -> Result<HashSet<Claim>, Error> {
        if notes.is_empty() {
            return Ok(HashSet::new());
        }
        notes.sort_unstable_by_key(|(claim, ..)| claim.id);
        let written = self.node.pool.run(async |client| progress(&client, &notes).await).await?;
        Ok(written.into_iter().collect())
    }
}

#[tonic::async_trait]
impl WorkerService for Workers {
    type StreamJobsStream = BoxStream<'static, Result<v1::StreamJobsResponse, Status>>;

    async fn stream_jobs(
        &self,
        request: Request<v1::StreamJobsRequest>,
    ) -> Result<Response<Self::StreamJobsStream>, Status> {
        let caller = Caller::of(&request)?;
        caller.check(Permission::Work)?;
        let (lifetime, guard) = Lifetime::new(request.extensions().get::<Arc<Admitted>>());
        let request = request.into_inner();
        let node = &self.node;
        let (slots, queues) = match request.job_id {
            Some(_) => (1, Vec::new()),
            None => (
                limits::slots(request.slots).map_err(status)?,
                limits::queues(request.queues).map_err(status)?,
            ),
        };
        let worker = Registration {
            name: limits::worker_name(&request.worker).map_err(status)?,
            slots,
            queues,
            kinds: limits::kinds(request.kinds).map_err(status)?,
            lease: node.lease,
            transport: "grpc",
            token: caller.token(),
        };
        if !node.serves_workers {
            return Err(Status::unavailable("this node serves no workers (--no-worker): use another node"));
        }
        if node.is_stopping() {
            return Err(NotWritten::Stopping.into());
        }
        let place = self.take_place(&caller)?;
        let unwritten = Unwritten::default();
        let options = StreamOptions {
            slots,
            token: caller.token(),
            process: request.process,
            keeps_ahead: request.keeps_ahead,
            lifetime: Some(lifetime),
            unwritten: unwritten.clone(),
        };
        let (worker_id, messages) = node.open(place, worker, options).await?;
        let welcome = v1::Welcome {
            worker_id,
            lease: Some(duration(node.lease)),
            heartbeat_every: Some(duration(node.heartbeat_every())),
        };
        let stream = JobStream::new(node.clone(), welcome, messages, guard);
        let messages = match request.job_id {
            Some(job) => self.claim_for_stream(worker_id, job, stream).await?,
            None => stream.boxed(),
        };
        let mut response = Response::new(messages);
        response.extensions_mut().insert(unwritten);
        Ok(response)
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatResponse>, Status> {
        let caller = Caller::of(&request)?;
        caller.check(Permission::Work)?;
        let v1::HeartbeatRequest { worker_ids: mut workers, mut ended } = request.into_inner();
        let renews = !workers.is_empty();
        workers.extend(ended.iter().map(|stream| stream.worker_id));
        limits::report("workers", workers.len()).map_err(status)?;
        let own = async |token: i64, workers: &[i64]| self.node.renewable(token, workers).await;
        let of_others = self.workers_of_others(&caller, &workers, own).await.map_err(status)?;
        workers.retain(|worker| !of_others.contains(worker));
        ended.retain(|stream| !of_others.contains(&stream.worker_id));
        let mut renewal = self.node.heartbeats.renew(workers).await?;
        // A caller learns nothing about the workers of other tokens, not even whether they exist.
        renewal.dead.extend(&of_others);
        // Who renews leases must learn it. Who does not can repeat the call.
        if !self.node.end_streams(ended_streams(ended)).await? && !renews {
            return Err(NotWritten::Unsettled.into());
        }
        Ok(Response::new(v1::HeartbeatResponse {
            cancelled: renewal.cancelled.into_iter().map(claim_message).collect(),
            dead_worker_ids: renewal.dead,
            draining_worker_ids: renewal.draining,
        }))
    }

    async fn report_result(
        &self,
        request: Request<v1::ReportResultRequest>,
    ) -> Result<Response<v1::ReportResultResponse>, Status> {
        let caller = Caller::of(&request)?;
        caller.check(Permission::Work)?;
        let room = request.extensions().get::<Room>().cloned();
        let results = request.into_inner().results;
        limits::report("results", results.len()).map_err(status)?;
        let Read { reported, positions, mut problems } = read(results).map_err(status)?;
        let of_others = self.claims_of_others(&caller, &reported).await.map_err(status)?;
        self.free_slots(&reported, &of_others);
        let attempts = self.attempts(&reported).await.map_err(status)?;
        let mut written = vec![v1::Written::Refused; reported.len() + problems.len()];
        // Each with its position in the report.
        let (mut endings, mut sources, mut ending_at) = (Vec::new(), Vec::new(), Vec::new());
        let (mut notes, mut note_at) = (Vec::new(), Vec::new());
        for (at, (claim, source, result)) in positions.into_iter().zip(reported) {
            written[at] = v1::Written::Lost;
            if of_others.contains(&claim) {
                continue;
            }
            let Sent { claim, ctid, run, in_lane } = self.sent(claim);
            let attempt = attempts.get(&claim.id);
            let ctid = ctid.or_else(|| attempt.map(|attempt| attempt.ctid));
            let run = run.or_else(|| attempt.and_then(|attempt| attempt.recurrence.clone()));
            match result.write(attempt, ctid, run.as_deref()) {
                Write::Ending(ending, plan, last_progress) => {
                    endings.push(Settlement { claim, ending, plan, in_lane, last_progress });
                    sources.push(source);
                    ending_at.push(at);
                }
                Write::Progress(fraction, note) => {
                    notes.push((claim, fraction, note));
                    note_at.push((claim, at));
                }
            }
        }
        let noted = self.write_progress(notes).await.map_err(status)?;
        for (claim, at) in note_at {
            if noted.contains(&claim) {
                written[at] = v1::Written::Yes;
            }
        }
        if !endings.is_empty() {
            let results = self.node.reports.settle(Endings { endings, sources, attempts, room }).await?;
            for (at, result) in ending_at.into_iter().zip(results) {
                written[at] = match result {
                    SettleResult::Written => v1::Written::Yes,
                    SettleResult::Already => v1::Written::Already,
                    SettleResult::Lost => v1::Written::Lost,
                    SettleResult::Locked => v1::Written::Locked,
                    SettleResult::Refused(problem) => {
                        problems.push((at, problem));
                        v1::Written::Refused
                    }
                };
            }
        }
        let problems = texts(written.len(), problems);
        let written = written.into_iter().map(i32::from).collect();
        Ok(Response::new(v1::ReportResultResponse { written, problems }))
    }
}

/// What is known of a claim that was sent from here.
struct Sent {
    /// With its holder.
    claim: Claim,
    /// Where its row was, if the fast path can settle it.
    ctid: Option<Ctid>,
    /// Its recurring job.
    run: Option<Box<Recurrence>>,
    in_lane: bool,
}

/// The results of a report.
struct Read {
    /// Those that are valid.
    reported: Vec<(Claim, Source, Reported)>,
    /// The position in the report of each of them.
    positions: Vec<usize>,
    /// The positions of the others, and what is wrong with them.
    problems: Vec<(usize, String)>,
}

/// Reads the results of a report. An error only if the report has a single result, and that is invalid.
fn read(results: Vec<v1::Result>) -> Result<Read, Error> {
    let is_single = results.len() == 1;
    let mut read = Read { reported: Vec::new(), positions: Vec::new(), problems: Vec::new() };
    for (at, result) in results.into_iter().enumerate() {
        match results::reported(result) {
            Ok(result) => {
                read.reported.push(result);
                read.positions.push(at);
            }
            Err(error) if is_single => return Err(error),
            Err(error) => read.problems.push((at, error.to_string())),
        }
    }
    Ok(read)
}

/// One text per result; none if there is no problem.
fn texts(results: usize, problems: Vec<(usize, String)>) -> Vec<String> {
    let mut texts = vec![String::new(); if problems.is_empty() { 0 } else { results }];
    for (at, problem) in problems {
        texts[at] = problem;
    }
    texts
}
