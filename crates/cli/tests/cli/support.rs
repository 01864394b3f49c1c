//! What the tests of the binary share: a database each, calls of the binary, and `pitwheel serve` in the background.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use pitwheel_testkit::{ChildProcess, Database, Http, HttpResponse, ScratchFolder};
use serde_json::Value;
use tokio::runtime::Runtime;

pub(crate) type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// A database for one test, and a folder in which the binary is called.
pub(crate) struct Db {
    pub(crate) url: String,
    _database: Database,
    folder: ScratchFolder,
}

impl Db {
    /// A database without the schema.
    pub(crate) fn empty() -> Result<Db> {
        Db::on(Runtime::new()?.block_on(Database::empty())?)
    }

    /// A database with the schema.
    pub(crate) fn migrated() -> Result<Db> {
        Db::on(Runtime::new()?.block_on(Database::migrated())?)
    }

    fn on(database: Database) -> Result<Db> {
        Ok(Db { url: database.url().to_owned(), _database: database, folder: ScratchFolder::create()? })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A call of the binary with this database in its environment, and without other settings.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = pitwheel(self.folder(), args);
        command.env("DATABASE_URL", &self.url);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Result<Output> {
        Output::of(&mut self.command(args))
    }

    pub(crate) fn run_with_input(&self, args: &[&str], input: &[u8]) -> Result<Output> {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        // The binary may refuse the input before it has read all of it.
        let _ = child.stdin.take().ok_or("standard input is not piped")?.write_all(input);
        Output::new(&child.wait_with_output()?)
    }

    /// Enqueues a job; returns its id.
    pub(crate) fn enqueue(&self, args: &[&str]) -> Result<i64> {
        let output = self.run(&[&["jobs", "enqueue"], args].concat())?.with_code(0)?;
        Ok(output.out.trim().parse()?)
    }

    /// The output of a command with `-o json`.
    pub(crate) fn json(&self, args: &[&str]) -> Result<Value> {
        self.run(&[args, &["-o", "json"]].concat())?.with_code(0)?.json()
    }
}

/// A call of the binary in `folder`, without the settings of the user who runs the tests.
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

/// The output of a call of the binary, and its exit code.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Output {
    pub(crate) fn of(command: &mut Command) -> Result<Output> {
        Output::new(&command.output()?)
    }

    pub(crate) fn new(output: &std::process::Output) -> Result<Output> {
        Ok(Output {
            code: output.status.code(),
            out: String::from_utf8(output.stdout.clone())?,
            err: String::from_utf8(output.stderr.clone())?,
        })
    }

    pub(crate) fn with_code(self, code: i32) -> Result<Output> {
        if self.code == Some(code) {
            return Ok(self);
        }
        Err(format!("expected exit code {code}: {self:#?}").into())
    }

    pub(crate) fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.out).map_err(|error| format!("{error}: {self:#?}").into())
    }

    /// Panics unless standard error is one line, an error that contains these words.
    #[track_caller]
    pub(crate) fn assert_error(&self, words: &str) {
        assert!(self.err.starts_with("error: ") && self.err.contains(words), "no {words:?}: {self:#?}");
        assert_eq!(self.err.lines().count(), 1, "{self:#?}");
    }
}

/// A `pitwheel serve` that has printed where it listens.
pub(crate) struct Node {
    pub(crate) process: ChildProcess,
    /// Where this machine reaches it.
    pub(crate) address: SocketAddr,
}

impl Node {
    pub(crate) fn start(db: &Db, listen: &str, args: &[&str]) -> Result<Node> {
        Node::of(&db.command(&[&["serve", "--listen", listen], args].concat()), Stdio::null())
    }

    pub(crate) fn of(command: &Command, stderr: Stdio) -> Result<Node> {
        let mut process = ChildProcess::spawn(command, Stdio::piped(), stderr)?;
        let mut line = String::new();
        BufReader::new(process.take_stdout()?).read_line(&mut line)?;
        let address = line.split_whitespace().find_map(|word| word.strip_suffix('.')?.rsplit_once(':'));
        let (_, port) = address.ok_or_else(|| format!("no address: {line:?}"))?;
        Ok(Node { process, address: format!("127.0.0.1:{port}").parse()? })
    }

    /// Sends a signal and waits for the end; returns the exit code.
    pub(crate) fn end(mut self, signal: &str) -> Result<Option<i32>> {
        self.process.signal(signal)?;
        Ok(self.process.wait()?.code())
    }

    /// The response to a `GET`, with a token or without.
    pub(crate) fn get(&self, path: &str, token: Option<&str>) -> Result<HttpResponse> {
        let http = Http::new(self.address);
        let http = token.map_or(http.clone(), |token| http.token(token));
        Ok(Runtime::new()?.block_on(http.get(path))?)
    }
}

/// Whether a process has these words on its command line.
pub(crate) fn process_exists(words: &str) -> bool {
    let lines = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.into_iter().any(|line| line.contains(words))
}
