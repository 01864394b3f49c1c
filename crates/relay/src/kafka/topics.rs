//! Which topics exist. Asked before the first event of a topic is sent: librdkafka would keep it for half a minute, and what is
//! behind it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::producer::{Producer, ThreadedProducer};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};

use super::error::{describe, is_refusal};
use super::reports::Reports;

/// How long a question for a topic may take.
const ASK_MAX: Duration = Duration::from_secs(5);
/// A topic that was just created, also by this question, is known everywhere after a moment.
const ASKS: usize = 4;
const ASK_EVERY: Duration = Duration::from_millis(100);
/// How long an answer counts that a topic cannot be used.
const UNUSABLE: Duration = Duration::from_secs(5);

/// Whether a topic can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Topic {
    Exists,
    Refused(String),
    /// Kafka does not answer.
    Unknown(String),
}

/// The topics that were asked for.
#[derive(Debug, Default)]
pub(super) struct Topics {
    known: HashMap<String, (Topic, Instant)>,
}

impl Topics {
    /// Whether the topic can be used, from memory if it was asked for.
    pub(super) async fn check(&mut self, producer: &ThreadedProducer<Reports>, name: &str) -> Topic {
        if let Some((topic, since)) = self.known.get(name)
            && (*topic == Topic::Exists || since.elapsed() < UNUSABLE)
        {
            return topic.clone();
        }
        let topic =
            if is_name(name) { ask_again(producer, name).await } else { Topic::Refused(bad_name(name)) };
        self.known.insert(name.to_owned(), (topic.clone(), Instant::now()));
        topic
    }

    /// A new request: topics that were not clear before are asked for again. Within a request, a question for each of thousands of entities
    /// would take longer than the batch may, and events of other topics would wait for it.
    pub(super) fn next_request(&mut self) {
        self.known.retain(|_, (topic, _)| !matches!(topic, Topic::Unknown(_)));
    }

    /// Asks again the next time: it does not exist any more.
    pub(super) fn forget(&mut self, name: &str) {
        self.known.remove(name);
    }
}

/// Kafka's rule for names.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=249).contains(&name.len()) && !matches!(name, "." | "..") && name.bytes().all(is_plain)
}

fn bad_name(name: &str) -> String {
    format!(
        "`{name}` is not the name of a topic: use 1 to 249 letters, digits, dots, underscores and hyphens"
    )
}

async fn ask_again(producer: &ThreadedProducer<Reports>, name: &str) -> Topic {
    let mut asked = 1;
    loop {
        let (client, topic) = (producer.clone(), name.to_owned());
        let answer = tokio::task::spawn_blocking(move || ask(&client, &topic)).await;
        match answer.unwrap_or_else(|error| Topic::Unknown(error.to_string())) {
            Topic::Refused(_) if asked < ASKS => asked += 1,
            answer => return answer,
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

fn ask(producer: &ThreadedProducer<Reports>, name: &str) -> Topic {
    let metadata = match producer.client().fetch_metadata(Some(name), ASK_MAX) {
        Ok(metadata) => metadata,
        Err(error) => return Topic::Unknown(format!("Kafka cannot be reached: {error}")),
    };
    match metadata.topics().iter().find(|topic| topic.name() == name) {
        None => missing(name),
        Some(topic) => topic.error().map_or(Topic::Exists, |error| unusable(name, error)),
    }
}

fn missing(name: &str) -> Topic {
    Topic::Refused(format!("topic `{name}` does not exist: create it, then retry"))
}

/// What an error of a topic means: only what the cluster says of the topic itself refuses events.
fn unusable(name: &str, error: RDKafkaRespErr) -> Topic {
    match RDKafkaErrorCode::from(error) {
        RDKafkaErrorCode::UnknownTopicOrPartition => missing(name),
        RDKafkaErrorCode::LeaderNotAvailable => Topic::Unknown(format!("topic `{name}` has no leader")),
        code if is_refusal(code) => Topic::Refused(describe(code)),
        code => Topic::Unknown(format!("topic `{name}`: {}", describe(code))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_as_kafka_does() {
        for name in ["orders", "a.b-c_D9", &"x".repeat(249)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", "a b", "é", "a/b", &"x".repeat(250), "a\0"] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn only_what_is_wrong_with_the_topic_refuses_events() {
        use RDKafkaRespErr::{
            RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED, RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE,
            RD_KAFKA_RESP_ERR_REPLICA_NOT_AVAILABLE, RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
            RD_KAFKA_RESP_ERR_UNKNOWN, RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        };
        for (error, refuses) in [
            (RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART, true),
            (RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, true),
            (RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE, false),
            (RD_KAFKA_RESP_ERR_REPLICA_NOT_AVAILABLE, false),
            (RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED, false),
            (RD_KAFKA_RESP_ERR_UNKNOWN, false),
        ] {
            let topic = unusable("orders", error);
            assert_eq!(matches!(topic, Topic::Refused(_)), refuses, "{topic:?}");
        }
    }
}
