//! The private Postgres of a program for which no database is named.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use pitwheel_devdb::{Options, Server};

use crate::output::print_message;
use crate::signals::signalled;

/// The file in the folder that every user of another process's Postgres has locked.
const USERS: &str = "users";

/// The database of a command: the one that is named, or a private Postgres.
pub struct PrivateDatabase {
    url: String,
    /// A Postgres that this process started.
    postgres: Option<Server>,
    /// Locked while this process uses a Postgres that another one started, so that it is not stopped meanwhile.
    _users: Option<File>,
}

impl PrivateDatabase {
    /// The folder of the private Postgres of a program: the one that the variable names, or `name` in the data folder of the user.
    pub fn folder(variable: &str, name: &str) -> PathBuf {
        let named = std::env::var_os(variable).filter(|dir| !dir.is_empty());
        named.map_or_else(|| pitwheel_devdb::default_dir().with_file_name(name), PathBuf::from)
    }

    /// The database with this URL. Without a URL, the private Postgres in the folder: the one that runs, or it is started for this
    /// command.
    ///
    /// # Errors
    /// If Postgres cannot be started.
    pub async fn open(url: Option<&str>, folder: &Path) -> anyhow::Result<PrivateDatabase> {
        if let Some(url) = url {
            return Ok(PrivateDatabase { url: url.to_owned(), postgres: None, _users: None });
        }
        let dir = folder.to_owned();
        let attached = tokio::task::spawn_blocking(move || attach(&dir)).await?;
        match attached.with_context(|| format!("cannot lock `{}`", folder.join(USERS).display()))? {
            Some((url, users)) => Ok(PrivateDatabase { url, postgres: None, _users: Some(users) }),
            None => PrivateDatabase::start(Options::kept(folder)).await,
        }
    }

    /// A database that is gone when the command ends.
    ///
    /// # Errors
    /// If Postgres cannot be started.
    pub async fn temporary() -> anyhow::Result<PrivateDatabase> {
        PrivateDatabase::start(Options::temporary()).await
    }

    async fn start(options: Options) -> anyhow::Result<PrivateDatabase> {
        print_message("starting a private Postgres …");
        let postgres = tokio::task::spawn_blocking(move || Server::start(options)).await??;
        Ok(PrivateDatabase { url: postgres.url(), postgres: Some(postgres), _users: None })
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where the data of the Postgres are that this process started.
    pub fn started_in(&self) -> Option<&Path> {
        self.postgres.as_ref().map(Server::dir)
    }

    /// Stops the Postgres that this process started, when no other process uses it any more, or at Ctrl-C or SIGTERM.
    ///
    /// # Errors
    /// If it cannot be stopped.
    pub async fn close(self) -> anyhow::Result<()> {
        let Some(postgres) = self.postgres else { return Ok(()) };
        // Held until Postgres has stopped: who opens the database meanwhile waits, and starts it again.
        let _users = unused(postgres.dir()).await?;
        tokio::task::spawn_blocking(move || postgres.stop()).await??;
        Ok(())
    }
}

/// The Postgres that another process runs from the folder, and a lock that keeps it running; `None`: there is none. Waits while it is
/// being stopped.
fn attach(folder: &Path) -> io::Result<Option<(String, File)>> {
    // A folder without data must stay empty: the first start sets its rights.
    if !folder.join("data").exists() {
        return Ok(None);
    }
    let users = open_users(folder)?;
    users.lock_shared()?;
    // Looked for with the lock only: what ran before may have been stopped.
    Ok(pitwheel_devdb::running(folder).map(|url| (url, users)))
}

/// Waits until no other process uses the Postgres of the folder. Returns the lock that keeps others out; `None`: a signal came first.
async fn unused(folder: &Path) -> anyhow::Result<Option<File>> {
    let users = open_users(folder)?;
    match users.try_lock() {
        Ok(()) => return Ok(Some(users)),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    print_message("other commands use the private Postgres: waiting until they end (Ctrl-C stops it now) …");
    let locking = tokio::task::spawn_blocking(move || users.lock().map(|()| users));
    tokio::select! {
        locked = locking => Ok(Some(locked??)),
        signalled = signalled() => Ok(signalled.map(|()| None)?),
    }
}

fn open_users(folder: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(false).open(folder.join(USERS))
}
