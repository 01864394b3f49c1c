//! A connection to a server.

use std::time::Duration;

use pitwheel_proto::v1;
use pitwheel_proto::v1::job_service_client::JobServiceClient;
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use tonic::Code;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

use crate::engine::enqueue::Enqueued;
use crate::error::{DatabaseError, Error};
use crate::job::limits::ENQUEUE_MAX;
use crate::job::new_job::NewJob;
use crate::worker::remote::message::new_job;

/// The interval of HTTP/2 keepalives: a peer that vanished is noticed after one and a half of it.
const KEEPALIVE: Duration = Duration::from_secs(10);
const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Batches of jobs are cut at half of the server's limit of 4 MiB. A job with the largest payload and metadata fits.
const BATCH_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A channel that adds the token, if there is one, to every call.
pub(crate) type Client = InterceptedService<Channel, Bearer>;

/// A server. The connection is made when it is needed.
#[derive(Clone)]
pub(crate) struct Server {
    client: Client,
}

/// The address of a server, and the token for it.
pub(crate) struct Address {
    endpoint: Endpoint,
    bearer: Bearer,
}

impl Address {
    pub(crate) fn new(url: &str) -> Result<Address, Error> {
        let wrong = |error| Error::Url(format!("{error} (expected http://host:7475)"));
        let mut endpoint = Endpoint::from_shared(url.to_owned())
            .map_err(|error| wrong(error.to_string()))?
            .connect_timeout(KEEPALIVE)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE / 2)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        if endpoint.uri().scheme_str() == Some("https") {
            let tls = ClientTlsConfig::new().with_native_roots();
            endpoint = endpoint.tls_config(tls).map_err(|error| wrong(error.to_string()))?;
        }
        Ok(Address { endpoint, bearer: Bearer::default() })
    }

    pub(crate) fn set_token(&mut self, secret: &str) -> Result<(), Error> {
        let value = format!("Bearer {secret}").parse();
        let value = value.map_err(|_| Error::Invalid("the token is not one line of text".into()))?;
        self.bearer = Bearer { authorization: Some(value) };
        Ok(())
    }
}

/// Adds the token to a call.
#[derive(Clone, Default)]
pub(crate) struct Bearer {
    authorization: Option<MetadataValue<Ascii>>,
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(value) = &self.authorization {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

impl Server {
    /// Must be called inside a tokio runtime.
    pub(crate) fn at(address: &Address) -> Server {
        let channel = address.endpoint.connect_lazy();
        Server { client: InterceptedService::new(channel, address.bearer.clone()) }
    }

    pub(crate) fn workers(&self) -> WorkerServiceClient<Client> {
        WorkerServiceClient::new(self.client.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    pub(crate) async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, Error> {
        jobs.iter().try_for_each(NewJob::check)?;
        let mut client = JobServiceClient::new(self.client.clone());
        let mut enqueued = Vec::with_capacity(jobs.len());
        for batch in batches(jobs.iter().map(new_job)) {
            let request = v1::EnqueueRequest { jobs: batch };
            let response = client.enqueue(request).await.map_err(|status| error(&status))?;
            let jobs = response.into_inner().jobs.into_iter();
            enqueued.extend(jobs.map(|job| Enqueued { id: job.job_id, is_new: job.is_new }));
        }
        Ok(enqueued)
    }
}

/// The jobs in batches that the server accepts, in the same order.
fn batches(jobs: impl Iterator<Item = v1::NewJob>) -> Vec<Vec<v1::NewJob>> {
    let mut batches: Vec<Vec<v1::NewJob>> = Vec::new();
    let mut bytes = 0;
    for job in jobs {
        bytes += bytes_of(&job);
        match batches.last_mut() {
            Some(batch) if batch.len() < ENQUEUE_MAX && bytes <= BATCH_BYTES_MAX => batch.push(job),
            _ => {
                bytes = bytes_of(&job);
                batches.push(vec![job]);
            }
        }
    }
    batches
}

/// An upper bound of the length of a job in a message: its texts, and the names and numbers beside them.
fn bytes_of(job: &v1::NewJob) -> usize {
    let texts =
        [job.key.as_ref(), job.metadata.as_ref()].into_iter().flatten().map(String::len).sum::<usize>();
    job.payload.len() + texts + 512
}

fn error(status: &tonic::Status) -> Error {
    match status.code() {
        Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated => {
            Error::Invalid(status.message().to_owned())
        }
        _ => Error::Database(DatabaseError::Unreachable(format!("the server says: {}", status.message()))),
    }
}
