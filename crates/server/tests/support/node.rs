//! A node that serves in the background of a test.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use pitwheel::Pitwheel;
use pitwheel_proto::v1::job_service_client::JobServiceClient;
use pitwheel_proto::v1::worker_service_client::WorkerServiceClient;
use pitwheel_server::{Options, Server};
use pitwheel_testkit::WAIT_MAX;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use super::worker_stream::WorkerStream;

/// A node that serves until it is stopped.
pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), pitwheel_server::Error>>,
}

impl Node {
    pub(crate) async fn start(pitwheel: &Pitwheel, lease: Duration) -> Result<Node> {
        Node::start_at(pitwheel, lease, "127.0.0.1:0".parse()?).await
    }

    pub(crate) async fn start_at(pitwheel: &Pitwheel, lease: Duration, address: SocketAddr) -> Result<Node> {
        let mut options = Options::default();
        options.lease = lease;
        Node::start_with(pitwheel, options, address).await
    }

    pub(crate) async fn start_with(
        pitwheel: &Pitwheel,
        options: Options,
        address: SocketAddr,
    ) -> Result<Node> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            let _ = stopped.await;
        };
        let task = tokio::spawn(Server::new(pitwheel).options(options).run(listener, shutdown));
        Ok(Node { address, stop, task })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Shuts the node down and waits for its end.
    pub(crate) async fn stop(self) -> Result<()> {
        let _ = self.stop.send(());
        Ok(tokio::time::timeout(WAIT_MAX, self.task).await???)
    }

    /// A client of the worker service, over a connection of its own.
    pub(crate) async fn workers(&self) -> Result<WorkerServiceClient<Channel>> {
        Ok(WorkerServiceClient::connect(self.url()).await?)
    }

    /// A client of the job service, over a connection of its own.
    pub(crate) async fn jobs(&self) -> Result<JobServiceClient<Channel>> {
        Ok(JobServiceClient::connect(self.url()).await?)
    }

    /// A worker's stream over a connection of its own.
    pub(crate) async fn stream(&self, slots: u32) -> Result<WorkerStream> {
        WorkerStream::open(self.workers().await?, slots).await
    }
}
