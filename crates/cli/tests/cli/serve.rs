//! Server nodes and remote workers as real processes: ended, killed and stopped.

use std::ffi::OsString;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use pitwheel::{Context, Worker};
use pitwheel_testkit::{ChildProcess, Nap, block_until, psql};

use crate::support::{Db, Node, Result};

/// The lease in seconds: a worker that is silent for longer is declared dead.
const LEASE: &str = "2";

fn serve(db: &Db, listen: &str) -> Result<Node> {
    Node::start(db, listen, &["--lease", LEASE])
}

const SERVER: &str = "PITWHEEL_TEST_SERVER";
const RUN_LOG: &str = "PITWHEEL_TEST_RUN_LOG";

/// A remote worker in a process of its own. After each run it appends the job's id to the log.
fn start_worker_process(node: &Node, run_log: &Path) -> Result<ChildProcess> {
    let server = OsString::from(format!("http://{}", node.address));
    let variables = [(SERVER, server), (RUN_LOG, run_log.into())];
    Ok(ChildProcess::spawn_test("serve::remote_worker_process", variables, Stdio::null())?)
}

/// The worker process of the other tests. Does nothing unless the environment variables are set.
#[test]
fn remote_worker_process() -> Result {
    let (Ok(server), Ok(run_log)) = (env::var(SERVER), env::var(RUN_LOG)) else { return Ok(()) };
    let nap = move |job: Nap, context: Context| {
        let run_log = run_log.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(job.ms)).await; // the job's work
            let mut file = fs::OpenOptions::new().append(true).create(true).open(&run_log)?;
            std::io::Write::write_all(&mut file, format!("{}\n", context.id()).as_bytes())
        }
    };
    let worker = Worker::remote(&server).queue("default", 10).handle(nap);
    tokio::runtime::Runtime::new()?.block_on(worker.run(std::future::pending()))?;
    Ok(())
}

fn enqueue(db: &Db, jobs: usize, ms: u64) -> Result {
    let sql = format!("select pitwheel.enqueue('nap', '{{\"ms\": {ms}}}') from generate_series(1, {jobs})");
    psql(&db.url, &sql)?;
    Ok(())
}

fn count(db: &Db, what: &str) -> usize {
    psql(&db.url, &format!("select count(*) from pitwheel.{what}"))
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

/// How many runs there were, and of how many different jobs.
fn count_runs(run_log: &Path) -> (usize, usize) {
    let text = fs::read_to_string(run_log).unwrap_or_default();
    let mut ids: Vec<&str> = text.lines().collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    (all, ids.len())
}

fn run_log(db: &Db) -> PathBuf {
    db.folder().join("run_log")
}

#[test]
fn serve_is_ready_when_it_prints_its_address_and_ends_on_a_signal() -> Result {
    let db = Db::migrated()?;
    let node = serve(&db, "127.0.0.1:0")?;
    let _worker = start_worker_process(&node, &run_log(&db))?;
    enqueue(&db, 5, 1)?;
    block_until("the jobs are done", || count(&db, "job_history where state = 'done'") == 5)?;
    assert_eq!(node.end("TERM")?, Some(0));
    let refused = db.run(&["serve", "--listen", "0.0.0.0:0"])?.with_code(2)?;
    refused.assert_error("can be reached from other machines");
    Db::empty()?.run(&["serve", "--listen", "127.0.0.1:0"])?.with_code(5)?;
    Ok(())
}

#[test]
fn a_killed_node_loses_and_repeats_nothing() -> Result {
    let db = Db::migrated()?;
    let node = serve(&db, "127.0.0.1:0")?;
    let run_log = run_log(&db);
    let _worker = start_worker_process(&node, &run_log)?;
    enqueue(&db, 300, 20)?;
    block_until("some jobs have run", || count_runs(&run_log).0 > 50)?;
    let address = node.address.to_string();
    node.end("KILL")?;
    let _next = serve(&db, &address)?;
    block_until("all jobs are done", || count(&db, "job") == 0)?;
    assert_eq!(count(&db, "job_history"), 300);
    let (all, different) = count_runs(&run_log);
    assert_eq!(different, 300);
    // Jobs in transit from the killed node may wait for the sweep; no job ran twice.
    assert_eq!(all, 300);
    Ok(())
}

#[test]
fn jobs_of_a_killed_worker_are_run_by_another() -> Result {
    let db = Db::migrated()?;
    let node = serve(&db, "127.0.0.1:0")?;
    let run_log = run_log(&db);
    let mut killed = start_worker_process(&node, &run_log)?;
    enqueue(&db, 100, 50)?;
    block_until("some jobs have run", || count_runs(&run_log).0 > 10)?;
    killed.kill()?;
    let _second = start_worker_process(&node, &run_log)?;
    block_until("all jobs are done", || count(&db, "job") == 0)?;
    assert_eq!(count(&db, "job_history where state = 'done'"), 100);
    let (all, different) = count_runs(&run_log);
    assert_eq!(different, 100);
    assert!(all <= 110, "{all} runs: more jobs ran twice than were running");
    Ok(())
}

#[test]
fn a_worker_stopped_past_its_lease_writes_nothing() -> Result {
    let db = Db::migrated()?;
    let node = serve(&db, "127.0.0.1:0")?;
    let run_log = run_log(&db);
    let stopped = start_worker_process(&node, &run_log)?;
    // Long enough that it is stopped while all of them run.
    enqueue(&db, 10, 8000)?;
    block_until("it holds all jobs", || count(&db, "job where holder is not null") == 10)?;
    stopped.signal("STOP")?;
    let _second = start_worker_process(&node, &run_log)?;
    block_until("all jobs are done", || count(&db, "job") == 0)?;
    stopped.signal("CONT")?;
    block_until("it has run its jobs", || count_runs(&run_log).0 == 20)?;
    // A job that was settled twice would be in the history twice.
    enqueue(&db, 1, 1)?;
    block_until("the next job is done", || count(&db, "job") == 0)?;
    assert_eq!(count(&db, "job_history"), 11);
    Ok(())
}

#[test]
fn a_node_without_workers_answers_and_runs_nothing() -> Result {
    let db = Db::migrated()?;
    let node = Node::start(&db, "127.0.0.1:0", &["--no-worker", "--lease", LEASE])?;
    let folder = pitwheel_testkit::ScratchFolder::create()?;
    let _worker = start_worker_process(&node, &folder.path().join("log"))?;
    enqueue(&db, 1, 1)?;
    assert_eq!(node.get("/api/v1/jobs", None)?.json()?["jobs"][0]["unserved"], true);
    assert_eq!(count(&db, "worker"), 0, "no worker can connect");
    // Another node serves them both, and the same worker finds it at the address.
    let address = node.address.to_string();
    assert_eq!(node.end("TERM")?, Some(0));
    let _other = serve(&db, &address)?;
    block_until("the job is done", || count(&db, "job_history") == 1)?;
    Ok(())
}

#[test]
fn a_node_keeps_finished_jobs_for_as_long_as_it_was_told() -> Result {
    let db = Db::migrated()?;
    let add_day = "do $$ declare day date; part text; begin
        foreach day in array array[now()::date - 20, now()::date - 40] loop
            part := 'job_history_' || to_char(day, 'YYYYMMDD');
            execute format('create table pitwheel.%I partition of pitwheel.job_history for values from (%L) to (%L)',
                part, day, day + 1);
        end loop;
    end $$";
    psql(&db.url, add_day)?;
    let old = |days: u32| {
        let part = format!("'pitwheel.job_history_' || to_char(now()::date - {days}, 'YYYYMMDD')");
        psql(&db.url, &format!("select to_regclass({part}) is not null")).is_ok_and(|there| there == "t")
    };
    let node = Node::start(&db, "127.0.0.1:0", &["--keep-history", "30"])?;
    block_until("the node has pruned", || !old(40))?;
    assert!(old(20), "younger than 30 days");
    node.end("TERM")?;
    Ok(())
}

#[test]
fn silent_connections_keep_no_probe_out_of_a_node_that_may_open_few_files() -> Result {
    /// More than the node may open files, by less than the system queues: connecting must not wait.
    const SILENT: usize = 300;
    /// Far less than the time after which silent connections are closed.
    const AT_ONCE: Duration = Duration::from_secs(5);
    let db = Db::migrated()?;
    let serve = db.command(&["serve", "--listen", "127.0.0.1:0"]);
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", r#"ulimit -n 256; exec "$@""#, "sh"]).arg(serve.get_program()).args(serve.get_args());
    limited.current_dir(db.folder());
    for (name, value) in serve.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let node = Node::of(&limited, Stdio::null())?;
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        silent.push(TcpStream::connect(node.address)?);
    }
    let begun = Instant::now();
    assert_eq!(node.get("/healthz", None)?.status, 200);
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    Ok(())
}
