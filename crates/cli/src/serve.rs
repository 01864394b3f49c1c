//! `pitwheel serve`: jobs for workers in any language, until somebody stops it.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use pitwheel_server::Options;
use serde_json::json;
use tokio::net::TcpListener;

use crate::database;
use crate::exit::Stop;
use crate::output::{print, print_json, say};
use crate::settings::Settings;
use crate::signals::Signals;

/// For calls that enqueue and ask; claims and reports have connections of their own.
const CONNECTIONS: usize = 8;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7475", env = "PITWHEEL_LISTEN")]
    listen: SocketAddr,

    /// Seconds a worker may be silent before its jobs are given to others; the same for all nodes and workers
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=3600))]
    lease: u64,
}

pub(crate) async fn run(args: ServeArgs, settings: &Settings) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let pitwheel = database::connect_with(&database::find(settings)?, CONNECTIONS).await?;
    pitwheel.check_schema().await?;
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", args.listen))?;
    announce(listener.local_addr()?, settings)?;
    let mut options = Options::default();
    options.lease = Duration::from_secs(args.lease);
    let shutdown = async {
        signals.stop().await;
        say("stopping: streams are ended, reports under way are answered …");
    };
    match pitwheel_server::run(pitwheel, listener, options, shutdown).await {
        Err(pitwheel_server::Error::Pitwheel(error)) => Err(error.into()),
        Err(error @ pitwheel_server::Error::Open(_)) => Err(Stop::usage(error.to_string()).into()),
        other => Ok(other?),
    }
}

fn announce(address: SocketAddr, settings: &Settings) -> anyhow::Result<()> {
    if settings.json() {
        return print_json(&json!({ "listen": address.to_string() }));
    }
    Ok(print(&format!("Pitwheel serves gRPC on {address}. Ctrl-C stops it.\n"))?)
}
