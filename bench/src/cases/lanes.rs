//! Lanes: what they cost their own jobs, and that they cost the others nothing.

use anyhow::{Result, ensure};
use pitwheel::engine::promote_checked;

use crate::engine::{self, DRAIN_JOBS, fill, fresh, kind};
use crate::raw::PAYLOAD;
use crate::report::{Row, Turns};
use crate::session::Session;

/// Lanes of the drain, with ten jobs each.
const LANES: u64 = DRAIN_JOBS / 10;

pub(crate) async fn lanes(url: &str) -> Result<Vec<Row>> {
    let [alone, beside, off, on, off_lanes, on_lanes] = Turns::<6>::measure(async |index| match index {
        0 => beside_slow_heads(url, false).await,
        1 => beside_slow_heads(url, true).await,
        2 | 3 => drain_once(url, index == 3, 0).await,
        _ => drain_once(url, index == 5, LANES).await,
    })
    .await?;
    Ok(vec![
        Row::of("drain beside two lanes with slow heads", &beside, "jobs/s")
            .in_turns_with("without these lanes", &alone)
            .at_least(0.8),
        Row::of("drain of 10,000 lanes, history off", &off_lanes, "jobs/s")
            .in_turns_with("without lanes", &off)
            .at_least(0.35),
        Row::of("drain of 10,000 lanes, history on", &on_lanes, "jobs/s")
            .in_turns_with("without lanes", &on)
            .at_least(0.35),
    ])
}

/// Drains jobs without a lane, beside as many in two lanes whose heads run all the time.
async fn beside_slow_heads(url: &str, lanes: bool) -> Result<f64> {
    let (pitwheel, session) = fresh(url).await?;
    if lanes {
        insert(&session, kind(false), 2).await?;
        let runs = "insert into pitwheel.worker (name, lease, lease_until) values ('slow', '1 hour', now() + interval '1 hour');
            update pitwheel.job set holder = (select id from pitwheel.worker), fence = 1, attempt = 1, claimed_at = now()
            where lane is not null and run_at < 'infinity'";
        session.client.batch_execute(runs).await?;
    }
    fill(&session, kind(false), DRAIN_JOBS).await?;
    let rate = engine::drain(&pitwheel, DRAIN_JOBS).await?;
    let left: i64 = session.client.query_one("select count(*) from pitwheel.job", &[]).await?.get(0);
    let expected = if lanes { DRAIN_JOBS as i64 } else { 0 };
    ensure!(left == expected, "{left} jobs are left, not {expected}: the number is invalid");
    session.close().await?;
    Ok(rate)
}

/// Drains jobs over this many lanes; 0: without a lane.
async fn drain_once(url: &str, history: bool, lanes: u64) -> Result<f64> {
    let (pitwheel, session) = fresh(url).await?;
    if lanes == 0 {
        fill(&session, kind(history), DRAIN_JOBS).await?;
    } else {
        insert(&session, kind(history), lanes).await?;
        session.client.batch_execute("vacuum analyze pitwheel.job").await?;
    }
    let rate = engine::drain(&pitwheel, DRAIN_JOBS).await?;
    let left: i64 = session.client.query_one("select count(*) from pitwheel.job", &[]).await?.get(0);
    ensure!(left == 0, "{left} jobs were not settled: the number is invalid");
    let unordered = "select count(*) from (
            select id < lag(id) over (partition by lane order by claimed_at, id) as is_early from pitwheel.job_history
        ) as job where is_early";
    let early: i64 = session.client.query_one(unordered, &[]).await?.get(0);
    ensure!(early == 0 || lanes == 0, "{early} jobs ran before their turn");
    session.close().await?;
    Ok(rate)
}

/// Inserts jobs over this many lanes, and gives every lane its head.
async fn insert(session: &Session, kind: &str, lanes: u64) -> Result<()> {
    let sql = format!(
        "insert into pitwheel.job (kind, payload, queue, run_at, enqueued_at, priority, max_attempts, lane)
         select '{kind}', '{PAYLOAD}', 'default', clock_timestamp(), clock_timestamp(), 0, 20,
             to_json('lane ' || n % {lanes})::text
         from generate_series(1, {DRAIN_JOBS}) as n"
    );
    session.client.batch_execute(&sql).await?;
    while promote_checked(&session.client, "0").await?.full {}
    Ok(())
}
