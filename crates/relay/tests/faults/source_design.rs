//! The design that the outbox started from, as it was written: it breaks the order without any fault, and the checker must say so.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pitwheel::engine::outbox::Event;
use pitwheel_relay::{Kafka, KafkaSettings, Limit, Outcome, Sink};
use pitwheel_testkit::{KafkaBroker, ScratchFolder, TestDb, connect};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::ONE_AT_A_TIME;
use crate::support::consumer::Consumer;
use crate::support::holdings::{HoldingLog, Holdings};
use crate::support::load::{Load, arrivals};
use crate::support::topic;

const WORKERS: usize = 6;
/// Ten times as long as it takes.
const MOST: Duration = Duration::from_secs(30);

const TABLE: &str = "
    create table outbox (
        id bigint generated always as identity primary key, entity_key text, payload bytea,
        status text not null default 'NEW', locked_at timestamptz, worker_id int);
    create index idx_outbox_new_entity on outbox (entity_key) where status = 'NEW';
    create index idx_outbox_entity_status on outbox (entity_key, status)";
const INSERT: &str = "
    with written as (
        insert into ledger select $1::text, n from generate_series($2::bigint, $3::bigint) as n returning number)
    insert into outbox (entity_key, payload)
    select $1::text, convert_to(number::text, 'UTF8') from written order by number";
/// Approach A: advisory locks.
const CLAIM: &str = "
    with candidate_entities as (
        select distinct entity_key from outbox where status = 'NEW' order by entity_key limit 200),
    locked_entities as (
        select entity_key from candidate_entities
        where pg_try_advisory_xact_lock(1, hashtext(entity_key)) limit 50)
    update outbox o set status = 'PROCESSING', locked_at = now(), worker_id = $1
    from locked_entities le
    where o.entity_key = le.entity_key and o.status = 'NEW'
    returning o.id, o.entity_key, o.payload";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checker_finds_that_the_source_design_breaks_the_order() -> Result<()> {
    let _turn = ONE_AT_A_TIME.lock().await;
    let db = TestDb::unmigrated().await?;
    let broker = KafkaBroker::shared().await?;
    topic::create(&broker.address(), "source", &[]).await?;
    let consumer = Consumer::start(&broker.address(), "source")?;
    db.client().await?.batch_execute(TABLE).await?;
    let load = Load::start(db.url(), INSERT).await?;
    let (stop, mut workers) = (CancellationToken::new(), JoinSet::new());
    let folder = ScratchFolder::create()?;
    for worker in 0..WORKERS as i32 {
        let log = HoldingLog::create(folder.path(), &worker.to_string())?;
        workers.spawn(work(db.url().to_owned(), broker.address(), worker, log, stop.clone()));
    }
    let begun = Instant::now();
    let mut early = 0;
    while early == 0 && begun.elapsed() < MOST {
        tokio::time::sleep(Duration::from_millis(100)).await; // between two looks
        early = arrivals(&consumer.messages()).early();
    }
    stop.cancel();
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    load.finish(db.url()).await?;
    ensure!(early > 0, "the checker found nothing in {} messages", consumer.messages().len());
    let by_two = Holdings::read(folder.path())?.held_by_two().len();
    ensure!(by_two > 0, "the checker found no entity that two held");
    println!("{by_two} times, two held an entity");
    println!("{early} of {} came early after {:?}", consumer.messages().len(), begun.elapsed());
    Ok(())
}

/// A worker of that design: claims, sends in the order of ids, marks as sent.
async fn work(
    url: String,
    broker: String,
    worker: i32,
    mut log: HoldingLog,
    stop: CancellationToken,
) -> Result<()> {
    let client = connect(&url).await?;
    let mut kafka = Kafka::new(KafkaSettings { brokers: broker, ..KafkaSettings::default() })?;
    while !stop.is_cancelled() {
        let mut rows = client.query(CLAIM, &[&worker]).await?;
        rows.sort_by_key(|row| row.get::<_, i64>(0));
        let event =
            |row: &tokio_postgres::Row| Event::unheld(row.get(0), row.get(1), "source", "step", row.get(2));
        let events: Vec<Event> = rows.iter().map(event).collect();
        let deadline = Instant::now() + Duration::from_secs(10);
        log.begin(deadline, events.iter().map(|event| &*event.entity_key));
        let limit = Limit::new(deadline, CancellationToken::new());
        let outcomes = kafka.send(&events, &limit).await;
        ensure!(outcomes.iter().all(|outcome| *outcome == Outcome::Sent), "{outcomes:?}");
        log.end();
        let ids: Vec<i64> = events.iter().map(|event| event.id).collect();
        client.execute("update outbox set status = 'SENT' where id = any($1)", &[&ids]).await?;
    }
    Ok(())
}
