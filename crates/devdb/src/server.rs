//! A running private Postgres.

use std::ffi::OsString;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::account::Account;
use crate::error::Error;
use crate::folder::{Folder, major_of};
use crate::log::Log;
use crate::options::Options;
use crate::port;
use crate::postmaster::{self, PidFile};
use crate::programs::Programs;
use crate::session::{self, Refusal};
use crate::supervisor::{POLL, Supervisor};

const USER: &str = "postgres";
const DATABASE: &str = "pitwheel";

/// How long a start may take. After a crash, recovery replays everything since the last checkpoint.
const START_LIMIT: Duration = Duration::from_secs(120);

/// How long `initdb` may take. It takes a second or two, unless the machine is very busy.
const INITDB_LIMIT: Duration = Duration::from_secs(300);

/// How long to wait before the next start after a temporary failure: a port in use, a server that is about to end.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// How many starts to try, over 20 s in all: the backends of a killed postmaster may take some seconds to end.
const START_TRIES: usize = 100;

/// A running private Postgres. It is stopped when this is dropped, and by its supervisor when this process is killed.
///
/// It has the database `pitwheel` and the superuser `postgres`, who needs no password.
#[derive(Debug)]
pub struct Server {
    // Dropped before the folder: Postgres must have ended when the folder is removed.
    supervisor: Option<Supervisor>,
    folder: Folder,
    account: Account,
    programs: Programs,
    settings: Vec<(String, String)>,
    port: u16,
}

/// The result of one attempt to start.
enum Started {
    Ready,
    PortTaken,
    /// Another postmaster, or backends of one, still use the data.
    DataInUse(Error),
}

/// A temporary failure of a start: the next one may succeed.
#[derive(Debug, PartialEq, Eq)]
enum TemporaryFailure {
    PortTaken,
    DataInUse,
}

impl Server {
    /// Starts a server and waits until it accepts connections.
    ///
    /// Cleans up after an owner that was killed: a server that still runs, a stale pid file, an unfinished `initdb`.
    /// [`Error::Owned`] when another process runs a server from the same folder.
    pub fn start(options: Options) -> Result<Server, Error> {
        let programs = match major_of(&options.dir) {
            Some(major) => Programs::for_data(&options.dir, major)?,
            None => Programs::find()?,
        };
        let account = Account::for_postgres()?;
        let folder = Folder::take(&options, &account)?;
        let settings = options.settings;
        let mut server = Server { supervisor: None, folder, account, programs, settings, port: 0 };
        if !server.folder.has_data() {
            server.create_data(options.temporary)?;
        }
        server.launch(None)?;
        Ok(server)
    }

    /// The URL of its database: `postgres://postgres@127.0.0.1:…/pitwheel`.
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{DATABASE}", self.port)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its folder, as an absolute path.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// The installed Postgres that it runs: `programs().path("psql")` is the matching `psql`.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Stops it with a fast shutdown: open transactions are rolled back, a checkpoint is written.
    ///
    /// Dropping it does the same, but cannot return [`Error::StillRunning`].
    pub fn stop(mut self) -> Result<(), Error> {
        self.end(false)
    }

    /// Crashes it with an immediate shutdown: no checkpoint is written, and the next start begins with recovery.
    ///
    /// Does nothing when the server is not running.
    pub fn crash(&mut self) -> Result<(), Error> {
        self.end(true)
    }

    /// Starts it again after [`Server::crash`], or after it ended by itself, with the same data, port and URL.
    ///
    /// Does nothing when the server is running.
    pub fn start_again(&mut self) -> Result<(), Error> {
        if self.supervisor.as_mut().is_some_and(|supervisor| supervisor.ended().is_none()) {
            return Ok(());
        }
        self.supervisor = None;
        self.launch(Some(self.port))
    }

    fn end(&mut self, crash: bool) -> Result<(), Error> {
        // First, so that no other process is given the URL of a server that stops. If it fails, the server is stopped all the
        // same.
        let announced = self.folder.announce(None);
        let postmaster = postmaster::running(&self.folder.data());
        match self.supervisor.take() {
            Some(supervisor) if crash => supervisor.crash(),
            supervisor => drop(supervisor),
        }
        // Postgres still runs only if the supervisor was killed.
        postmaster::clear(&self.folder.data(), &self.programs, &self.account)?;
        if let Some(pid) = postmaster {
            postmaster::wait_for_exit(pid);
        }
        announced
    }

    /// Runs `initdb` in a folder beside `data` and renames that: an `initdb` that was killed must not look finished.
    fn create_data(&self, temporary: bool) -> Result<(), Error> {
        let unfinished = self.folder.unfinished_data(&self.account)?;
        let mut command: Vec<OsString> = vec![self.programs.path("initdb").into()];
        command.extend(
            ["--auth=trust", "--encoding=UTF8", "--locale=C", "--username", USER].map(OsString::from),
        );
        if temporary {
            // The data need not survive a power failure.
            command.push("--no-sync".into());
        }
        command.extend(["--pgdata".into(), unfinished.clone().into_os_string()]);

        let (log, file) = Log::open(&self.folder.log())?;
        let removed = self.folder.removed_with_owner();
        let mut initdb = Supervisor::spawn(&self.account, command, file, removed)?;
        match initdb.wait_until(Instant::now() + INITDB_LIMIT) {
            Some(status) if status.success() => self.folder.finish_data(&unfinished),
            Some(status) => Err(log.failure(format!("initdb ended with {status}"))),
            None => Err(log.failure(format!("initdb took longer than {} s", INITDB_LIMIT.as_secs()))),
        }
    }

    /// Starts Postgres on port `fixed`; if `None`, on the port of the last start if it is free, or else on any free port.
    fn launch(&mut self, fixed: Option<u16>) -> Result<(), Error> {
        let mut wanted = fixed.or_else(|| self.folder.last_port());
        let mut tries = 0;
        loop {
            tries += 1;
            postmaster::clear(&self.folder.data(), &self.programs, &self.account)?;
            self.folder.clear_socket();
            let port = wanted.unwrap_or_else(port::free_port);
            match self.try_port(port)? {
                Started::Ready => {
                    self.port = port;
                    self.folder.remember_port(port)?;
                    let url = self.url();
                    return self.folder.announce(Some(&url));
                }
                Started::PortTaken if tries == START_TRIES => return Err(Error::PortTaken { port }),
                Started::PortTaken if fixed.is_none() => wanted = None,
                Started::DataInUse(error) if tries == START_TRIES => return Err(error),
                Started::PortTaken | Started::DataInUse(_) => thread::sleep(RETRY_PAUSE),
            }
        }
    }

    /// Tries once to start on `port`.
    fn try_port(&mut self, port: u16) -> Result<Started, Error> {
        let deadline = Instant::now() + START_LIMIT;
        let data = self.folder.data();
        // The file of a killed postmaster contains `ready` until the new one writes its own.
        let stale = PidFile::read(&data);
        let (log, file) = Log::open(&self.folder.log())?;
        let removed = self.folder.removed_with_owner();
        let mut postgres = Supervisor::spawn(&self.account, self.command(port), file, removed)?;
        loop {
            if let Some(status) = postgres.ended() {
                let error = log.failure(format!("Postgres ended with {status}"));
                return match temporary_failure(&log.text()) {
                    Some(TemporaryFailure::PortTaken) => Ok(Started::PortTaken),
                    Some(TemporaryFailure::DataInUse) => Ok(Started::DataInUse(error)),
                    None => Err(error),
                };
            }
            let file = PidFile::read(&data);
            let ready = file != stale && file.is_some_and(|file| file.is_ready(port));
            if ready && ensure_database(port)? {
                self.supervisor = Some(postgres);
                return Ok(Started::Ready);
            }
            if Instant::now() >= deadline {
                return Err(log.failure(format!("Postgres was not ready in {} s", START_LIMIT.as_secs())));
            }
            thread::sleep(POLL);
        }
    }

    fn command(&self, port: u16) -> Vec<OsString> {
        let mut command: Vec<OsString> = vec![self.programs.path("postgres").into(), "-D".into()];
        command.push(self.folder.data().into_os_string());
        let mut set = |name: &str, value: &str| {
            command.extend(["-c".into(), format!("{name}={value}").into()]);
        };
        set("max_connections", "200");
        for (name, value) in &self.settings {
            set(name, value);
        }
        // Last: of two settings with the same name the later one counts.
        set("listen_addresses", "127.0.0.1");
        set("port", &port.to_string());
        set("unix_socket_directories", &self.folder.usable_socket().unwrap_or_default());
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.end(false);
    }
}

/// Finds a temporary failure in what Postgres logged before it ended.
fn temporary_failure(log: &str) -> Option<TemporaryFailure> {
    let has = |text: &str| log.contains(text);
    if has("could not create any TCP/IP sockets") && has("Address already in use") {
        return Some(TemporaryFailure::PortTaken);
    }
    // The server of an owner that was killed during the start, or backends of a killed postmaster.
    let in_use = has("lock file \"postmaster.pid\" already exists")
        || has("pre-existing shared memory block")
        || has("lock file \"postmaster.pid\" is empty");
    in_use.then_some(TemporaryFailure::DataInUse)
}

/// Creates the database if it is missing; false when the server is not ready yet.
fn ensure_database(port: u16) -> Result<bool, Error> {
    let statement = format!("create database {DATABASE}");
    let result = match session::execute(port, USER, DATABASE, None) {
        Err(Refusal::NoDatabase) => session::execute(port, USER, "template1", Some(&statement)),
        result => result,
    };
    match result {
        Ok(()) | Err(Refusal::Duplicate) => Ok(true),
        Err(Refusal::NotYet) => Ok(false),
        Err(Refusal::NoDatabase) => Err(refused(port, statement, "there is no `template1`".to_owned())),
        Err(Refusal::Other(message)) => Err(refused(port, statement, message)),
    }
}

fn refused(port: u16, statement: String, message: String) -> Error {
    Error::Refused { port, statement, message }
}

#[cfg(test)]
mod tests {
    use super::{TemporaryFailure, temporary_failure};

    #[test]
    fn only_temporary_failures_are_tried_again() {
        let taken = "LOG:  could not bind IPv4 address \"127.0.0.1\": Address already in use\n\
                     FATAL:  could not create any TCP/IP sockets\n";
        let in_use = "FATAL:  lock file \"postmaster.pid\" already exists\n";
        let wrong = "FATAL:  unrecognized configuration parameter \"colour\"\n";

        assert_eq!(temporary_failure(taken), Some(TemporaryFailure::PortTaken));
        assert_eq!(temporary_failure(in_use), Some(TemporaryFailure::DataInUse));
        assert_eq!(temporary_failure(wrong), None);
    }
}
