//! `pitwheel demo`: runs 10,000 jobs with two worker processes, kills one of them half-way, and counts the results. Then it runs jobs in
//! lanes, and a pipeline, and sends the events of some orders.

mod lanes;
mod orders;
mod progress;
pub(crate) mod worker;

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::Args;
use indicatif::HumanCount;
use pitwheel::Pitwheel;
use pitwheel::engine::Pool;
use pitwheel_devdb::Server;
use serde::Serialize;
use tokio::process::{Child, Command};
use tokio_postgres::types::Type;

use crate::database;
use crate::exit::CommandError;
use crate::output::{print, print_json, print_message};
use crate::private_postgres;
use crate::settings::{Database, Origin, Settings};
use crate::signals::Signals;
use crate::suggest::{command_for, program, quoted};
use lanes::LanesReport;
use orders::OrdersReport;
use progress::Progress;
use worker::{FinalCounts, Nap};

const JOBS: u64 = 10_000;
/// How often to count the jobs that are left.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// Ten times as long as it takes on a slow machine.
const DEMO_MAX: Duration = Duration::from_secs(90);
/// How long the surviving worker may take to stop.
const STOP_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// The folder of its Postgres; overrides a database in the settings [default: a folder of your user]
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// The results. The names are those of the JSON output.
#[derive(Debug, Serialize)]
struct Report {
    queue: String,
    jobs: u64,
    seconds: f64,
    jobs_per_second: u64,
    done: u64,
    /// Jobs that the killed worker held and the other one ran.
    taken_over: u64,
    /// Jobs that were not settled.
    lost: u64,
    settled_twice: u64,
    /// Settles of the surviving worker that were refused because another claim held the job.
    late_settles_refused: u64,
    #[serde(flatten)]
    lanes: LanesReport,
    /// `None`: not in a database that you name, where other events may wait.
    outbox: Option<OrdersReport>,
}

pub(crate) async fn run(args: DemoArgs, settings: &Settings) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    // When this is interrupted, the workers and Postgres are dropped and end.
    tokio::select! {
        ended = demo(args, settings) => ended,
        () = signals.stop_requested() => Err(CommandError::failure("interrupted; the workers and Postgres are stopped").into()),
    }
}

async fn demo(args: DemoArgs, settings: &Settings) -> anyhow::Result<()> {
    let (database, server) = match private_postgres::named_database(args.dir.is_some(), settings)? {
        Some(database) => {
            print_message(&format!("using the database that {} names", database.origin));
            (database.clone(), None)
        }
        None => {
            let dir = args.dir.unwrap_or_else(private_postgres::demo_dir);
            let server = private_postgres::start(dir).await?;
            let url = server.url();
            let origin = Origin::Running;
            let database = Database { url, origin };
            // All queues may still be paused since the last demo.
            let _ = database::connect_migrated(&database).await?.resume(None).await?;
            (database, Some(server))
        }
    };
    let mut report = run_jobs(&database).await?;
    if server.is_some() {
        report.outbox = Some(orders::run(&database.url, settings.json()).await?);
    }
    if settings.json() {
        print_json(&report)?;
    } else {
        let next = next_commands(&report.queue, &database, server.as_ref(), settings);
        let orders =
            report.outbox.as_ref().map_or_else(String::new, |orders| format!("\n{}\n", orders.page()));
        print(&format!("{orders}{}\n{}\n{next}", page(&report), report.lanes.page()))?;
    }
    if let Some(server) = server {
        tokio::task::spawn_blocking(|| server.stop()).await??;
    }
    if report.outbox.as_ref().is_some_and(|orders| !orders.is_good()) {
        return Err(CommandError::failure("THE DEMO FAILED: see the counts of events above").into());
    }
    if report.done != JOBS || report.lost > 0 || report.settled_twice > 0 {
        return Err(CommandError::failure(
            "THE DEMO FAILED: jobs were lost, or settled twice; see the counts above",
        )
        .into());
    }
    if !report.lanes.is_right() {
        return Err(CommandError::failure(
            "THE DEMO FAILED: jobs of a lane, or steps, ran before their turn; see above",
        )
        .into());
    }
    Ok(())
}

/// Runs the jobs on a running database.
async fn run_jobs(database: &Database) -> anyhow::Result<Report> {
    let pitwheel = database::connect_migrated(database).await?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    // A queue of its own: jobs of an earlier demo are neither run nor counted.
    let queue = format!("demo-{seconds}-{}", std::process::id());
    let ids = enqueue(&pitwheel, &queue).await?;
    let pool = Pool::new(&database.url, "pitwheel-demo", 1)?;
    let began = Instant::now();
    let first = spawn("demo worker 1", &queue, &database.url)?;
    let second = spawn("demo worker 2", &queue, &database.url)?;
    let survivor = watch(&pool, &queue, first, second, began).await?;
    let seconds = began.elapsed().as_secs_f64();
    let final_counts = stop_worker(survivor).await?;
    let counts = count_results(&pool, &ids).await?;
    let lanes = lanes::run(&pitwheel, &format!("{queue}-order")).await?;
    Ok(Report {
        queue,
        jobs: JOBS,
        seconds,
        jobs_per_second: (JOBS as f64 / seconds) as u64,
        done: counts.done,
        taken_over: counts.taken_over,
        // Still live, or missing: in both cases it was not settled.
        lost: JOBS.saturating_sub(counts.ended),
        settled_twice: counts.ends.saturating_sub(counts.ended),
        late_settles_refused: final_counts.lost,
        lanes,
        outbox: None,
    })
}

async fn enqueue(pitwheel: &Pitwheel, queue: &str) -> anyhow::Result<Vec<i64>> {
    let began = Instant::now();
    let jobs = (0..JOBS).map(|number| pitwheel::NewJob::of(&Nap { number }).queue(queue));
    let enqueued = pitwheel.enqueue_many(jobs).await?;
    print_message(&format!("enqueued {} jobs in {:.1} s", HumanCount(JOBS), began.elapsed().as_secs_f64()));
    Ok(enqueued.into_iter().map(|job| job.id).collect())
}

/// Starts a worker process. It ends when the pipe to it closes, at the latest when this process ends.
fn spawn(name: &str, queue: &str, url: &str) -> anyhow::Result<Child> {
    let program =
        std::env::current_exe().context("cannot find the path of this program, which the workers run")?;
    let mut command = Command::new(program);
    command
        .args(["demo-worker", "--queue", queue, "--name", name])
        // Not on the command line, which every user of this machine can read.
        .env("DATABASE_URL", url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // A process group of its own: Ctrl-C is handled by this process.
        .process_group(0)
        .kill_on_drop(true);
    command.spawn().context("cannot start a worker")
}

/// Waits until all jobs are done, kills one worker half-way, and returns the other.
async fn watch(
    pool: &Pool,
    queue: &str,
    mut victim: Child,
    mut survivor: Child,
    began: Instant,
) -> anyhow::Result<Child> {
    print_message("two workers are running; one will be killed half-way");
    let mut progress = Progress::new(JOBS);
    let mut killed = false;
    loop {
        let left = live_jobs(pool, queue).await?;
        let done = JOBS.saturating_sub(left);
        progress.reached(done);
        if left == 0 {
            progress.finish();
            return Ok(survivor);
        }
        if began.elapsed() > DEMO_MAX {
            let seconds = DEMO_MAX.as_secs();
            return Err(CommandError::failure(format!(
                "only {done} of {JOBS} jobs are done after {seconds} s"
            ))
            .into());
        }
        let early = survivor.try_wait()?.or(if killed { None } else { victim.try_wait()? });
        if let Some(status) = early {
            return Err(CommandError::failure(format!("a worker ended by itself, with {status}")).into());
        }
        if !killed && done >= JOBS / 2 {
            // SIGKILL: the worker can settle or release nothing.
            victim.kill().await.context("cannot kill the worker")?;
            killed = true;
            let done = HumanCount(done);
            progress.print_message(&format!(
                "after {done} jobs worker 1 was killed with SIGKILL, while it held jobs"
            ));
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

async fn live_jobs(pool: &Pool, queue: &str) -> anyhow::Result<u64> {
    let sql = include_str!("../../sql/demo_live.sql");
    let rows = pool.get().await?.query_typed(sql, &[(&queue, Type::TEXT)]).await?;
    Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
}

/// Stops the surviving worker and reads the counts that it prints.
async fn stop_worker(mut survivor: Child) -> anyhow::Result<FinalCounts> {
    drop(survivor.stdin.take());
    let ended = tokio::time::timeout(STOP_MAX, survivor.wait_with_output()).await;
    let ended = ended.context("the surviving worker did not stop in time")??;
    serde_json::from_slice(&ended.stdout).context("the surviving worker printed no counts")
}

/// Counts of the demo's jobs in the history.
struct Counts {
    /// Rows.
    ends: u64,
    /// Different jobs. Fewer than rows if a job was settled twice.
    ended: u64,
    done: u64,
    taken_over: u64,
}

async fn count_results(pool: &Pool, ids: &[i64]) -> anyhow::Result<Counts> {
    let sql = include_str!("../../sql/demo_counts.sql");
    let rows = pool.get().await?.query_typed(sql, &[(&ids, Type::INT8_ARRAY)]).await?;
    let row = rows.first().context("the query for the counts returned no row")?;
    let count = |name: &str| row.get::<_, i64>(name).unsigned_abs();
    Ok(Counts {
        ends: count("ends"),
        ended: count("ended"),
        done: count("done"),
        taken_over: count("taken_over"),
    })
}

fn page(report: &Report) -> String {
    let (jobs, rate) = (HumanCount(report.jobs), HumanCount(report.jobs_per_second));
    let mut text =
        format!("{jobs} jobs in {:.1} s: {rate} jobs/s, with one of two workers killed\n\n", report.seconds);
    let done = format!("{} of {jobs} are in the history as done", HumanCount(report.done));
    let lines = [
        ("taken over", report.taken_over, "held by the killed worker, run by the other one"),
        ("lost", report.lost, done.as_str()),
        ("settled twice", report.settled_twice, "each is there once"),
        ("refused", report.late_settles_refused, "late settles, refused by the fence"),
    ];
    for (name, count, meaning) in lines {
        // Rare, and not a failure: the fence refused them.
        if name != "refused" || count > 0 {
            text.push_str(&format!("  {name:<14}{:>7}   {meaning}\n", HumanCount(count).to_string()));
        }
    }
    text
}

/// Commands that show the jobs of the demo.
fn next_commands(queue: &str, database: &Database, server: Option<&Server>, settings: &Settings) -> String {
    let list = format!("jobs list --queue {queue} --limit 10");
    match (server, &database.origin) {
        (Some(server), _) => format!(
            "To look at the jobs, start the database again, and list them in a second terminal:\n  {} dev --dir {}\n  {} {list}\n",
            program(),
            quoted(&server.dir().display().to_string()),
            command_for(&database.url, settings),
        ),
        (None, Origin::Flag) => format!("To look at the jobs:\n  {} --database-url … {list}\n", program()),
        (None, _) => format!("To look at the jobs:\n  {} {list}\n", program()),
    }
}
