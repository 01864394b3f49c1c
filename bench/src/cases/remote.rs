//! Workers over gRPC: a server process, and processes that know nothing of the database.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use pitwheel::{Pitwheel, Worker};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use super::drain::counters;
use crate::engine::{self, batch, fill, fresh, handling, insert, kind};
use crate::raw;
use crate::report::{Row, Sample, Turns};
use crate::session::Session;

const JOBS: u64 = 20_000;
/// The drain that the library is measured with, for comparison.
const DRAINED: u64 = 100_000;
/// Slots of one remote worker.
const SLOTS: usize = 500;

/// A child of this program that ends when it is dropped, or asked to.
struct Part {
    child: Child,
}

impl Part {
    fn start(part: &str, url: &str) -> Result<Part> {
        let child = Command::new(std::env::current_exe()?)
            .args([part, url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Part { child })
    }

    async fn says(&mut self) -> Result<String> {
        let out = self.child.stdout.as_mut().context("it has said everything already")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).await?;
        Ok(line.trim().to_owned())
    }

    async fn stop(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        self.child.wait().await?;
        Ok(())
    }
}

/// The server's side.
pub(super) async fn serve(url: &str) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    let ended = async {
        let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
    };
    Ok(pitwheel_server::run(Pitwheel::connect(url).await?, listener, Default::default(), ended).await?)
}

/// The workers' side.
pub(super) async fn work(url: &str) -> Result<()> {
    let worker = handling(Worker::remote(url).queue("default", SLOTS), &Arc::new(AtomicU64::new(0)));
    let ended = async {
        let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
    };
    worker.run(ended).await?;
    Ok(())
}

/// One run: jobs a second, and transactions a job.
async fn once(url: &str, workers: usize, behind: u64) -> Result<(f64, f64)> {
    let (pitwheel, session) = fresh(url).await?;
    if behind > 0 {
        fill(&session, kind(false), behind).await?;
        let later = "update pitwheel.job set run_at = run_at + interval '1 day'; vacuum analyze pitwheel.job; checkpoint";
        for statement in later.split(';') {
            session.client.batch_execute(statement).await?;
        }
    }
    let mut server = Part::start("serve-process", url)?;
    let address = server.says().await?;
    let parts: Result<Vec<Part>> = (0..workers).map(|_| Part::start("remote-process", &address)).collect();
    let parts = parts?;
    let open = "select count(*) from pitwheel.worker where dead_at is null";
    while session.client.query_one(open, &[]).await?.get::<_, i64>(0) < workers as i64 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (_, before) = counters(&session).await?;
    let started = Instant::now();
    for _ in 0..JOBS as usize / raw::BATCH {
        pitwheel.enqueue_many(batch(kind(false), raw::BATCH)).await?;
    }
    until_done(&session).await?;
    let rate = JOBS as f64 / started.elapsed().as_secs_f64();
    let (_, after) = counters(&session).await?;
    for part in parts {
        part.stop().await?;
    }
    server.stop().await?;
    session.close().await?;
    Ok((rate, (after - before) / JOBS as f64))
}

/// Until nothing is due any more.
async fn until_done(session: &Session) -> Result<()> {
    let left = "select exists (select from pitwheel.job where queue = 'default' and priority = 0 and run_at <= now())";
    let left = session.client.prepare(left).await?;
    while session.client.query_one(&left, &[]).await?.get(0) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

pub(crate) async fn remote(url: &str) -> Result<Vec<Row>> {
    let mut transactions = Vec::new();
    let [local, eight, twenty, crowd] = Turns::<4>::measure(async |index| {
        let (rate, per_job) = match index {
            0 => {
                let (pitwheel, session) = fresh(url).await?;
                insert(&session, kind(false), DRAINED).await?;
                let rate = engine::drain(&pitwheel, DRAINED).await?;
                session.close().await?;
                return Ok(rate);
            }
            1 => once(url, 8, 0).await?,
            2 => once(url, 20, 0).await?,
            _ => once(url, 8, 1_000_000).await?,
        };
        if index == 1 {
            transactions.push(per_job);
        }
        Ok(rate)
    })
    .await?;
    let transactions = Sample::of(transactions).map_or(0.0, |sample| sample.median);
    let (share, floor) = (0.4, 10_000.0);
    let bar = (floor / local.median).max(share);
    let beside = |name: &str, sample: &Sample| {
        Row::new(name, sample.median, "jobs/s")
            .spread(sample)
            .against("8 remote workers", eight.median)
            .at_least(0.9)
    };
    Ok(vec![
        Row::new("8 remote workers, 20,000 end to end", eight.median, "jobs/s")
            .spread(&eight)
            .against("in-process drain", local.median)
            .at_least(bar),
        Row::new("transactions per job, remote", transactions, "").at_most(0.05),
        beside("20 remote workers", &twenty),
        beside("8 remote workers, 1,000,000 behind", &crowd),
    ])
}
