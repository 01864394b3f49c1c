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

/// How long a start may take: recovery after a crash replays what was written since the last checkpoint.
const START_LIMIT: Duration = Duration::from_secs(120);

/// How long `initdb` may take; a second or two, unless the machine is very busy.
const INITDB_LIMIT: Duration = Duration::from_secs(300);

/// How long to wait between starts that met something that passes: a taken port, a server about to end.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// How many starts to try. Over 20 s in all: backends of a killed postmaster can take some to end.
const START_TRIES: usize = 100;

/// A running private Postgres, stopped when dropped, and by its supervisor when this process is killed.
///
/// The database `pitwheel` is there and the user is the superuser `postgres`, without a password.
#[derive(Debug)]
pub struct Server {
    // Before the folder: it must have ended when the folder goes.
    supervisor: Option<Supervisor>,
    folder: Folder,
    account: Account,
    programs: Programs,
    settings: Vec<(String, String)>,
    port: u16,
}

/// How one try to start ended, if not in an error.
enum Started {
    Ready,
    PortTaken,
    /// Another postmaster, or the backends of one, has not let go of the data yet.
    DataInUse(Error),
}

/// Why Postgres ended at its start, when another try may fare better.
#[derive(Debug, PartialEq, Eq)]
enum Passing {
    PortTaken,
    DataInUse,
}

impl Server {
    /// Starts a server and waits until it answers.
    ///
    /// [`Error::Owned`] names the URL of the server that another live process runs from the same folder. What
    /// a killed owner left behind is put right: a server that still runs, a stale pid file, half an `initdb`.
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

    /// Where it answers: `postgres://postgres@127.0.0.1:…/pitwheel`.
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{DATABASE}", self.port)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// The Postgres it runs; `programs().path("psql")` opens a session by hand.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Stops it as an operator would: open transactions roll back, a checkpoint is written.
    ///
    /// Dropping it does the same, but cannot tell of [`Error::StillRunning`].
    pub fn stop(mut self) -> Result<(), Error> {
        self.end(false)
    }

    /// Crashes it, like a power cut for everything but the disk: no checkpoint, recovery at the next start.
    ///
    /// Nothing happens to a server that is down already.
    pub fn crash(&mut self) -> Result<(), Error> {
        self.end(true)
    }

    /// Starts it again after [`Server::crash`], or after it died by itself: the same data, port and URL.
    ///
    /// Nothing happens to a server that runs.
    pub fn start_again(&mut self) -> Result<(), Error> {
        if self.supervisor.as_mut().is_some_and(|supervisor| supervisor.ended().is_none()) {
            return Ok(());
        }
        self.supervisor = None;
        self.launch(Some(self.port))
    }

    fn end(&mut self, crash: bool) -> Result<(), Error> {
        // First, so that nobody is sent to a server that is going away; but no reason not to stop it.
        let announced = self.folder.announce(None);
        match self.supervisor.take() {
            Some(supervisor) if crash => supervisor.crash(),
            supervisor => drop(supervisor),
        }
        // Only when somebody killed the supervisor is there anything left to stop.
        postmaster::clear(&self.folder.data(), &self.programs, &self.account)?;
        announced
    }

    /// Runs `initdb` beside `data` and renames: a killed one must not be taken for a finished one.
    fn create_data(&self, temporary: bool) -> Result<(), Error> {
        let unfinished = self.folder.unfinished_data(&self.account)?;
        let mut command: Vec<OsString> = vec![self.programs.path("initdb").into()];
        command.extend(
            ["--auth=trust", "--encoding=UTF8", "--locale=C", "--username", USER].map(OsString::from),
        );
        if temporary {
            // A power cut takes the whole folder with it.
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

    /// Starts Postgres on `fixed`, or on the last port if it is free, or on any.
    fn launch(&mut self, fixed: Option<u16>) -> Result<(), Error> {
        let mut wanted = fixed.or_else(|| self.folder.last_port());
        let mut tries = 0;
        loop {
            tries += 1;
            postmaster::clear(&self.folder.data(), &self.programs, &self.account)?;
            self.folder.clear_socket();
            let port = wanted.unwrap_or_else(port::pick);
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

    /// One try to start on `port`.
    fn try_port(&mut self, port: u16) -> Result<Started, Error> {
        let deadline = Instant::now() + START_LIMIT;
        let data = self.folder.data();
        // A killed postmaster's file says `ready` until the new one writes its own.
        let stale = PidFile::read(&data);
        let (log, file) = Log::open(&self.folder.log())?;
        let removed = self.folder.removed_with_owner();
        let mut postgres = Supervisor::spawn(&self.account, self.command(port), file, removed)?;
        loop {
            if let Some(status) = postgres.ended() {
                let error = log.failure(format!("Postgres ended with {status}"));
                return match passing_cause(&log.text()) {
                    Some(Passing::PortTaken) => Ok(Started::PortTaken),
                    Some(Passing::DataInUse) => Ok(Started::DataInUse(error)),
                    None => Err(error),
                };
            }
            let file = PidFile::read(&data);
            let ready = file != stale && file.is_some_and(|file| file.is_ready(port));
            if ready && has_database(port)? {
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
        // Last, and so the ones that hold.
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

/// What Postgres said before it ended, if another try may fare better.
fn passing_cause(log: &str) -> Option<Passing> {
    let says = |text: &str| log.contains(text);
    if says("could not create any TCP/IP sockets") && says("Address already in use") {
        return Some(Passing::PortTaken);
    }
    // The server of an owner who was killed as it started, or the backends of a killed postmaster.
    let in_use = says("lock file \"postmaster.pid\" already exists")
        || says("pre-existing shared memory block")
        || says("lock file \"postmaster.pid\" is empty");
    in_use.then_some(Passing::DataInUse)
}

/// Sees to it that the database is there; false when the server does not answer yet.
fn has_database(port: u16) -> Result<bool, Error> {
    let statement = format!("create database {DATABASE}");
    let asked = match session::ask(port, USER, DATABASE, None) {
        Err(Refusal::NoDatabase) => session::ask(port, USER, "template1", Some(&statement)),
        asked => asked,
    };
    match asked {
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
    use super::{Passing, passing_cause};

    #[test]
    fn only_what_passes_is_tried_again() {
        let taken = "LOG:  could not bind IPv4 address \"127.0.0.1\": Address already in use\n\
                     FATAL:  could not create any TCP/IP sockets\n";
        let in_use = "FATAL:  lock file \"postmaster.pid\" already exists\n";
        let wrong = "FATAL:  unrecognized configuration parameter \"colour\"\n";

        assert_eq!(passing_cause(taken), Some(Passing::PortTaken));
        assert_eq!(passing_cause(in_use), Some(Passing::DataInUse));
        assert_eq!(passing_cause(wrong), None);
    }
}
