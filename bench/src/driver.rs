//! Compares sqlx and tokio-postgres on the three statements of the hot path. See docs/adr/0001-driver.md.

use std::fs;
use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row as _};
use tokio_postgres::Statement;
use tokio_postgres::types::Type;

use crate::raw::{BATCH, COMPLETE, ENQUEUE, PAYLOAD, RawJson, SCHEMA};
use crate::report::{Row, Sample};
use crate::session::Session;

const CLAIM: &str = include_str!("../sql/driver/claim.sql");
/// Batches of each driver. The drivers take turns batch by batch, so that a busy moment of the machine affects all of them.
const BATCHES: usize = 300;
/// Batches before the clock starts: Postgres decides on the sixth run of a statement whether to keep a generic plan.
const WARM_UP: usize = 10;
/// Jobs that stay in the table, so that the planner sees a table of ordinary size.
const STANDING: usize = 50_000;
const STATEMENTS: [&str; 3] = ["enqueue", "claim", "complete"];

/// Microseconds of wall clock (median) and of client CPU (mean) for a batch of 500, by statement and driver.
pub(crate) async fn driver(url: &str) -> Result<Vec<Row>> {
    let owner = Session::open(url).await?;
    owner.client.batch_execute(SCHEMA).await?;
    let standing = vec![PAYLOAD; STANDING];
    owner.client.execute(ENQUEUE, &[&"standing", &standing]).await?;
    owner.client.batch_execute("vacuum analyze raw_bench.job").await?;

    let mut contenders = [
        Contender::new("tokio-postgres prepared", Driver::tokio_prepared(url).await?),
        Contender::new("tokio-postgres query_typed", Driver::TokioTyped(Session::open(url).await?)),
        Contender::new(
            "sqlx cached",
            Driver::Sqlx { connection: PgConnection::connect(url).await?, persistent: true },
        ),
        Contender::new(
            "sqlx persistent(false)",
            Driver::Sqlx { connection: PgConnection::connect(url).await?, persistent: false },
        ),
    ];
    for contender in &mut contenders {
        contender.run(WARM_UP).await?;
        contender.forget();
    }
    for _ in 0..BATCHES {
        for contender in &mut contenders {
            contender.run(1).await?;
        }
    }

    let mut rows = Vec::new();
    for (index, statement) in STATEMENTS.iter().enumerate() {
        let first = contenders[0].costs[index].wall()?;
        for contender in &contenders {
            let cost = &contender.costs[index];
            let case = format!("driver {statement} {}", contender.name);
            rows.push(Row::new(&case, cost.wall()?, "µs/batch").against(contenders[0].name, first));
            rows.push(Row::new(format!("{case}, client cpu"), cost.cpu(), "µs/batch"));
        }
    }
    for contender in contenders {
        contender.driver.close().await?;
    }
    owner.client.batch_execute("drop schema raw_bench cascade").await?;
    owner.close().await?;
    Ok(rows)
}

/// One driver in one mode, and its costs so far.
struct Contender {
    name: &'static str,
    driver: Driver,
    batches: usize,
    costs: [Cost; 3],
}

#[derive(Default)]
struct Cost {
    wall_us: Vec<f64>,
    cpu_us: f64,
}

impl Cost {
    fn wall(&self) -> Result<f64> {
        Ok(Sample::of(self.wall_us.clone()).context("no batch was measured")?.median)
    }

    fn cpu(&self) -> f64 {
        self.cpu_us / self.wall_us.len() as f64
    }
}

impl Contender {
    fn new(name: &'static str, driver: Driver) -> Self {
        Self { name, driver, batches: 0, costs: Default::default() }
    }

    fn forget(&mut self) {
        self.costs = Default::default();
    }

    /// Enqueues, claims and completes `batches` times 500 jobs, each time on a new queue.
    async fn run(&mut self, batches: usize) -> Result<()> {
        let payloads = vec![PAYLOAD; BATCH];
        for _ in 0..batches {
            self.batches += 1;
            let queue = format!("{} {}", self.name, self.batches);

            let clock = Clock::start()?;
            let enqueued = self.driver.enqueue(&queue, &payloads).await?;
            clock.stop(&mut self.costs[0])?;

            let clock = Clock::start()?;
            let ids = self.driver.claim(&queue).await?;
            clock.stop(&mut self.costs[1])?;

            let clock = Clock::start()?;
            let completed = self.driver.complete(&ids).await?;
            clock.stop(&mut self.costs[2])?;

            let counts = [enqueued, ids.len() as u64, completed];
            ensure!(counts == [BATCH as u64; 3], "a batch was not complete: `{counts:?}`");
        }
        Ok(())
    }
}

struct Clock {
    cpu_us: f64,
    started: Instant,
}

impl Clock {
    fn start() -> Result<Self> {
        Ok(Self { cpu_us: process_cpu_us()?, started: Instant::now() })
    }

    fn stop(self, cost: &mut Cost) -> Result<()> {
        cost.wall_us.push(self.started.elapsed().as_secs_f64() * 1e6);
        cost.cpu_us += process_cpu_us()? - self.cpu_us;
        Ok(())
    }
}

/// CPU time of all threads of this process, in microseconds. `/proc/self/stat` counts in hundredths of a second, which is too
/// coarse for one batch. The scheduler's statistics of each thread are in nanoseconds.
fn process_cpu_us() -> Result<f64> {
    let mut nanos = 0_u64;
    for thread in fs::read_dir("/proc/self/task").context("client CPU time needs Linux")? {
        // A thread may have ended since the folder was read. The threads of the runtime do not end.
        let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else {
            continue;
        };
        nanos += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(nanos as f64 / 1e3)
}

enum Driver {
    /// Named statements, prepared once.
    TokioPrepared { session: Session, enqueue: Statement, claim: Statement, complete: Statement },
    /// The unnamed statement with known types: one round trip, no session state.
    TokioTyped(Session),
    /// `persistent`: named statements in the cache of the connection; otherwise the unnamed statement.
    Sqlx { connection: PgConnection, persistent: bool },
}

impl Driver {
    async fn tokio_prepared(url: &str) -> Result<Self> {
        let session = Session::open(url).await?;
        let enqueue = session.client.prepare(ENQUEUE).await?;
        let claim = session.client.prepare(CLAIM).await?;
        let complete = session.client.prepare(COMPLETE).await?;
        Ok(Self::TokioPrepared { session, enqueue, claim, complete })
    }

    async fn enqueue(&mut self, queue: &str, payloads: &[&str]) -> Result<u64> {
        Ok(match self {
            Self::TokioPrepared { session, enqueue, .. } => {
                session.client.execute(enqueue, &[&queue, &payloads]).await?
            }
            Self::TokioTyped(session) => {
                let params = [(&queue as _, Type::TEXT), (&payloads as _, Type::TEXT_ARRAY)];
                session.client.execute_typed(ENQUEUE, &params).await?
            }
            Self::Sqlx { connection, persistent } => {
                let query = sqlx::query(ENQUEUE).bind(queue).bind(payloads).persistent(*persistent);
                query.execute(connection).await?.rows_affected()
            }
        })
    }

    async fn claim(&mut self, queue: &str) -> Result<Vec<i64>> {
        let limit = BATCH as i64;
        let rows = match self {
            Self::TokioPrepared { session, claim, .. } => {
                session.client.query(claim, &[&queue, &limit]).await?
            }
            Self::TokioTyped(session) => {
                let params = [(&queue as _, Type::TEXT), (&limit as _, Type::INT8)];
                session.client.query_typed(CLAIM, &params).await?
            }
            Self::Sqlx { connection, persistent } => {
                let query = sqlx::query(CLAIM).bind(queue).bind(limit).persistent(*persistent);
                let rows = query.fetch_all(connection).await?;
                return rows
                    .iter()
                    .map(|row| {
                        black_box(row.try_get_raw(1)?);
                        Ok(row.try_get(0)?)
                    })
                    .collect();
            }
        };
        rows.iter()
            .map(|row| {
                black_box(row.try_get::<_, RawJson<'_>>(1)?);
                Ok(row.try_get(0)?)
            })
            .collect()
    }

    async fn complete(&mut self, ids: &[i64]) -> Result<u64> {
        Ok(match self {
            Self::TokioPrepared { session, complete, .. } => {
                session.client.execute(complete, &[&ids]).await?
            }
            Self::TokioTyped(session) => {
                session.client.execute_typed(COMPLETE, &[(&ids as _, Type::INT8_ARRAY)]).await?
            }
            Self::Sqlx { connection, persistent } => {
                let query = sqlx::query(COMPLETE).bind(ids).persistent(*persistent);
                query.execute(connection).await?.rows_affected()
            }
        })
    }

    async fn close(self) -> Result<()> {
        match self {
            Self::TokioPrepared { session, .. } | Self::TokioTyped(session) => session.close().await,
            Self::Sqlx { connection, .. } => Ok(connection.close().await?),
        }
    }
}
