//! Running a server.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::middleware::from_fn_with_state;
use pitwheel::Pitwheel;
use pitwheel::engine::pool_of;
use pitwheel_proto::v1;
use pitwheel_proto::v1::job_service_server::JobServiceServer;
use pitwheel_proto::v1::worker_service_server::WorkerServiceServer;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::auth::middleware::{Authentication, authenticate};
use crate::auth::tokens::Tokens;
use crate::dispatch::node::Node;
use crate::error::Error;
use crate::grpc::job_service::Jobs;
use crate::grpc::worker_service::Workers;
use crate::http::router::{Api, not_found, router};
use crate::limits;
use crate::listen::connections::incoming;
use crate::listen::tls::Tls;
use crate::observe::metrics::{self, Metrics};
use crate::observe::traces;
use crate::observe::watch::{self, Watch};
use crate::options::Options;

/// A connection whose peer does not answer is closed after this long and half as long again.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long a server that stops waits for its connections to close: longer than [`KEEPALIVE`] needs to find a dead peer. A
/// client that connected and never sent anything is not found by it.
const SHUTDOWN_MAX: Duration = Duration::from_secs(16);
/// Streams and calls at a time on one connection.
const CALLS_MAX: u32 = 2000;

/// Serves until `shutdown` ends. Then streams are ended, jobs that were claimed but not sent are released, and calls under
/// way are answered. `shutdown` is first polled when the server accepts connections.
///
/// # Errors
/// When the server cannot start: the schema does not fit this version, the address can be reached from other machines and
/// no token exists, or a certificate cannot be used.
pub async fn run(
    pitwheel: Pitwheel,
    listener: TcpListener,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    pitwheel.check_schema().await?;
    let tls = options.tls.as_ref().map(Tls::acceptor).transpose()?;
    let authentication = authentication(&pitwheel, &listener, &options).await?;
    if options.traces {
        traces::enable();
    }
    let node = Node::start(&pitwheel, &options, authentication.tokens.clone())?;
    let watch = Arc::new(Watch::default());
    let background = Background::default();
    background.spawn(watch::run(watch.clone(), pitwheel.clone()));
    background.spawn(metrics::run_upkeep());
    let api = Api {
        metrics: Arc::new(Metrics::new(pitwheel.clone(), node.pool.clone())),
        node: node.clone(),
        watch: watch.clone(),
        pitwheel,
    };
    let routes = routes(api, authentication).await?;
    let stopping = Notify::new();
    let shutdown = async {
        shutdown.await;
        // First the streams, so that workers look for another node; calls under way are still answered.
        node.stop();
        watch.close();
        stopping.notify_one();
    };
    let timeout = async {
        stopping.notified().await;
        tokio::time::sleep(SHUTDOWN_MAX).await;
    };
    let serving = Server::builder()
        .accept_http1(true)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE / 2))
        .max_concurrent_streams(CALLS_MAX)
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming(listener, tls, &background.tasks), shutdown);
    tokio::select! {
        served = serving => served?,
        () = timeout => tracing::warn!("stopping although clients are still connected"),
    }
    node.finish().await;
    background.end().await;
    Ok(())
}

/// How callers are authenticated on this listener. An address that other machines can reach needs a token.
async fn authentication(
    pitwheel: &Pitwheel,
    listener: &TcpListener,
    options: &Options,
) -> Result<Arc<Authentication>, Error> {
    let address = listener.local_addr().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
    let is_open = !address.ip().is_loopback();
    let tokens = Arc::new(Tokens::new(pool_of(pitwheel, 1)?));
    if is_open && !tokens.exist().await? {
        return Err(Error::Open(address));
    }
    if is_open && options.tls.is_none() {
        tracing::warn!(
            "tokens and payloads travel in the clear: configure TLS, or put a proxy with TLS in front of this server"
        );
    }
    Ok(Arc::new(Authentication { tokens, required: is_open || options.require_tokens }))
}

/// gRPC and HTTP, behind the same authentication.
async fn routes(api: Api, authentication: Arc<Authentication>) -> Result<Routes, Error> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<WorkerServiceServer<Workers>>().await;
    health.set_serving::<JobServiceServer<Jobs>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(v1::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| pitwheel::Error::Invalid(error.to_string()))?;
    let workers = WorkerServiceServer::new(Workers::new(api.node.clone()));
    let jobs = JobServiceServer::new(Jobs::new(api.pitwheel.clone()));
    let grpc = Routes::new(health_service)
        .add_service(reflection)
        .add_service(workers.max_decoding_message_size(limits::MESSAGE_BYTES_MAX))
        .add_service(jobs.max_decoding_message_size(limits::MESSAGE_BYTES_MAX));
    let both = grpc.into_axum_router().merge(router(api)).fallback(not_found);
    Ok(Routes::from(both.layer(from_fn_with_state(authentication, authenticate))))
}

/// Loops that run beside the node. They end with the server, also when it fails.
#[derive(Default)]
struct Background {
    tasks: TaskTracker,
    end: CancellationToken,
}

impl Drop for Background {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

impl Background {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.end.clone().run_until_cancelled_owned(task));
    }

    async fn end(&self) {
        self.end.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
