//! `pitwheel serve`: runs a server for remote workers and the HTTP API.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::FalseyValueParser;
use pitwheel::engine::outbox::RelayOptions;
use pitwheel_server::{Options, Readiness, Server, Tls};
use serde_json::json;
use tokio::sync::oneshot;

use crate::database;
use crate::otlp::Otlp;
use crate::output::{print, print_json, print_message};
use crate::relay::{self, SinkArgs};
use crate::server::{self, Endpoints};
use crate::settings::Settings;
use crate::signals::Signals;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The address to listen on; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS", default_value = server::DEFAULT_ADDRESS, env = "PITWHEEL_LISTEN")]
    listen: SocketAddr,

    /// Seconds without a heartbeat until a worker counts as dead; use the same value on all nodes and workers
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=3600))]
    lease: u64,

    /// Minutes without a renewed lease until a person can recover the jobs of a worker
    #[arg(long, value_name = "MINUTES", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=10_080), env = "PITWHEEL_STALE_AFTER")]
    stale_after: u64,

    /// Days to keep finished jobs; of the nodes and workers of a database, the shortest time counts
    #[arg(long, value_name = "DAYS", default_value = "7", value_parser = clap::value_parser!(u64).range(1..=36_500), env = "PITWHEEL_KEEP_HISTORY")]
    keep_history: u64,

    /// Only answer calls: send no jobs to workers, and do no maintenance; other nodes or workers must
    #[arg(long, env = "PITWHEEL_NO_WORKER", value_parser = FalseyValueParser::new())]
    no_worker: bool,

    /// Require a token from callers on this machine too, for a server behind a proxy
    #[arg(long, env = "PITWHEEL_REQUIRE_TOKENS", value_parser = FalseyValueParser::new())]
    require_tokens: bool,

    /// The certificate chain of the server, in PEM
    #[arg(long, value_name = "FILE", env = "PITWHEEL_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", env = "PITWHEEL_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Require client certificates of this authority, in PEM
    #[arg(long, value_name = "FILE", env = "PITWHEEL_TLS_CLIENT_CA", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,

    /// Send spans to this OpenTelemetry collector, as in http://127.0.0.1:4317 (OTLP over gRPC)
    #[arg(long, value_name = "URL", env = "PITWHEEL_OTLP")]
    otlp: Option<String>,

    #[command(flatten)]
    sink: SinkArgs,
}

impl ServeArgs {
    fn options(self) -> Options {
        let mut options = Options::default();
        options.lease = Duration::from_secs(self.lease);
        options.stale_after = Duration::from_secs(self.stale_after * 60);
        options.keep_history = Duration::from_secs(self.keep_history * 24 * 3600);
        options.serve_workers = !self.no_worker;
        options.require_tokens = self.require_tokens;
        options.traces = self.otlp.is_some();
        options.tls = self.tls_cert.zip(self.tls_key).map(|(certificate, key)| Tls {
            certificate,
            key,
            client_ca: self.tls_client_ca,
        });
        options
    }
}

pub(crate) async fn run(args: ServeArgs, settings: &Settings) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let pitwheel = database::connect_with(&database::find(settings)?, server::CONNECTIONS).await?;
    pitwheel.check_schema().await?;
    let listener = server::listen(args.listen).await?;
    let _otlp = args.otlp.as_deref().map(Otlp::start).transpose()?;
    let relay = args.sink.relay(&pitwheel, RelayOptions::default()).await?;
    let options = args.options();
    let endpoints = Endpoints::new(listener.local_addr()?, &options);
    let (stopping, stopped) = oneshot::channel::<()>();
    let stop = async {
        signals.stop_requested().await;
        print_message("stopping: streams are ended, calls in progress are answered …");
        drop(stopping);
    };
    let readiness = Readiness::default();
    let server = Server::new(&pitwheel).options(options).readiness(&readiness);
    let serve = server::run(server, listener, || announce(&endpoints, settings), stop);
    relay::run_beside(relay, &readiness, async { drop(stopped.await) }, serve).await?.0
}

fn announce(endpoints: &Endpoints, settings: &Settings) -> anyhow::Result<()> {
    let Endpoints { listen, url, tokens, .. } = endpoints;
    let no_worker = endpoints.no_worker();
    let (openapi, metrics) = (endpoints.openapi(), endpoints.metrics());
    if settings.json() {
        return print_json(&json!({
            "listen": listen.to_string(), "url": url, "openapi": openapi, "metrics": metrics, "tokens": tokens
        }));
    }
    let token = match tokens {
        true => "Callers need a token: create one with `pitwheel tokens create NAME --role ROLE`.\n",
        false => "Callers on this machine need no token; --require-tokens changes that.\n",
    };
    Ok(print(&format!(
        "Pitwheel serves gRPC and HTTP on {listen}. Ctrl-C stops it.\n\n  \
           workers  {url}\n  \
           API      {openapi}\n  \
           metrics  {metrics}\n\n\
         {token}{no_worker}"
    ))?)
}
