//! What the tests share: a Postgres, a database each, and the binary.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pitwheel_devdb::{Options, Programs, Server};
use serde_json::Value;

pub(crate) type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// How long anything that has no barrier may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One for all tests; its supervisor stops it with this process.
fn server() -> Result<&'static Server> {
    static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();
    let started =
        SERVER.get_or_init(|| Server::start(Options::temporary()).map_err(|error| error.to_string()));
    Ok(started.as_ref().map_err(String::as_str)?)
}

/// A folder that is gone after the test.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch(Options::temporary().dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A database of one test, and a folder to call from.
pub(crate) struct Db {
    pub(crate) url: String,
    folder: Scratch,
}

impl Db {
    /// An empty database.
    pub(crate) fn empty() -> Result<Db> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("cli_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let server = server()?;
        query(&server.url(), &format!("create database {name}"))?;
        let folder = Scratch::new();
        fs::create_dir(&folder.0)?;
        let url = format!("postgres://postgres@127.0.0.1:{}/{name}", server.port());
        Ok(Db { url, folder })
    }

    /// A database with the schema in it.
    pub(crate) fn migrated() -> Result<Db> {
        let db = Db::empty()?;
        db.run(&["migrate", "up"])?.with_code(0)?;
        Ok(db)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// The binary, with this database in its environment and nothing else that could sway it.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = pitwheel(self.folder(), args);
        command.env("DATABASE_URL", &self.url);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Result<Ran> {
        Ran::of(&mut self.command(args))
    }

    pub(crate) fn run_with_input(&self, args: &[&str], input: &[u8]) -> Result<Ran> {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        // It may refuse before it has read all.
        let _ = child.stdin.take().ok_or("no input")?.write_all(input);
        Ran::new(&child.wait_with_output()?)
    }

    /// Enqueues a job and gives its id.
    pub(crate) fn enqueue(&self, args: &[&str]) -> Result<i64> {
        let ran = self.run(&[&["jobs", "enqueue"], args].concat())?.with_code(0)?;
        Ok(ran.out.trim().parse()?)
    }

    /// What a command answers with `-o json`.
    pub(crate) fn json(&self, args: &[&str]) -> Result<Value> {
        self.run(&[args, &["-o", "json"]].concat())?.with_code(0)?.json()
    }
}

/// The binary in `folder`, apart from the settings of whoever runs the tests.
pub(crate) fn pitwheel(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pitwheel"));
    command.args(args).current_dir(folder).stdin(Stdio::null());
    for name in ["DATABASE_URL", "NO_COLOR", "RUST_LOG"] {
        command.env_remove(name);
    }
    let ours = env::vars_os().map(|(name, _)| name);
    for name in ours.filter(|name| name.to_string_lossy().starts_with("PITWHEEL_")) {
        command.env_remove(name);
    }
    command.env("XDG_CONFIG_HOME", folder.join("configuration")).env("TERM", "xterm");
    command
}

/// How a call of the binary ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn of(command: &mut Command) -> Result<Ran> {
        Ran::new(&command.output()?)
    }

    pub(crate) fn new(output: &std::process::Output) -> Result<Ran> {
        Ok(Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout.clone())?,
            err: String::from_utf8(output.stderr.clone())?,
        })
    }

    pub(crate) fn with_code(self, code: i32) -> Result<Ran> {
        if self.code == Some(code) {
            return Ok(self);
        }
        Err(format!("expected exit code {code}: {self:#?}").into())
    }

    pub(crate) fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.out).map_err(|error| format!("{error}: {self:#?}").into())
    }

    /// That it said one line, an error that holds these words.
    #[track_caller]
    pub(crate) fn says_error(&self, words: &str) {
        assert!(self.err.starts_with("error: ") && self.err.contains(words), "no {words:?}: {self:#?}");
        assert_eq!(self.err.lines().count(), 1, "{self:#?}");
    }
}

/// A `pitwheel serve` that says where it listens.
pub(crate) struct Node {
    pub(crate) child: Child,
    /// Where this machine reaches it.
    pub(crate) address: String,
}

impl Node {
    pub(crate) fn start(db: &Db, listen: &str, args: &[&str]) -> Result<Node> {
        let mut command = db.command(&[&["serve", "--listen", listen], args].concat());
        Node::of(command.stderr(Stdio::null()))
    }

    pub(crate) fn of(command: &mut Command) -> Result<Node> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let address = line.split_whitespace().find_map(|word| word.strip_suffix('.')?.rsplit_once(':'));
        let (_, port) = address.ok_or_else(|| format!("no address: {line:?}"))?;
        Ok(Node { child, address: format!("127.0.0.1:{port}") })
    }

    pub(crate) fn end(mut self, with: &str) -> Result<Option<i32>> {
        signal(with, self.child.id())?;
        Ok(self.child.wait()?.code())
    }

    /// What it answers to a request without a body, and its status.
    pub(crate) fn get(&self, path: &str, token: Option<&str>) -> Result<(u16, String)> {
        get(TcpStream::connect(&self.address)?, path, token)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One request over a connection that is ready for it.
pub(crate) fn get(mut stream: impl Read + Write, path: &str, token: Option<&str>) -> Result<(u16, String)> {
    let token = token.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{token}\r\n")?;
    stream.flush()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| format!("no answer: {answer:?}"))?;
    let status = head.split_whitespace().nth(1).ok_or("no status")?.parse()?;
    Ok((status, body.to_owned()))
}

/// Runs `sql` through psql and gives its rows.
pub(crate) fn query(url: &str, sql: &str) -> Result<String> {
    let psql = Command::new(Programs::find()?.path("psql"))
        .args(["-X", "-At", "-v", "ON_ERROR_STOP=1", "-c", sql, url])
        .stdin(Stdio::null())
        .output()?;
    if !psql.status.success() {
        return Err(String::from_utf8_lossy(&psql.stderr).into_owned().into());
    }
    Ok(String::from_utf8_lossy(&psql.stdout).trim().to_owned())
}

/// Sends `signal` to process `pid`.
pub(crate) fn signal(signal: &str, pid: u32) -> Result {
    let status = Command::new("/bin/sh").args(["-c", &format!("kill -s {signal} {pid}")]).status()?;
    if status.success() { Ok(()) } else { Err(format!("no process {pid}").into()) }
}

/// Whether a live process has these words on its command line.
pub(crate) fn runs(words: &str) -> bool {
    let lines = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.into_iter().any(|line| line.contains(words))
}

/// Whether somebody listens where `url` points.
pub(crate) fn answers(url: &str) -> bool {
    let port = url.rsplit_once(':').and_then(|(_, rest)| rest.split_once('/')?.0.parse::<u16>().ok());
    port.is_some_and(|port| TcpStream::connect(("127.0.0.1", port)).is_ok())
}

/// Waits for something that other processes do in their own time.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Result {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        if Instant::now() > deadline {
            return Err(format!("not in {PATIENCE:?}: {what}").into());
        }
        thread::sleep(Duration::from_millis(20)); // between two looks
    }
    Ok(())
}
