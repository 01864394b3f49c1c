//! Dev mode: started by one command, ended by one signal.

use std::fs;
use std::io::{BufRead, BufReader, read_to_string};
use std::path::Path;
use std::process::{ChildStdout, Stdio};

use pitwheel_testkit::{ChildProcess, ScratchFolder, block_until, is_listening, signal};
use serde_json::json;

use crate::support::{Db, Output, Result, pitwheel};

/// A `pitwheel dev` that has printed where its database is.
struct Dev {
    process: ChildProcess,
    out: BufReader<ChildStdout>,
    url: String,
}

impl Dev {
    fn start(folder: &Path, dir: &Path) -> Result<Dev> {
        let dir = dir.to_str().ok_or("the path is not UTF-8")?;
        let command = pitwheel(folder, &["dev", "--dir", dir]);
        let mut process = ChildProcess::spawn(&command, Stdio::piped(), Stdio::piped())?;
        let mut out = BufReader::new(process.take_stdout()?);
        let mut line = String::new();
        while !line.contains("postgres://") {
            line.clear();
            if out.read_line(&mut line)? == 0 {
                return Err(format!("no database: {}", read_to_string(process.take_stderr()?)?).into());
            }
        }
        let url = line.trim().rsplit(' ').next().ok_or("no URL")?.to_owned();
        Ok(Dev { process, out, url })
    }

    fn end(mut self, signal: &str) -> Result<Output> {
        self.process.signal(signal)?;
        let (out, err) = (read_to_string(self.out)?, read_to_string(self.process.take_stderr()?)?);
        Ok(Output { code: self.process.wait()?.code(), out, err })
    }
}

#[test]
fn dev_is_ready_when_it_prints_its_url_keeps_its_data_and_leaves_no_process() -> Result {
    let (folder, dir) = (ScratchFolder::create()?, ScratchFolder::missing());
    let dev = Dev::start(folder.path(), dir.path())?;
    let url = dev.url.clone();
    let enqueue = ["--database-url", &url, "jobs", "enqueue", "greet"];
    let enqueued = Output::of(&mut pitwheel(folder.path(), &enqueue))?.with_code(0)?;

    let second = ["dev", "--dir", dir.path().to_str().ok_or("the path is not UTF-8")?];
    let second = Output::of(&mut pitwheel(folder.path(), &second))?.with_code(1)?;
    second.assert_error(&url);

    let ended = dev.end("TERM")?.with_code(0)?;
    assert!(ended.out.contains("jobs enqueue greet") && ended.out.contains(&url), "{ended:#?}");
    assert!(!is_listening(&url));
    assert!(!dir.path().join("data/postmaster.pid").exists());

    let dev = Dev::start(folder.path(), dir.path())?;
    let show = ["--database-url", &dev.url, "jobs", "show", enqueued.out.trim()];
    Output::of(&mut pitwheel(folder.path(), &show))?.with_code(0)?;
    let url = dev.url.clone();
    dev.end("INT")?.with_code(0)?;
    assert!(!is_listening(&url));
    Ok(())
}

#[test]
fn a_postgres_that_crashes_in_dev_mode_is_started_again() -> Result {
    let (folder, dir) = (ScratchFolder::create()?, ScratchFolder::missing());
    let dev = Dev::start(folder.path(), dir.path())?;
    let pid_file = dir.path().join("data/postmaster.pid");
    let postmaster = || fs::read_to_string(&pid_file).ok()?.lines().next()?.parse::<u32>().ok();
    let first = postmaster().ok_or("no postmaster")?;

    signal("QUIT", first)?;
    let list = ["--database-url", &dev.url, "jobs", "list"];
    block_until("a new Postgres accepts commands", || {
        let answered =
            Output::of(&mut pitwheel(folder.path(), &list)).is_ok_and(|output| output.code == Some(0));
        answered && postmaster().is_some_and(|pid| pid != first)
    })?;
    let ended = dev.end("TERM")?.with_code(0)?;
    assert!(ended.err.contains("starting it again"), "{ended:#?}");
    Ok(())
}

#[test]
fn dev_uses_the_database_you_name_and_starts_none() -> Result {
    let db = Db::empty()?;
    let output = db.run(&["dev"])?.with_code(0)?;
    assert!(output.err.contains("the database that DATABASE_URL names"), "{output:#?}");
    assert_eq!(db.json(&["migrate", "status"])?["state"], json!("current"));

    let both = db.run(&["dev", "--dir", "here", "--database-url", &db.url])?.with_code(2)?;
    both.assert_error("give one of them");
    Ok(())
}
