//! `pitwheel-ingest serve`: the HTTP API, tokens and metrics on one port, and a worker.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use pitwheel_app::output::print;
use pitwheel_app::stop_at_signal;
use pitwheel_ingest::{WorkerOptions, http};
use pitwheel_server::{Options, Readiness, Server};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::database::Database;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The address to listen on; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7477")]
    listen: SocketAddr,

    /// Jobs at a time
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=1000))]
    slots: u16,

    /// Only answer calls: run no jobs, and do no maintenance; other processes must
    #[arg(long)]
    no_worker: bool,

    /// Seconds after which the jobs of a worker that died are given to others
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    lease: u64,
}

pub(crate) async fn run(
    args: ServeArgs,
    url: Option<&str>,
    upload_dir: Option<PathBuf>,
) -> anyhow::Result<()> {
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", args.listen))?;
    let database = Database::open(url, upload_dir).await?;
    let address = listener.local_addr()?;
    let stop = CancellationToken::new();
    let readiness = Readiness::default();
    let mut node = Options::default();
    node.serve_workers = !args.no_worker;
    let server = Server::new(database.ingest.pitwheel())
        .options(node)
        .routes(http::routes(&database.ingest))
        .streamed(http::STREAMED_PREFIX)
        .readiness(&readiness);
    let serving = async {
        let stopped = async {
            announce(address, &database, args.no_worker);
            stop.cancelled().await;
        };
        server.run(listener, stopped).await.map_err(anyhow::Error::from)
    };
    let working = async {
        if args.no_worker {
            return Ok(());
        }
        // The server has set up the metrics by then.
        readiness.accepting().await?;
        let mut options = WorkerOptions::default();
        options.slots = usize::from(args.slots);
        options.lease = Duration::from_secs(args.lease);
        let ran = pitwheel_ingest::run(&database.ingest, options, stop.cancelled()).await;
        ran.map_err(anyhow::Error::from)
    };
    let signalled = async { stop_at_signal(&stop).await.map_err(anyhow::Error::from) };
    let ran = tokio::try_join!(serving, working, signalled);
    ran.map(drop).and(database.close().await)
}

fn announce(address: SocketAddr, database: &Database, no_worker: bool) {
    let data = database.private_dir().map_or_else(String::new, |dir| format!("  data     {dir}\n"));
    let does = if no_worker { "Calls are answered, and no jobs run." } else { "Files are loaded." };
    let uploads = database.ingest.uploads().folder().display();
    let _ = print(&format!(
        "{does}\n\n  api      http://{address}/api/openapi.json\n  metrics  http://{address}/metrics\n  uploads  {uploads}\n{data}\n\
         Ctrl-C stops it."
    ));
}
