//! Delivery reports, from librdkafka's thread to the relay.

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::ProducerContext;
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::mpsc::UnboundedSender;

/// What became of one message.
#[derive(Debug)]
pub(super) struct Report {
    /// The number that the message was sent with.
    pub(super) index: usize,
    /// `None`: Kafka has stored it.
    pub(super) error: Option<RDKafkaErrorCode>,
}

/// Passes reports on. The channel holds at most one report for each message of a batch.
pub(super) struct Reports(pub(super) UnboundedSender<Report>);

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Debug | RDKafkaLogLevel::Info | RDKafkaLogLevel::Notice => {
                tracing::debug!(facility, "kafka: {message}");
            }
            _ => tracing::info!(facility, "kafka: {message}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!("kafka: {error}: {reason}");
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, index: usize) {
        let error = result.as_ref().err();
        let error = error.map(|(error, _)| error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown));
        // The receiver is gone if the relay has ended.
        let _ = self.0.send(Report { index, error });
    }
}
