//! Two minutes of events while a snapshot stays open: what is deleted stays in the table.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pitwheel::Error;
use pitwheel::engine::outbox::{Acknowledged, Batch, Event, Shards, Strategy};

use super::consumer::Consumer;
use super::events::{LEASE, insert};
use super::relay::{RunningRelay, shards};
use crate::engine::{fresh, pin_horizon};
use crate::report::{Row, Sample};

const SPAN: Duration = Duration::from_secs(120);
const PART: Duration = Duration::from_secs(20);
const RATE: u64 = 2_000;
/// Events per transaction of the load.
const TOGETHER: u64 = 20;

/// Times of the calls that had events: when, and how long.
type Times = Arc<Mutex<Vec<(Instant, Duration)>>>;

/// Shards, with the times of their statements.
struct Timed {
    shards: Shards,
    reads: Times,
    acknowledgements: Times,
}

impl Strategy for Timed {
    async fn take(&mut self, limit: usize) -> Result<Batch, Error> {
        let begun = Instant::now();
        let batch = self.shards.take(limit).await?;
        if !batch.events.is_empty() {
            note(&self.reads, begun);
        }
        Ok(batch)
    }

    async fn acknowledge(&mut self, sent: &[Event]) -> Result<Acknowledged, Error> {
        let begun = Instant::now();
        let acknowledged = self.shards.acknowledge(sent).await?;
        if !sent.is_empty() {
            note(&self.acknowledgements, begun);
        }
        Ok(acknowledged)
    }

    async fn park(&mut self, event: &Event, reason: &str) -> Result<bool, Error> {
        self.shards.park(event, reason).await
    }

    fn postpone(&mut self, event: &Event, until: Instant) -> bool {
        self.shards.postpone(event, until)
    }

    fn holds(&self, event: &Event) -> bool {
        self.shards.holds(event)
    }

    async fn release(&mut self) -> Result<(), Error> {
        self.shards.release().await
    }
}

fn note(times: &Times, begun: Instant) {
    times.lock().unwrap_or_else(PoisonError::into_inner).push((begun, begun.elapsed()));
}

pub(super) async fn pinned(url: &str, address: &str) -> Result<[Row; 2]> {
    let (pitwheel, session) = fresh(url).await?;
    let consumer = Consumer::start(address, "pinned").await?;
    let _horizon = pin_horizon(url).await?;
    let (reads, acknowledgements) = (Times::default(), Times::default());
    let timed = Timed {
        shards: shards(&pitwheel, LEASE)?,
        reads: reads.clone(),
        acknowledgements: acknowledgements.clone(),
    };
    let relay = RunningRelay::with(timed, address)?;
    let begun = Instant::now();
    let insert = session.client.prepare(&insert("pinned")).await?;
    let batches = SPAN.as_secs() * RATE / TOGETHER;
    for batch in 0..batches {
        let at = begun + Duration::from_secs_f64((batch * TOGETHER) as f64 / RATE as f64);
        tokio::time::sleep_until(at.into()).await;
        let (from, to) = ((batch * TOGETHER + 1) as i64, ((batch + 1) * TOGETHER) as i64);
        session.client.execute(&insert, &[&from, &to]).await?;
    }
    ensure!(begun.elapsed() < SPAN + PART, "the load took {:?}: the number is invalid", begun.elapsed());
    consumer.receive(batches * TOGETHER).await?;
    relay.stop().await?;
    session.close().await?;
    Ok([
        row("outbox: read, horizon pinned for 120 s: last 20 s", &reads, begun)?,
        row("outbox: acknowledgement, horizon pinned for 120 s: last 20 s", &acknowledgements, begun)?,
    ])
}

fn row(name: &str, times: &Times, begun: Instant) -> Result<Row> {
    let first = median(times, begun, begun + PART).context("nothing in the first part")?;
    let last = median(times, begun + SPAN - PART, begun + SPAN).context("nothing in the last part")?;
    Ok(Row::new(name, last, "ms").against("first 20 s", first).at_most(1.5))
}

fn median(times: &Times, from: Instant, to: Instant) -> Option<f64> {
    let times = times.lock().unwrap_or_else(PoisonError::into_inner);
    let part = times.iter().filter(|(at, _)| (from..to).contains(at));
    Sample::of(part.map(|(_, took)| took.as_secs_f64() * 1000.0).collect()).map(|sample| sample.median)
}
