//! The sink that the settings name.

use pitwheel::engine::outbox::Event;
use url::Url;

use crate::error::SinkError;
#[cfg(feature = "kafka")]
use crate::kafka::{Kafka, KafkaSettings};
use crate::limit::Limit;
use crate::message::Format;
use crate::sink::{Outcome, Sink};
use crate::stdout::Stdout;
use crate::webhook::{Webhook, WebhookSettings};

/// What a sink needs to know.
#[derive(Debug, Clone, Default)]
pub struct SinkSettings {
    /// `stdout`, `kafka://one:9092,two:9092`, or the URL of a webhook.
    pub url: String,
    /// Settings of librdkafka by name.
    pub kafka: Vec<(String, String)>,
    /// The secret that signs the requests to a webhook. `None`: they are not signed.
    pub webhook_secret: Option<String>,
    /// How the headers are named.
    pub format: Format,
}

/// A sink of any kind.
#[non_exhaustive]
pub enum AnySink {
    /// Kafka.
    #[cfg(feature = "kafka")]
    Kafka(Box<Kafka>),
    /// Standard output.
    Stdout(Stdout),
    /// A webhook.
    Webhook(Box<Webhook>),
}

impl AnySink {
    /// The sink that the settings name. No connection is made yet.
    ///
    /// # Errors
    /// If the settings are wrong.
    pub fn new(settings: SinkSettings) -> Result<AnySink, SinkError> {
        let SinkSettings { url, kafka, webhook_secret, format } = settings;
        if url == "stdout" {
            return Ok(AnySink::Stdout(Stdout::new()));
        }
        if let Some(brokers) = url.strip_prefix("kafka://") {
            return self::kafka(brokers, kafka, format);
        }
        match Url::parse(&url) {
            Ok(parsed) if matches!(parsed.scheme(), "http" | "https") && parsed.has_host() => {
                let settings = WebhookSettings { url: parsed, secret: webhook_secret, format };
                Ok(AnySink::Webhook(Box::new(Webhook::new(settings)?)))
            }
            _ => Err(SinkError::Unknown(url)),
        }
    }
}

#[cfg(feature = "kafka")]
fn kafka(brokers: &str, properties: Vec<(String, String)>, format: Format) -> Result<AnySink, SinkError> {
    let brokers = brokers.trim_end_matches('/');
    if brokers.is_empty() {
        return Err(SinkError::Unknown("kafka://".to_owned()));
    }
    let settings = KafkaSettings { brokers: brokers.to_owned(), properties, format };
    Ok(AnySink::Kafka(Box::new(Kafka::new(settings)?)))
}

#[cfg(not(feature = "kafka"))]
fn kafka(_: &str, _: Vec<(String, String)>, _: Format) -> Result<AnySink, SinkError> {
    Err(SinkError::Settings("this program was built without the feature `kafka`".to_owned()))
}

impl Sink for AnySink {
    async fn send(&mut self, events: &[Event], limit: &Limit) -> Vec<Outcome> {
        match self {
            #[cfg(feature = "kafka")]
            AnySink::Kafka(sink) => sink.send(events, limit).await,
            AnySink::Stdout(sink) => sink.send(events, limit).await,
            AnySink::Webhook(sink) => sink.send(events, limit).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink(url: &str) -> Result<AnySink, SinkError> {
        AnySink::new(SinkSettings { url: url.to_owned(), ..SinkSettings::default() })
    }

    #[tokio::test]
    async fn the_url_names_the_sink() {
        assert!(matches!(sink("stdout"), Ok(AnySink::Stdout(_))));
        assert!(matches!(sink("https://example.org/events"), Ok(AnySink::Webhook(_))));
        #[cfg(feature = "kafka")]
        assert!(matches!(sink("kafka://127.0.0.1:1,127.0.0.1:2"), Ok(AnySink::Kafka(_))));
    }

    #[test]
    fn what_is_no_sink_is_refused() {
        for url in ["", "kafka://", "file:///tmp/x", "Stdout", "amqp://host"] {
            let error = sink(url).err().expect("refused");
            assert!(error.to_string().contains("is not a sink"), "{error}");
        }
    }
}
