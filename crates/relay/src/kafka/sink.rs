//! Events to Kafka: a request is queued as a whole, and its reports are waited for.

use std::collections::HashSet;
use std::slice;

use pitwheel::engine::outbox::Event;
use rdkafka::ClientConfig;
use rdkafka::types::RDKafkaErrorCode;

use super::error::{describe, is_refusal};
use super::producer::KafkaProducer;
use super::request::{BYTES_MAX, Message, request_len};
use super::settings::KafkaSettings;
use super::topics::Topic;
use crate::error::SinkError;
use crate::limit::Limit;
use crate::message;
use crate::sink::{Outcome, Sink};

/// The reason of an event that was not sent because of another one of its entity.
const BEHIND: &str = "an event before it was not sent";

/// Events to Kafka: the topic is that of the event, the key is its entity.
pub struct Kafka {
    config: ClientConfig,
    settings: KafkaSettings,
    message_max: usize,
    /// Created with the first batch, and again after a fatal error or a purge.
    producer: Option<KafkaProducer>,
}

/// What became of one event of a batch.
#[derive(Debug, Clone)]
enum Attempt {
    Final(Outcome),
    /// Kafka refused the batch of its own that the event was in: this event, or another one.
    Suspect(RDKafkaErrorCode),
}

impl Attempt {
    fn again(reason: &str) -> Attempt {
        Attempt::Final(Outcome::Again(reason.to_owned()))
    }
}

impl Kafka {
    /// Checks the settings. No connection is made yet.
    ///
    /// # Errors
    /// If librdkafka does not accept the settings.
    pub fn new(settings: KafkaSettings) -> Result<Kafka, SinkError> {
        let config = settings.config()?;
        // The first one is created here, so that wrong settings show at the start.
        let producer = KafkaProducer::new(&config).map_err(|error| SinkError::Settings(error.to_string()))?;
        Ok(Kafka { config, message_max: settings.message_max(), settings, producer: Some(producer) })
    }

    /// Sends the messages of a request, but none of entities that are stopped.
    async fn send_together<'a>(
        &mut self,
        messages: &[Message<'a>],
        mut stopped: HashSet<&'a str>,
        limit: &Limit,
    ) -> Vec<Attempt> {
        let mut attempts = vec![Attempt::again("the relay stops sending"); messages.len()];
        let mut producer = match self.producer.take().map_or_else(|| KafkaProducer::new(&self.config), Ok) {
            Ok(producer) => producer,
            Err(error) => {
                attempts.fill(Attempt::again(&format!("no producer can be created: {error}")));
                return attempts;
            }
        };
        producer.next_request();
        for (at, message) in messages.iter().enumerate() {
            let key = message.event.entity_key.as_str();
            if stopped.contains(key) {
                attempts[at] = Attempt::again(BEHIND);
            } else if let Err(attempt) = self.queue(&mut producer, message, at, limit).await {
                stopped.insert(key);
                attempts[at] = attempt;
            }
        }
        let sending = producer.send_queued();
        let mut reports = Vec::with_capacity(messages.len());
        while producer.reports(&mut reports, limit).await {}
        let _ = sending.await;
        for report in reports {
            attempts[report.index] = match report.error {
                None => Attempt::Final(Outcome::Sent),
                Some(code) if is_refusal(code) => {
                    producer.forget_topic(&messages[report.index].event.topic);
                    Attempt::Suspect(code)
                }
                Some(code) => Attempt::again(&describe(code)),
            };
        }
        if producer.has_failed() {
            producer.end().await;
        } else {
            self.producer = Some(producer);
        }
        attempts
    }

    /// Queues a message that passes the checks.
    async fn queue(
        &self,
        producer: &mut KafkaProducer,
        message: &Message<'_>,
        at: usize,
        limit: &Limit,
    ) -> Result<(), Attempt> {
        let topic = tokio::select! {
            topic = producer.check_topic(&message.event.topic) => topic,
            () = limit.give_up() => return Err(Attempt::again("Kafka did not answer in time")),
        };
        match topic {
            Topic::Exists => self.check_size(message)?,
            Topic::Refused(reason) => return Err(Attempt::Final(Outcome::Refused(reason))),
            Topic::Unknown(reason) => return Err(Attempt::again(&reason)),
        }
        if limit.is_reached() {
            return Err(Attempt::again("the relay stops sending"));
        }
        producer.queue(message, at).map_err(|code| {
            if is_refusal(code) {
                Attempt::Final(Outcome::Refused(describe(code)))
            } else {
                Attempt::again(&describe(code))
            }
        })
    }

    fn check_size(&self, message: &Message<'_>) -> Result<(), Attempt> {
        if message.bytes <= self.message_max {
            return Ok(());
        }
        let reason = format!(
            "it has {} bytes with its key and headers, and {} are allowed: raise `message.max.bytes` of the relay \
             and `max.message.bytes` of the topic, then retry",
            message.bytes, self.message_max
        );
        Err(Attempt::Final(Outcome::Refused(reason)))
    }

    /// Sends a message alone: if it is refused now, it is this one.
    async fn send_alone(&mut self, message: &Message<'_>, limit: &Limit) -> Outcome {
        match self.send_together(slice::from_ref(message), HashSet::new(), limit).await.pop() {
            Some(Attempt::Final(outcome)) => outcome,
            Some(Attempt::Suspect(code)) => Outcome::Refused(describe(code)),
            None => Outcome::Again("there is no report".to_owned()),
        }
    }
}

impl Sink for Kafka {
    async fn send(&mut self, events: &[Event], limit: &Limit) -> Vec<Outcome> {
        let (format, bytes_max) = (self.settings.format.clone(), self.message_max.min(BYTES_MAX));
        let to_message = |event| Message::new(event, format.headers(event, message::KAFKA));
        let messages: Vec<Message<'_>> = events.iter().map(to_message).collect();
        let mut rest = messages.as_slice();
        let mut stopped: HashSet<&str> = HashSet::new();
        let mut outcomes = Vec::with_capacity(events.len());
        while !rest.is_empty() {
            let (request, behind) = rest.split_at(request_len(rest, bytes_max));
            rest = behind;
            let attempts = self.send_together(request, stopped.clone(), limit).await;
            for (message, attempt) in request.iter().zip(attempts) {
                let key = message.event.entity_key.as_str();
                let outcome = match attempt {
                    Attempt::Final(outcome) => outcome,
                    Attempt::Suspect(_) if stopped.contains(key) => Outcome::Again(BEHIND.to_owned()),
                    Attempt::Suspect(_) => self.send_alone(message, limit).await,
                };
                if outcome != Outcome::Sent {
                    stopped.insert(key);
                }
                outcomes.push(outcome);
            }
        }
        outcomes
    }
}
