//! Dev mode: everything starts with one command and ends with one signal.

use std::fs;
use std::io::{BufRead, BufReader, read_to_string};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use pitwheel::{Context, Job, Worker};
use pitwheel_testkit::{ChildProcess, Http, HttpResponse, ScratchFolder, block_until, is_listening, signal};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::support::{Db, Output, Result, pitwheel};

/// A `pitwheel dev` that is ready, and what it printed.
struct Dev {
    process: ChildProcess,
    out: BufReader<ChildStdout>,
    page: String,
    url: String,
}

impl Dev {
    fn start(folder: &Path, dir: &Path) -> Result<Dev> {
        let dir = dir.to_str().ok_or("the path is not UTF-8")?;
        Dev::of(&pitwheel(folder, &["dev", "--dir", dir, "--listen", "127.0.0.1:0"]))
    }

    fn of(command: &Command) -> Result<Dev> {
        let mut process = ChildProcess::spawn(command, Stdio::piped(), Stdio::piped())?;
        let mut out = BufReader::new(process.take_stdout()?);
        let mut page = String::new();
        while !page.contains("Ctrl-C") {
            if out.read_line(&mut page)? == 0 {
                return Err(format!("not ready: {page} {}", read_to_string(process.take_stderr()?)?).into());
            }
        }
        let mut dev = Dev { process, out, page, url: String::new() };
        dev.url = dev.line("postgres")?;
        Ok(dev)
    }

    /// What is printed after `name`.
    fn line(&self, name: &str) -> Result<String> {
        let mut lines = self.page.lines().map(str::trim);
        let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix("  "));
        Ok(found.ok_or_else(|| format!("no {name}: {}", self.page))?.trim().to_owned())
    }

    /// The address of the server.
    fn address(&self) -> Result<SocketAddr> {
        Ok(self.line("grpc")?.parse()?)
    }

    fn end(mut self, signal: &str) -> Result<Output> {
        self.process.signal(signal)?;
        let out = self.page + &read_to_string(self.out)?;
        let err = read_to_string(self.process.take_stderr()?)?;
        Ok(Output { code: self.process.wait()?.code(), out, err })
    }
}

fn get(address: SocketAddr, path: &str) -> Result<HttpResponse> {
    Ok(Runtime::new()?.block_on(Http::new(address).get(path))?)
}

#[test]
fn dev_is_ready_when_it_says_so_keeps_its_data_and_leaves_nothing_running() -> Result {
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

/// The job of the command that `pitwheel dev` prints.
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
    let (folder, dir) = (ScratchFolder::create()?, ScratchFolder::missing());
    let dev = Dev::of(
        pitwheel(folder.path(), &["dev", "--listen", "127.0.0.1:0"]).env("PITWHEEL_DEV_DIR", dir.path()),
    )?;
    let (url, grpc) = (dev.url.clone(), dev.address()?);
    assert_eq!(dev.line("http")?, format!("http://{grpc}/api/openapi.json"));
    assert_eq!(get(grpc, "/api/openapi.json")?.status, 200);

    // The commands that it printed, typed in another terminal.
    let next = dev.page.split("second terminal:\n").nth(1).ok_or("no next command")?;
    let mut commands = next.lines().map(str::trim).take_while(|line| !line.is_empty());
    let mut type_next = || -> Result<Output> {
        let line = commands.next().ok_or("no command")?;
        assert!(!line.contains("postgres://"), "{line}");
        let mut sh = Command::new("/bin/sh");
        sh.args(["-c", line]).current_dir(folder.path()).env_remove("DATABASE_URL");
        Output::of(sh.env("PITWHEEL_DEV_DIR", dir.path()))?.with_code(0)
    };
    let id = type_next()?.out.trim().to_owned();
    assert!(type_next()?.out.contains("waiting  greet"));

    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = Worker::remote(&format!("http://{grpc}")).queue("default", 1).handle(greet);
    let runtime = Runtime::new()?;
    let working = runtime.spawn(worker.run(async move { stopped.await.unwrap_or_default() }));
    block_until("the job is done", || {
        let job = get(grpc, &format!("/api/v1/jobs/{id}")).and_then(|response| Ok(response.json()?));
        job.is_ok_and(|job| job["state"] == json!("done"))
    })?;
    let _ = stop.send(());
    runtime.block_on(working)??;

    dev.end("TERM")?.with_code(0)?;
    assert!(!is_listening(&url));
    assert!(!dir.path().join("data/postmaster.pid").exists());
    assert!(TcpStream::connect(grpc).is_err());
    Ok(())
}

#[test]
fn dev_stops_while_a_worker_is_connected() -> Result {
    let (folder, dir) = (ScratchFolder::create()?, ScratchFolder::missing());
    let dev = Dev::start(folder.path(), dir.path())?;
    let (url, grpc) = (dev.url.clone(), dev.address()?);
    let worker = Worker::remote(&format!("http://{grpc}")).queue("default", 1).handle(greet);
    let runtime = Runtime::new()?;
    let working = runtime.spawn(worker.run(std::future::pending()));
    let list = ["--database-url", &url, "workers", "list"];
    block_until("it is connected", || {
        Output::of(&mut pitwheel(folder.path(), &list)).is_ok_and(|output| output.out.contains("grpc"))
    })?;

    dev.end("TERM")?.with_code(0)?;
    assert!(!is_listening(&url));
    working.abort();
    Ok(())
}

#[test]
fn a_port_in_use_is_reported_before_anything_starts() -> Result {
    let (db, dir) = (Db::migrated()?, ScratchFolder::missing());
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let dev = ["dev", "--dir", dir.path().to_str().ok_or("the path is not UTF-8")?, "--listen", &address];
    for args in [&dev[..], &["serve", "--listen", &address]] {
        let refused = db.run(args)?.with_code(1)?;
        refused.assert_error(&format!("port {} is in use", taken.local_addr()?.port()));
        refused.assert_error("--listen 127.0.0.1:0");
    }
    assert!(!dir.path().exists());
    Ok(())
}

#[test]
fn dev_serves_the_database_you_name_and_starts_none() -> Result {
    let db = Db::empty()?;
    let dev = Dev::of(&db.command(&["dev", "--listen", "127.0.0.1:0"]))?;
    assert_eq!(get(dev.address()?, "/readyz")?.status, 200);
    assert_eq!(db.json(&["migrate", "status"])?["state"], json!("current"));
    let ended = dev.end("TERM")?.with_code(0)?;
    assert!(ended.err.contains("the database that DATABASE_URL names"), "{ended:#?}");
    assert!(!ended.out.contains(&db.url) && !ended.err.contains(&db.url), "{ended:#?}");

    let both = db.run(&["dev", "--dir", "here", "--database-url", &db.url])?.with_code(2)?;
    both.assert_error("give one of them");
    Ok(())
}
