//! Events to a real broker.

use std::time::{Duration, Instant};

use anyhow::Result;
use pitwheel::engine::outbox::Event;
use pitwheel_relay::{Format, Kafka, KafkaSettings, Limit, Outcome, Sink};
use pitwheel_testkit::{KafkaBroker, wait_until};
use rdkafka::message::{Message, OwnedMessage};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::support::consumer::{Consumer, header, key};
use crate::support::topic;

fn limit(span: Duration) -> Limit {
    Limit::new(Instant::now() + span, CancellationToken::new())
}

fn soon() -> Limit {
    limit(Duration::from_secs(30))
}

fn kafka(address: &str) -> Result<Kafka> {
    Ok(Kafka::new(KafkaSettings { brokers: address.to_owned(), ..KafkaSettings::default() })?)
}

fn event(id: i64, key: &str, topic: &str, payload: &[u8]) -> Event {
    Event::unheld(id, key, topic, "happened", Some(payload.to_vec()))
}

async fn received(consumer: &Consumer, count: usize) -> Result<Vec<OwnedMessage>> {
    wait_until("the messages have arrived", async || Ok(consumer.messages().len() >= count)).await?;
    Ok(consumer.messages().clone())
}

fn ids(messages: &[OwnedMessage], entity: &str) -> Vec<String> {
    messages.iter().filter(|message| key(message) == entity).map(|message| header(message, "id")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_arrive_with_their_key_headers_and_payload() -> Result<()> {
    let broker = KafkaBroker::shared().await?;
    topic::create(&broker.address(), "plain", &[]).await?;
    let consumer = Consumer::start(&broker.address(), "plain")?;
    let mut first = event(1, "order-7591528555", "plain", b"\0\xff not text");
    first.headers = json!({ "traceparent": "00-1-2-01" }).as_object().cloned();
    let tombstone = Event::unheld(2, "order-7591528555", "plain", "deleted", None);
    let emoji = event(3, "né\u{1f600}", "plain", b"{}");

    let outcomes = kafka(&broker.address())?.send(&[first, tombstone, emoji], &soon()).await;

    assert_eq!(outcomes, [Outcome::Sent, Outcome::Sent, Outcome::Sent]);
    let messages = received(&consumer, 3).await?;
    let of = |id: &str| messages.iter().find(|message| header(message, "id") == id);
    let (first, tombstone, emoji) =
        (of("1").expect("first"), of("2").expect("second"), of("3").expect("third"));
    assert_eq!(key(first), "order-7591528555");
    assert_eq!(first.payload(), Some(&b"\0\xff not text"[..]));
    assert_eq!(header(first, "type"), "happened");
    assert_eq!(header(first, "entity"), "order-7591528555");
    assert_eq!(header(first, "traceparent"), "00-1-2-01");
    assert!(header(first, "created").starts_with("20"), "{}", header(first, "created"));
    assert_eq!(tombstone.payload(), None);
    assert_eq!(key(emoji), "né\u{1f600}");
    assert_eq!(ids(&messages, "order-7591528555"), ["1", "2"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_go_to_the_partitions_that_producers_in_java_choose() -> Result<()> {
    let broker = KafkaBroker::shared().await?;
    topic::create(&broker.address(), "partitions", &[]).await?;
    let consumer = Consumer::start(&broker.address(), "partitions")?;
    // The hashes of Kafka's own test, modulo the partitions.
    let expected = [("21", 0), ("a-little-bit-long-string", 2), ("a-little-bit-longer-string", 5)];
    let events: Vec<Event> =
        expected.iter().zip(1..).map(|((key, _), id)| event(id, key, "partitions", b"")).collect();

    kafka(&broker.address())?.send(&events, &soon()).await;

    let messages = received(&consumer, expected.len()).await?;
    for (name, partition) in expected {
        let found = messages.iter().find(|message| key(message) == name).map(Message::partition);
        assert_eq!(found, Some(partition), "{name}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cloud_events_have_their_headers() -> Result<()> {
    let broker = KafkaBroker::shared().await?;
    topic::create(&broker.address(), "cloud", &[]).await?;
    let consumer = Consumer::start(&broker.address(), "cloud")?;
    let settings = KafkaSettings {
        brokers: broker.address(),
        format: Format::CloudEvents { source: "/shop".to_owned() },
        ..KafkaSettings::default()
    };

    Kafka::new(settings)?.send(&[event(9, "a", "cloud", b"{}")], &soon()).await;

    let messages = received(&consumer, 1).await?;
    let names = ["ce_specversion", "ce_id", "ce_source", "ce_type", "ce_subject"];
    let values: Vec<String> = names.iter().map(|name| header(&messages[0], name)).collect();
    assert_eq!(values, ["1.0", "9", "/shop", "happened", "a"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_never_be_sent_is_refused_and_the_rest_goes_on() -> Result<()> {
    let broker = KafkaBroker::shared().await?;
    topic::create(&broker.address(), "known", &[]).await?;
    let consumer = Consumer::start(&broker.address(), "known")?;
    let large = vec![b'x'; 1_100_000];
    let events = [
        event(1, "a", "known", b"1"),
        event(2, "b", "missing", b"2"),
        event(3, "c", "no topic!", b"3"),
        event(4, "d", "known", &large),
        event(5, "d", "known", b"5"),
        event(6, "a", "known", b"6"),
    ];

    let outcomes = kafka(&broker.address())?.send(&events, &soon()).await;

    let refused = |at: usize| matches!(&outcomes[at], Outcome::Refused(reason) if !reason.is_empty());
    assert_eq!((&outcomes[0], &outcomes[5]), (&Outcome::Sent, &Outcome::Sent));
    assert!(refused(1) && refused(2) && refused(3), "{outcomes:?}");
    assert!(matches!(&outcomes[4], Outcome::Again(_)), "behind a refused event: {outcomes:?}");
    let messages = received(&consumer, 2).await?;
    assert_eq!(ids(&messages, "a"), ["1", "6"]);
    assert_eq!(ids(&messages, "d"), Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_at_the_limits_of_the_outbox_is_sent() -> Result<()> {
    let broker = KafkaBroker::shared().await?;
    topic::create(&broker.address(), "largest", &[]).await?;
    let consumer = Consumer::start(&broker.address(), "largest")?;
    // Compression makes it no smaller.
    let payload: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(1_000_000).collect();
    let mut largest = event(1, &"k".repeat(512), "largest", &payload);
    let header: String = std::iter::repeat_with(fastrand::alphanumeric).take(32_000).collect();
    largest.headers = json!({ "h": header }).as_object().cloned();

    let outcomes = kafka(&broker.address())?.send(&[largest, event(2, "b", "largest", b"2")], &soon()).await;

    assert_eq!(outcomes, [Outcome::Sent, Outcome::Sent]);
    let messages = received(&consumer, 2).await?;
    assert!(messages.iter().any(|message| message.payload() == Some(&payload)));
    Ok(())
}

/// The broker refuses a whole batch of librdkafka's because of one message in it. Nothing behind that message may arrive before
/// it, and nothing but it may be refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_broker_refuses_is_found_and_nothing_overtakes_it() -> Result<()> {
    let broker = KafkaBroker::shared().await?;
    topic::create(&broker.address(), "small", &[("max.message.bytes", "20000")]).await?;
    let consumer = Consumer::start(&broker.address(), "small")?;
    // Random bytes, because they are compressed.
    let large: Vec<u8> = (0..30_000).map(|_| fastrand::u8(..)).collect();
    let mut sink = kafka(&broker.address())?;
    let mut events: Vec<Event> = vec![event(1, "large", "small", &large)];
    events.extend((2..200).map(|id| event(id, ["large", "a", "b", "c"][id as usize % 4], "small", b"x")));
    let mut refused = Vec::new();

    // As the relay does: what is to be sent again is sent again, and a refused entity is parked.
    for _ in 0..20 {
        let outcomes = sink.send(&events, &soon()).await;
        let mut left = Vec::new();
        for (event, outcome) in events.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Sent => {}
                Outcome::Again(_) => left.push(event),
                Outcome::Refused(_) => refused.push(event.id),
            }
        }
        events = left.into_iter().filter(|event| event.entity_key != "large").collect();
    }

    assert!(events.is_empty(), "{} were not sent", events.len());
    assert_eq!(refused, [1]);
    let count = (2..200).filter(|id| id % 4 != 0).count();
    wait_until("all have arrived", async || {
        let messages = consumer.messages();
        let entities = ["a", "b", "c"].map(|entity| distinct(ids(&messages, entity)).len());
        Ok(entities.iter().sum::<usize>() == count)
    })
    .await?;
    let messages = consumer.messages();
    assert_eq!(ids(&messages, "large"), Vec::<String>::new(), "nothing of the refused entity was sent");
    for entity in ["a", "b", "c"] {
        let first: Vec<i64> = distinct(ids(&messages, entity)).iter().flat_map(|id| id.parse()).collect();
        assert!(first.is_sorted(), "{entity}: {first:?}");
    }
    Ok(())
}

fn distinct(ids: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    ids.into_iter().filter(|id| seen.insert(id.clone())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_broker_nothing_is_refused() -> Result<()> {
    let mut sink = kafka("127.0.0.1:1")?;
    let outcomes = sink.send(&[event(1, "a", "t", b"")], &limit(Duration::from_millis(300))).await;
    assert!(matches!(&outcomes[..], [Outcome::Again(_)]), "{outcomes:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_after_the_limit() -> Result<()> {
    let broker = KafkaBroker::shared().await?;
    topic::create(&broker.address(), "late", &[]).await?;
    let consumer = Consumer::start(&broker.address(), "late")?;
    let mut sink = kafka(&broker.address())?;
    let outcomes = sink.send(&[event(1, "a", "late", b"")], &limit(Duration::ZERO)).await;
    assert!(matches!(&outcomes[..], [Outcome::Again(_)]), "{outcomes:?}");
    assert_eq!(sink.send(&[event(2, "a", "late", b"")], &soon()).await, [Outcome::Sent]);
    assert_eq!(ids(&received(&consumer, 1).await?, "a"), ["2"]);
    Ok(())
}
