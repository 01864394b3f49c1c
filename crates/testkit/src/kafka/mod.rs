//! A real Kafka broker for tests and benchmarks.

mod broker;

pub use broker::{KafkaAccess, KafkaBroker};
