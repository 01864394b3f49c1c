//! One producer, from its first message to its first fatal error.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::bindings::rd_kafka_flush;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, PurgeConfig, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::JoinHandle;

use super::reports::{Report, Reports};
use super::request::Message;
use super::topics::{Topic, Topics};
use crate::limit::Limit;

/// How long reports may take after a purge, which needs no network.
const PURGE_MAX: Duration = Duration::from_secs(5);
/// Longer than any limit of a batch, at which its messages are purged.
const FLUSH_MAX_MS: i32 = 60_000;

/// A producer of librdkafka and its reports.
pub(super) struct KafkaProducer {
    producer: ThreadedProducer<Reports>,
    reports: UnboundedReceiver<Report>,
    topics: Topics,
    /// Messages without a report.
    waiting: usize,
    /// Messages were given up that may be stored all the same.
    is_purged: bool,
}

impl KafkaProducer {
    pub(super) fn new(config: &ClientConfig) -> KafkaResult<KafkaProducer> {
        let (sender, reports) = mpsc::unbounded_channel();
        let producer = ThreadedProducer::from_config_and_context(config, Reports(sender))?;
        Ok(KafkaProducer { producer, reports, topics: Topics::default(), waiting: 0, is_purged: false })
    }

    /// Whether the topic can be used.
    pub(super) async fn check_topic(&mut self, name: &str) -> Topic {
        self.topics.check(&self.producer, name).await
    }

    /// A new request: topics that were not clear before are asked for again.
    pub(super) fn next_request(&mut self) {
        self.topics.next_request();
    }

    /// Asks for the topic again the next time.
    pub(super) fn forget_topic(&mut self, name: &str) {
        self.topics.forget(name);
    }

    /// Queues a message, which is sent by [`send_queued`](KafkaProducer::send_queued). Its report has this index.
    ///
    /// # Errors
    /// If it was not queued: there is no report.
    pub(super) fn queue(&mut self, message: &Message<'_>, index: usize) -> Result<(), RDKafkaErrorCode> {
        let Message { event, headers, .. } = message;
        let owned =
            headers.iter().fold(OwnedHeaders::new_with_capacity(headers.len()), |all, (name, value)| {
                all.insert(Header { key: name, value: Some(value) })
            });
        let mut record: BaseRecord<'_, str, [u8], usize> =
            BaseRecord::with_opaque_to(&event.topic, index).key(event.entity_key.as_str()).headers(owned);
        record.payload = event.payload.as_deref();
        match self.producer.send(record) {
            Ok(()) => {
                self.waiting += 1;
                Ok(())
            }
            Err((KafkaError::MessageProduction(code), _)) => Err(code),
            Err(_) => Err(RDKafkaErrorCode::InvalidArgument),
        }
    }

    /// Sends what is queued: one request for each partition, because nothing was sent before. Ends when every message has its
    /// report.
    pub(super) fn send_queued(&self) -> JoinHandle<()> {
        let producer = self.producer.clone();
        tokio::task::spawn_blocking(move || flush(&producer))
    }

    /// Waits for reports and adds them to `into`. At the limit everything is purged: what is still queued is not sent, and what
    /// is on its way is given up. False when every message has its report.
    pub(super) async fn reports(&mut self, into: &mut Vec<Report>, limit: &Limit) -> bool {
        if self.waiting == 0 {
            return false;
        }
        let received = tokio::select! {
            biased;
            received = self.reports.recv_many(into, self.waiting) => received,
            () = limit.give_up() => {
                self.is_purged = true;
                self.producer.purge(PurgeConfig::default().queue().inflight());
                let received = self.reports.recv_many(into, self.waiting);
                tokio::time::timeout(PURGE_MAX, received).await.unwrap_or(0)
            }
        };
        // None within the limit, which is far too long: nothing more can be learnt of the rest.
        self.waiting = if received == 0 { 0 } else { self.waiting - received };
        received > 0
    }

    /// Whether it must not be used any more.
    pub(super) fn has_failed(&self) -> bool {
        self.is_purged || self.producer.client().fatal_error().is_some()
    }

    /// Ends the producer. Nothing that is still queued is sent.
    pub(super) async fn end(self) {
        // Dropping waits for librdkafka's threads.
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }
}

/// `Producer::flush` does not do: it lets librdkafka send only for the moment of a call that does not wait.
#[expect(unsafe_code, reason = "rdkafka has no function for it")]
fn flush(producer: &ThreadedProducer<Reports>) {
    // SAFETY: the pointer is that of a producer that lives until the call returns, and librdkafka locks what it needs.
    unsafe {
        rd_kafka_flush(producer.client().native_ptr(), FLUSH_MAX_MS);
    }
}
