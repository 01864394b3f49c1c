//! Events to a webhook. Entities go side by side, the events of one entity one after the other.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use futures_util::future::join_all;
use hyper::StatusCode;
use pitwheel::engine::outbox::Event;
use ring::hmac;
use rustls::ClientConfig;
use url::Url;

use super::connection::Connection;
use super::request::request;
use super::tls::client_config;
use crate::error::SinkError;
use crate::limit::Limit;
use crate::message::Format;
use crate::sink::{Outcome, Sink};

/// Requests at the same time. A receiver that is slower than this is helped by fewer, not by more.
const CONNECTIONS: usize = 8;

/// Where to send events, and how.
#[derive(Debug, Clone)]
pub struct WebhookSettings {
    /// Where to send them, with `http` or `https`.
    pub url: Url,
    /// The secret that signs them. `None`: they are not signed.
    pub secret: Option<String>,
    /// How the headers are named.
    pub format: Format,
}

/// Sends each event in an HTTP request of its own.
///
/// A status of 2xx means that the event was received. 400, 413, 415 and 422 refuse the event for good. With any other answer, or
/// none, it is sent again.
pub struct Webhook {
    endpoint: Endpoint,
    connections: Vec<Connection>,
}

struct Endpoint {
    url: Url,
    key: Option<hmac::Key>,
    format: Format,
    tls: Arc<ClientConfig>,
}

/// The positions of the events of each entity that no connection has begun with.
type Waiting = Mutex<VecDeque<Vec<usize>>>;

impl Webhook {
    /// A webhook. No connection is made yet.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn new(settings: WebhookSettings) -> Result<Webhook, SinkError> {
        let key = settings.secret.map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()));
        let endpoint = Endpoint { url: settings.url, key, format: settings.format, tls: client_config()? };
        Ok(Webhook { endpoint, connections: (0..CONNECTIONS).map(|_| Connection::default()).collect() })
    }
}

impl Sink for Webhook {
    async fn send(&mut self, events: &[Event], limit: &Limit) -> Vec<Outcome> {
        let waiting = Mutex::new(by_entity(events));
        let (endpoint, waiting) = (&self.endpoint, &waiting);
        let connections = self.connections.iter_mut();
        let work = connections.map(|connection| endpoint.work(connection, events, waiting, limit));
        let mut outcomes = vec![Outcome::Again("an event before it was not sent".to_owned()); events.len()];
        for (at, outcome) in join_all(work).await.into_iter().flatten() {
            outcomes[at] = outcome;
        }
        outcomes
    }
}

impl Endpoint {
    /// Sends the events of one entity after the other, until none is left.
    async fn work(
        &self,
        connection: &mut Connection,
        events: &[Event],
        waiting: &Waiting,
        limit: &Limit,
    ) -> Vec<(usize, Outcome)> {
        let mut outcomes = Vec::new();
        while let Some(entity) = next(waiting) {
            for at in entity {
                let outcome = self.send(connection, &events[at], limit).await;
                let is_sent = outcome == Outcome::Sent;
                outcomes.push((at, outcome));
                if !is_sent {
                    break;
                }
            }
        }
        outcomes
    }

    async fn send(&self, connection: &mut Connection, event: &Event, limit: &Limit) -> Outcome {
        if limit.is_reached() {
            return Outcome::Again("the relay stops sending".to_owned());
        }
        let request = match request(event, &self.url, &self.format, self.key.as_ref(), SystemTime::now()) {
            Ok(request) => request,
            Err(reason) => return Outcome::Refused(reason),
        };
        let answer = tokio::select! {
            answer = connection.send(&self.url, &self.tls, request) => answer,
            () = limit.give_up() => Err("no answer in time".to_owned()),
        };
        match answer {
            Ok(status) => outcome(status),
            Err(reason) => Outcome::Again(format!("the webhook: {reason}")),
        }
    }
}

fn next(waiting: &Waiting) -> Option<Vec<usize>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

fn by_entity(events: &[Event]) -> VecDeque<Vec<usize>> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut entities: VecDeque<Vec<usize>> = VecDeque::new();
    for (at, event) in events.iter().enumerate() {
        let place = *places.entry(&event.entity_key).or_insert(entities.len());
        match entities.get_mut(place) {
            Some(entity) => entity.push(at),
            None => entities.push_back(vec![at]),
        }
    }
    entities
}

/// What an answer means. A wrong address or a wrong secret is not the fault of an event: nothing is parked for it.
fn outcome(status: StatusCode) -> Outcome {
    match status.as_u16() {
        200..=299 => Outcome::Sent,
        400 | 413 | 415 | 422 => Outcome::Refused(format!("the webhook answered {status}")),
        _ => Outcome::Again(format!("the webhook answered {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_an_entity_stay_together_and_in_order() {
        let event = |id, key| Event::unheld(id, key, "t", "k", None);
        let events = [event(1, "a"), event(2, "b"), event(3, "a")];
        assert_eq!(by_entity(&events), [vec![0, 2], vec![1]]);
    }

    #[test]
    fn only_answers_about_the_event_refuse_it() {
        for (status, refused) in
            [(400, true), (422, true), (401, false), (404, false), (429, false), (503, false)]
        {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(matches!(outcome(status), Outcome::Refused(_)), refused, "{status}");
        }
    }
}
