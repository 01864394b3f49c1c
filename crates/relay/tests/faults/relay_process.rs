//! A relay process: this test binary, started again.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use pitwheel::Pitwheel;
use pitwheel::engine::outbox::{Entities, RelayOptions, Shards, Strategy};
use pitwheel_relay::{Kafka, KafkaSettings, Relay};
use pitwheel_testkit::ChildProcess;
use tokio::signal::unix::{SignalKind, signal};

use crate::outbox::Outbox;
use crate::support::holdings::Logged;

/// Set in a relay process: the strategy, the URL of the database, the address of the broker, and the folder of the log.
const RELAY: &str = "PITWHEEL_TEST_RELAY";
/// Short, so that tests need not wait long for it to expire.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// Starts a relay. It ends on SIGTERM.
pub(crate) fn start_relay(outbox: Outbox, url: &str, broker: &str, folder: &Path) -> Result<ChildProcess> {
    let variables = [(RELAY, format!("{} {url} {broker} {}", outbox.name(), folder.display()))];
    ChildProcess::spawn_test("relay_process::the_relay_process", variables, Stdio::null())
}

/// Does nothing unless the environment variable is set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_relay_process() -> Result<()> {
    let Ok(settings) = std::env::var(RELAY) else { return Ok(()) };
    let [strategy, url, broker, folder] = settings.splitn(4, ' ').collect::<Vec<_>>()[..] else {
        anyhow::bail!("settings are missing in `{settings}`");
    };
    let outbox = Outbox::named(strategy).context("an unknown strategy")?;
    let pool = Pitwheel::connect(url).await?.pool_for_loops(2, LEASE)?;
    let options = RelayOptions { lease: LEASE, ..RelayOptions::default() };
    let kafka = Kafka::new(KafkaSettings { brokers: broker.to_owned(), ..KafkaSettings::default() })?;
    match outbox.entities() {
        None => run(Shards::new(pool, options)?, kafka, folder).await,
        Some((source, lock)) => run(Entities::new(pool, options, source, lock)?, kafka, folder).await,
    }
}

async fn run(strategy: impl Strategy, kafka: Kafka, folder: &str) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let logged = Logged::new(strategy, Path::new(folder))?;
    Relay::new(logged, kafka).run(async { terminate.recv().await.unwrap_or(()) }).await;
    Ok(())
}
