//! A program that ends with this process, even when this process is killed.
//!
//! A small shell script between the two holds a pipe to this process. No library does this: a parent-death signal exists on
//! Linux only, and is lost when the child changes its user.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::account::Account;
use crate::error::Error;

const SCRIPT: &str = include_str!("supervise.sh");

/// How often to check for an event. Short, because every test that starts a server waits for it.
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// How long a stop may take. The script asks for a fast shutdown for 30 s, then for an immediate one, which takes up to 5 s.
const END_LIMIT: Duration = Duration::from_secs(45);

/// A supervised program. When this is dropped, the program is stopped and waited for.
#[derive(Debug)]
pub(crate) struct Supervisor {
    shell: Child,
    /// When it closes, because we drop it or because this process ends, the program is stopped. Other children close it at
    /// their exec.
    pipe: Option<ChildStdin>,
}

impl Supervisor {
    /// Runs `command` as `account`, with its output in `log`. The folder `removed` is removed if this process ends first.
    pub(crate) fn spawn(
        account: &Account,
        command: Vec<OsString>,
        log: File,
        removed: Option<&Path>,
    ) -> Result<Supervisor, Error> {
        let sh = Path::new("/bin/sh");
        let errors = log.try_clone().map_err(Error::io("open", Path::new("log")))?;
        let mut shell = account.command(sh);
        shell.args(["-c", SCRIPT, "pitwheel-devdb"]).arg(removed.unwrap_or(Path::new("")).as_os_str());
        shell.args(command).stdin(Stdio::piped()).stdout(log).stderr(errors);
        // A process group of its own: Ctrl-C in the terminal must not stop Postgres before this process has finished with it.
        shell.process_group(0);
        let mut shell = shell.spawn().map_err(Error::io("run", sh))?;
        let pipe = shell.stdin.take();
        Ok(Supervisor { shell, pipe })
    }

    /// How the program ended; `None` while it runs.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        // An error means that there is no such child: it is not running.
        self.shell.try_wait().unwrap_or_else(|_| Some(ExitStatus::default()))
    }

    /// Waits for the program to end; `None` when it has not ended by `deadline`.
    pub(crate) fn wait_until(&mut self, deadline: Instant) -> Option<ExitStatus> {
        loop {
            match self.ended() {
                Some(status) => return Some(status),
                None if Instant::now() >= deadline => return None,
                None => thread::sleep(POLL),
            }
        }
    }

    /// Ends the program with an immediate shutdown and waits for it. The folder stays.
    pub(crate) fn crash(mut self) {
        if let Some(pipe) = &mut self.pipe {
            // An error means that the shell has ended, and the program with it.
            let _: io::Result<()> = pipe.write_all(b"crash\n");
        }
        self.wait_until(Instant::now() + END_LIMIT);
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.pipe = None;
        self.wait_until(Instant::now() + END_LIMIT);
    }
}
