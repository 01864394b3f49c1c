//! A consumer of one topic, from its start, in a thread of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers, Message, OwnedMessage};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::support::topic::PARTITIONS;

/// How long the thread waits for a message before it looks whether to stop.
const POLL: Duration = Duration::from_millis(50);

/// Collects the messages of a topic.
pub(crate) struct Consumer {
    messages: Arc<Mutex<Vec<OwnedMessage>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Consumer {
    pub(crate) fn start(address: &str, topic: &str) -> Result<Consumer> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", address)
            .set("group.id", "test")
            .set("enable.auto.commit", "false")
            // After a crash of the broker, a consumer may take its position for lost. From the end it would miss events.
            .set("auto.offset.reset", "earliest")
            .set("reconnect.backoff.max.ms", "500")
            .set("fetch.wait.max.ms", "10")
            .create()?;
        let mut partitions = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            partitions.add_partition_offset(topic, partition, Offset::Beginning)?;
        }
        consumer.assign(&partitions)?;
        let (messages, stop) = (Arc::<Mutex<Vec<OwnedMessage>>>::default(), Arc::<AtomicBool>::default());
        let (collected, stopped) = (messages.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // Errors pass: the broker may be away for a while.
                if let Some(Ok(message)) = consumer.poll(POLL) {
                    lock(&collected).push(message.detach());
                }
            }
        });
        Ok(Consumer { messages, stop, thread: Some(thread) })
    }

    /// All messages up to now, in the order of arrival.
    pub(crate) fn messages(&self) -> MutexGuard<'_, Vec<OwnedMessage>> {
        lock(&self.messages)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn lock(messages: &Mutex<Vec<OwnedMessage>>) -> MutexGuard<'_, Vec<OwnedMessage>> {
    messages.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The key of a message.
pub(crate) fn key(message: &OwnedMessage) -> String {
    String::from_utf8_lossy(message.key().unwrap_or_default()).into_owned()
}

/// The value of a header; empty if there is none.
pub(crate) fn header(message: &OwnedMessage, name: &str) -> String {
    let headers = message.headers().into_iter().flat_map(Headers::iter);
    let found = headers.into_iter().find(|header| header.key == name).and_then(|header| header.value);
    String::from_utf8_lossy(found.unwrap_or_default()).into_owned()
}
