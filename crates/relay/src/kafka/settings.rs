//! The settings of the producer. Those that keep the order cannot be changed.

use rdkafka::ClientConfig;

use crate::error::SinkError;
use crate::message::Format;

/// Without these, events of one entity can overtake each other, be lost, or stay away for ever.
const FIXED: [(&str, &str); 8] = [
    ("enable.idempotence", "true"),
    ("acks", "all"),
    ("max.in.flight", "5"),
    ("enable.gapless.guarantee", "true"),
    // Messages are sent when all of a request are queued, never before.
    ("linger.ms", "900000"),
    ("batch.num.messages", "10000"),
    ("batch.size", "1000000"),
    // The relay gives up at its own deadline, for the whole producer. A message that librdkafka gives up alone leaves a gap.
    ("message.timeout.ms", "0"),
];

/// Other names of the fixed settings, and settings that would undo them.
const ALIASES: [&str; 8] = [
    "delivery.timeout.ms",
    "max.in.flight.requests.per.connection",
    "message.send.max.retries",
    "queue.buffering.max.ms",
    "queuing.strategy",
    "request.required.acks",
    "retries",
    "transactional.id",
];

/// May be changed.
const DEFAULTS: [(&str, &str); 6] = [
    ("client.id", "pitwheel-relay"),
    ("compression.type", "lz4"),
    ("message.max.bytes", "1048576"),
    // The same partitions as producers in Java.
    ("partitioner", "murmur2_random"),
    ("reconnect.backoff.max.ms", "1000"),
    ("socket.keepalive.enable", "true"),
];

/// The largest message, as long as `message.max.bytes` is not set: what brokers accept by default, and enough for the largest event of
/// the outbox with its key and headers.
const MESSAGE_MAX: usize = 1_048_576;
/// What a message needs beside its key, payload and headers, at most.
const OVERHEAD: usize = 512;

/// How to reach Kafka.
#[derive(Debug, Clone, Default)]
pub struct KafkaSettings {
    /// Addresses of brokers, as in `one:9092,two:9092`.
    pub brokers: String,
    /// Settings of librdkafka by name, for example `security.protocol` and `sasl.mechanism`.
    pub properties: Vec<(String, String)>,
    /// How the headers are named.
    pub format: Format,
}

impl KafkaSettings {
    pub(super) fn config(&self) -> Result<ClientConfig, SinkError> {
        let mut config = ClientConfig::new();
        let own = self.properties.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in DEFAULTS.into_iter().chain(own) {
            if FIXED.iter().any(|(fixed, _)| *fixed == name) || ALIASES.contains(&name) {
                let reason =
                    format!("`{name}` is fixed, because the order of events depends on it: remove it");
                return Err(SinkError::Settings(reason));
            }
            config.set(name, value);
        }
        for (name, value) in FIXED {
            config.set(name, value);
        }
        config.set("bootstrap.servers", &self.brokers);
        Ok(config)
    }

    /// The most bytes that key, payload and headers of a message may have together.
    pub(super) fn message_max(&self) -> usize {
        let set = self.properties.iter().rev().find(|(name, _)| name == "message.max.bytes");
        let max = set.and_then(|(_, value)| value.parse().ok()).unwrap_or(MESSAGE_MAX);
        max.saturating_sub(OVERHEAD)
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::{BYTES_MAX, MESSAGES_MAX};
    use super::*;

    #[test]
    fn librdkafka_does_not_divide_a_request() {
        let config = KafkaSettings::default().config().expect("accepted");
        assert_eq!(config.get("batch.size"), Some(BYTES_MAX.to_string().as_str()));
        assert_eq!(config.get("batch.num.messages"), Some(MESSAGES_MAX.to_string().as_str()));
    }

    fn with(name: &str, value: &str) -> KafkaSettings {
        let properties = vec![(name.to_owned(), value.to_owned())];
        KafkaSettings { brokers: "127.0.0.1:1".to_owned(), properties, ..KafkaSettings::default() }
    }

    #[test]
    fn what_keeps_the_order_cannot_be_changed() {
        for name in ["acks", "enable.idempotence", "linger.ms", "max.in.flight", "delivery.timeout.ms"] {
            let error = with(name, "1").config().expect_err("refused");
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn the_largest_message_is_known_by_default() {
        let config = KafkaSettings::default().config().expect("accepted");
        assert_eq!(config.get("message.max.bytes"), Some(MESSAGE_MAX.to_string().as_str()));
        assert_eq!(KafkaSettings::default().message_max(), MESSAGE_MAX - OVERHEAD);
    }

    #[test]
    fn the_rest_can_be_changed() {
        let settings = with("message.max.bytes", "2000");
        assert_eq!(settings.config().expect("accepted").get("message.max.bytes"), Some("2000"));
        assert_eq!(settings.message_max(), 2000 - OVERHEAD);
        let slow = with("reconnect.backoff.max.ms", "20").config().expect("accepted");
        assert_eq!(slow.get("reconnect.backoff.max.ms"), Some("20"));
    }
}
