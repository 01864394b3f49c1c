//! Pipelines: how many of them a worker runs to their end, and how many are created.

use std::time::Instant;

use anyhow::{Result, ensure};
use pitwheel::{NewJob, NewPipeline};

use crate::engine::{Running, fresh, kind};
use crate::raw::PAYLOAD;
use crate::report::{Row, Turns};

/// Pipelines of a measurement.
const PIPELINES: u64 = 10_000;
const STEPS: u64 = 5;

pub(crate) async fn pipelines(url: &str) -> Result<Vec<Row>> {
    let [chains, diamonds] = Turns::<2>::measure(async |index| match index {
        0 => run_once(url, chain).await,
        _ => run_once(url, diamond).await,
    })
    .await?;
    Ok(vec![
        Row::of("pipelines of 5 steps, one after the other", &chains, "pipelines/s").at_least(1000.0),
        Row::of("pipelines of 5 steps, three of them side by side", &diamonds, "pipelines/s")
            .at_least(1000.0),
    ])
}

fn job() -> NewJob {
    NewJob::raw(kind(true), PAYLOAD)
}

fn chain() -> NewPipeline {
    (2..=STEPS).fold(NewPipeline::new("chain").step("s1", job()), |pipeline, n| {
        pipeline.step(format!("s{n}"), job()).after([format!("s{}", n - 1)])
    })
}

fn diamond() -> NewPipeline {
    let fan_out =
        ["s2", "s3", "s4"].iter().fold(NewPipeline::new("diamond").step("s1", job()), |new, name| {
            new.step(*name, job()).after(["s1"])
        });
    fan_out.step("s5", job()).after(["s2", "s3", "s4"])
}

/// Pipelines per second, from the first that is created to the last that has ended, all their steps done.
async fn run_once(url: &str, new: fn() -> NewPipeline) -> Result<f64> {
    let (pitwheel, session) = fresh(url).await?;
    let running = Running::start(&pitwheel);
    let started = Instant::now();
    for _ in 0..PIPELINES / 500 {
        pitwheel.pipelines().create_many((0..500).map(|_| new())).await?;
    }
    running.until(PIPELINES * STEPS).await?;
    let stats = running.stop().await?;
    let rate = PIPELINES as f64 / started.elapsed().as_secs_f64();
    ensure!(stats.lost == 0, "not every step was settled: {stats:?}");
    let done = "select count(*) from pitwheel.pipeline where pitwheel.pipeline_state(pipeline) = 'done'";
    let done: i64 = session.client.query_one(done, &[]).await?.get(0);
    ensure!(done as u64 == PIPELINES, "{done} pipelines are done: the number is invalid");
    session.close().await?;
    Ok(rate)
}
