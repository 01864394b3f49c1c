//! A relay process: this test binary, started again.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use pitwheel::Pitwheel;
use pitwheel::engine::outbox::{RelayOptions, Shards};
use pitwheel_relay::{Kafka, KafkaSettings, Relay};
use pitwheel_testkit::ChildProcess;
use tokio::signal::unix::{SignalKind, signal};

/// Set in a relay process: the URL of the database and the address of the broker.
const RELAY: &str = "PITWHEEL_TEST_RELAY";
/// Short, so that tests need not wait long for it to expire.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// Starts a relay. It ends on SIGTERM.
pub(crate) fn start_relay(url: &str, broker: &str) -> Result<ChildProcess> {
    let variables = [(RELAY, format!("{url} {broker}"))];
    ChildProcess::spawn_test("relay_process::the_relay_process", variables, Stdio::null())
}

/// Does nothing unless the environment variable is set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_relay_process() -> Result<()> {
    let Ok(settings) = std::env::var(RELAY) else { return Ok(()) };
    let (url, broker) = settings.split_once(' ').context("no broker")?;
    let mut terminate = signal(SignalKind::terminate())?;
    let pool = Pitwheel::connect(url).await?.pool_for_loops(2, LEASE)?;
    let options = RelayOptions { lease: LEASE, ..RelayOptions::default() };
    let kafka = Kafka::new(KafkaSettings { brokers: broker.to_owned(), ..KafkaSettings::default() })?;
    Relay::new(Shards::new(pool, options)?, kafka).run(async { terminate.recv().await.unwrap_or(()) }).await;
    Ok(())
}
