//! The demo: a worker is killed, no job is lost, no job is settled twice, and events arrive in order.

use std::io::{BufRead, BufReader, read_to_string};
use std::process::{ChildStderr, Command, Stdio};

use pitwheel_testkit::{ChildProcess, ScratchFolder, block_until};
use serde_json::json;

use crate::support::{Db, Output, Result, pitwheel, process_exists};

#[test]
fn the_demo_loses_nothing_and_works_the_second_time() -> Result {
    let (folder, dir) = (ScratchFolder::create()?, ScratchFolder::missing());
    let dir = dir.path().to_str().ok_or("the path is not UTF-8")?.to_owned();
    let first = Output::of(&mut pitwheel(folder.path(), &["demo", "--dir", &dir]))?.with_code(0)?;
    for words in ["10,000 jobs in ", "jobs/s", "10,000 of 10,000 are in the history as done"] {
        assert!(first.out.contains(words), "no {words:?}: {first:#?}");
    }
    for words in [
        "tenant-7      1 2 3 4 5   at most 1 at a time",
        "tenant-9      1 2 3 4 5   at most 1",
        "done          load, ",
    ] {
        assert!(first.out.contains(words), "no {words:?}: {first:#?}");
    }
    assert!(first.out.contains("9 events of 3 orders"), "{first:#?}");
    assert_eq!(first.out.matches(r#""type":"order.shipped""#).count(), 3, "{first:#?}");
    assert!(first.out.contains(&format!("dev --dir {dir}")), "{first:#?}");
    assert!(first.err.contains("killed with SIGKILL"), "{first:#?}");

    let second =
        Output::of(&mut pitwheel(folder.path(), &["demo", "--dir", &dir, "-o", "json"]))?.with_code(0)?;
    let report = second.json()?;
    assert_eq!((&report["done"], &report["lost"]), (&json!(10_000), &json!(0)));
    assert_eq!(report["settled_twice"], json!(0));
    assert_eq!(report["lanes"]["tenant-7"], json!({ "ran": [1, 2, 3, 4, 5], "at_a_time": 1 }));
    assert_eq!((&report["pipeline"], &report["steps"][3]), (&json!("done"), &json!("report")));
    let orders = json!({ "events": 9, "arrived": 9, "out_of_order": 0, "rolled_back": 0 });
    assert_eq!(report["outbox"], orders);
    assert!(report["taken_over"].as_u64().is_some_and(|jobs| jobs > 0), "{report}");
    block_until("no process is left", || !process_exists(&dir))?;
    Ok(())
}

#[test]
fn an_interrupted_or_killed_demo_ends_its_workers_and_its_postgres() -> Result {
    let (folder, dir) = (ScratchFolder::create()?, ScratchFolder::missing());
    let dir = dir.path().to_str().ok_or("the path is not UTF-8")?;
    for signal in ["INT", "KILL"] {
        let (mut demo, err) = start_demo(&pitwheel(folder.path(), &["demo", "--dir", dir]))?;
        // Its workers have the name of its queue in their arguments, which ends with its process id.
        let worker = format!("-{} ", demo.id());
        assert!(process_exists(&worker) && process_exists(dir));
        demo.signal(signal)?;
        // The demo may end only after its output was read.
        read_to_string(err)?;
        assert_eq!(demo.wait()?.code(), (signal == "INT").then_some(1));
        block_until("its workers and its Postgres end", || !process_exists(&worker) && !process_exists(dir))?;
    }
    Ok(())
}

#[test]
fn the_demo_uses_the_database_you_name() -> Result {
    let db = Db::empty()?;
    let output = db.run(&["demo"])?.with_code(0)?;
    assert!(output.err.starts_with("using the database that DATABASE_URL names\n"), "{output:#?}");
    let command = output.out.lines().last().ok_or("no command to continue with")?;
    let args: Vec<&str> = command.split_whitespace().skip(1).collect();
    assert_eq!(db.json(&args)?.as_array().map(Vec::len), Some(10));
    Ok(())
}

/// A demo whose workers run jobs, and the rest of its standard error.
fn start_demo(command: &Command) -> Result<(ChildProcess, BufReader<ChildStderr>)> {
    let mut demo = ChildProcess::spawn(command, Stdio::null(), Stdio::piped())?;
    let mut err = BufReader::new(demo.take_stderr()?);
    let mut line = String::new();
    while !line.contains(" of 10,000") {
        line.clear();
        if err.read_line(&mut line)? == 0 {
            return Err("the demo ended early".into());
        }
    }
    Ok((demo, err))
}
