//! `pitwheel-feeds serve`: the HTTP API, tokens, metrics and callbacks on one port, and a worker.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use pitwheel_feeds::fetch::{self, Client};
use pitwheel_feeds::{Feeds, Topic, WorkerOptions, http, websub};
use pitwheel_server::{Options, Readiness, Server};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::database::Database;
use pitwheel_app::output::{UsageError, print};
use pitwheel_app::stop_at_signal;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The address to listen on; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7476")]
    listen: SocketAddr,

    /// Where WebSub hubs reach this server, as in https://feeds.example.com; without it, hubs are not used
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,

    /// Seconds after which the fetches of a worker that died are given to others
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    lease: u64,

    /// Only answer calls: fetch nothing, and do no maintenance; other processes must
    #[arg(long)]
    no_worker: bool,

    #[command(flatten)]
    pub(crate) fetch: FetchArgs,
}

/// How to fetch.
#[derive(Debug, Args)]
pub(crate) struct FetchArgs {
    /// Fetch from addresses that are not public too: private, loopback and link-local ones
    #[arg(long)]
    allow_private_addresses: bool,

    /// Fetches at a time
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    slots: u16,

    /// Write an event to the outbox for each new article, for this topic; `pitwheel relay` delivers it
    #[arg(long, value_name = "TOPIC")]
    topic: Option<Topic>,
}

impl FetchArgs {
    pub(crate) fn client_options(&self) -> fetch::Options {
        let mut options = fetch::Options::default();
        options.allow_private = self.allow_private_addresses;
        options
    }

    /// The feeds of a database, with events if a topic is given.
    pub(crate) fn feeds(&self, database: &Database) -> Feeds {
        let feeds = database.feeds.clone();
        match &self.topic {
            Some(topic) => feeds.with_events(topic.clone()),
            None => feeds,
        }
    }

    pub(crate) fn worker_options(&self) -> WorkerOptions {
        let mut options = WorkerOptions::default();
        options.fetch = self.client_options();
        options.slots = usize::from(self.slots);
        options
    }
}

pub(crate) async fn run(args: ServeArgs, url: Option<&str>) -> anyhow::Result<()> {
    if let Some(public) = &args.public_url
        && !public.starts_with("https://")
        && !public.starts_with("http://")
    {
        let problem = format!("`{public}` is not a URL: write it as in https://feeds.example.com");
        return Err(UsageError(problem).into());
    }
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", args.listen))?;
    let database = Database::open(url).await?;
    let feeds = args.fetch.feeds(&database);
    let address = listener.local_addr()?;
    let mut options = args.fetch.worker_options();
    options.public_url = args.public_url.clone();
    options.lease = Duration::from_secs(args.lease);
    let stop = CancellationToken::new();
    let readiness = Readiness::default();
    let mut node = Options::default();
    node.serve_workers = !args.no_worker;
    let server = Server::new(feeds.pitwheel())
        .options(node)
        .routes(http::routes(&feeds, Client::new(args.fetch.client_options())?))
        .routes(websub::routes(&feeds))
        .public(websub::PUBLIC_PREFIX)
        .readiness(&readiness);
    let serving = async {
        let stopped = async {
            announce(address, &database, args.no_worker);
            stop.cancelled().await;
        };
        server.run(listener, stopped).await.map_err(anyhow::Error::from)
    };
    let fetching = async {
        if args.no_worker {
            return Ok(());
        }
        // The server has set up the metrics by then.
        readiness.accepting().await?;
        let ran = pitwheel_feeds::run(&feeds, options, stop.cancelled()).await;
        ran.map(drop).map_err(anyhow::Error::from)
    };
    let signalled = async { stop_at_signal(&stop).await.map_err(anyhow::Error::from) };
    let ran = tokio::try_join!(serving, fetching, signalled);
    ran.map(drop).and(database.close().await)
}

fn announce(address: SocketAddr, database: &Database, no_worker: bool) {
    let does = if no_worker { "Calls are answered, and nothing is fetched." } else { "Feeds are fetched." };
    let data = database.private_dir().map_or_else(String::new, |dir| format!("  data     {dir}\n"));
    let _ = print(&format!(
        "{does}\n\n  api      http://{address}/api/openapi.json\n  metrics  http://{address}/metrics\n{data}\n\
         Ctrl-C stops it."
    ));
}
