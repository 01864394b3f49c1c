//! What the tests of this crate share: sessions, processes to kill, folders to break.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pitwheel_devdb::{Options, Programs, Server};

pub(crate) type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Set in a process that is to own a server and wait to be killed: its folder, or `temporary`.
pub(crate) const OWNER: &str = "PITWHEEL_DEVDB_TEST_OWNER";

/// How long anything that has no barrier may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder for a kept server, removed at the end of the test.
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

/// The postmaster's process id.
pub(crate) fn postmaster(server_dir: &Path) -> Result<u32> {
    let file = fs::read_to_string(server_dir.join("data/postmaster.pid"))?;
    Ok(file.lines().next().ok_or("an empty pid file")?.parse()?)
}

/// A command as the user that Postgres runs as.
pub(crate) fn as_postgres(server_dir: &Path, program: impl AsRef<Path>) -> Result<Command> {
    let owner = fs::metadata(server_dir.join("data"))?;
    let mut command = Command::new(program.as_ref());
    command.current_dir("/");
    if owner.uid() != fs::metadata(std::env::current_exe()?)?.uid() {
        command.uid(owner.uid()).gid(owner.gid());
    }
    Ok(command)
}

/// Sends `signal` to process `pid`.
pub(crate) fn signal(signal: &str, pid: u32) -> Result {
    let mut kill = Command::new("/bin/sh");
    kill.args(["-c", &format!("kill -s {signal} {pid}")]).stderr(Stdio::null());
    if kill.status()?.success() { Ok(()) } else { Err(format!("no process {pid}").into()) }
}

/// Whether process `pid` runs. One that has ended is there until its parent, which may be slow, takes note.
pub(crate) fn is_alive(pid: u32) -> bool {
    let ended = fs::read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("State:\tZ")));
    !ended && signal("0", pid).is_ok()
}

/// Whether somebody listens on `port`.
pub(crate) fn answers(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
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

/// Another process that owns a server.
pub(crate) struct Owner {
    pub(crate) process: Child,
    pub(crate) url: String,
    pub(crate) dir: PathBuf,
    _stdin: Option<ChildStdin>,
}

impl Owner {
    /// Runs this test binary's test named `owner_process` again, as the owner of `folder` or of a temporary server.
    pub(crate) fn spawn(folder: Option<&Path>) -> Result<Owner> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--exact", "owner_process", "--nocapture"])
            .env(OWNER, folder.unwrap_or(Path::new("temporary")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().ok_or("no output")?;
        let stdin = process.stdin.take();
        for line in BufReader::new(output).lines() {
            if let Some((_, fields)) = line?.split_once("owner: ") {
                let (url, dir) = fields.split_once(' ').ok_or("no folder")?;
                return Ok(Owner { process, url: url.to_owned(), dir: dir.into(), _stdin: stdin });
            }
        }
        Err(format!("the owner started no server: {}", process.wait()?).into())
    }

    pub(crate) fn kill(&mut self) -> Result {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// What the test `owner_process` does: nothing, unless it runs as another test's [`Owner`].
pub(crate) fn own_until_killed() -> Result {
    let Some(folder) = std::env::var_os(OWNER) else {
        return Ok(());
    };
    let options = if folder == "temporary" { Options::temporary() } else { Options::kept(folder) };
    let server = Server::start(options)?;
    println!("\nowner: {} {}", server.url(), server.dir().display());
    // Ends when the test that spawned us does, should it not kill us.
    std::io::stdin().read_line(&mut String::new())?;
    server.stop()?;
    Ok(())
}

pub(crate) fn port_of(url: &str) -> Result<u16> {
    let port = url.rsplit_once(':').and_then(|(_, rest)| rest.split_once('/')).ok_or("no port")?.0;
    Ok(port.parse()?)
}
