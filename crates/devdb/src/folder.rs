//! The server's folder, locked by one process at a time.
//!
//! ```text
//! lock            locked with flock by the owner; contains the server's URL while the server accepts connections
//! port            the port of the last start, which the next start tries first
//! data/           the data folder of Postgres; it exists only once initdb has finished
//! data.new-…/     an initdb in progress, or the remains of one that was killed
//! socket/         the Unix socket
//! postgres.log    the output of initdb and Postgres
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::account::Account;
use crate::error::Error;
use crate::options::{Options, random};

/// How long to wait for the lock. [`running`] in another process holds it for an instant.
const LOCK_PATIENCE: Duration = Duration::from_millis(300);

/// The longest path of a Unix socket that every system accepts (Linux 107 bytes, macOS 103).
const LONGEST_SOCKET_PATH: usize = 103;

/// The name of a folder starts with this until `initdb` has finished in it.
const UNFINISHED: &str = "data.new-";

/// A folder that this process has locked.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    lock: File,
    temporary: bool,
}

/// The URL of the server that a process runs from `dir`; `None` when there is none, or it is not ready.
pub fn running(dir: impl AsRef<Path>) -> Option<String> {
    let mut lock = File::open(dir.as_ref().join("lock")).ok()?;
    match lock.try_lock_shared() {
        // Not locked: its text is what a killed owner left behind.
        Ok(()) => None,
        Err(_) => url_in(&mut lock),
    }
}

impl Folder {
    /// Creates the folder if it is missing, and locks it. [`Error::Owned`] when another process has locked it.
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
            // The supervisor, which runs as this account, removes it when this process is killed.
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

    /// The folder that the supervisor removes after this process has ended; `None` when the data are kept.
    pub(crate) fn removed_with_owner(&self) -> Option<&Path> {
        self.temporary.then_some(self.path.as_path())
    }

    /// The folder for the Unix socket; `None` when its path is too long, or would need quoting in the setting.
    pub(crate) fn usable_socket(&self) -> Option<String> {
        let socket = self.socket().to_str()?.to_owned();
        let longest = socket.len() + "/.s.PGSQL.65535".len();
        let plain = socket.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+@".contains(c));
        (longest <= LONGEST_SOCKET_PATH && plain).then_some(socket)
    }

    fn socket(&self) -> PathBuf {
        self.path.join("socket")
    }

    /// Removes the socket of a killed server. The lock file of the socket names a process id that another process may have by
    /// now.
    pub(crate) fn clear_socket(&self) {
        for entry in fs::read_dir(self.socket()).into_iter().flatten().flatten() {
            // If a file stays, Postgres logs that, and the log is part of the error.
            let _ = fs::remove_file(entry.path());
        }
    }

    /// Whether `initdb` has finished here.
    pub(crate) fn has_data(&self) -> bool {
        major_of(&self.path).is_some()
    }

    /// Creates an empty folder for `initdb`, and removes the remains of killed ones. Each has a name of its own, because the
    /// `initdb` of a killed owner may still be writing.
    pub(crate) fn unfinished_data(&self, account: &Account) -> Result<PathBuf, Error> {
        for entry in fs::read_dir(&self.path).map_err(Error::io("read", &self.path))?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                // Remains that cannot be removed now do no harm; the next start tries again.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let unfinished = self.path.join(format!("{UNFINISHED}{:016x}", random()));
        account.create_private(&unfinished)?;
        Ok(unfinished)
    }

    /// Renames `unfinished`, where `initdb` has finished, to `data`.
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

    /// Writes the server's URL into the lock file, for [`running`] in other processes; `None`: the server is not ready.
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
        // Explicitly: a child that another thread is spawning shares the lock until its exec.
        let _ = self.lock.unlock();
    }
}

/// The major version of the Postgres that created the data in `dir`; `None` when there are no data.
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

/// The URL that the owner wrote into its lock file; `None` while it is not complete.
fn url_in(lock: &mut File) -> Option<String> {
    let mut text = String::new();
    lock.rewind().ok()?;
    lock.read_to_string(&mut text).ok()?;
    text.strip_suffix('\n').map(str::to_owned)
}
