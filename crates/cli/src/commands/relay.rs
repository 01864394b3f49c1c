//! `pitwheel relay`: sends the events of the outbox.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use pitwheel::Pitwheel;
use pitwheel::engine::outbox::RelayOptions;
use pitwheel_relay::Stats;
use pitwheel_server::{Options, Readiness, Server};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::database;
use crate::exit::CommandError;
use crate::output::print_message;
use crate::relay::{self, AnyRelay, SinkArgs};
use crate::server::{self, Endpoints};
use crate::settings::Settings;
use crate::signals::Signals;

#[derive(Debug, Args)]
pub(crate) struct RelayArgs {
    #[command(flatten)]
    sink: SinkArgs,

    /// The name of this relay in `outbox status` and `outbox shards`; it need not be unique [default: relay]
    #[arg(long)]
    name: Option<String>,

    /// Seconds without a renewal after which other relays take over the events of this one
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=600))]
    lease: u64,

    /// Days to keep delivered events for replay; without it they are deleted
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=3650))]
    keep: Option<u64>,

    /// Serve /metrics, /healthz and /readyz on this address, and nothing else; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,

    /// Hold these shards only, as in 0-31 or 0,5,9; without it, a fair share
    #[arg(long, value_name = "SHARDS", value_parser = parse_shards)]
    shards: Option<Shards>,
}

/// Numbers of shards.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shards(Vec<i16>);

pub(crate) async fn run(args: RelayArgs, settings: &Settings) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let pitwheel = database::open(settings).await?;
    let defaults = RelayOptions::default();
    let options = RelayOptions {
        name: args.name.unwrap_or(defaults.name),
        lease: Duration::from_secs(args.lease),
        keep: args.keep.map(|days| Duration::from_secs(days * 24 * 3600)),
        shards: args.shards.map(|shards| shards.0),
    };
    let Some(relay) = args.sink.relay(&pitwheel, options).await? else {
        return Err(CommandError::usage(
            "no sink is set: give `--sink kafka://HOST:PORT`, `--sink https://HOST/PATH` or `--sink stdout`",
        )
        .into());
    };
    let Stats { sent, parked, .. } = match args.listen {
        None => {
            print_message("sending events; Ctrl-C stops the relay");
            relay.run(async { signals.stop_requested().await }).await
        }
        Some(address) => {
            let listener = server::listen(address).await?;
            run_with_metrics(relay, &pitwheel, listener, signals).await?
        }
    };
    print_message(&format!("stopped: {sent} events sent, {parked} entities parked"));
    Ok(())
}

/// Runs the relay beside a server for its metrics, until a stop is requested.
async fn run_with_metrics(
    relay: AnyRelay,
    pitwheel: &Pitwheel,
    listener: TcpListener,
    mut signals: Signals,
) -> anyhow::Result<Stats> {
    let metrics = Endpoints::new(listener.local_addr()?, &Options::default()).metrics();
    let ready = || {
        print_message(&format!("sending events, metrics at {metrics}; Ctrl-C stops the relay"));
        Ok(())
    };
    let (stopping, stopped) = oneshot::channel::<()>();
    let stop = async {
        signals.stop_requested().await;
        drop(stopping);
    };
    let readiness = Readiness::default();
    let server = Server::new(pitwheel).only_probes().readiness(&readiness);
    let serve = server::run(server, listener, ready, stop);
    let (served, stats) =
        relay::run_beside(Some(relay), &readiness, async { drop(stopped.await) }, serve).await?;
    served?;
    Ok(stats.unwrap_or_default())
}

fn parse_shards(text: &str) -> Result<Shards, String> {
    let problem = || "give numbers and ranges, as in 0-31 or 0,5,9".to_owned();
    let number = |text: &str| text.trim().parse::<i16>().map_err(|_| problem());
    let mut shards = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => shards.extend(number(first)?..=number(last)?),
            None => shards.push(number(part)?),
        }
    }
    shards.sort_unstable();
    shards.dedup();
    if shards.is_empty() { Err(problem()) } else { Ok(Shards(shards)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_numbers_and_ranges() {
        assert_eq!(parse_shards("3"), Ok(Shards(vec![3])));
        assert_eq!(parse_shards("8, 0-2,1"), Ok(Shards(vec![0, 1, 2, 8])));
        for wrong in ["", "a", "1-", "-1", "5-3", "1;2"] {
            assert!(parse_shards(wrong).is_err(), "{wrong}");
        }
    }
}
