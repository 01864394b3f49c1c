//! Workers are listed, quieted, resumed and drained.

use std::time::Duration;

use pitwheel::{Context, Pitwheel, Worker};
use pitwheel_testkit::{Greet, RunningWorker, block_until, start_worker};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::support::{Db, Result};

/// A worker receives a command after at most a third of this.
const LEASE: Duration = Duration::from_secs(2);

async fn greet(_: Greet, _: Context) -> Result<(), &'static str> {
    Ok(())
}

/// A worker in the background of this process.
fn start(runtime: &Runtime, db: &Db, name: &str) -> Result<RunningWorker> {
    runtime.block_on(async {
        let pitwheel = Pitwheel::connect(&db.url).await?;
        let worker = Worker::new(&pitwheel).name(name).queue("default", 5).handle(greet).lease(LEASE);
        Ok(start_worker(worker))
    })
}

fn listed(db: &Db, args: &[&str]) -> Result<Vec<Value>> {
    let listed = db.json(&[&["workers", "list"], args].concat())?;
    Ok(listed.as_array().ok_or("no list")?.clone())
}

#[test]
fn a_worker_can_be_quieted_resumed_and_drained() -> Result {
    let db = Db::migrated()?;
    let runtime = Runtime::new()?;
    let running = start(&runtime, &db, "the-worker")?;
    block_until("the worker is registered", || listed(&db, &[]).is_ok_and(|workers| workers.len() == 1))?;
    let worker = listed(&db, &[])?.remove(0);
    let id = worker["id"].to_string();
    assert_eq!((&worker["name"], &worker["state"]), (&json!("the-worker"), &json!("alive")));
    assert_eq!((&worker["kinds"], &worker["slots"]), (&json!(["greet"]), &json!(5)));
    let table = db.run(&["workers", "list"])?.with_code(0)?.out;
    assert!(table.starts_with("ID  STATE"), "{table}");
    assert!(table.contains("alive  the-worker  direct  default  greet      0/5"), "{table}");
    let kinds = json!([{ "name": "greet", "redacted": false, "workers": 1 }]);
    assert_eq!(db.json(&["kinds", "list"])?, kinds);

    let quiet = db.run(&["workers", "quiet", &id])?.with_code(0)?;
    assert!(quiet.err.contains(&format!("pitwheel workers resume {id}")), "{quiet:#?}");
    assert_eq!(listed(&db, &[])?[0]["state"], json!("quiet"));
    assert_eq!(db.json(&["workers", "resume", &id])?, json!([{ "id": worker["id"], "outcome": "alive" }]));
    db.enqueue(&["greet"])?;
    block_until("it runs jobs again", || {
        db.json(&["jobs", "list", "--state", "done"]).is_ok_and(|jobs| jobs != json!([]))
    })?;

    assert_eq!(db.json(&["workers", "drain", &id])?, json!([{ "id": worker["id"], "outcome": "draining" }]));
    let again = db.run(&["workers", "resume", &id])?.with_code(3)?;
    again.assert_error(&format!("worker {id} is not running, or is already draining"));
    runtime.block_on(running.ended())?;
    assert_eq!(listed(&db, &[])?, [] as [Value; 0]);
    assert_eq!(listed(&db, &["--dead"])?[0]["state"], json!("dead"));
    assert!(db.run(&["workers", "list", "--dead"])?.out.contains("ENDED"));
    Ok(())
}

#[test]
fn missing_workers_are_reported_and_the_others_receive_the_command() -> Result {
    let db = Db::migrated()?;
    let runtime = Runtime::new()?;
    let workers = [start(&runtime, &db, "one")?, start(&runtime, &db, "two")?];
    block_until("both workers are registered", || listed(&db, &[]).is_ok_and(|workers| workers.len() == 2))?;
    let ids: Vec<String> = listed(&db, &[])?.iter().map(|worker| worker["id"].to_string()).collect();

    let first = db.run(&["workers", "list", "--limit", "1"])?.with_code(0)?;
    assert!(first.err.contains(&format!("--before {}", ids[0])), "{first:#?}");
    assert_eq!(listed(&db, &["--limit", "1", "--before", &ids[0]])?[0]["id"].to_string(), ids[1]);

    let drained = db.run(&["workers", "drain", "99999", &ids[0], &ids[1], "-o", "json"])?.with_code(3)?;
    drained.assert_error("worker 99999 is not running");
    let outcomes: Vec<Value> = drained.json()?.as_array().ok_or("no list")?.clone();
    let outcomes: Vec<&Value> = outcomes.iter().map(|outcome| &outcome["outcome"]).collect();
    assert_eq!(outcomes, ["not_found", "draining", "draining"]);
    for worker in workers {
        runtime.block_on(worker.ended())?;
    }
    Ok(())
}

#[test]
fn an_empty_list_of_workers_prints_a_hint_and_no_table() -> Result {
    let db = Db::migrated()?;
    let none = db.run(&["workers", "list"])?.with_code(0)?;
    assert_eq!(none.out, "");
    assert!(none.err.contains("`--dead` shows those"), "{none:#?}");
    assert!(db.run(&["workers", "list", "--dead"])?.with_code(0)?.err.contains("none ended"));
    assert_eq!(listed(&db, &[])?, [] as [Value; 0]);
    for wrong in [&["workers", "quiet"][..], &["workers", "drain", "one"], &["workers", "stop", "1"]] {
        db.run(wrong)?.with_code(2)?;
    }
    Ok(())
}
