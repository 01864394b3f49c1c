//! A server in this process, for `pitwheel serve`, `pitwheel dev` and `pitwheel relay`.

use std::future::Future;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use pitwheel_server::{Error, Options, Server};
use tokio::net::TcpListener;

use crate::exit::CommandError;

/// The address that servers listen on by default.
pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:7475";
/// Connections for calls of the API. Claims and reports have connections of their own.
pub(crate) const CONNECTIONS: usize = 8;

/// Listens on an address. An address in use is an error that names the ways out.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, CommandError> {
    TcpListener::bind(address).await.map_err(|error| {
        CommandError::failure(match error.kind() {
            ErrorKind::AddrInUse => {
                let mut free = address;
                free.set_port(0);
                format!(
                    "port {} is in use, maybe by another `pitwheel dev` or `pitwheel serve`: stop that one, \
                     or let this one choose a free port with `--listen {free}`",
                    address.port()
                )
            }
            _ => format!("cannot listen on {address}: {error}"),
        })
    })
}

/// Serves until `stop` completes. Calls `ready` once, when the server accepts calls; if that fails, the server ends.
pub(crate) async fn run(
    server: Server,
    listener: TcpListener,
    ready: impl FnOnce() -> anyhow::Result<()>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let mut announced = Ok(());
    // The server polls this only after everything that can fail at the start has succeeded.
    let shutdown = async {
        announced = ready();
        if announced.is_ok() {
            stop.await;
        }
    };
    match server.run(listener, shutdown).await {
        Ok(()) => announced,
        Err(Error::Pitwheel(error)) => Err(error.into()),
        Err(error @ (Error::Open(_) | Error::Tls(_))) => Err(CommandError::usage(error.to_string()).into()),
        Err(error) => Err(error.into()),
    }
}

/// Where a server can be reached, and whether callers need a token.
pub(crate) struct Endpoints {
    /// The address it listens on.
    pub(crate) listen: SocketAddr,
    /// An address to call it from this machine.
    pub(crate) address: SocketAddr,
    /// The same as a URL.
    pub(crate) url: String,
    pub(crate) tokens: bool,
    /// Whether workers can open streams.
    pub(crate) workers: bool,
}

impl Endpoints {
    pub(crate) fn new(listen: SocketAddr, options: &Options) -> Endpoints {
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        // 0.0.0.0 and [::] stand for all addresses and cannot be called; loopback is one of them.
        let ip = match listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let address = SocketAddr::new(ip, listen.port());
        let tokens = options.require_tokens || !listen.ip().is_loopback();
        let workers = options.serve_workers;
        Endpoints { listen, address, url: format!("{scheme}://{address}"), tokens, workers }
    }

    /// What a node says that serves no workers.
    pub(crate) fn no_worker(&self) -> &'static str {
        if self.workers { "" } else { "Workers are not served and no maintenance is done (--no-worker).\n" }
    }

    /// The OpenAPI document of the HTTP API.
    pub(crate) fn openapi(&self) -> String {
        format!("{}/api/openapi.json", self.url)
    }

    pub(crate) fn metrics(&self) -> String {
        format!("{}/metrics", self.url)
    }
}
