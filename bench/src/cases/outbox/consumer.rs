//! A consumer of the events, in a thread of its own. It notes when each arrived.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message;
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

const PARTITIONS: i32 = 12;
const POLL: Duration = Duration::from_millis(20);
const RECEIVE_MAX: Duration = Duration::from_secs(120);

type Arrivals = Arc<Mutex<Vec<(u64, Instant)>>>;

/// Collects the numbers of the events of a topic, from its start.
pub(super) struct Consumer {
    arrivals: Arrivals,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Consumer {
    /// Creates the topic if it is missing.
    pub(super) async fn start(address: &str, topic: &str) -> Result<Consumer> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", address);
        let admin: AdminClient<DefaultClientContext> = config.create()?;
        let new = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1));
        for result in admin.create_topics([&new], &AdminOptions::new()).await? {
            let is_there = matches!(result, Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)));
            ensure!(is_there, "the topic cannot be created: {result:?}");
        }
        let consumer: BaseConsumer = config
            .set("group.id", "bench")
            .set("enable.auto.commit", "false")
            // The broker answers as soon as there is a message.
            .set("fetch.wait.max.ms", "100")
            .create()?;
        let mut partitions = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            partitions.add_partition_offset(topic, partition, Offset::Beginning)?;
        }
        consumer.assign(&partitions)?;
        let (arrivals, stop) = (Arrivals::default(), Arc::<AtomicBool>::default());
        let (collected, stopped) = (arrivals.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Some(Ok(message)) = consumer.poll(POLL) {
                    let text = String::from_utf8_lossy(message.payload().unwrap_or_default());
                    lock(&collected).push((text.trim().parse().unwrap_or(0), Instant::now()));
                }
            }
        });
        Ok(Consumer { arrivals, stop, thread: Some(thread) })
    }

    /// Waits until so many events have arrived.
    pub(super) async fn receive(&self, events: u64) -> Result<()> {
        let begun = Instant::now();
        loop {
            let received = lock(&self.arrivals).len() as u64;
            if received >= events {
                return Ok(());
            }
            ensure!(begun.elapsed() < RECEIVE_MAX, "only {received} of {events} events have arrived");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The numbers of the events, in the order of arrival.
    pub(super) fn numbers(&self) -> Vec<u64> {
        lock(&self.arrivals).iter().map(|(number, _)| *number).collect()
    }

    /// When each event arrived for the first time.
    pub(super) fn times(&self) -> HashMap<u64, Instant> {
        let mut times = HashMap::new();
        for (number, time) in lock(&self.arrivals).iter() {
            times.entry(*number).or_insert(*time);
        }
        times
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn lock(arrivals: &Arrivals) -> MutexGuard<'_, Vec<(u64, Instant)>> {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner)
}
