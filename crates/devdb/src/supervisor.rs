//! A program that ends with us, even when we are killed: a small shell between us and it holds a pipe to us.

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

/// How often to look whether something has come about. Short: every test that starts a server waits for it.
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// How long a stop may take. The script stops gently for 30 s and then by force, which Postgres ends in 5 s.
const END_LIMIT: Duration = Duration::from_secs(45);

/// A supervised program. Dropped: the program is stopped and waited for.
#[derive(Debug)]
pub(crate) struct Supervisor {
    shell: Child,
    /// Closed, by us or by our death, it stops the program. Every child of ours closes it as it execs.
    pipe: Option<ChildStdin>,
}

impl Supervisor {
    /// Runs `command` as `account`, its output to `log`. `removed` is removed when we end before it does.
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
        // Its own group: a Ctrl-C in the terminal is for us, who may still need the database to end well.
        shell.process_group(0);
        let mut shell = shell.spawn().map_err(Error::io("run", sh))?;
        let pipe = shell.stdin.take();
        Ok(Supervisor { shell, pipe })
    }

    /// How the program ended; `None` while it runs.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        // An error means that there is no such child, so that nothing runs.
        self.shell.try_wait().unwrap_or_else(|_| Some(ExitStatus::default()))
    }

    /// Waits for the program to end by itself; `None` when it has not by `deadline`.
    pub(crate) fn wait_until(&mut self, deadline: Instant) -> Option<ExitStatus> {
        loop {
            match self.ended() {
                Some(status) => return Some(status),
                None if Instant::now() >= deadline => return None,
                None => thread::sleep(POLL),
            }
        }
    }

    /// Crashes the program and waits until it has ended. The folder stays.
    pub(crate) fn crash(mut self) {
        if let Some(pipe) = &mut self.pipe {
            // A shell that has ended cannot be written to, and then there is nothing to crash.
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
