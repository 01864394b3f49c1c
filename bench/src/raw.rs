//! A hand-written SQL loop on a plain table: the speed of this server without leases, fences or retries.
//! The library is compared with it, on the same server, in the same run.

use std::error::Error;
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, ensure};
use tokio_postgres::types::{FromSql, Type};
use tokio_postgres::{Client, Row, Statement};

use crate::session::Session;

pub(crate) const SCHEMA: &str = include_str!("../sql/raw/schema.sql");
pub(crate) const ENQUEUE: &str = include_str!("../sql/raw/enqueue.sql");
pub(crate) const CLAIM: &str = include_str!("../sql/raw/claim.sql");
pub(crate) const COMPLETE: &str = include_str!("../sql/raw/complete.sql");

/// Jobs per statement. Larger batches are not faster.
pub(crate) const BATCH: usize = 500;
pub(crate) const QUEUE: &str = "default";
/// How long a worker waits after a batch that was not full: a small batch costs nearly as much as a full one.
const LINGER: Duration = Duration::from_millis(2);

/// 100 bytes, the size that the README states.
pub(crate) const PAYLOAD: &str =
    r#"{"user_id":12345678,"email":"customer@example.com","template":"welcome","locale":"en_GB","tries":10}"#;

/// Jobs per second that two connections claim and complete, with `jobs` waiting at the start.
pub(crate) async fn raw_drain(url: &str, jobs: u64) -> Result<f64> {
    let owner = fresh_table(url).await?;
    enqueue_all(&owner.client, jobs).await?;
    owner.client.batch_execute("vacuum analyze raw_bench.job").await?;

    let run = Run::new(jobs);
    let (first, second) = (Worker::open(url, &run).await?, Worker::open(url, &run).await?);
    let started = Instant::now();
    tokio::try_join!(first.work(), second.work())?;
    let elapsed = started.elapsed();

    finish(owner, [first, second], jobs, elapsed).await
}

/// Jobs per second when one connection enqueues while two claim and complete, from the first enqueue to the last completion.
pub(crate) async fn raw_end_to_end(url: &str, jobs: u64) -> Result<f64> {
    let owner = fresh_table(url).await?;

    let run = Run::new(jobs);
    let (first, second) = (Worker::open(url, &run).await?, Worker::open(url, &run).await?);
    let started = Instant::now();
    tokio::try_join!(enqueue_all(&owner.client, jobs), first.work(), second.work())?;
    let elapsed = started.elapsed();

    finish(owner, [first, second], jobs, elapsed).await
}

pub(crate) async fn fresh_table(url: &str) -> Result<Session> {
    let owner = Session::open(url).await?;
    owner.client.batch_execute(SCHEMA).await?;
    Ok(owner)
}

async fn enqueue_all(client: &Client, jobs: u64) -> Result<()> {
    let enqueue = client.prepare(ENQUEUE).await?;
    let batch = vec![PAYLOAD; BATCH];
    let mut left = usize::try_from(jobs)?;
    while left > 0 {
        let size = left.min(BATCH);
        client.execute(&enqueue, &[&QUEUE, &&batch[..size]]).await?;
        left -= size;
    }
    Ok(())
}

async fn finish(owner: Session, workers: [Worker<'_>; 2], jobs: u64, elapsed: Duration) -> Result<f64> {
    let left: i64 = owner.client.query_one("select count(id) from raw_bench.job", &[]).await?.get(0);
    ensure!(left == 0, "the raw loop did not complete `{left}` jobs: its number is invalid");
    owner.client.batch_execute("drop schema raw_bench cascade").await?;
    owner.close().await?;
    for worker in workers {
        worker.session.close().await?;
    }
    Ok(jobs as f64 / elapsed.as_secs_f64())
}

/// State that the two workers of one run share.
struct Run {
    jobs: u64,
    done: AtomicU64,
    /// The last job that was claimed. The next claim starts after it and does not scan the dead rows before it.
    bound: Mutex<Bound>,
}

type Bound = (SystemTime, i64);

impl Run {
    fn new(jobs: u64) -> Self {
        Self { jobs, done: AtomicU64::new(0), bound: Mutex::new((SystemTime::UNIX_EPOCH, 0)) }
    }

    fn bound(&self) -> Bound {
        *self.bound.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn raise_bound(&self, to: Bound) {
        let mut bound = self.bound.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *bound = to.max(*bound);
    }
}

struct Worker<'a> {
    session: Session,
    claim: Statement,
    complete: Statement,
    run: &'a Run,
}

impl<'a> Worker<'a> {
    async fn open(url: &str, run: &'a Run) -> Result<Self> {
        let session = Session::open(url).await?;
        let claim = session.client.prepare(CLAIM).await?;
        let complete = session.client.prepare(COMPLETE).await?;
        Ok(Self { session, claim, complete, run })
    }

    /// Claims and completes until all jobs of the run are done, by both workers together.
    async fn work(&self) -> Result<()> {
        while self.run.done.load(Ordering::Relaxed) < self.run.jobs {
            let (at, id) = self.run.bound();
            let rows = self.session.client.query(&self.claim, &[&QUEUE, &at, &id, &(BATCH as i64)]).await?;
            let ids = self.read(&rows)?;
            if !ids.is_empty() {
                let done = self.session.client.execute(&self.complete, &[&ids]).await?;
                self.run.done.fetch_add(done, Ordering::Relaxed);
            }
            if ids.len() < BATCH {
                tokio::time::sleep(LINGER).await;
            }
        }
        Ok(())
    }

    fn read(&self, rows: &[Row]) -> Result<Vec<i64>> {
        let mut ids = Vec::with_capacity(rows.len());
        let mut last = self.run.bound();
        for row in rows {
            let (id, run_at): (i64, SystemTime) = (row.try_get(0)?, row.try_get(1)?);
            black_box(row.try_get::<_, RawJson<'_>>(2)?);
            last = last.max((run_at, id));
            ids.push(id);
        }
        self.run.raise_bound(last);
        Ok(ids)
    }
}

/// The bytes of a `json` column, not parsed.
pub(crate) struct RawJson<'a>(#[expect(dead_code, reason = "read only to decode it")] &'a [u8]);

impl<'a> FromSql<'a> for RawJson<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSON
    }
}
