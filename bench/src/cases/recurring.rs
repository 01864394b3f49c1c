//! Recurring jobs: many that are due together, many beside other jobs, and how late they start.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, ensure};
use pitwheel::{Cadence, Context, Job, NewRecurring, Pitwheel, Worker};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::engine::{self, DRAIN_JOBS, fill, fresh, kind, second_database};
use crate::raw::PAYLOAD;
use crate::report::{Row, Sample, Turns};
use crate::session::Session;

/// Recurring jobs beside a drain.
const BESIDE: u64 = 1_000_000;
/// Recurring jobs that run every second, and for how long.
const EVERY_SECOND: u64 = 1000;
const SECONDS: u64 = 60;

pub(crate) async fn recurring(url: &str) -> Result<Vec<Row>> {
    let [drain, together] = Turns::<2>::measure(async |index| match index {
        0 => drain_once(url).await,
        _ => together_once(url).await,
    })
    .await?;
    let [alone, beside] = drain_beside(url).await?;
    let late = lateness(url).await?;
    Ok(vec![
        Row::of("drain, history on", &drain, "jobs/s"),
        Row::of("recurring jobs due in the same second", &together, "runs/s")
            .in_turns_with("drain, history on", &drain)
            .at_least(0.5),
        Row::of("drain beside 1,000,000 recurring jobs", &beside, "jobs/s")
            .in_turns_with("in a database without", &alone)
            .at_least(0.95),
        Row::new("lateness of 1,000 recurring jobs every second, p50", late.p50, "ms"),
        Row::new("lateness of 1,000 recurring jobs every second, p99", late.p99, "ms").at_most(50.0),
        Row::new("planned times without a run", late.skipped, "").at_most(0.0),
    ])
}

/// Jobs per second of jobs that are not recurring.
async fn drain_once(url: &str) -> Result<f64> {
    let (pitwheel, session) = fresh(url).await?;
    let rate = refill_and_drain(&pitwheel, &session).await?;
    session.close().await?;
    Ok(rate)
}

/// The same in two databases, one without recurring jobs, one with many: half of them are not due, the others are disabled. Both are kept
/// for all turns, because it takes long to insert so many, and the machine changes its speed meanwhile.
async fn drain_beside(url: &str) -> Result<[Sample; 2]> {
    let without = fresh(url).await?;
    let with = fresh(&second_database(url).await?).await?;
    insert(&with.1, BESIDE, "now() + interval '1 day'", "n % 2 = 0").await?;
    let parts = [without, with];
    let samples = Turns::<2>::measure_often(async |index| {
        let (pitwheel, session) = &parts[index];
        refill_and_drain(pitwheel, session).await
    })
    .await?;
    for (_, session) in parts {
        session.close().await?;
    }
    Ok(samples)
}

async fn refill_and_drain(pitwheel: &Pitwheel, session: &Session) -> Result<f64> {
    fill(session, kind(true), DRAIN_JOBS).await?;
    settle_down(session).await?;
    engine::drain(pitwheel, DRAIN_JOBS).await
}

/// Runs per second of recurring jobs that are all due now, until the last is settled. Each must run once.
async fn together_once(url: &str) -> Result<f64> {
    let (pitwheel, session) = fresh(url).await?;
    insert(&session, DRAIN_JOBS, "date_trunc('second', now())", "true").await?;
    settle_down(&session).await?;
    let rate = engine::drain(&pitwheel, DRAIN_JOBS).await?;
    let once = "select count(*) from pitwheel.recurring_now as recurring join pitwheel.job on job.recurring = recurring.id
        where recurring.runs = 1 and job.holder is null and job.run_at = recurring.next_run_at";
    let once: i64 = session.client.query_one(once, &[]).await?.get(0);
    ensure!(
        once as u64 == DRAIN_JOBS,
        "{once} recurring jobs ran once and are planned: the number is invalid"
    );
    session.close().await?;
    Ok(rate)
}

/// Vacuums, analyzes and writes everything to disk, so that the measurement does not pay for it.
async fn settle_down(session: &Session) -> Result<()> {
    for statement in ["vacuum analyze pitwheel.job, pitwheel.recurring", "checkpoint"] {
        session.client.batch_execute(statement).await?;
    }
    Ok(())
}

/// Inserts recurring jobs, and the live jobs of those that are enabled, as the function `create_recurring` does.
async fn insert(session: &Session, count: u64, next: &str, enabled: &str) -> Result<()> {
    let kind = kind(true);
    let sql = format!(
        "insert into pitwheel.recurring (kind, key, queue, cadence, misfire, payload, priority, enabled, planned, next_run_at,
            anchor_at, reason, carried)
         select '{kind}', 'key ' || n, 'default', 'every 1d', 'one', '{PAYLOAD}', 0, {enabled}, true, {next}, {next}, 'created',
            {enabled}
         from generate_series(1, {count}) as n;
         insert into pitwheel.job (recurring, kind, payload, queue, run_at, enqueued_at, priority, max_attempts, anchor_at,
            next_run_at, version, runs, skipped, recurring_key, cadence, misfire, reason)
         select id, kind, payload, queue, next_run_at, clock_timestamp(), 0, 2147483647, anchor_at, next_run_at, 0, 0, 0, key, cadence,
            misfire, reason
         from pitwheel.recurring where enabled order by id"
    );
    Ok(session.client.batch_execute(&sql).await?)
}

#[derive(Serialize, Deserialize)]
struct Tick;

impl Job for Tick {
    const KIND: &'static str = "tick";
}

struct Lateness {
    p50: f64,
    p99: f64,
    skipped: f64,
}

/// The time from the planned time of each run to the first line of its handler.
async fn lateness(url: &str) -> Result<Lateness> {
    let (pitwheel, session) = fresh(url).await?;
    let begin = create(&pitwheel).await?.duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    let waits: Arc<Mutex<Vec<f64>>> = Arc::default();
    let seen = waits.clone();
    let handler = move |_: Tick, context: Context| {
        if let Some(run) = context.recurring() {
            let late = SystemTime::now().duration_since(run.planned_at).unwrap_or_default();
            seen.lock().expect("no panic").push(late.as_secs_f64() * 1000.0);
        }
        std::future::ready(Ok::<_, String>(()))
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = Worker::new(&pitwheel).queue("default", 100).handle(handler);
    let task = tokio::spawn(worker.run(async {
        let _ = stopped.await;
    }));
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(SECONDS)).await;
    let _ = stop.send(());
    task.await??;
    let passed = begun.elapsed();
    // A planned time is skipped if the plan has moved on by more seconds than there were runs. The number in the key is the
    // thousandth of a second at which the first run was planned.
    let skipped = "select sum(round(extract(epoch from anchor_at) - $1::float8 - substr(key, 6)::int / 1000.0) - runs)::float8
        from pitwheel.recurring_now";
    let skipped: f64 = session.client.query_one(skipped, &[&begin]).await?.get(0);
    let mut waits = std::mem::take(&mut *waits.lock().expect("no panic"));
    ensure!(
        waits.len() as u64 >= EVERY_SECOND * (passed.as_secs() - 3),
        "only {} runs in {passed:?}: the number is invalid",
        waits.len()
    );
    waits.sort_by(f64::total_cmp);
    session.close().await?;
    Ok(Lateness { p50: waits[waits.len() / 2], p99: waits[waits.len() * 99 / 100], skipped })
}

/// Creates recurring jobs that run every second, from two seconds after now on, spread over the second. Returns the first time.
async fn create(pitwheel: &Pitwheel) -> Result<SystemTime> {
    let begin = pitwheel.now().await? + Duration::from_secs(2);
    let cadence = Cadence::every(Duration::from_secs(1))?;
    let new = (0..EVERY_SECOND).map(|n| {
        let first = begin + Duration::from_secs(1) * u32::try_from(n).unwrap_or(0) / EVERY_SECOND as u32;
        NewRecurring::of(&Tick, format!("tick {n}"), cadence.clone()).first_at(first)
    });
    pitwheel.recurring().create_many(new).await?;
    Ok(begin)
}
