//! The demo is the promise: a worker is killed, nothing is lost, nothing is settled twice.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::support::{Db, Ran, Result, Scratch, eventually, pitwheel, runs, signal};

#[test]
fn the_demo_loses_nothing_and_works_the_second_time() -> Result {
    let (folder, dir) = (Scratch::new(), Scratch::new());
    fs::create_dir(&folder.0)?;
    let dir = dir.0.to_str().ok_or("an odd folder")?.to_owned();
    let first = Ran::of(&mut pitwheel(&folder.0, &["demo", "--dir", &dir]))?.with_code(0)?;
    for words in ["10,000 jobs in ", "jobs/s", "10,000 of 10,000 are in the history as done"] {
        assert!(first.out.contains(words), "no {words:?}: {first:#?}");
    }
    assert!(first.out.contains(&format!("dev --dir {dir}")), "{first:#?}");
    assert!(first.err.contains("killed with SIGKILL"), "{first:#?}");

    let second = Ran::of(&mut pitwheel(&folder.0, &["demo", "--dir", &dir, "-o", "json"]))?.with_code(0)?;
    let report = second.json()?;
    assert_eq!((&report["done"], &report["lost"]), (&json!(10_000), &json!(0)));
    assert_eq!(report["settled_twice"], json!(0));
    assert!(report["taken_over"].as_u64().is_some_and(|jobs| jobs > 0), "{report}");
    eventually("nothing is left running", || !runs(&dir))?;
    Ok(())
}

#[test]
fn an_interrupted_or_killed_demo_takes_its_workers_and_its_postgres_with_it() -> Result {
    let (folder, dir) = (Scratch::new(), Scratch::new());
    fs::create_dir(&folder.0)?;
    let dir = dir.0.to_str().ok_or("an odd folder")?;
    for with in ["INT", "KILL"] {
        let demo = at_work(&mut pitwheel(&folder.0, &["demo", "--dir", dir]))?;
        // The end of the name of its queue.
        let worker = format!("-{} ", demo.id());
        assert!(runs(&worker) && runs(dir));
        signal(with, demo.id())?;
        let ended = demo.wait_with_output()?;
        assert_eq!(ended.status.code(), (with == "INT").then_some(1));
        eventually("its workers and its Postgres end", || !runs(&worker) && !runs(dir))?;
    }
    Ok(())
}

#[test]
fn the_demo_uses_the_database_you_name() -> Result {
    let db = Db::empty()?;
    let ran = db.run(&["demo"])?.with_code(0)?;
    assert!(ran.err.starts_with("using the database that DATABASE_URL names\n"), "{ran:#?}");
    let command = ran.out.lines().last().ok_or("no command to look around")?;
    let args: Vec<&str> = command.split_whitespace().skip(1).collect();
    assert_eq!(db.json(&args)?.as_array().map(Vec::len), Some(10));
    Ok(())
}

/// A demo whose workers are at work.
fn at_work(command: &mut Command) -> Result<Child> {
    let mut demo = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let mut err = BufReader::new(demo.stderr.take().ok_or("no output")?);
    let mut line = String::new();
    while !line.contains(" of 10,000") {
        line.clear();
        if err.read_line(&mut line)? == 0 {
            return Err("the demo ended early".into());
        }
    }
    demo.stderr = Some(err.into_inner());
    Ok(demo)
}
