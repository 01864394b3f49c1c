//! Relays: in this process, and in one of their own.

use std::time::Duration;

use anyhow::{Context as _, Result};
use pitwheel::Pitwheel;
use pitwheel::engine::outbox::{Entities, EntityLock, RelayOptions, Shards, SourceTable, Strategy};
use pitwheel_relay::{Kafka, KafkaSettings, Relay, Stats};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::events::LEASE;

/// How relays share the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    Shards,
    Entities(EntityLock),
}

/// A relay in this process.
pub(super) struct RunningRelay {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Stats>,
}

impl RunningRelay {
    pub(super) fn start(pitwheel: &Pitwheel, address: &str, sharing: Sharing) -> Result<RunningRelay> {
        match sharing {
            Sharing::Shards => RunningRelay::with(shards(pitwheel, LEASE)?, address),
            Sharing::Entities(lock) => RunningRelay::with(entities(pitwheel, lock)?, address),
        }
    }

    pub(super) fn with(strategy: impl Strategy + 'static, address: &str) -> Result<RunningRelay> {
        let (stop, stopped) = oneshot::channel();
        let relay = Relay::new(strategy, kafka(address)?);
        let task = tokio::spawn(relay.run(async { drop(stopped.await) }));
        Ok(RunningRelay { stop, task })
    }

    pub(super) async fn stop(self) -> Result<Stats> {
        drop(self.stop);
        Ok(self.task.await?)
    }
}

pub(super) fn shards(pitwheel: &Pitwheel, lease: Duration) -> Result<Shards> {
    let options = RelayOptions { lease, ..RelayOptions::default() };
    Ok(Shards::new(pitwheel.pool_for_loops(2, lease / 4)?, options)?)
}

fn entities(pitwheel: &Pitwheel, lock: EntityLock) -> Result<Entities> {
    let options = RelayOptions { lease: LEASE, ..RelayOptions::default() };
    let pool = pitwheel.pool_for_loops(2, LEASE / 4)?;
    Ok(Entities::new(pool, options, SourceTable::pitwheel(), lock)?)
}

fn kafka(address: &str) -> Result<Kafka> {
    Ok(Kafka::new(KafkaSettings { brokers: address.to_owned(), ..KafkaSettings::default() })?)
}

/// The relay of a process of its own: the database, the broker, and the seconds of its lease.
pub(crate) async fn run(settings: &str, ended: impl Future<Output = ()>) -> Result<()> {
    let mut words = settings.split(' ');
    let mut next = || words.next().context("too few settings");
    let (url, address, lease) = (next()?, next()?, next()?);
    let pitwheel = Pitwheel::connect(url).await?;
    let strategy = shards(&pitwheel, Duration::from_secs(lease.parse()?))?;
    Relay::new(strategy, kafka(address)?).run(ended).await;
    Ok(())
}
