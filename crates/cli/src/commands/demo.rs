//! `pitwheel demo`: 10,000 jobs, two worker processes, one killed half-way; then the count.

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
use crate::exit::Stop;
use crate::output::{print, print_json, say};
use crate::private_postgres;
use crate::settings::{Database, Origin, Settings};
use crate::signals::Signals;
use crate::suggest::{command_for, program, quoted};
use progress::Progress;
use worker::{Farewell, Nap};

const JOBS: u64 = 10_000;
/// How often to look how far they are.
const LOOK: Duration = Duration::from_millis(100);
/// Ten times what it takes on a slow machine: then something is wrong.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long the surviving worker may take to sign off.
const FAREWELL_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Where its Postgres keeps its data; wins over a database named elsewhere [default: a folder of your own]
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Report {
    queue: String,
    jobs: u64,
    seconds: f64,
    jobs_per_second: u64,
    done: u64,
    taken_over: u64,
    lost: u64,
    settled_twice: u64,
    late_settles_refused: u64,
}

pub(crate) async fn run(args: DemoArgs, settings: &Settings) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    // An interrupted demo drops its workers and its server, and both end with it.
    tokio::select! {
        ended = demo(args, settings) => ended,
        () = signals.stop() => Err(Stop::failure("interrupted; the workers and Postgres are stopped").into()),
    }
}

async fn demo(args: DemoArgs, settings: &Settings) -> anyhow::Result<()> {
    let (database, server) = match private_postgres::instead(args.dir.is_some(), settings)? {
        Some(database) => {
            say(&format!("using the database that {} names", database.origin));
            (database.clone(), None)
        }
        None => {
            let dir = args.dir.unwrap_or_else(database::demo_dir);
            let server = private_postgres::start(dir).await?;
            let url = server.url();
            let origin = Origin::Running;
            let database = Database { url, origin };
            // Whoever looked around after the last demo may have left it so.
            let _ = database::connect_migrated(&database).await?.resume(None).await?;
            (database, Some(server))
        }
    };
    let report = perform(&database).await?;
    if settings.json() {
        print_json(&report)?;
    } else {
        let next = look_around(&report.queue, &database, server.as_ref(), settings);
        print(&format!("{}\n{next}", page(&report)))?;
    }
    if let Some(server) = server {
        tokio::task::spawn_blocking(|| server.stop()).await??;
    }
    if report.done != JOBS || report.lost > 0 || report.settled_twice > 0 {
        return Err(Stop::failure("THE DEMO FAILED: the counts above are not what Pitwheel promises").into());
    }
    Ok(())
}

/// The demo itself, on a database that is there.
async fn perform(database: &Database) -> anyhow::Result<Report> {
    let pitwheel = database::connect_migrated(database).await?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    // A queue of its own: what an earlier demo left behind is not counted, nor run.
    let queue = format!("demo-{seconds}-{}", std::process::id());
    let ids = enqueue(&pitwheel, &queue).await?;
    let pool = Pool::new(&database.url, "pitwheel-demo", 1)?;
    let began = Instant::now();
    let first = spawn("demo worker 1", &queue, &database.url)?;
    let second = spawn("demo worker 2", &queue, &database.url)?;
    let survivor = watch(&pool, &queue, first, second, began).await?;
    let seconds = began.elapsed().as_secs_f64();
    let farewell = farewell(survivor).await?;
    let tally = tally(&pool, &ids).await?;
    Ok(Report {
        queue,
        jobs: JOBS,
        seconds,
        jobs_per_second: (JOBS as f64 / seconds) as u64,
        done: tally.done,
        taken_over: tally.taken_over,
        // Still live, or nowhere to be found: either way nobody settled it.
        lost: JOBS.saturating_sub(tally.ended),
        settled_twice: tally.ends.saturating_sub(tally.ended),
        late_settles_refused: farewell.lost,
    })
}

async fn enqueue(pitwheel: &Pitwheel, queue: &str) -> anyhow::Result<Vec<i64>> {
    let began = Instant::now();
    let jobs = (0..JOBS).map(|number| pitwheel::NewJob::of(&Nap { number }).queue(queue));
    let enqueued = pitwheel.enqueue_many(jobs).await?;
    say(&format!("enqueued {} jobs in {:.1} s", HumanCount(JOBS), began.elapsed().as_secs_f64()));
    Ok(enqueued.into_iter().map(|job| job.id).collect())
}

/// A worker in a process of its own; it ends when the pipe to it does, at the latest with us.
fn spawn(name: &str, queue: &str, url: &str) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find this program to start a worker of it")?;
    let mut command = Command::new(program);
    command
        .args(["demo-worker", "--queue", queue, "--name", name])
        // Not on the command line, which every user of the machine can read.
        .env("DATABASE_URL", url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Out of reach of Ctrl-C, which is ours to handle.
        .process_group(0)
        .kill_on_drop(true);
    command.spawn().context("cannot start a worker")
}

/// Looks on until all is done, kills one worker half-way, and gives back the other.
async fn watch(
    pool: &Pool,
    queue: &str,
    mut victim: Child,
    mut survivor: Child,
    began: Instant,
) -> anyhow::Result<Child> {
    say("two workers are at it; one will be killed half-way");
    let mut progress = Progress::new(JOBS);
    let mut killed = false;
    loop {
        let left = left(pool, queue).await?;
        let done = JOBS.saturating_sub(left);
        progress.reached(done);
        if left == 0 {
            progress.finish();
            return Ok(survivor);
        }
        if began.elapsed() > PATIENCE {
            let seconds = PATIENCE.as_secs();
            return Err(
                Stop::failure(format!("only {done} of {JOBS} jobs are done after {seconds} s")).into()
            );
        }
        let early = survivor.try_wait()?.or(if killed { None } else { victim.try_wait()? });
        if let Some(status) = early {
            return Err(Stop::failure(format!("a worker ended by itself, with {status}")).into());
        }
        if !killed && done >= JOBS / 2 {
            // SIGKILL: it cannot settle, release or say anything.
            victim.kill().await.context("cannot kill the worker")?;
            killed = true;
            let done = HumanCount(done);
            progress
                .say(&format!("at {done} jobs worker 1 is killed with SIGKILL, in the middle of its work"));
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn left(pool: &Pool, queue: &str) -> anyhow::Result<u64> {
    let sql = include_str!("../../sql/demo_left.sql");
    let rows = pool.get().await?.query_typed(sql, &[(&queue, Type::TEXT)]).await?;
    Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
}

/// Lets the surviving worker end in good order and hears what it has to say.
async fn farewell(mut survivor: Child) -> anyhow::Result<Farewell> {
    drop(survivor.stdin.take());
    let ended = tokio::time::timeout(FAREWELL_MAX, survivor.wait_with_output()).await;
    let ended = ended.context("the surviving worker does not stop")??;
    serde_json::from_slice(&ended.stdout).context("the surviving worker did not stop in good order")
}

/// What the database says about the demo's jobs.
struct Tally {
    ends: u64,
    ended: u64,
    done: u64,
    taken_over: u64,
}

async fn tally(pool: &Pool, ids: &[i64]) -> anyhow::Result<Tally> {
    let sql = include_str!("../../sql/demo_tally.sql");
    let rows = pool.get().await?.query_typed(sql, &[(&ids, Type::INT8_ARRAY)]).await?;
    let row = rows.first().context("no answer to the count")?;
    let count = |name: &str| row.get::<_, i64>(name).unsigned_abs();
    Ok(Tally {
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
    let done = format!("{} of {jobs} stand in the history as done", HumanCount(report.done));
    let lines = [
        ("taken over", report.taken_over, "held by the killed worker, done by the other"),
        ("lost", report.lost, done.as_str()),
        ("settled twice", report.settled_twice, "each stands there once"),
        ("refused", report.late_settles_refused, "settles that came too late"),
    ];
    for (name, count, meaning) in lines {
        // It is rare that there are any, and not a failure: the fence did its work.
        if name != "refused" || count > 0 {
            text.push_str(&format!("  {name:<14}{:>7}   {meaning}\n", HumanCount(count).to_string()));
        }
    }
    text
}

/// Commands that show what the demo left behind.
fn look_around(queue: &str, database: &Database, server: Option<&Server>, settings: &Settings) -> String {
    let list = format!("jobs list --queue {queue} --limit 10");
    match (server, &database.origin) {
        (Some(server), _) => format!(
            "Look around: start its database again, and ask in another terminal\n  {} dev --dir {}\n  {} {list}\n",
            program(),
            quoted(&server.dir().display().to_string()),
            command_for(&database.url, settings),
        ),
        (None, Origin::Flag) => format!("Look around:\n  {} --database-url … {list}\n", program()),
        (None, _) => format!("Look around:\n  {} {list}\n", program()),
    }
}
