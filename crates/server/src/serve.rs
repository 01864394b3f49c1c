//! Building and running a server.

use std::future::Future;
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
use tonic::service::Routes;
use tonic::transport::Server;

use crate::auth::access::{self, Access};
use crate::dispatch::node::Node;
use crate::error::Error;
use crate::grpc::job_service::Jobs;
use crate::grpc::worker_service::Workers;
use crate::http::router::{self, Api};
use crate::limits;
use crate::listen::connections::incoming;
use crate::listen::tls::Tls;
use crate::observe::metrics::Metrics;
use crate::observe::traces;
use crate::options::Options;

/// A peer that vanished without a word is noticed after this long and half again.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long a node that ends waits for its peers to hang up: longer than it takes to notice that one has vanished. One that
/// connected and never said a word is noticed by nobody.
const FAREWELL: Duration = Duration::from_secs(16);
/// Streams and calls at a time on one connection.
const CALLS_MAX: u32 = 2000;

/// Serves until `shutdown` ends, which is not waited for before it serves: then streams are ended, what was claimed but not sent is given back, and reports under way
/// are answered.
///
/// # Errors
/// At the start only: a schema this version cannot work with, an address that others can reach.
pub async fn run(
    pitwheel: Pitwheel,
    listener: TcpListener,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    pitwheel.check_schema().await?;
    let address = listener.local_addr().ok();
    let is_open = address.is_none_or(|address| !address.ip().is_loopback());
    let tls = options.tls.as_ref().map(Tls::acceptor).transpose()?;
    let access = Arc::new(Access::new(pool_of(&pitwheel, 1)?, is_open || options.require_tokens));
    if is_open && !access.any().await? {
        return Err(Error::Open(address.unwrap_or(([0, 0, 0, 0], 0).into())));
    }
    if is_open && tls.is_none() {
        tracing::warn!(
            "tokens and payloads travel in the clear: give a certificate, or put a proxy before this"
        );
    }
    if options.traces {
        traces::enable();
    }
    let node = Node::start(pitwheel.clone(), options, access.clone())?;
    let routes = routes(&pitwheel, &node, access).await?;
    let told = Notify::new();
    let ending = async {
        shutdown.await;
        // First the streams, so that their workers look for another node; calls under way are still answered.
        node.stop();
        told.notify_one();
    };
    let too_long = async {
        told.notified().await;
        tokio::time::sleep(FAREWELL).await;
    };
    let serving = Server::builder()
        .accept_http1(true)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE / 2))
        .max_concurrent_streams(CALLS_MAX)
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming(listener, tls), ending);
    tokio::select! {
        served = serving => served?,
        () = too_long => tracing::warn!("ending although somebody is still connected"),
    }
    node.finish().await;
    Ok(())
}

/// Both doors, behind one door-keeper.
async fn routes(pitwheel: &Pitwheel, node: &Arc<Node>, access: Arc<Access>) -> Result<Routes, Error> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<WorkerServiceServer<Workers>>().await;
    health.set_serving::<JobServiceServer<Jobs>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(v1::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| pitwheel::Error::Invalid(error.to_string()))?;
    let workers = WorkerServiceServer::new(Workers::new(node.clone()));
    let jobs = JobServiceServer::new(Jobs::new(pitwheel.clone()));
    let grpc = Routes::new(health_service)
        .add_service(reflection)
        .add_service(workers.max_decoding_message_size(limits::MESSAGE_BYTES_MAX))
        .add_service(jobs.max_decoding_message_size(limits::MESSAGE_BYTES_MAX));
    let api = Api {
        pitwheel: pitwheel.clone(),
        watch: node.watch.clone(),
        metrics: Arc::new(Metrics::new(pitwheel.clone(), node.clone())),
    };
    let both = grpc.into_axum_router().merge(router::router(api)).fallback(router::nowhere);
    Ok(Routes::from(both.layer(from_fn_with_state(access, access::enter))))
}
