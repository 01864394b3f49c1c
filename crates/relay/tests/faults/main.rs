//! Faults under load, for each strategy, with relay processes and a real broker: nothing is lost, nothing overtakes, and no two relays hold
//! one entity. Run with `--nocapture` to see how often events were repeated.

mod outbox;
mod relay_process;
mod source_design;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "this binary uses a part of it")]
mod support;

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Context, Result};
use pitwheel::Pitwheel;
use pitwheel_devdb::{Options, Server};
use pitwheel_testkit::{ChildProcess, KafkaBroker, ScratchFolder, connect, wait_until};
use tokio::sync::Mutex;

use crate::outbox::Outbox;
use crate::relay_process::{LEASE, start_relay};
use crate::support::arrivals::Verdict;
use crate::support::consumer::{Consumer, header, key};
use crate::support::holdings::{self, BATCH, Holdings};
use crate::support::load::{Load, arrivals};
use crate::support::topic;

const RELAYS: usize = 6;
/// Between two faults, so that each meets relays that work.
const BETWEEN: usize = 400;
const TOPIC: &str = "orders";

/// Each test has a broker, a database and six processes: two at a time would need more than two processors.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// A database and a broker of their own, which are stopped and started.
struct Fleet {
    outbox: Outbox,
    postgres: Server,
    broker: KafkaBroker,
    consumer: Consumer,
    relays: Vec<ChildProcess>,
    /// What the relays held.
    holdings: ScratchFolder,
}

impl Fleet {
    async fn start(outbox: Outbox) -> Result<Fleet> {
        let (postgres, broker) = tokio::task::spawn_blocking(|| -> Result<(Server, KafkaBroker)> {
            Ok((Server::start(Options::temporary())?, KafkaBroker::start()?))
        })
        .await??;
        Pitwheel::connect(&postgres.url()).await?.migrate().await?;
        connect(&postgres.url()).await?.batch_execute(outbox.setup()).await?;
        topic::create(&broker.address(), TOPIC, &[]).await?;
        let consumer = Consumer::start(&broker.address(), TOPIC)?;
        let holdings = ScratchFolder::create()?;
        Ok(Fleet { outbox, postgres, broker, consumer, relays: Vec::new(), holdings })
    }

    fn add_relay(&mut self) -> Result<()> {
        let (url, broker) = (self.postgres.url(), self.broker.address());
        self.relays.push(start_relay(self.outbox, &url, &broker, self.holdings.path())?);
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

    async fn kill_two(&mut self) -> Result<()> {
        for _ in 0..2 {
            self.relays.swap_remove(0).kill()?;
            self.add_relay()?;
        }
        self.receive("two were killed", BETWEEN).await
    }

    async fn stop_two_past_their_lease(&self) -> Result<()> {
        let stopped = &self.relays[..2];
        stopped.iter().try_for_each(|relay| relay.signal("STOP"))?;
        tokio::time::sleep(LEASE * 2).await; // the leases of the stopped relays expire
        self.receive("two are stopped", BETWEEN).await?;
        stopped.iter().try_for_each(|relay| relay.signal("CONT"))?;
        self.receive("they go on", BETWEEN).await
    }

    async fn let_one_leave(&mut self) -> Result<()> {
        let mut leaving = self.relays.swap_remove(1);
        leaving.signal("TERM")?;
        let status = tokio::task::spawn_blocking(move || leaving.wait()).await??;
        assert!(status.success(), "a relay ended with {status}");
        self.receive("one has left", BETWEEN).await
    }

    async fn restart_kafka_and_postgres(&mut self) -> Result<()> {
        let broker = &mut self.broker;
        tokio::task::block_in_place(|| broker.kill().and_then(|()| broker.start_again()))?;
        self.receive("Kafka was killed and started", BETWEEN).await?;
        let broker = &mut self.broker;
        tokio::task::block_in_place(|| broker.stop().and_then(|()| broker.start_again()))?;
        self.receive("Kafka was stopped and started", BETWEEN).await?;
        let postgres = &mut self.postgres;
        tokio::task::block_in_place(|| postgres.crash().and_then(|()| postgres.start_again()))?;
        self.receive("Postgres has crashed", BETWEEN).await
    }

    /// Compares what arrived with what was committed, and what was held with what may be held.
    async fn check(&self, load: Load) -> Result<()> {
        let committed = load.finish(&self.postgres.url()).await?;
        let total: i64 = committed.values().sum();
        let all = async || Ok(arrivals(&self.consumer.messages()).distinct >= total as usize);
        let waited = wait_until("all events have arrived", all).await;
        let arrivals = arrivals(&self.consumer.messages());
        let holdings = Holdings::read(self.holdings.path())?;
        println!("{total} events, {} repeated", arrivals.repeated());
        let by_two = holdings.held_by_two();
        let (held, too_late) = (holdings.count(), holdings.too_late);
        println!("{held} times an entity was held, {} by two, {too_late} taken too late", by_two.len());
        println!("went on behind another relay: {:?}", self.interrupted());
        let client = connect(&self.postgres.url()).await?;
        let waiting =
            async || anyhow::Ok(client.query_one(self.outbox.waiting(), &[]).await?.get::<_, i64>(0));
        println!("{} events wait; missing: {:?}", waiting().await?, arrivals.missing(&committed));
        assert_eq!(arrivals.check(&committed), Verdict::default());
        waited.context("the rest was lost")?;
        assert!(holdings.count() > 0, "no relay wrote down what it held");
        assert!(by_two.is_empty(), "held by two: {:?}", &by_two[..by_two.len().min(5)]);
        wait_until("all that was delivered is acknowledged", async || Ok(waiting().await? == 0)).await
    }

    /// The batches that went on after another relay had sent events of the same entity, each with its entity. It is only printed: Postgres
    /// cannot fence what a producer has already accepted.
    fn interrupted(&self) -> Vec<(String, String)> {
        let mut batches: HashMap<String, Vec<String>> = HashMap::new();
        for message in self.consumer.messages().iter() {
            batches.entry(key(message)).or_default().push(header(message, BATCH));
        }
        let of_entity = |(key, batches): (&String, &Vec<String>)| {
            let found = holdings::interrupted(batches.iter().map(String::as_str));
            found.into_iter().map(|batch| (key.clone(), batch.to_owned())).collect::<Vec<_>>()
        };
        batches.iter().flat_map(of_entity).collect()
    }
}

/// The order survives killed and stopped relays, and restarts of Kafka and Postgres.
async fn survives_faults(outbox: Outbox) -> Result<()> {
    let _turn = ONE_AT_A_TIME.lock().await;
    let mut fleet = Fleet::start(outbox).await?;
    for _ in 0..RELAYS {
        fleet.add_relay()?;
    }
    let load = Load::start(&fleet.postgres.url(), &outbox.insert(TOPIC)).await?;
    fleet.receive("six relays", BETWEEN).await?;
    fleet.kill_two().await?;
    fleet.stop_two_past_their_lease().await?;
    fleet.let_one_leave().await?;
    fleet.restart_kafka_and_postgres().await?;
    fleet.check(load).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_survive_faults() -> Result<()> {
    survives_faults(Outbox::Shards).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entities_with_advisory_locks_survive_faults() -> Result<()> {
    survives_faults(Outbox::Advisory).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entities_with_row_locks_survive_faults() -> Result<()> {
    survives_faults(Outbox::RowLock).await
}
