//! What an error of Kafka means for an event.

use rdkafka::types::RDKafkaErrorCode;

/// Whether Kafka refuses the event for good: it will not take it later either. Everything else passes, or is a matter of the
/// connection or of the whole cluster: an outage must park nothing. A time that Kafka does not accept is that of the relay's clock.
pub(super) fn is_refusal(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::{
        InvalidArgument, InvalidMessage, InvalidMessageSize, InvalidPartitions, InvalidRecord, InvalidTopic,
        MessageBatchTooLarge, MessageSizeTooLarge, PolicyViolation, TopicAuthorizationFailed,
        UnknownPartition, UnknownTopic, UnknownTopicOrPartition,
    };
    matches!(
        code,
        InvalidArgument
            | InvalidMessage
            | InvalidMessageSize
            | InvalidPartitions
            | InvalidRecord
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_the_fault_of_the_event_refuses_nothing() {
        use RDKafkaErrorCode::{
            ClusterAuthorizationFailed, InvalidTimestamp, MessageSizeTooLarge, NotEnoughReplicas,
        };
        assert!(is_refusal(MessageSizeTooLarge));
        for code in [InvalidTimestamp, NotEnoughReplicas, ClusterAuthorizationFailed] {
            assert!(!is_refusal(code), "{code}");
        }
    }
}
