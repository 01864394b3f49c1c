//! The service for programs that create and change recurring jobs.

use std::time::SystemTime;

use pitwheel::{Error, Misfire, NewRecurring, Pitwheel, RecurringDetail, RecurringJobs, RunNow};
use pitwheel_proto::v1;
use pitwheel_proto::v1::recurring_name::Name;
use pitwheel_proto::v1::recurring_service_server::RecurringService;
use tonic::{Request, Response, Status};

use crate::auth::caller::{Caller, Permission};
use crate::grpc::messages::{duration, span};
use crate::grpc::status::status;
use crate::limits;

const NO_SUCH_KEY: Error = Error::NotFound(0, "no recurring job has this kind and key");

pub(crate) struct Recurring {
    pitwheel: Pitwheel,
}

impl Recurring {
    pub(crate) fn new(pitwheel: Pitwheel) -> Recurring {
        Recurring { pitwheel }
    }

    /// The recurring jobs, for a caller who may change them.
    fn operated_by(&self, caller: &Caller) -> Result<RecurringJobs, Status> {
        caller.check(Permission::Operate)?;
        Ok(self.pitwheel.acting_as(caller.name()).recurring())
    }

    /// The recurring job that a request names. One of a redacted kind is not found by its key if the caller may not see it: that would
    /// tell whether there is one.
    async fn shown(
        &self,
        name: Option<v1::RecurringName>,
        caller: &Caller,
    ) -> Result<RecurringDetail, Error> {
        let by_key = matches!(name, Some(v1::RecurringName { name: Some(Name::Key(_)) }));
        let detail = named(&self.pitwheel.recurring(), name).await?;
        if by_key && detail.summary.redacted && caller.needs_redaction() {
            return Err(NO_SUCH_KEY);
        }
        Ok(detail)
    }
}

#[tonic::async_trait]
impl RecurringService for Recurring {
    async fn create_recurring(
        &self,
        request: Request<v1::CreateRecurringRequest>,
    ) -> Result<Response<v1::CreateRecurringResponse>, Status> {
        let caller = Caller::of(&request)?;
        caller.check(Permission::Enqueue)?;
        let recurring = self.pitwheel.acting_as(caller.name()).recurring();
        let created = recurring.create(new(request.into_inner()).map_err(status)?).await.map_err(status)?;
        let detail = recurring.get(created.id).await.map_err(status)?;
        let recurring = Some(message(detail, &caller));
        Ok(Response::new(v1::CreateRecurringResponse { is_new: created.is_new, recurring }))
    }

    async fn get_recurring(
        &self,
        request: Request<v1::GetRecurringRequest>,
    ) -> Result<Response<v1::GetRecurringResponse>, Status> {
        let caller = Caller::of(&request)?;
        caller.check(Permission::ViewJob)?;
        let detail = self.shown(request.into_inner().name, &caller).await.map_err(status)?;
        Ok(Response::new(v1::GetRecurringResponse { recurring: Some(message(detail, &caller)) }))
    }

    async fn enable_recurring(
        &self,
        request: Request<v1::EnableRecurringRequest>,
    ) -> Result<Response<v1::EnableRecurringResponse>, Status> {
        let caller = Caller::of(&request)?;
        let recurring = self.operated_by(&caller)?;
        let mut detail = named(&recurring, request.into_inner().name).await.map_err(status)?;
        detail.summary = recurring.enable(detail.summary.id).await.map_err(status)?;
        Ok(Response::new(v1::EnableRecurringResponse { recurring: Some(message(detail, &caller)) }))
    }

    async fn disable_recurring(
        &self,
        request: Request<v1::DisableRecurringRequest>,
    ) -> Result<Response<v1::DisableRecurringResponse>, Status> {
        let caller = Caller::of(&request)?;
        let recurring = self.operated_by(&caller)?;
        let mut detail = named(&recurring, request.into_inner().name).await.map_err(status)?;
        detail.summary = recurring.disable(detail.summary.id).await.map_err(status)?;
        Ok(Response::new(v1::DisableRecurringResponse { recurring: Some(message(detail, &caller)) }))
    }

    async fn run_recurring(
        &self,
        request: Request<v1::RunRecurringRequest>,
    ) -> Result<Response<v1::RunRecurringResponse>, Status> {
        let recurring = self.operated_by(&Caller::of(&request)?)?;
        let detail = named(&recurring, request.into_inner().name).await.map_err(status)?;
        let run = recurring.run_now(detail.summary.id).await.map_err(status)?;
        Ok(Response::new(v1::RunRecurringResponse { is_due: run == RunNow::Due }))
    }

    async fn change_recurring(
        &self,
        request: Request<v1::ChangeRecurringRequest>,
    ) -> Result<Response<v1::ChangeRecurringResponse>, Status> {
        let caller = Caller::of(&request)?;
        let recurring = self.operated_by(&caller)?;
        let v1::ChangeRecurringRequest { name, cadence, misfire: policy } = request.into_inner();
        let mut detail = named(&recurring, name).await.map_err(status)?;
        let (cadence, misfire) = (cadence.parse().map_err(status)?, misfire(&policy).map_err(status)?);
        detail.summary = recurring.change(detail.summary.id, &cadence, misfire).await.map_err(status)?;
        Ok(Response::new(v1::ChangeRecurringResponse { recurring: Some(message(detail, &caller)) }))
    }

    async fn delete_recurring(
        &self,
        request: Request<v1::DeleteRecurringRequest>,
    ) -> Result<Response<v1::DeleteRecurringResponse>, Status> {
        let recurring = self.operated_by(&Caller::of(&request)?)?;
        let detail = named(&recurring, request.into_inner().name).await.map_err(status)?;
        recurring.delete(detail.summary.id).await.map_err(status)?;
        Ok(Response::new(v1::DeleteRecurringResponse {}))
    }

    async fn list_run_times(
        &self,
        request: Request<v1::ListRunTimesRequest>,
    ) -> Result<Response<v1::ListRunTimesResponse>, Status> {
        let caller = Caller::of(&request)?;
        caller.check(Permission::ViewJob)?;
        let v1::ListRunTimesRequest { name, count } = request.into_inner();
        let detail = self.shown(name, &caller).await.map_err(status)?;
        let count = if count == 0 { 5 } else { count as usize };
        let times = self.pitwheel.recurring().next_times(detail.summary.id, count).await.map_err(status)?;
        Ok(Response::new(v1::ListRunTimesResponse { times: times.into_iter().map(Into::into).collect() }))
    }
}

/// The recurring job that a request names.
async fn named(recurring: &RecurringJobs, name: Option<v1::RecurringName>) -> Result<RecurringDetail, Error> {
    match name.and_then(|name| name.name) {
        Some(Name::RecurringId(id)) => recurring.get(id).await,
        Some(Name::Key(v1::RecurringKey { kind, key })) => {
            let found = recurring.find(&kind, &key).await?;
            found.ok_or(NO_SUCH_KEY)
        }
        None => Err(Error::Invalid("the request has no `name`: give an id, or kind and key".into())),
    }
}

fn misfire(policy: &str) -> Result<Option<Misfire>, Error> {
    if policy.is_empty() { Ok(None) } else { policy.parse().map(Some) }
}

/// A recurring job to create. The engine checks its payload, names and numbers.
fn new(request: v1::CreateRecurringRequest) -> Result<NewRecurring, Error> {
    let job = request.job.ok_or_else(|| Error::Invalid("the request has no `job`".into()))?;
    let key = job.key.ok_or_else(|| Error::Invalid("a recurring job needs a `key`".into()))?;
    if job.delay.is_some() {
        return Err(Error::Invalid("a recurring job has `run_at` or its cadence, not `delay`".into()));
    }
    let payload = if job.payload.is_empty() { "{}".to_owned() } else { job.payload };
    let mut new = NewRecurring::raw(job.kind, payload, key, request.cadence.parse()?);
    if let Some(misfire) = misfire(&request.misfire)? {
        new = new.misfire(misfire);
    }
    if !job.queue.is_empty() {
        new = new.queue(job.queue);
    }
    // One that does not fit is out of range, which the engine refuses.
    new = new.priority(i16::try_from(job.priority).unwrap_or(i16::MAX));
    if let Some(max) = job.max_attempts {
        new = new.max_attempts(max);
    }
    if let Some(timeout) = job.timeout {
        new = new.timeout(span("timeout", timeout)?);
    }
    if let Some(metadata) = job.metadata {
        new = new.metadata_raw(metadata);
    }
    if let Some(at) = job.run_at {
        new = new.first_at(limits::time("run_at", SystemTime::try_from(at).ok())?);
    }
    Ok(new)
}

/// One recurring job. Key, error, payload and metadata of a redacted kind are hidden from callers who may not change jobs.
fn message(detail: RecurringDetail, caller: &Caller) -> v1::Recurring {
    let job = detail.summary;
    let redacted = job.redacted && caller.needs_redaction();
    let shown = |text: Option<String>| text.filter(|_| !redacted);
    v1::Recurring {
        id: job.id,
        kind: job.kind,
        key: shown(Some(job.key)).unwrap_or_default(),
        queue: job.queue,
        priority: job.priority.into(),
        cadence: job.cadence,
        misfire: job.misfire.as_str().to_owned(),
        enabled: job.enabled,
        running: job.running,
        next_run_at: job.next_run_at.map(Into::into),
        reason: job.reason.unwrap_or_default(),
        interval: job.interval.map(duration),
        runs: job.runs,
        skipped: job.skipped,
        last_run_at: job.last_run_at.map(Into::into),
        last_error: shown(job.last_error),
        consecutive_failures: job.consecutive_failures,
        timeout: job.timeout.map(duration),
        max_attempts: job.max_attempts,
        payload: shown(Some(detail.payload)).unwrap_or_default(),
        metadata: shown(detail.metadata),
        created_at: Some(job.created_at.into()),
        updated_at: Some(job.updated_at.into()),
        redacted,
    }
}
