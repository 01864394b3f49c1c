//! The outbox, with a real Kafka broker beside everything else on the same cores.

mod consumer;
mod events;
mod pinned;
mod reads;
mod relay;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pitwheel::Pitwheel;
use pitwheel::engine::outbox::EntityLock;
use pitwheel_testkit::KafkaBroker;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use self::consumer::Consumer;
use self::events::{LEASE, insert};
pub(crate) use self::relay::run as run_relay;
use self::relay::{RunningRelay, Sharing};
use crate::child_process::ChildProcess;
use crate::engine::fresh;
use crate::report::{Row, Sample};
use crate::session::Session;

const EVENTS: u64 = 100_000;
const ENTITIES: u64 = 20_000;
const DRAINS: usize = 3;
const STEADY: Duration = Duration::from_secs(20);
const STEADY_RATE: u64 = 600;
/// Several, because one commit waits for one flush of the log.
const WRITERS: u64 = 4;

pub(crate) async fn outbox(url: &str) -> Result<Vec<Row>> {
    let broker = tokio::task::spawn_blocking(KafkaBroker::start).await??;
    let address = broker.address();
    let shards = side(url, &address, "shards", Sharing::Shards).await?;
    let mut rows = vec![
        Row::of("outbox: drain of 100,000 events of 20,000 entities", &shards.drained, "events/s")
            .at_least(20_000.0),
        Row::new("outbox: WAL per event, from the insert to its end", shards.wal, "bytes").at_most(700.0),
        Row::new("outbox: commit to consumer, 600 events/s, p50", shards.p50, "ms").at_most(8.0),
        Row::new("outbox: commit to consumer, 600 events/s, p99", shards.p99, "ms").at_most(40.0),
    ];
    for (name, lock) in [("advisory", EntityLock::Advisory), ("row-lock", EntityLock::Row)] {
        let side = side(url, &address, name, Sharing::Entities(lock)).await?;
        rows.extend([
            Row::of(format!("outbox, {name}: drain"), &side.drained, "events/s")
                .against("shards", shards.drained.median),
            Row::new(format!("outbox, {name}: WAL per event"), side.wal, "bytes")
                .against("shards", shards.wal),
            Row::new(format!("outbox, {name}: commit to consumer, p50"), side.p50, "ms")
                .against("shards", shards.p50),
            Row::new(format!("outbox, {name}: commit to consumer, p99"), side.p99, "ms")
                .against("shards", shards.p99),
        ]);
    }
    rows.extend(pinned::pinned(url, &address).await?);
    rows.push(takeover(url, &address).await?);
    rows.push(reads::reads(url).await?);
    Ok(rows)
}

/// What is measured of each strategy.
struct Side {
    /// Events per second.
    drained: Sample,
    /// Bytes per event.
    wal: f64,
    /// From the commit of a transaction with one event to its receipt by a consumer, in milliseconds.
    p50: f64,
    p99: f64,
}

async fn side(url: &str, address: &str, name: &str, sharing: Sharing) -> Result<Side> {
    let (drained, wal) = drains(url, address, name, sharing).await?;
    let (p50, p99) = steady(url, address, name, sharing).await?;
    Ok(Side { drained, wal, p50, p99 })
}

/// A fresh database, with the index that relays need which hold entities.
async fn fresh_for(url: &str, sharing: Sharing) -> Result<(Pitwheel, Session)> {
    let (pitwheel, session) = fresh(url).await?;
    if sharing != Sharing::Shards {
        session.client.batch_execute("create index on pitwheel.outbox (entity_key, id)").await?;
    }
    Ok((pitwheel, session))
}

/// Events per second, and bytes of WAL per event.
async fn drains(url: &str, address: &str, name: &str, sharing: Sharing) -> Result<(Sample, f64)> {
    let (mut rates, mut wal) = (Vec::new(), 0.0);
    for drain in 0..DRAINS {
        let (pitwheel, session) = fresh_for(url, sharing).await?;
        let topic = format!("{name}-{drain}");
        let consumer = Consumer::start(address, &topic).await?;
        let before = wal_position(&session.client).await?;
        session.client.execute(&insert(&topic), &[&1_i64, &(EVENTS as i64)]).await?;
        session.client.batch_execute("vacuum analyze pitwheel.outbox").await?;
        let begun = Instant::now();
        let relay = RunningRelay::start(&pitwheel, address, sharing)?;
        consumer.receive(EVENTS).await?;
        rates.push(EVENTS as f64 / begun.elapsed().as_secs_f64());
        session.until("select not exists (select from pitwheel.outbox)").await?;
        relay.stop().await?;
        session.client.batch_execute("vacuum pitwheel.outbox").await?;
        wal = (wal_position(&session.client).await? - before) / EVENTS as f64;
        let received = consumer.numbers();
        ensure!(received.len() as u64 >= EVENTS, "only {} events were received", received.len());
        let early = out_of_order(&received);
        ensure!(early == 0, "{early} events came before an earlier one of their entity");
        session.close().await?;
    }
    Ok((Sample::of(rates).context("nothing was measured")?, wal))
}

/// Events that came after a later one of their entity, without repetitions.
fn out_of_order(numbers: &[u64]) -> usize {
    let mut last = vec![0; ENTITIES as usize];
    let mut early = 0;
    for number in numbers {
        let last = &mut last[(number % ENTITIES) as usize];
        early += usize::from(*number < *last);
        *last = (*last).max(*number);
    }
    early
}

async fn wal_position(client: &Client) -> Result<f64> {
    let sql = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

async fn steady(url: &str, address: &str, topic: &str, sharing: Sharing) -> Result<(f64, f64)> {
    let (pitwheel, session) = fresh_for(url, sharing).await?;
    let consumer = Consumer::start(address, topic).await?;
    let relay = RunningRelay::start(&pitwheel, address, sharing)?;
    write_events(url, topic, 0, 1, STEADY_RATE, Duration::from_secs(3)).await?; // to warm up
    let warm = STEADY_RATE * 3;
    consumer.receive(warm).await?;
    let committed = write_events(url, topic, warm, WRITERS, STEADY_RATE, STEADY).await?;
    consumer.receive(warm + committed.len() as u64).await?;
    relay.stop().await?;
    session.close().await?;
    let received = consumer.times();
    let mut waits = Vec::new();
    for (number, committed) in committed {
        let received = received.get(&number).with_context(|| format!("event {number} was not received"))?;
        waits.push(received.saturating_duration_since(committed).as_secs_f64() * 1000.0);
    }
    waits.sort_by(f64::total_cmp);
    Ok((waits[waits.len() / 2], waits[waits.len() * 99 / 100]))
}

/// Writes events at a rate, one per transaction; returns their numbers, which are above `after`, and when each was committed.
async fn write_events(
    url: &str,
    topic: &str,
    after: u64,
    writers: u64,
    rate: u64,
    span: Duration,
) -> Result<Vec<(u64, Instant)>> {
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for writer in 0..writers {
        let (url, insert) = (url.to_owned(), insert(topic));
        tasks.spawn(async move {
            let session = Session::open(&url).await?;
            let insert = session.client.prepare(&insert).await?;
            let mut committed = Vec::new();
            for turn in 0..span.as_secs() * rate / writers {
                let index = turn * writers + writer;
                let at = begun + Duration::from_secs_f64(index as f64 / rate as f64);
                tokio::time::sleep_until(at.into()).await;
                let number = after + index + 1;
                session.client.execute(&insert, &[&(number as i64), &(number as i64)]).await?;
                committed.push((number, Instant::now()));
            }
            session.close().await?;
            anyhow::Ok(committed)
        });
    }
    let mut committed = Vec::new();
    while let Some(writer) = tasks.join_next().await {
        committed.extend(writer??);
    }
    Ok(committed)
}

/// A relay that holds all shards is killed while another one waits: the longest wait of the events written then.
async fn takeover(url: &str, address: &str) -> Result<Row> {
    let (pitwheel, session) = fresh(url).await?;
    let consumer = Consumer::start(address, "takeover").await?;
    let killed = ChildProcess::start("relay-process", &format!("{url} {address} {}", LEASE.as_secs()))?;
    session.until("select count(*) = 64 from pitwheel.outbox_shard where relay is not null").await?;
    let relay = RunningRelay::start(&pitwheel, address, Sharing::Shards)?;
    session.until("select count(distinct relay) = 2 from pitwheel.outbox_shard").await?;
    let begun = Instant::now();
    killed.kill().await?;
    session.client.execute(&insert("takeover"), &[&1_i64, &2000_i64]).await?;
    consumer.receive(2000).await?;
    let wait = begun.elapsed().as_secs_f64();
    relay.stop().await?;
    session.close().await?;
    Ok(Row::new("outbox: events of a killed relay arrive after, lease 5 s", wait, "s")
        .at_most(LEASE.as_secs_f64() + 2.0))
}
