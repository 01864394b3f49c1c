//! A broker that asks for TLS and a password.

use std::time::{Duration, Instant};

use anyhow::Result;
use pitwheel::engine::outbox::Event;
use pitwheel_devdb::Options;
use pitwheel_relay::{Kafka, KafkaSettings, Limit, Outcome, Sink};
use pitwheel_testkit::{KafkaAccess, KafkaBroker, wait_until};
use tokio_util::sync::CancellationToken;

use crate::support::consumer::{Consumer, header};
use crate::support::topic;

const TOPIC: &str = "secured";

async fn send(brokers: String, properties: &[(&str, &str)], seconds: u64) -> Result<Vec<Outcome>> {
    let properties =
        properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let mut kafka = Kafka::new(KafkaSettings { brokers, properties, ..KafkaSettings::default() })?;
    let limit = Limit::new(Instant::now() + Duration::from_secs(seconds), CancellationToken::new());
    let event = Event::unheld(7, "a", TOPIC, "happened", Some(b"x".to_vec()));
    Ok(kafka.send(&[event], &limit).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_sent_with_tls_and_the_right_password_only() -> Result<()> {
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    let access = KafkaAccess {
        key_pem: certified.signing_key.serialize_pem(),
        certificate_pem: certified.cert.pem(),
        user: "relay".to_owned(),
        password: "right".to_owned(),
    };
    let folder = Options::temporary().dir;
    std::fs::create_dir_all(&folder)?;
    let ca = folder.join("ca.pem");
    std::fs::write(&ca, &access.certificate_pem)?;
    let broker = tokio::task::spawn_blocking(move || KafkaBroker::start_secured(&access)).await??;
    topic::create(&broker.address(), TOPIC, &[]).await?;
    let ca = ca.display().to_string();
    let with = |password| {
        [
            ("security.protocol", "SASL_SSL"),
            ("sasl.mechanism", "PLAIN"),
            ("sasl.username", "relay"),
            ("sasl.password", password),
            ("ssl.ca.location", ca.as_str()),
        ]
    };

    let unsent = [
        send(broker.secured_address(), &with("wrong"), 2).await?,
        send(broker.secured_address(), &with("right")[..4], 2).await?,
        send(broker.secured_address(), &[], 2).await?,
    ];
    for outcomes in unsent {
        assert!(matches!(outcomes[..], [Outcome::Again(_)]), "{outcomes:?}");
    }
    assert_eq!(send(broker.secured_address(), &with("right"), 30).await?, [Outcome::Sent]);

    let consumer = Consumer::start(&broker.address(), TOPIC)?;
    wait_until("the event has arrived", async || Ok(!consumer.messages().is_empty())).await?;
    assert_eq!(header(&consumer.messages()[0], "id"), "7");
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
