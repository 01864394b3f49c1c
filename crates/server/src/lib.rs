//! `pitwheel serve`: jobs for workers in any language, over gRPC.
//!
//! A node claims for all the streams that are open on it and sends each what it has room for. What a worker
//! holds is its own, in the database, and not the node's: heartbeats and reports may go to any node, and a node that dies takes
//! no job with it.

#![warn(missing_docs)]

mod beats;
mod convert;
mod group;
mod job_service;
mod limits;
mod node;
mod reports;
mod streams;
mod worker_service;

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::stream::unfold;
use pitwheel::Pitwheel;
use pitwheel_proto::v1;
use pitwheel_proto::v1::job_service_server::JobServiceServer;
use pitwheel_proto::v1::worker_service_server::WorkerServiceServer;
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::Server;

use crate::job_service::Jobs;
use crate::node::Node;
use crate::worker_service::Workers;

/// How a node behaves.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// How long a worker may be silent before its jobs are given to others. Use the same for all nodes and workers.
    pub lease: Duration,
    /// How long finished jobs are remembered.
    pub keep_history: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { lease: Duration::from_secs(30), keep_history: Duration::from_secs(7 * 24 * 3600) }
    }
}

/// What went wrong with a node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database, or its schema.
    #[error(transparent)]
    Pitwheel(#[from] pitwheel::Error),
    /// The network.
    #[error("cannot serve: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// Anyone who reaches the address could do anything.
    #[error(
        "{0} can be reached from other machines, and there are no tokens yet: listen on 127.0.0.1 or [::1]"
    )]
    Open(SocketAddr),
}

/// A peer that vanished without a word is noticed after this long and half again.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Streams and calls at a time on one connection.
const CALLS_MAX: u32 = 2000;

/// Serves until `shutdown` ends: then streams are ended, what was claimed but not sent is given back, and reports under way
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
    if let Ok(address) = listener.local_addr()
        && !address.ip().is_loopback()
    {
        return Err(Error::Open(address));
    }
    pitwheel.check_schema().await?;
    let node = Node::start(pitwheel.clone(), options)?;
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<WorkerServiceServer<Workers>>().await;
    health.set_serving::<JobServiceServer<Jobs>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(v1::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| pitwheel::Error::Invalid(error.to_string()))?;
    let ending = async {
        shutdown.await;
        // First the streams, so that their workers look for another node; calls under way are still answered.
        node.stop();
    };
    Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE / 2))
        .tcp_nodelay(true)
        .max_concurrent_streams(CALLS_MAX)
        .add_service(health_service)
        .add_service(reflection)
        .add_service(
            WorkerServiceServer::new(Workers::new(node.clone()))
                .max_decoding_message_size(limits::MESSAGE_BYTES_MAX),
        )
        .add_service(
            JobServiceServer::new(Jobs::new(pitwheel)).max_decoding_message_size(limits::MESSAGE_BYTES_MAX),
        )
        .serve_with_incoming_shutdown(incoming(listener), ending)
        .await?;
    node.finish().await;
    Ok(())
}

/// Connections, however many cannot be accepted in between: a node that is out of files for a moment goes on.
fn incoming(listener: TcpListener) -> impl futures_util::Stream<Item = std::io::Result<TcpStream>> {
    unfold(listener, async |listener| {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    return Some((Ok(stream), listener));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    })
}
