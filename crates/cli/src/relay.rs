//! A relay in this process, for `pitwheel relay`, `pitwheel serve` and `pitwheel dev`.

mod strategy;
mod table;

use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;

use anyhow::Context;
use clap::Args;
use pitwheel::Pitwheel;
use pitwheel::engine::outbox::RelayOptions;
use pitwheel_relay::{AnySink, Format, SinkSettings, Stats};
use pitwheel_server::Readiness;
use tokio::task::JoinHandle;

use crate::exit::CommandError;
pub(crate) use crate::relay::strategy::AnyRelay;
use crate::relay::strategy::StrategyArgs;

/// The secret is not a flag: every user of this machine can read command lines.
const WEBHOOK_SECRET: &str = "PITWHEEL_WEBHOOK_SECRET";

/// Where the events of the outbox go, and how relays share them.
#[derive(Debug, Args)]
pub(crate) struct SinkArgs {
    /// Send events here: kafka://HOST:PORT, https://HOST/PATH (signed with PITWHEEL_WEBHOOK_SECRET), or stdout
    #[arg(long, value_name = "URL", env = "PITWHEEL_SINK")]
    pub(crate) sink: Option<String>,

    /// Settings of librdkafka, one `name = value` per line: security.protocol, sasl.mechanism, ssl.ca.location, …
    #[arg(long, value_name = "FILE", env = "PITWHEEL_KAFKA_CONFIG", requires = "sink")]
    kafka_config: Option<PathBuf>,

    /// Send events as CloudEvents in binary mode, with this `source`
    #[arg(long, value_name = "SOURCE", env = "PITWHEEL_CLOUD_EVENTS", requires = "sink")]
    cloud_events: Option<String>,

    #[command(flatten)]
    strategy: StrategyArgs,
}

impl SinkArgs {
    /// The relay that sends events to the sink; `None` without a sink.
    pub(crate) async fn relay(
        &self,
        pitwheel: &Pitwheel,
        options: RelayOptions,
    ) -> anyhow::Result<Option<AnyRelay>> {
        let Some(url) = self.sink.clone() else { return Ok(None) };
        let settings = SinkSettings {
            url,
            kafka: self.kafka_config.as_deref().map_or(Ok(Vec::new()), properties)?,
            webhook_secret: std::env::var(WEBHOOK_SECRET).ok().filter(|secret| !secret.is_empty()),
            format: match &self.cloud_events {
                Some(source) => Format::CloudEvents { source: source.clone() },
                None => Format::Plain,
            },
        };
        let sink = AnySink::new(settings).map_err(|error| CommandError::usage(error.to_string()))?;
        self.strategy.relay(pitwheel, options, sink).await.map(Some)
    }
}

/// Runs the relay, if there is one, beside `serve`, from when the server with this readiness accepts calls: it has set up the metrics by
/// then. The relay stops when `serve` has ended, or when `stop` completes. Returns what `serve` does, and the counts of a relay that ran.
///
/// # Errors
/// If the relay panics. `serve` is given up then: a process that looks healthy and sends nothing would not be restarted.
pub(crate) async fn run_beside<T>(
    relay: Option<AnyRelay>,
    readiness: &Readiness,
    stop: impl Future<Output = ()> + Send + 'static,
    serve: impl Future<Output = T>,
) -> anyhow::Result<(T, Option<Stats>)> {
    let Some(relay) = relay else { return Ok((serve.await, None)) };
    let (ending, ended) = tokio::sync::oneshot::channel::<()>();
    let stop = async {
        tokio::select! {
            () = stop => {}
            _ = ended => {}
        }
    };
    let readiness = readiness.clone();
    let running = tokio::spawn(async move {
        readiness.accepting().await.ok()?;
        Some(relay.run(stop).await)
    });
    both(running, ending, serve).await
}

/// Waits for `serve` and then, when `ending` is dropped, for the relay.
async fn both<T, R, E>(
    mut relay: JoinHandle<R>,
    ending: E,
    serve: impl Future<Output = T>,
) -> anyhow::Result<(T, R)> {
    let mut serve = pin!(serve);
    tokio::select! {
        served = &mut serve => {
            drop(ending);
            Ok((served, relay.await.context("the relay has failed")?))
        }
        stats = &mut relay => {
            let stats = stats.context("the relay has failed")?;
            Ok((serve.await, stats))
        }
    }
}

/// A file of `name = value` lines. Empty lines and lines that start with `#` are comments.
fn properties(path: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let unreadable = |error| CommandError::usage(format!("`{}` cannot be read: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(unreadable)?;
    Ok(parse(&text).map_err(|line| {
        CommandError::usage(format!("`{}`, line {line}: write `name = value`", path.display()))
    })?)
}

/// The settings, or the number of the first line that is none.
fn parse(text: &str) -> Result<Vec<(String, String)>, usize> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let settings = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    settings
        .map(|(number, line)| match line.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                Ok((name.trim().to_owned(), value.trim().to_owned()))
            }
            _ => Err(number),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn a_relay_that_panics_ends_the_server_beside_it() {
        let relay = tokio::spawn(async { panic!("a row that cannot be read") });
        let error = both(relay, (), pending::<()>()).await.err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("the relay has failed"));
    }

    #[tokio::test]
    async fn a_relay_that_was_stopped_waits_for_the_server() {
        let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
        let relay = tokio::spawn(async { drop(stopped.await) });
        assert!(both(relay, stopping, ready(())).await.is_ok());
        let (ending, ended) = tokio::sync::oneshot::channel();
        let relay = tokio::spawn(async move { ending.send(7).is_ok() });
        assert!(matches!(both(relay, (), ended).await, Ok((Ok(7), true))));
    }

    #[test]
    fn a_file_has_a_setting_per_line() {
        let text = "# to the cluster\nsecurity.protocol = SASL_SSL\n\nsasl.password=a=b \n";
        let expected = [("security.protocol", "SASL_SSL"), ("sasl.password", "a=b")];
        let expected: Vec<(String, String)> =
            expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse("a = b\nnonsense\n"), Err(2));
        assert_eq!(parse("= b"), Err(1));
    }
}
