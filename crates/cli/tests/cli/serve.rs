//! Server nodes and remote workers as real processes, stopped, killed and frozen.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use pitwheel::{Context, Job, Worker};
use serde::{Deserialize, Serialize};

use crate::support::{Db, Node, Result, eventually, query, signal};

/// Seconds of silence after which a worker is dead here.
const LEASE: &str = "2";

#[derive(Serialize, Deserialize)]
struct Nap {
    ms: u64,
}

impl Job for Nap {
    const KIND: &'static str = "nap";
}

fn serve(db: &Db, listen: &str) -> Result<Node> {
    Node::start(db, listen, &["--lease", LEASE])
}

/// A worker in a process of its own: it naps as told and then writes down that it did.
struct Remote {
    child: Child,
}

const SERVER: &str = "PITWHEEL_TEST_SERVER";
const DIARY: &str = "PITWHEEL_TEST_DIARY";

impl Remote {
    fn start(node: &Node, diary: &Path) -> Result<Remote> {
        let child = Command::new(env::current_exe()?)
            .args(["serve::remote_worker_process", "--exact", "--nocapture"])
            .env(SERVER, format!("http://{}", node.address))
            .env(DIARY, diary)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Remote { child })
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test by itself: the other side of the tests below.
#[test]
fn remote_worker_process() -> Result {
    let (Ok(server), Ok(diary)) = (env::var(SERVER), env::var(DIARY)) else { return Ok(()) };
    let nap = move |job: Nap, context: Context| {
        let diary = diary.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(job.ms)).await; // the job's work
            let mut file = fs::OpenOptions::new().append(true).create(true).open(&diary)?;
            std::io::Write::write_all(&mut file, format!("{}\n", context.id()).as_bytes())
        }
    };
    let worker = Worker::remote(&server).queue("default", 10).handle(nap);
    tokio::runtime::Runtime::new()?.block_on(worker.run(std::future::pending()))?;
    Ok(())
}

fn enqueue(db: &Db, jobs: usize, ms: u64) -> Result {
    let sql = format!("select pitwheel.enqueue('nap', '{{\"ms\": {ms}}}') from generate_series(1, {jobs})");
    query(&db.url, &sql).map(drop)
}

fn count(db: &Db, what: &str) -> usize {
    query(&db.url, &format!("select count(*) from pitwheel.{what}"))
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

/// How often jobs ran, and how many different ones.
fn runs(diary: &Path) -> (usize, usize) {
    let text = fs::read_to_string(diary).unwrap_or_default();
    let mut ids: Vec<&str> = text.lines().collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    (all, ids.len())
}

fn diary(db: &Db) -> PathBuf {
    db.folder().join("diary")
}

#[test]
fn serve_is_ready_when_it_says_so_and_ends_when_it_is_told() -> Result {
    let db = Db::migrated()?;
    let node = serve(&db, "127.0.0.1:0")?;
    let _worker = Remote::start(&node, &diary(&db))?;
    enqueue(&db, 5, 1)?;
    eventually("the jobs are done", || count(&db, "job_history where state = 'done'") == 5)?;
    assert_eq!(node.end("TERM")?, Some(0));
    let refused = db.run(&["serve", "--listen", "0.0.0.0:0"])?.with_code(2)?;
    refused.says_error("can be reached from other machines");
    Db::empty()?.run(&["serve", "--listen", "127.0.0.1:0"])?.with_code(5)?;
    Ok(())
}

#[test]
fn a_node_that_is_killed_loses_and_repeats_nothing() -> Result {
    let db = Db::migrated()?;
    let node = serve(&db, "127.0.0.1:0")?;
    let diary = diary(&db);
    let _worker = Remote::start(&node, &diary)?;
    enqueue(&db, 300, 20)?;
    eventually("some have run", || runs(&diary).0 > 50)?;
    let address = node.address.clone();
    node.end("KILL")?;
    let _next = serve(&db, &address)?;
    eventually("all are done", || count(&db, "job") == 0)?;
    assert_eq!(count(&db, "job_history"), 300);
    let (all, different) = runs(&diary);
    assert_eq!(different, 300);
    // What was on its way from the node that died may wait for the sweep; nothing ran twice.
    assert_eq!(all, 300);
    Ok(())
}

#[test]
fn what_a_killed_worker_held_is_run_by_another() -> Result {
    let db = Db::migrated()?;
    let node = serve(&db, "127.0.0.1:0")?;
    let diary = diary(&db);
    let victim = Remote::start(&node, &diary)?;
    enqueue(&db, 100, 50)?;
    eventually("it works", || runs(&diary).0 > 10)?;
    signal("KILL", victim.child.id())?;
    let _heir = Remote::start(&node, &diary)?;
    eventually("all are done", || count(&db, "job") == 0)?;
    assert_eq!(count(&db, "job_history where state = 'done'"), 100);
    let (all, different) = runs(&diary);
    assert_eq!(different, 100);
    assert!(all <= 110, "{all} runs: more were repeated than were running");
    Ok(())
}

#[test]
fn a_worker_that_was_frozen_past_its_lease_writes_nothing() -> Result {
    let db = Db::migrated()?;
    let node = serve(&db, "127.0.0.1:0")?;
    let diary = diary(&db);
    let frozen = Remote::start(&node, &diary)?;
    enqueue(&db, 10, 1000)?;
    eventually("it holds them", || count(&db, "job where holder is not null") == 10)?;
    signal("STOP", frozen.child.id())?;
    let _heir = Remote::start(&node, &diary)?;
    eventually("all are done", || count(&db, "job") == 0)?;
    signal("CONT", frozen.child.id())?;
    eventually("it has run its own", || runs(&diary).0 == 20)?;
    // A job that is settled twice would be in the history twice.
    enqueue(&db, 1, 1)?;
    eventually("the next is done", || count(&db, "job") == 0)?;
    assert_eq!(count(&db, "job_history"), 11);
    Ok(())
}
