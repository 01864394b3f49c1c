//! Why a private Postgres did not start or stop, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why a private Postgres did not start or stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No Postgres 15 or newer is installed.
    #[error(
        "no Postgres 15 or newer found{}: install one (Debian and Ubuntu: `apt-get install postgresql`; \
         Fedora: `dnf install postgresql-server`; macOS: `brew install postgresql`)",
        seen.as_ref().map(|seen| format!(" (only {seen})")).unwrap_or_default()
    )]
    NotFound {
        /// The newest installed one, if all are too old, as in "14 in `/usr/lib/postgresql/14/bin`".
        seen: Option<String>,
    },

    /// The data in the folder need a major version of Postgres that is not installed.
    #[error(
        "the data in `{dir}` were created by Postgres {major}, which is not installed: install Postgres {major}, \
         or remove the folder to start with an empty database"
    )]
    OtherMajor {
        /// The server's folder.
        dir: PathBuf,
        /// The major version that created the data.
        major: u32,
    },

    /// This process runs as root, and there is no `postgres` user to run Postgres as.
    #[error(
        "Postgres does not run as root and there is no `postgres` user to run it as: \
         create one (`useradd --system postgres`) or run as a user other than root"
    )]
    NoPostgresUser,

    /// This process runs as root, and the `postgres` user cannot enter the folder.
    #[error(
        "root runs Postgres as the user `postgres`, which cannot enter `{dir}`: \
         choose a folder that it can enter, such as `/var/lib/pitwheel/dev`"
    )]
    Unreachable {
        /// The server's folder.
        dir: PathBuf,
    },

    /// Another running process owns the folder.
    #[error("{}", owned(dir, url.as_deref()))]
    Owned {
        /// The server's folder.
        dir: PathBuf,
        /// The URL of that process's server; `None` while it is starting or stopping.
        url: Option<String>,
    },

    /// The folder of a temporary server has files in it, which would be removed with it.
    #[error("`{dir}` is not empty, and a temporary server removes its folder: choose a new folder")]
    NotEmpty {
        /// The server's folder.
        dir: PathBuf,
    },

    /// Postgres or `initdb` ended, or was not ready in time.
    #[error("{what}; the end of its log:\n{tail}")]
    Failed {
        /// Which program failed, and how.
        what: String,
        /// The last lines it logged.
        tail: String,
    },

    /// The port that the server must use again, or every port that was tried, is in use.
    #[error("port {port} on 127.0.0.1 is used by another program: stop that program and try again")]
    PortTaken {
        /// The port in use; of several, the last one tried.
        port: u16,
    },

    /// The server runs, but refused a statement.
    #[error("Postgres on port {port} refused `{statement}`: {message}")]
    Refused {
        /// The server's port on 127.0.0.1.
        port: u16,
        /// The statement.
        statement: String,
        /// The server's error message.
        message: String,
    },

    /// Postgres still runs after a fast and an immediate shutdown.
    #[error("the Postgres in `{dir}` does not stop: end process {pid} yourself")]
    StillRunning {
        /// The server's folder.
        dir: PathBuf,
        /// The process id of the postmaster.
        pid: u32,
    },

    /// A call to the operating system failed.
    #[error("cannot {what} `{path}`: {source}")]
    Io {
        /// The operation, as in "create".
        what: &'static str,
        /// The file, folder or program.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: `fs::read(path).map_err(Error::io("read", path))`.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { what, path, source }
    }
}

fn owned(dir: &Path, url: Option<&str>) -> String {
    let dir = dir.display();
    match url {
        Some(url) => {
            format!("another process runs the Postgres in `{dir}`: use `{url}`, or stop that process")
        }
        None => format!("another process is starting or stopping the Postgres in `{dir}`: try again shortly"),
    }
}
