//! The postmaster that `postmaster.pid` of a data folder names: ready, left by a killed owner, or dead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::account::Account;
use crate::error::Error;
use crate::programs::Programs;
use crate::supervisor::POLL;

/// How long `pg_ctl` waits for a fast shutdown, and then for an immediate one.
const STOP_SECONDS: &str = "30";

/// A postmaster has written its process id at most this long after it created the file.
const WRITTEN_BY_THEN: Duration = Duration::from_secs(2);

/// How long a postmaster may run after it removed its pid file.
const EXIT_LIMIT: Duration = Duration::from_secs(5);

/// How long backends may run after their postmaster was killed. They notice it at their next wait.
const BACKENDS_LIMIT: Duration = Duration::from_secs(20);

/// The text of `postmaster.pid`. Postgres writes it line by line while it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PidFile {
    text: String,
}

impl PidFile {
    /// `None` when there is no such file.
    pub(crate) fn read(data: &Path) -> Option<PidFile> {
        fs::read_to_string(path(data)).ok().map(|text| PidFile { text })
    }

    /// Whether it describes a server that accepts connections on `port`.
    pub(crate) fn is_ready(&self, port: u16) -> bool {
        self.line(3) == Some(port.to_string().as_str()) && self.line(7) == Some("ready")
    }

    fn pid(&self) -> Option<u32> {
        // The number is negative for a server in single-user mode.
        self.line(0)?.parse::<i64>().ok().and_then(|pid| u32::try_from(pid.abs()).ok())
    }

    fn line(&self, number: usize) -> Option<&str> {
        self.text.lines().nth(number).map(str::trim)
    }
}

/// The process id of the postmaster of `data`, if one runs.
pub(crate) fn running(data: &Path) -> Option<u32> {
    PidFile::read(data)?.pid().filter(|&pid| is_postmaster(pid, data))
}

/// Waits for a postmaster that stops. It removes its pid file shortly before it ends.
pub(crate) fn wait_for_exit(pid: u32) {
    let deadline = Instant::now() + EXIT_LIMIT;
    while is_alive(pid) && !is_zombie(pid) && Instant::now() < deadline {
        thread::sleep(POLL);
    }
}

/// Stops the postmaster of `data` if one runs: its owner and its supervisor were killed together. Then makes sure that
/// `postmaster.pid` does not keep the next one from starting.
pub(crate) fn clear(data: &Path, programs: &Programs, account: &Account) -> Result<(), Error> {
    let Some(file) = PidFile::read(data) else {
        return Ok(());
    };
    let Some(pid) = file.pid() else {
        return remove_if_old(data);
    };
    for mode in ["fast", "immediate"] {
        if !is_postmaster(pid, data) {
            break;
        }
        let mut stop = account.command(programs.path("pg_ctl"));
        stop.args(["stop", "-w", "-t", STOP_SECONDS, "-m", mode, "-D"]).arg(data);
        // The result is ignored: the process may end before `pg_ctl` looks for it. The next check decides.
        let _ = stop.stdout(Stdio::null()).stderr(Stdio::null()).status();
        wait_for_exit(pid);
    }
    if is_postmaster(pid, data) {
        return Err(Error::StillRunning { dir: data.to_owned(), pid });
    }
    if is_alive(pid) {
        // The process id now belongs to another program, or to a zombie: Postgres could mistake either for a postmaster, so the
        // file is removed. Postgres reads from it whether backends of a killed postmaster still run; without it, that is
        // checked here.
        wait_for_backends(data)?;
        return remove(data);
    }
    Ok(())
}

/// Waits until no Postgres process runs in `data`. Without `/proc` this cannot be known, and it does not wait.
fn wait_for_backends(data: &Path) -> Result<(), Error> {
    let deadline = Instant::now() + BACKENDS_LIMIT;
    while let Some(pid) = process_in(data) {
        if Instant::now() >= deadline {
            return Err(Error::StillRunning { dir: data.to_owned(), pid });
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// The id of a Postgres process whose working folder is `data`.
fn process_in(data: &Path) -> Option<u32> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(|pid| {
        let is_postgres =
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "postgres");
        is_postgres && runs_in(*pid, data)
    })
}

fn runs_in(pid: u32, data: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|folder| folder == data)
}

/// Removes a pid file without a process id, unless it is so new that a postmaster may still be writing it.
fn remove_if_old(data: &Path) -> Result<(), Error> {
    let written = fs::metadata(path(data)).and_then(|file| file.modified());
    let old = written.is_ok_and(|written| written.elapsed().is_ok_and(|age| age > WRITTEN_BY_THEN));
    if old { remove(data) } else { Ok(()) }
}

fn remove(data: &Path) -> Result<(), Error> {
    match fs::remove_file(path(data)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove", &path(data))(error))
        }
        _ => Ok(()),
    }
}

fn path(data: &Path) -> PathBuf {
    data.join("postmaster.pid")
}

/// Whether process `pid` is the postmaster of `data`. The id alone is no proof: another process may have it by now.
fn is_postmaster(pid: u32, data: &Path) -> bool {
    if has_proc() {
        // The data folder is the working folder of a postmaster.
        return runs_in(pid, data);
    }
    arguments_of(pid).is_some_and(|arguments| arguments.contains(&*data.to_string_lossy()))
}

fn is_alive(pid: u32) -> bool {
    if has_proc() { Path::new(&format!("/proc/{pid}")).exists() } else { arguments_of(pid).is_some() }
}

/// Whether process `pid` has ended and its parent has not noticed.
fn is_zombie(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("State:\tZ")))
}

fn has_proc() -> bool {
    Path::new("/proc/self/cwd").exists()
}

/// The command line of process `pid`, for systems without `/proc`.
fn arguments_of(pid: u32) -> Option<String> {
    let ps = Command::new("ps").args(["-o", "args=", "-p", &pid.to_string()]).output().ok()?;
    let arguments = String::from_utf8_lossy(&ps.stdout).trim().to_owned();
    (!arguments.is_empty()).then_some(arguments)
}

#[cfg(test)]
mod tests {
    use super::PidFile;

    #[test]
    fn a_pid_file_is_ready_only_when_it_is_whole() {
        let whole = "42\n/data\n1700000000\n15500\n/socket\n127.0.0.1\n  1 2\nready   \n";
        let file = |text: &str| PidFile { text: text.to_owned() };

        assert!(file(whole).is_ready(15_500));
        assert!(!file(whole).is_ready(15_501));
        assert!(!file(&whole.replace("ready", "starting")).is_ready(15_500));
        assert!(!file("42\n/data\n").is_ready(15_500));
        assert!(!file("").is_ready(15_500));
        assert_eq!(file(whole).pid(), Some(42));
        assert_eq!(file("").pid(), None);
    }
}
