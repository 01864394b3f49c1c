//! Faults under load, with relay processes and a real broker: nothing is lost, and nothing overtakes. Run with `--nocapture` to see
//! how often events were repeated.

mod relay_process;
mod source_design;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "this binary uses a part of it")]
mod support;

use std::time::Instant;

use anyhow::{Context, Result};
use pitwheel::Pitwheel;
use pitwheel_devdb::{Options, Server};
use pitwheel_testkit::{ChildProcess, KafkaBroker, wait_until};

use crate::relay_process::{LEASE, start_relay};
use crate::support::arrivals::Verdict;
use crate::support::consumer::Consumer;
use crate::support::load::{Load, arrivals, insert_into_outbox};
use crate::support::topic;

const RELAYS: usize = 6;
/// Between two faults, so that each meets relays that work.
const BETWEEN: usize = 400;

/// A database and a broker of their own, which are stopped and started.
struct Fleet {
    postgres: Server,
    broker: KafkaBroker,
    consumer: Consumer,
    relays: Vec<ChildProcess>,
}

impl Fleet {
    async fn start(topic: &str) -> Result<Fleet> {
        let (postgres, broker) = tokio::task::spawn_blocking(|| -> Result<(Server, KafkaBroker)> {
            Ok((Server::start(Options::temporary())?, KafkaBroker::start()?))
        })
        .await??;
        Pitwheel::connect(&postgres.url()).await?.migrate().await?;
        topic::create(&broker.address(), topic, &[]).await?;
        let consumer = Consumer::start(&broker.address(), topic)?;
        Ok(Fleet { postgres, broker, consumer, relays: Vec::new() })
    }

    fn add_relay(&mut self) -> Result<()> {
        self.relays.push(start_relay(&self.postgres.url(), &self.broker.address())?);
        Ok(())
    }

    /// Waits until so many more messages have arrived.
    async fn receive(&self, what: &str, more: usize) -> Result<()> {
        let before = self.consumer.messages().len();
        let begun = Instant::now();
        wait_until(what, async || Ok(self.consumer.messages().len() >= before + more)).await?;
        println!("{what}: {more} messages after {:?}", begun.elapsed());
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_survives_killed_and_stopped_relays_and_restarts_of_kafka_and_postgres() -> Result<()> {
    let mut fleet = Fleet::start("orders").await?;
    for _ in 0..RELAYS {
        fleet.add_relay()?;
    }
    let load = Load::start(&fleet.postgres.url(), &insert_into_outbox("orders")).await?;
    fleet.receive("six relays", BETWEEN).await?;

    for _ in 0..2 {
        fleet.relays.swap_remove(0).kill()?;
        fleet.add_relay()?;
    }
    fleet.receive("two were killed", BETWEEN).await?;

    fleet.relays[0].signal("STOP")?;
    tokio::time::sleep(LEASE * 2).await; // the lease of the stopped relay expires
    fleet.receive("one is stopped", BETWEEN).await?;
    fleet.relays[0].signal("CONT")?;
    fleet.receive("it goes on", BETWEEN).await?;

    let mut leaving = fleet.relays.swap_remove(1);
    leaving.signal("TERM")?;
    let status = tokio::task::spawn_blocking(move || leaving.wait()).await??;
    assert!(status.success(), "a relay ended with {status}");
    fleet.receive("one has left", BETWEEN).await?;

    tokio::task::block_in_place(|| fleet.broker.kill().and_then(|()| fleet.broker.start_again()))?;
    fleet.receive("Kafka was killed and started", BETWEEN).await?;
    tokio::task::block_in_place(|| fleet.broker.stop().and_then(|()| fleet.broker.start_again()))?;
    fleet.receive("Kafka was stopped and started", BETWEEN).await?;

    tokio::task::block_in_place(|| fleet.postgres.crash().and_then(|()| fleet.postgres.start_again()))?;
    fleet.receive("Postgres has crashed", BETWEEN).await?;

    let committed = load.finish(&fleet.postgres.url()).await?;
    let total: i64 = committed.values().sum();
    let all = async || Ok(arrivals(&fleet.consumer.messages()).distinct >= total as usize);
    let waited = wait_until("all events have arrived", all).await;
    let arrivals = arrivals(&fleet.consumer.messages());
    println!("{total} events, {} repeated", arrivals.repeated());
    assert_eq!(arrivals.check(&committed), Verdict::default());
    waited.context("the rest was lost")
}
