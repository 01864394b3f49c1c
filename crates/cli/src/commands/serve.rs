//! `pitwheel serve`: runs a server for remote workers and the HTTP API.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use clap::builder::FalseyValueParser;
use pitwheel_server::{Error, Options, Tls};
use serde_json::json;
use tokio::net::TcpListener;

use crate::database;
use crate::exit::CommandError;
use crate::otlp::Otlp;
use crate::output::{print, print_json, print_message};
use crate::settings::Settings;
use crate::signals::Signals;

/// For calls of the API. Claims and reports have connections of their own.
const CONNECTIONS: usize = 8;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The address to listen on; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7475", env = "PITWHEEL_LISTEN")]
    listen: SocketAddr,

    /// Seconds without a heartbeat until a worker counts as dead; use the same value on all nodes and workers
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=3600))]
    lease: u64,

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
}

impl ServeArgs {
    fn options(self) -> Options {
        let mut options = Options::default();
        options.lease = Duration::from_secs(self.lease);
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
    let pitwheel = database::connect_with(&database::find(settings)?, CONNECTIONS).await?;
    pitwheel.check_schema().await?;
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", args.listen))?;
    let _otlp = args.otlp.as_deref().map(Otlp::start).transpose()?;
    let options = args.options();
    let endpoints = Endpoints::new(listener.local_addr()?, &options);
    let mut announced = Ok(());
    // Waited for once it serves: by then all that it may refuse at the start has been seen.
    let shutdown = async {
        announced = endpoints.announce(settings);
        if announced.is_ok() {
            signals.stop_requested().await;
            print_message("stopping: streams are ended, reports under way are answered …");
        }
    };
    match pitwheel_server::run(pitwheel, listener, options, shutdown).await {
        Ok(()) => announced,
        Err(Error::Pitwheel(error)) => Err(error.into()),
        Err(error @ (Error::Open(_) | Error::Tls(_))) => Err(CommandError::usage(error.to_string()).into()),
        Err(error) => Err(error.into()),
    }
}

/// Where a server can be reached, and how.
struct Endpoints {
    listen: SocketAddr,
    url: String,
    tokens: bool,
}

impl Endpoints {
    fn new(listen: SocketAddr, options: &Options) -> Endpoints {
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        // All addresses are none that one can call: this machine's own is among them.
        let ip = match listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let url = format!("{scheme}://{}", SocketAddr::new(ip, listen.port()));
        Endpoints { listen, url, tokens: options.require_tokens || !listen.ip().is_loopback() }
    }

    fn announce(&self, settings: &Settings) -> anyhow::Result<()> {
        let Endpoints { listen, url, tokens } = self;
        let (api, metrics) = (format!("{url}/api/openapi.json"), format!("{url}/metrics"));
        if settings.json() {
            return print_json(&json!({
                "listen": listen.to_string(), "url": url, "openapi": api, "metrics": metrics, "tokens": tokens
            }));
        }
        let token = match tokens {
            true => "Callers need a token: `pitwheel tokens create NAME --role ROLE` makes one.\n",
            false => "Callers on this machine need no token; --require-tokens asks them for one.\n",
        };
        Ok(print(&format!(
            "Pitwheel serves gRPC and HTTP on {listen}. Ctrl-C stops it.\n\n  \
               workers  {url}\n  \
               API      {api}\n  \
               metrics  {metrics}\n\n\
             {token}"
        ))?)
    }
}
