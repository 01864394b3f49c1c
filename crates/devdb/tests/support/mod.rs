//! What the tests of this crate share: another process that owns a server, and the processes of Postgres.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pitwheel_devdb::{Options, Server};
use pitwheel_testkit::ChildProcess;

pub(crate) type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Set in a process that has to own a server until it is killed: the server's folder, or `temporary`.
const OWNER: &str = "PITWHEEL_DEVDB_TEST_OWNER";

/// The process id of the postmaster.
pub(crate) fn postmaster(server_dir: &Path) -> Result<u32> {
    let file = fs::read_to_string(server_dir.join("data/postmaster.pid"))?;
    Ok(file.lines().next().ok_or("the pid file is empty")?.parse()?)
}

/// A command that runs as the user of Postgres.
pub(crate) fn as_postgres(server_dir: &Path, program: impl AsRef<Path>) -> Result<Command> {
    let owner = fs::metadata(server_dir.join("data"))?;
    let mut command = Command::new(program.as_ref());
    command.current_dir("/");
    if owner.uid() != fs::metadata(std::env::current_exe()?)?.uid() {
        command.uid(owner.uid()).gid(owner.gid());
    }
    Ok(command)
}

/// Another process that owns a server.
pub(crate) struct Owner {
    pub(crate) process: ChildProcess,
    pub(crate) url: String,
    pub(crate) dir: PathBuf,
}

impl Owner {
    /// Starts an owner of a server in `folder`, or of a temporary one, and waits until the server runs.
    pub(crate) fn spawn(folder: Option<&Path>) -> Result<Owner> {
        let mut process = spawn_owner(folder.unwrap_or(Path::new("temporary")), Stdio::piped())?;
        for line in BufReader::new(process.take_stdout()?).lines() {
            if let Some((_, fields)) = line?.split_once("owner: ") {
                let (url, dir) = fields.split_once(' ').ok_or("no folder")?;
                return Ok(Owner { process, url: url.to_owned(), dir: dir.into() });
            }
        }
        Err(format!("the owner started no server: {}", process.wait()?).into())
    }
}

/// Starts this test binary's test `owner_process` as an owner. It prints `owner: `, the URL and the folder.
pub(crate) fn spawn_owner(folder: &Path, stdout: Stdio) -> Result<ChildProcess> {
    Ok(ChildProcess::spawn_test("owner_process", [(OWNER, folder)], stdout)?)
}

/// The test `owner_process`. Does nothing unless it runs as an owner.
pub(crate) fn own_until_killed() -> Result {
    let Some(folder) = std::env::var_os(OWNER) else {
        return Ok(());
    };
    let options = if folder == "temporary" { Options::temporary() } else { Options::kept(folder) };
    let server = Server::start(options)?;
    println!("\nowner: {} {}", server.url(), server.dir().display());
    loop {
        std::thread::park();
    }
}
