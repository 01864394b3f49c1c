//! What an error of Kafka means for an event.

use rdkafka::types::RDKafkaErrorCode;

/// Whether Kafka refuses the event for good: it will not take it later either. Everything else passes, or is a matter of the
/// connection or of the whole cluster: an outage must park nothing.
pub(super) fn is_refusal(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::{
        InvalidArgument, InvalidMessage, InvalidMessageSize, InvalidPartitions, InvalidRecord,
        InvalidTimestamp, InvalidTopic, MessageBatchTooLarge, MessageSizeTooLarge, PolicyViolation,
        TopicAuthorizationFailed, UnknownPartition, UnknownTopic, UnknownTopicOrPartition,
    };
    matches!(
        code,
        InvalidArgument
            | InvalidMessage
            | InvalidMessageSize
            | InvalidPartitions
            | InvalidRecord
            | InvalidTimestamp
            | InvalidTopic
            | MessageBatchTooLarge
            | MessageSizeTooLarge
            | PolicyViolation
            | TopicAuthorizationFailed
            | UnknownPartition
            | UnknownTopic
            | UnknownTopicOrPartition
    )
}

/// The reason, for people.
pub(super) fn describe(code: RDKafkaErrorCode) -> String {
    match code {
        RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::PurgeInflight => {
            "Kafka did not answer in time".to_owned()
        }
        RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::MessageBatchTooLarge => {
            "it is larger than Kafka accepts: raise `max.message.bytes` of the topic, then retry".to_owned()
        }
        RDKafkaErrorCode::TopicAuthorizationFailed => {
            "the relay may not write to the topic: allow it, then retry".to_owned()
        }
        code => format!("Kafka: {code}"),
    }
}
