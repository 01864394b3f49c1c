//! Dev mode: everything starts with one command and ends with one signal.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use pitwheel::{Context, Job, Worker};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::support::{Db, Ran, Result, Scratch, answers, eventually, get, pitwheel, signal};

/// A `pitwheel dev` that is ready, and what it printed.
struct Dev {
    child: Child,
    out: BufReader<ChildStdout>,
    page: String,
    url: String,
}

impl Dev {
    fn start(folder: &Path, dir: &Path) -> Result<Dev> {
        let dir = dir.to_str().ok_or("an odd folder")?;
        Dev::of(&mut pitwheel(folder, &["dev", "--dir", dir, "--listen", "127.0.0.1:0"]))
    }

    fn of(command: &mut Command) -> Result<Dev> {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut out = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut page = String::new();
        while !page.contains("Ctrl-C") {
            if out.read_line(&mut page)? == 0 {
                return Err(format!("not ready: {page} {:#?}", Ran::new(&child.wait_with_output()?)?).into());
            }
        }
        let mut dev = Dev { child, out, page, url: String::new() };
        dev.url = dev.line("postgres")?;
        Ok(dev)
    }

    /// What is printed after `name`.
    fn line(&self, name: &str) -> Result<String> {
        let mut lines = self.page.lines().map(str::trim);
        let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix("  "));
        Ok(found.ok_or_else(|| format!("no {name}: {}", self.page))?.trim().to_owned())
    }

    fn end(mut self, with: &str) -> Result<Ran> {
        signal(with, self.child.id())?;
        let (mut out, mut err) = (self.page.clone(), String::new());
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

#[derive(Serialize, Deserialize)]
struct Greet {
    name: String,
}

impl Job for Greet {
    const KIND: &'static str = "greet";
}

async fn greet(job: Greet, _: Context) -> Result<(), String> {
    if job.name == "Ada" { Ok(()) } else { Err(job.name) }
}

#[test]
fn one_process_serves_http_and_grpc_and_a_second_terminal_finds_its_database() -> Result {
    let (folder, dir) = (Scratch::new(), Scratch::new());
    fs::create_dir(&folder.0)?;
    let dev =
        Dev::of(pitwheel(&folder.0, &["dev", "--listen", "127.0.0.1:0"]).env("PITWHEEL_DEV_DIR", &dir.0))?;
    let (url, grpc) = (dev.url.clone(), dev.line("grpc")?);
    assert_eq!(dev.line("http")?, format!("http://{grpc}/api/openapi.json"));
    assert_eq!(get(TcpStream::connect(&grpc)?, "/api/openapi.json", None)?.0, 200);

    // The commands that it printed, typed in another terminal.
    let next = dev.page.split("second terminal:\n").nth(1).ok_or("no next command")?;
    let mut commands = next.lines().map(str::trim).take_while(|line| !line.is_empty());
    let mut type_next = || -> Result<Ran> {
        let line = commands.next().ok_or("no command")?;
        assert!(!line.contains("postgres://"), "{line}");
        let mut sh = Command::new("/bin/sh");
        sh.args(["-c", line]).current_dir(&folder.0).env_remove("DATABASE_URL");
        Ran::of(sh.env("PITWHEEL_DEV_DIR", &dir.0))?.with_code(0)
    };
    let id = type_next()?.out.trim().to_owned();
    assert!(type_next()?.out.contains("waiting  greet"));

    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = Worker::remote(&format!("http://{grpc}")).queue("default", 1).handle(greet);
    let runtime = tokio::runtime::Runtime::new()?;
    let working = runtime.spawn(worker.run(async move { stopped.await.unwrap_or_default() }));
    eventually("the job is done", || {
        let read = || get(TcpStream::connect(&grpc)?, &format!("/api/v1/jobs/{id}"), None);
        let job = read().ok().and_then(|(_, body)| serde_json::from_str::<Value>(&body).ok());
        job.is_some_and(|job| job["state"] == json!("done"))
    })?;
    let _ = stop.send(());
    runtime.block_on(working)??;

    dev.end("TERM")?.with_code(0)?;
    assert!(!answers(&url));
    assert!(!dir.0.join("data/postmaster.pid").exists());
    assert!(TcpStream::connect(&grpc).is_err());
    Ok(())
}

#[test]
fn dev_stops_while_a_worker_is_connected() -> Result {
    let (folder, dir) = (Scratch::new(), Scratch::new());
    fs::create_dir(&folder.0)?;
    let dev = Dev::start(&folder.0, &dir.0)?;
    let (url, grpc) = (dev.url.clone(), dev.line("grpc")?);
    let worker = Worker::remote(&format!("http://{grpc}")).queue("default", 1).handle(greet);
    let runtime = tokio::runtime::Runtime::new()?;
    let working = runtime.spawn(worker.run(std::future::pending()));
    let list = ["--database-url", &url, "workers", "list"];
    eventually("it is connected", || {
        Ran::of(&mut pitwheel(&folder.0, &list)).is_ok_and(|ran| ran.out.contains("grpc"))
    })?;

    dev.end("TERM")?.with_code(0)?;
    assert!(!answers(&url));
    working.abort();
    Ok(())
}

#[test]
fn a_port_in_use_is_reported_before_anything_starts() -> Result {
    let (db, dir) = (Db::migrated()?, Scratch::new());
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let dev = ["dev", "--dir", dir.0.to_str().ok_or("an odd folder")?, "--listen", &address];
    for args in [&dev[..], &["serve", "--listen", &address]] {
        let refused = db.run(args)?.with_code(1)?;
        refused.says_error(&format!("port {} is in use", taken.local_addr()?.port()));
        refused.says_error("--listen 127.0.0.1:0");
    }
    assert!(!dir.0.exists());
    Ok(())
}

#[test]
fn dev_serves_the_database_you_name_and_starts_none() -> Result {
    let db = Db::empty()?;
    let dev = Dev::of(&mut db.command(&["dev", "--listen", "127.0.0.1:0"]))?;
    assert_eq!(get(TcpStream::connect(dev.line("grpc")?)?, "/readyz", None)?.0, 200);
    assert_eq!(db.json(&["migrate", "status"])?["state"], json!("current"));
    let ended = dev.end("TERM")?.with_code(0)?;
    assert!(ended.err.contains("the database that DATABASE_URL names"), "{ended:#?}");
    assert!(!ended.out.contains(&db.url) && !ended.err.contains(&db.url), "{ended:#?}");

    let both = db.run(&["dev", "--dir", "here", "--database-url", &db.url])?.with_code(2)?;
    both.says_error("give one of them");
    Ok(())
}
