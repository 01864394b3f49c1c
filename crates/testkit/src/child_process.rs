//! Child processes that end with the test, also when the test run is killed.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};

const END_WITH_OWNER: &str = include_str!("end_with_owner.sh");

/// A child process. It is killed when this value is dropped, and when this process ends, however it ends.
pub struct ChildProcess {
    child: Child,
    /// When this socket closes, the watcher kills the child.
    watcher: UnixStream,
}

impl ChildProcess {
    /// Starts a program with the arguments, environment and folder of the command. Its standard input is empty.
    pub fn spawn(command: &Command, stdout: Stdio, stderr: Stdio) -> Result<ChildProcess> {
        let (mut watcher, watcher_stdin) = UnixStream::pair()?;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", END_WITH_OWNER, "pitwheel-child"]).arg(command.get_program());
        shell.args(command.get_args()).stdin(OwnedFd::from(watcher_stdin)).stdout(stdout).stderr(stderr);
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            shell.current_dir(folder);
        }
        let child = shell.spawn()?;
        drop(shell);
        // A child that is stopped before its watcher runs would stay for ever.
        watcher.read_exact(&mut [0; "watching\n".len()]).context("the watcher does not run")?;
        Ok(ChildProcess { child, watcher })
    }

    /// Starts this test binary again to run one test. The variables tell that test that it runs as a child.
    pub fn spawn_test<V: AsRef<OsStr>>(
        name: &str,
        variables: impl IntoIterator<Item = (&'static str, V)>,
        stdout: Stdio,
    ) -> Result<ChildProcess> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--exact", name, "--nocapture"]).envs(variables);
        ChildProcess::spawn(&command, stdout, Stdio::null())
    }

    /// The process id of the program.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The program's output, if it was piped and not taken before.
    pub fn take_stdout(&mut self) -> Result<ChildStdout> {
        self.child.stdout.take().context("standard output is not piped")
    }

    /// The program's errors, if they were piped and not taken before.
    pub fn take_stderr(&mut self) -> Result<ChildStderr> {
        self.child.stderr.take().context("standard error is not piped")
    }

    /// Sends the program a signal, for example `TERM`.
    pub fn signal(&self, name: &str) -> Result<()> {
        signal(name, self.id())
    }

    /// Kills the program and waits until it has ended.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Whether the program has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits until the program ends.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait()?)
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.kill();
        let _ = self.watcher.write_all(b"ended\n");
    }
}

/// Sends a signal, for example `TERM`, to a process.
pub fn signal(name: &str, pid: u32) -> Result<()> {
    let mut kill = Command::new("/bin/sh");
    kill.args(["-c", &format!("kill -s {name} {pid}")]).stderr(Stdio::null());
    ensure!(kill.status()?.success(), "signal {name} was not sent: there is no process {pid}");
    Ok(())
}

/// Whether a process runs. One that has ended and that its parent has not waited for yet does not run.
pub fn is_alive(pid: u32) -> bool {
    let ended = fs::read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("State:\tZ")));
    !ended && signal("0", pid).is_ok()
}
