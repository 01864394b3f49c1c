//! The server's folder, held by one live process at a time.
//!
//! ```text
//! lock            held with flock by the owner; the server's URL while it answers
//! port            the port of the last start, tried first at the next
//! data/           Postgres's own; there only once initdb has finished
//! data.new-…/     an initdb under way, or what is left of one that was killed
//! socket/         the Unix socket
//! postgres.log    what initdb and Postgres say
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::account::Account;
use crate::error::Error;
use crate::options::{Options, random};

/// How long to wait for the lock: [`running`] of another process holds it for an instant.
const LOCK_PATIENCE: Duration = Duration::from_millis(300);

/// The longest path of a Unix socket that every system takes (Linux 107 bytes, macOS 103).
const LONGEST_SOCKET_PATH: usize = 103;

/// What begins the name of a folder that `initdb` is not done with.
const UNFINISHED: &str = "data.new-";

/// A folder whose lock we hold.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    lock: File,
    temporary: bool,
}

/// The URL of the server that a live process runs from `dir`; `None` when nobody does, or it is not ready.
pub fn running(dir: impl AsRef<Path>) -> Option<String> {
    let mut lock = File::open(dir.as_ref().join("lock")).ok()?;
    match lock.try_lock_shared() {
        // Nobody holds it: what it says is what a killed owner left behind.
        Ok(()) => None,
        Err(_) => url_in(&mut lock),
    }
}

impl Folder {
    /// Makes the folder if need be and takes its lock, or says who holds it.
    pub(crate) fn take(options: &Options, account: &Account) -> Result<Folder, Error> {
        let dir = &options.dir;
        account.create_folders(dir)?;
        let path = fs::canonicalize(dir).map_err(Error::io("resolve", dir))?;
        let empty = fs::read_dir(&path).map_err(Error::io("read", &path))?.next().is_none();
        if options.temporary && !empty {
            return Err(Error::NotEmpty { dir: path });
        }
        if empty {
            account.set_mode(&path)?;
        }
        let lock = take_lock(&path)?;
        let folder = Folder { path, lock, temporary: options.temporary };
        if options.temporary {
            // The supervisor, which runs as this account, removes it when we are killed.
            account.own(&folder.path)?;
        }
        account.create_private(&folder.socket())?;
        if account.is_other_user() && !account.reaches(&folder.socket())? {
            return Err(Error::Unreachable { dir: folder.path.clone() });
        }
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("postgres.log")
    }

    /// What the supervisor removes when we are gone.
    pub(crate) fn removed_with_owner(&self) -> Option<&Path> {
        self.temporary.then_some(self.path.as_path())
    }

    /// The folder for the Unix socket; `None` when its path is too long, or would need quotes in the setting.
    pub(crate) fn usable_socket(&self) -> Option<String> {
        let socket = self.socket().to_str()?.to_owned();
        let longest = socket.len() + "/.s.PGSQL.65535".len();
        let plain = socket.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+@".contains(c));
        (longest <= LONGEST_SOCKET_PATH && plain).then_some(socket)
    }

    fn socket(&self) -> PathBuf {
        self.path.join("socket")
    }

    /// Removes the socket of a killed server, whose lock file names a process that may be another by now.
    pub(crate) fn clear_socket(&self) {
        for entry in fs::read_dir(self.socket()).into_iter().flatten().flatten() {
            // If one stays, Postgres says so in its log, and that goes into the error.
            let _ = fs::remove_file(entry.path());
        }
    }

    /// Whether `initdb` has finished here.
    pub(crate) fn has_data(&self) -> bool {
        major_of(&self.path).is_some()
    }

    /// An empty folder for `initdb`, after what killed ones left is gone. Each has its own name: the
    /// `initdb` of a killed owner may still be writing to its own.
    pub(crate) fn unfinished_data(&self, account: &Account) -> Result<PathBuf, Error> {
        for entry in fs::read_dir(&self.path).map_err(Error::io("read", &self.path))?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                // What cannot be removed now harms nobody; the next start tries again.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let unfinished = self.path.join(format!("{UNFINISHED}{:016x}", random()));
        account.create_private(&unfinished)?;
        Ok(unfinished)
    }

    /// `initdb` has finished in `unfinished`: from now on that is the data.
    pub(crate) fn finish_data(&self, unfinished: &Path) -> Result<(), Error> {
        fs::rename(unfinished, self.data()).map_err(Error::io("rename", unfinished))?;
        let folder = File::open(&self.path).map_err(Error::io("open", &self.path))?;
        folder.sync_all().map_err(Error::io("sync", &self.path))
    }

    /// The port of the last start.
    pub(crate) fn last_port(&self) -> Option<u16> {
        fs::read_to_string(self.path.join("port")).ok()?.trim().parse().ok()
    }

    pub(crate) fn remember_port(&self, port: u16) -> Result<(), Error> {
        let path = self.path.join("port");
        fs::write(&path, format!("{port}\n")).map_err(Error::io("write", &path))
    }

    /// Tells other processes where the server answers, or that it does not.
    pub(crate) fn announce(&mut self, url: Option<&str>) -> Result<(), Error> {
        let text = url.map(|url| format!("{url}\n")).unwrap_or_default();
        let written = self
            .lock
            .set_len(0)
            .and_then(|()| self.lock.rewind())
            .and_then(|()| self.lock.write_all(text.as_bytes()));
        written.map_err(Error::io("write", &self.path.join("lock")))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.temporary {
            let _ = fs::remove_dir_all(&self.path);
        } else {
            let _ = self.announce(None);
        }
        // By hand: a child that another thread is just spawning shares the lock until it has exec'd.
        let _ = self.lock.unlock();
    }
}

/// The major version of the Postgres that made the data in `dir`; `None` when there are none.
pub(crate) fn major_of(dir: &Path) -> Option<u32> {
    fs::read_to_string(dir.join("data/PG_VERSION")).ok()?.trim().parse().ok()
}

fn take_lock(dir: &Path) -> Result<File, Error> {
    let path = dir.join("lock");
    let mut lock = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(Error::io("open", &path))?;
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match lock.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Owned { dir: dir.to_owned(), url: url_in(&mut lock) });
            }
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
        }
    }
    lock.set_len(0).map_err(Error::io("write", &path))?;
    Ok(lock)
}

/// The URL that the owner wrote into its lock, if it is all there.
fn url_in(lock: &mut File) -> Option<String> {
    let mut text = String::new();
    lock.rewind().ok()?;
    lock.read_to_string(&mut text).ok()?;
    text.strip_suffix('\n').map(str::to_owned)
}
