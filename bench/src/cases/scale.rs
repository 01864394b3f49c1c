//! The time of one claim, with many queues and with many kinds.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pitwheel::Pitwheel;
use pitwheel::engine::{Cursor, QueueSlots, Registration, claim, register};

use crate::engine::{fresh, insert};
use crate::report::{Row, Sample};

const QUEUES: usize = 100;
const KINDS: usize = 1000;
const UNKNOWN: u64 = 1_000_000;
const CLAIMS: usize = 50;
const CLAIMS_PAST_UNKNOWN: usize = 5;

pub(crate) async fn scale(url: &str) -> Result<Vec<Row>> {
    let (pitwheel, session) = fresh(url).await?;
    let kinds: Vec<String> = (0..KINDS).map(|n| format!("kind-{n}")).collect();
    let queues: Vec<String> = (0..QUEUES).map(|n| format!("queue-{n}")).collect();
    let one = claim_ms(&pitwheel, &queues[..1], &kinds[..1], CLAIMS).await?;
    let many = claim_ms(&pitwheel, &queues, &kinds[..1], CLAIMS).await?;
    insert(&session, "unknown", UNKNOWN).await?;
    session.client.batch_execute("vacuum analyze pitwheel.job").await?;
    let default = ["default".to_owned()];
    let one_kind = claim_ms(&pitwheel, &default, &kinds[..1], CLAIMS_PAST_UNKNOWN).await?;
    let many_kinds = claim_ms(&pitwheel, &default, &kinds, CLAIMS_PAST_UNKNOWN).await?;
    session.close().await?;
    Ok(vec![
        Row::of("a claim with one queue, nothing due", &one, "ms"),
        Row::of("a claim with 100 queues, nothing due", &many, "ms").at_most(3.0),
        Row::of("a claim with 1,000 kinds, past 1,000,000 jobs of other kinds", &many_kinds, "ms")
            .against("with one kind", one_kind.median)
            .at_most(2.0),
    ])
}

/// The times of claims that find nothing and read from the start.
async fn claim_ms(pitwheel: &Pitwheel, queues: &[String], kinds: &[String], claims: usize) -> Result<Sample> {
    let pool = pitwheel.pool_for_loops(1, Duration::MAX)?;
    let registration = Registration {
        name: "bench".to_owned(),
        lease: Duration::from_secs(3600),
        transport: "direct",
        queues: queues.to_vec(),
        kinds: kinds.to_vec(),
        slots: queues.len(),
        token: None,
    };
    let worker = pool.run(async |client| register(&client, &registration).await).await?;
    let slots: Vec<QueueSlots> =
        queues.iter().map(|queue| QueueSlots { queue: queue.clone(), slots: 1 }).collect();
    let bounds = Cursor::new(queues.iter().map(String::as_str)).bounds();
    let mut times = Vec::new();
    // The first one is not counted: it plans the statement.
    for run in 0..=claims {
        let started = Instant::now();
        let claimed = pool.run(async |client| claim(&client, worker, &slots, kinds, &bounds).await).await?;
        ensure!(claimed.is_empty(), "the claim found a job");
        if run > 0 {
            times.push(started.elapsed().as_secs_f64() * 1000.0);
        }
    }
    Sample::of(times).context("no claim was measured")
}
