//! Dev mode: there in one command, gone in one signal.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use serde_json::json;

use crate::support::{Db, Ran, Result, Scratch, answers, eventually, pitwheel, signal};

/// A `pitwheel dev` that says where its database is.
struct Dev {
    child: Child,
    out: BufReader<ChildStdout>,
    url: String,
}

impl Dev {
    fn start(folder: &Path, dir: &Path) -> Result<Dev> {
        let dir = dir.to_str().ok_or("an odd folder")?;
        let mut command = pitwheel(folder, &["dev", "--dir", dir]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut out = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut line = String::new();
        while !line.contains("postgres://") {
            line.clear();
            if out.read_line(&mut line)? == 0 {
                return Err(format!("no database: {:#?}", Ran::new(&child.wait_with_output()?)?).into());
            }
        }
        let url = line.trim().rsplit(' ').next().ok_or("no URL")?.to_owned();
        Ok(Dev { child, out, url })
    }

    fn end(mut self, with: &str) -> Result<Ran> {
        signal(with, self.child.id())?;
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out)?;
        self.child.stderr.take().ok_or("no words")?.read_to_string(&mut err)?;
        let code = self.child.wait()?.code();
        Ok(Ran { code, out, err })
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

#[test]
fn dev_is_ready_when_it_says_so_keeps_its_data_and_leaves_nothing_running() -> Result {
    let (folder, dir) = (Scratch::new(), Scratch::new());
    fs::create_dir(&folder.0)?;
    let dev = Dev::start(&folder.0, &dir.0)?;
    let url = dev.url.clone();
    let enqueue = ["--database-url", &url, "jobs", "enqueue", "greet"];
    let enqueued = Ran::of(&mut pitwheel(&folder.0, &enqueue))?.with_code(0)?;

    let second = ["dev", "--dir", dir.0.to_str().ok_or("an odd folder")?];
    let second = Ran::of(&mut pitwheel(&folder.0, &second))?.with_code(1)?;
    second.says_error(&url);

    let ended = dev.end("TERM")?.with_code(0)?;
    assert!(ended.out.contains("jobs enqueue greet") && ended.out.contains(&url), "{ended:#?}");
    assert!(!answers(&url));
    assert!(!dir.0.join("data/postmaster.pid").exists());

    let dev = Dev::start(&folder.0, &dir.0)?;
    let show = ["--database-url", &dev.url, "jobs", "show", enqueued.out.trim()];
    Ran::of(&mut pitwheel(&folder.0, &show))?.with_code(0)?;
    let url = dev.url.clone();
    dev.end("INT")?.with_code(0)?;
    assert!(!answers(&url));
    Ok(())
}

#[test]
fn a_postgres_that_dies_under_dev_is_started_again() -> Result {
    let (folder, dir) = (Scratch::new(), Scratch::new());
    fs::create_dir(&folder.0)?;
    let dev = Dev::start(&folder.0, &dir.0)?;
    let pid_file = dir.0.join("data/postmaster.pid");
    let postmaster = || fs::read_to_string(&pid_file).ok()?.lines().next()?.parse::<u32>().ok();
    let first = postmaster().ok_or("no postmaster")?;

    signal("QUIT", first)?;
    let list = ["--database-url", &dev.url, "jobs", "list"];
    eventually("another one answers", || {
        let answered = Ran::of(&mut pitwheel(&folder.0, &list)).is_ok_and(|ran| ran.code == Some(0));
        answered && postmaster().is_some_and(|pid| pid != first)
    })?;
    let ended = dev.end("TERM")?.with_code(0)?;
    assert!(ended.err.contains("starting it again"), "{ended:#?}");
    Ok(())
}

#[test]
fn dev_uses_the_database_you_name_and_starts_none() -> Result {
    let db = Db::empty()?;
    let ran = db.run(&["dev"])?.with_code(0)?;
    assert!(ran.err.contains("the database that DATABASE_URL names"), "{ran:#?}");
    assert_eq!(db.json(&["migrate", "status"])?["state"], json!("current"));

    let both = db.run(&["dev", "--dir", "here", "--database-url", &db.url])?.with_code(2)?;
    both.says_error("give one of them");
    Ok(())
}
