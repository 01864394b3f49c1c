//! Errors of brokers, made by librdkafka's mock cluster.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pitwheel::engine::outbox::Event;
use pitwheel_relay::{Kafka, KafkaSettings, Limit, Outcome, Sink};
use pitwheel_testkit::wait_until;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tokio_util::sync::CancellationToken;

use crate::support::arrivals::Arrivals;
use crate::support::consumer::{Consumer, header, key};
use crate::support::topic::PARTITIONS;

const TOPIC: &str = "mocked";

type Cluster = MockCluster<'static, DefaultProducerContext>;

fn start() -> Result<(Cluster, Kafka)> {
    let cluster = MockCluster::new(1)?;
    cluster.create_topic(TOPIC, PARTITIONS, 1)?;
    let kafka =
        Kafka::new(KafkaSettings { brokers: cluster.bootstrap_servers(), ..KafkaSettings::default() })?;
    Ok((cluster, kafka))
}

fn events(count: i64) -> Vec<Event> {
    (1..=count).map(|id| Event::unheld(id, "a", TOPIC, "happened", Some(b"x".to_vec()))).collect()
}

fn limit(span: Duration) -> Limit {
    Limit::new(Instant::now() + span, CancellationToken::new())
}

fn soon() -> Limit {
    limit(Duration::from_secs(20))
}

fn all_sent(outcomes: &[Outcome]) -> bool {
    outcomes.iter().all(|outcome| *outcome == Outcome::Sent)
}

fn arrivals(consumer: &Consumer) -> Result<Arrivals> {
    let mut arrivals = Arrivals::default();
    for message in consumer.messages().iter() {
        arrivals.add(&key(message), header(message, "id").parse()?);
    }
    Ok(arrivals)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_that_pass_are_waited_out() -> Result<()> {
    let (cluster, mut kafka) = start()?;
    let errors = [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
    ];
    cluster.request_errors(RDKafkaApiKey::Produce, &errors);
    let outcomes = kafka.send(&events(50), &soon()).await;
    assert!(all_sent(&outcomes), "{outcomes:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_the_whole_producer_refuses_nothing_and_a_new_one_goes_on() -> Result<()> {
    let (cluster, mut kafka) = start()?;
    assert!(all_sent(&kafka.send(&events(1), &soon()).await));
    let fatal = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER];
    cluster.request_errors(RDKafkaApiKey::Produce, &fatal);
    let outcomes = kafka.send(&events(50), &soon()).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Again(_))), "{outcomes:?}");
    assert!(all_sent(&kafka.send(&events(50), &soon()).await));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_went_away_and_came_back_gets_the_events() -> Result<()> {
    let (cluster, mut kafka) = start()?;
    assert!(all_sent(&kafka.send(&events(1), &soon()).await));
    cluster.broker_down(1)?;
    let outcomes = kafka.send(&events(10), &limit(Duration::from_millis(500))).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Again(_))), "{outcomes:?}");
    cluster.broker_up(1)?;
    assert!(all_sent(&kafka.send(&events(10), &soon()).await));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_without_a_leader_does_not_use_up_the_time_of_others() -> Result<()> {
    let (cluster, mut kafka) = start()?;
    cluster.create_topic("headless", PARTITIONS, 1)?;
    cluster.topic_error("headless", RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE)?;
    cluster.broker_round_trip_time(1, Duration::from_millis(50))?;
    let headless = |id: i64| Event::unheld(id, &format!("h{id}"), "headless", "happened", None);
    let mut batch: Vec<Event> = (1..=400).map(headless).collect();
    batch.extend(events(10));
    // A question for each entity would take 20 seconds.
    let outcomes = kafka.send(&batch, &limit(Duration::from_secs(8))).await;
    assert!(outcomes[..400].iter().all(|outcome| matches!(outcome, Outcome::Again(_))), "{outcomes:?}");
    assert!(all_sent(&outcomes[400..]), "{:?}", &outcomes[400..]);
    Ok(())
}

/// A broker that knows nothing of a producer yet takes any sequence number, as the mock always does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_do_not_overtake_those_that_a_new_broker_refused() -> Result<()> {
    let entities = ["a", "b", "c"];
    let refusals = [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
    ];
    for refusal in refusals {
        let (cluster, mut kafka) = start()?;
        let consumer = Consumer::start(&cluster.bootstrap_servers(), TOPIC)?;
        cluster.request_errors(RDKafkaApiKey::Produce, &[refusal]);
        let event = |at: i64| {
            let entity = entities[usize::try_from(at).unwrap_or(0) % entities.len()];
            let number = at / 3 + 1;
            Event::unheld(number, entity, TOPIC, "happened", Some(vec![b'x'; 1_000]))
        };
        let events: Vec<Event> = (0..6_000).map(event).collect();
        let first = kafka.send(&events, &soon()).await;
        ensure!(all_sent(&first) || all_sent(&kafka.send(&events, &soon()).await));
        wait_until("all have arrived", async || Ok(arrivals(&consumer)?.distinct == events.len())).await?;
        assert_eq!(arrivals(&consumer)?.early(), 0, "{refusal:?}");
    }
    Ok(())
}
