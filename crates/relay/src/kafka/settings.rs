//! The settings of the producer. Those that keep the order cannot be changed.

use rdkafka::ClientConfig;

use crate::error::SinkError;
use crate::message::Format;

/// Without these, events of one entity can overtake each other, be lost, or stay away for ever.
///
/// `max.in.flight` is 1, although an idempotent producer may use 5: a broker that has no state of the producer yet takes the
/// second batch of a partition although it refused the first.
const FIXED: [(&str, &str); 5] = [
    ("enable.idempotence", "true"),
    ("acks", "all"),
    ("max.in.flight", "1"),
    ("enable.gapless.guarantee", "true"),
    // The relay gives up at its own deadline, for the whole producer. A message that librdkafka gives up alone leaves a gap.
    ("message.timeout.ms", "0"),
];

/// Other names of the fixed settings, and settings that would undo them.
const ALIASES: [&str; 7] = [
    "delivery.timeout.ms",
    "max.in.flight.requests.per.connection",
    "message.send.max.retries",
    "queuing.strategy",
    "request.required.acks",
    "retries",
    "transactional.id",
];

/// May be changed.
const DEFAULTS: [(&str, &str); 6] = [
    ("client.id", "pitwheel-relay"),
    ("compression.type", "lz4"),
    // With one request on its way, messages gather behind it anyway.
    ("linger.ms", "0"),
    // The same partitions as producers in Java.
    ("partitioner", "murmur2_random"),
    ("reconnect.backoff.max.ms", "1000"),
    ("socket.keepalive.enable", "true"),
];

/// The largest message, as long as `message.max.bytes` is not set: what librdkafka and brokers accept by default.
const MESSAGE_MAX: usize = 1_000_000;
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
    use super::*;

    fn with(name: &str, value: &str) -> KafkaSettings {
        let properties = vec![(name.to_owned(), value.to_owned())];
        KafkaSettings { brokers: "127.0.0.1:1".to_owned(), properties, ..KafkaSettings::default() }
    }

    #[test]
    fn what_keeps_the_order_cannot_be_changed() {
        for name in
            ["acks", "enable.idempotence", "max.in.flight.requests.per.connection", "delivery.timeout.ms"]
        {
            let error = with(name, "1").config().expect_err("refused");
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn the_rest_can_be_changed() {
        let settings = with("message.max.bytes", "2000");
        assert_eq!(settings.config().expect("accepted").get("message.max.bytes"), Some("2000"));
        assert_eq!(settings.message_max(), 2000 - OVERHEAD);
        assert_eq!(with("linger.ms", "20").config().expect("accepted").get("linger.ms"), Some("20"));
    }
}
