//! Events to Kafka: a batch is queued at once, and its reports are waited for.

use std::collections::HashSet;

use pitwheel::engine::outbox::Event;
use rdkafka::ClientConfig;
use rdkafka::types::RDKafkaErrorCode;

use super::error::{describe, is_refusal};
use super::producer::KafkaProducer;
use super::settings::KafkaSettings;
use super::topics::Topic;
use crate::error::SinkError;
use crate::limit::Limit;
use crate::message::{self, Header};
use crate::sink::{Outcome, Sink};

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

    /// Sends the events at these positions together.
    async fn send_together(&mut self, events: &[Event], which: &[usize], limit: &Limit) -> Vec<Attempt> {
        let mut attempts = vec![Attempt::again("the relay stops sending"); which.len()];
        let mut producer = match self.producer.take().map_or_else(|| KafkaProducer::new(&self.config), Ok) {
            Ok(producer) => producer,
            Err(error) => {
                attempts.fill(Attempt::again(&format!("no producer can be created: {error}")));
                return attempts;
            }
        };
        let mut reports = Vec::new();
        let mut stopped: HashSet<&str> = HashSet::new();
        for (at, event) in which.iter().map(|at| &events[*at]).enumerate() {
            if !stopped.is_empty() && stopped.contains(event.entity_key.as_str()) {
                attempts[at] = Attempt::again("an event before it was not sent");
                continue;
            }
            let queued = self.queue(&mut producer, event, at, limit, &mut reports).await;
            if let Err(attempt) = queued {
                stopped.insert(&event.entity_key);
                attempts[at] = attempt;
            }
        }
        while producer.reports(&mut reports, limit).await {}
        for report in reports {
            attempts[report.index] = match report.error {
                None => Attempt::Final(Outcome::Sent),
                Some(code) if is_refusal(code) => {
                    producer.forget_topic(&events[which[report.index]].topic);
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

    /// Queues an event that passes the checks. While the queue is full, reports are waited for.
    async fn queue(
        &self,
        producer: &mut KafkaProducer,
        event: &Event,
        at: usize,
        limit: &Limit,
        reports: &mut Vec<super::reports::Report>,
    ) -> Result<(), Attempt> {
        let headers = self.settings.format.headers(event, message::KAFKA);
        let topic = tokio::select! {
            topic = producer.check_topic(&event.topic) => topic,
            () = limit.give_up() => return Err(Attempt::again("Kafka did not answer in time")),
        };
        match topic {
            Topic::Exists => self.check_size(event, &headers)?,
            Topic::Refused(reason) => return Err(Attempt::Final(Outcome::Refused(reason))),
            Topic::Unknown(reason) => return Err(Attempt::again(&reason)),
        }
        loop {
            if limit.is_reached() {
                return Err(Attempt::again("the relay stops sending"));
            }
            match producer.queue(event, &headers, at) {
                Ok(()) => return Ok(()),
                Err(RDKafkaErrorCode::QueueFull) if producer.reports(reports, limit).await => {}
                Err(code) if is_refusal(code) => {
                    return Err(Attempt::Final(Outcome::Refused(describe(code))));
                }
                Err(code) => return Err(Attempt::again(&describe(code))),
            }
        }
    }

    fn check_size(&self, event: &Event, headers: &[Header]) -> Result<(), Attempt> {
        let headers: usize = headers.iter().map(|(name, value)| name.len() + value.len() + 10).sum();
        let bytes = event.entity_key.len() + event.payload.as_ref().map_or(0, Vec::len) + headers;
        if bytes <= self.message_max {
            return Ok(());
        }
        let reason = format!(
            "it has {bytes} bytes with its key and headers, and {} are allowed: raise `message.max.bytes` of the relay \
             and `max.message.bytes` of the topic, then retry",
            self.message_max
        );
        Err(Attempt::Final(Outcome::Refused(reason)))
    }

    /// Sends an event alone: if it is refused now, it is this one.
    async fn send_alone(&mut self, events: &[Event], at: usize, limit: &Limit) -> Outcome {
        match self.send_together(events, &[at], limit).await.pop() {
            Some(Attempt::Final(outcome)) => outcome,
            Some(Attempt::Suspect(code)) => Outcome::Refused(describe(code)),
            None => Outcome::Again("there is no report".to_owned()),
        }
    }
}

impl Sink for Kafka {
    async fn send(&mut self, events: &[Event], limit: &Limit) -> Vec<Outcome> {
        let all: Vec<usize> = (0..events.len()).collect();
        let attempts = self.send_together(events, &all, limit).await;
        let mut stopped: HashSet<&str> = HashSet::new();
        let mut outcomes = Vec::with_capacity(events.len());
        for (at, attempt) in attempts.into_iter().enumerate() {
            let key = events[at].entity_key.as_str();
            let outcome = match attempt {
                Attempt::Final(outcome) => outcome,
                Attempt::Suspect(_) if stopped.contains(key) => {
                    Outcome::Again("an event before it was not sent".to_owned())
                }
                Attempt::Suspect(_) => self.send_alone(events, at, limit).await,
            };
            if outcome != Outcome::Sent {
                stopped.insert(key);
            }
            outcomes.push(outcome);
        }
        outcomes
    }
}
