//! The postmaster that a data folder says it has: ready, left by a killed owner, or long dead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::account::Account;
use crate::error::Error;
use crate::programs::Programs;
use crate::supervisor::POLL;

/// How long `pg_ctl` waits for a fast, then for an immediate stop.
const STOP_SECONDS: &str = "30";

/// How long after creating its pid file a postmaster has surely written to it.
const WRITTEN_BY_THEN: Duration = Duration::from_secs(2);

/// How long backends may outlive a killed postmaster; they notice when they next wait for something.
const BACKENDS_LIMIT: Duration = Duration::from_secs(20);

/// What `postmaster.pid` says. Postgres writes it line by line while it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PidFile {
    text: String,
}

impl PidFile {
    /// `None` when there is none.
    pub(crate) fn read(data: &Path) -> Option<PidFile> {
        fs::read_to_string(path(data)).ok().map(|text| PidFile { text })
    }

    /// Whether it tells of a server that takes connections on `port`.
    pub(crate) fn is_ready(&self, port: u16) -> bool {
        self.line(3) == Some(port.to_string().as_str()) && self.line(7) == Some("ready")
    }

    fn pid(&self) -> Option<u32> {
        // A negative number is a single-user session's.
        self.line(0)?.parse::<i64>().ok().and_then(|pid| u32::try_from(pid.abs()).ok())
    }

    fn line(&self, number: usize) -> Option<&str> {
        self.text.lines().nth(number).map(str::trim)
    }
}

/// Stops the postmaster of `data` if one runs: that of an owner who was killed together with its supervisor.
/// Then sees to it that `postmaster.pid` does not keep the next one from starting.
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
        // Whether it worked is read from the process itself: it may have ended before `pg_ctl` looked.
        let _ = stop.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
    if is_postmaster(pid, data) {
        return Err(Error::StillRunning { dir: data.to_owned(), pid });
    }
    if is_alive(pid) {
        // The number is another program's by now, or that of a dead process whose parent took no note: Postgres
        // could take either for a postmaster. Otherwise the file stays: from it Postgres learns of backends
        // that outlive a killed postmaster, which without it is for us to do.
        wait_for_backends(data)?;
        return remove(data);
    }
    Ok(())
}

/// Waits until no process of Postgres works in `data`. Where there is no `/proc`, that cannot be known.
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

/// A process of Postgres that works in `data`.
fn process_in(data: &Path) -> Option<u32> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(|pid| {
        let is_postgres =
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "postgres");
        is_postgres && works_in(*pid, data)
    })
}

fn works_in(pid: u32, data: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|folder| folder == data)
}

/// Removes a pid file without a pid, unless it is so new that a postmaster may be writing it right now.
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

/// Whether process `pid` is the postmaster of `data`. A number alone proves nothing: it may be another's by now.
fn is_postmaster(pid: u32, data: &Path) -> bool {
    if has_proc() {
        // A postmaster works in its data folder.
        return works_in(pid, data);
    }
    arguments_of(pid).is_some_and(|arguments| arguments.contains(&*data.to_string_lossy()))
}

fn is_alive(pid: u32) -> bool {
    if has_proc() { Path::new(&format!("/proc/{pid}")).exists() } else { arguments_of(pid).is_some() }
}

fn has_proc() -> bool {
    Path::new("/proc/self/cwd").exists()
}

/// The command line of process `pid`, where there is no `/proc` to look into.
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
