//! Kafka, through librdkafka.

mod error;
mod producer;
mod reports;
mod request;
mod settings;
mod sink;
mod topics;

pub use settings::KafkaSettings;
pub use sink::Kafka;
