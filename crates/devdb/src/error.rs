//! What can keep a private Postgres from starting or stopping, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why a private Postgres did not start, stop or come back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No usable Postgres is installed; `seen` tells of those that are too old.
    #[error(
        "no Postgres 15 or newer found{}: install one (Debian and Ubuntu: `apt-get install postgresql`; \
         Fedora: `dnf install postgresql-server`; macOS: `brew install postgresql`)",
        seen.as_ref().map(|seen| format!(" (only {seen})")).unwrap_or_default()
    )]
    NotFound {
        /// The newest one that is too old, as in "14 in `/usr/lib/postgresql/14/bin`".
        seen: Option<String>,
    },

    /// The folder's data needs a Postgres that is not installed.
    #[error(
        "the data in `{dir}` was made by Postgres {major}, which is not installed: install Postgres {major}, \
         or remove the folder to start afresh"
    )]
    OtherMajor {
        /// The folder.
        dir: PathBuf,
        /// The major version that made its data.
        major: u32,
    },

    /// We are root, and there is nobody to run Postgres as.
    #[error(
        "Postgres does not run as root and there is no `postgres` user to run it as: \
         create one (`useradd --system postgres`) or run as a plain user"
    )]
    NoPostgresUser,

    /// We are root, and the `postgres` user cannot enter the folder.
    #[error(
        "the `postgres` user, whom root runs Postgres as, cannot reach `{dir}`: \
         choose a folder outside private homes, such as `/var/lib/pitwheel/dev`"
    )]
    Unreachable {
        /// The folder.
        dir: PathBuf,
    },

    /// Another live process owns the folder; `url` is where its server answers, once it is ready.
    #[error("{}", owned(dir, url.as_deref()))]
    Owned {
        /// The folder.
        dir: PathBuf,
        /// The other process's server; `None` while it is starting or stopping.
        url: Option<String>,
    },

    /// A temporary server would remove what was there before it.
    #[error("`{dir}` is not empty, and a temporary server removes its folder: name a new folder")]
    NotEmpty {
        /// The folder.
        dir: PathBuf,
    },

    /// Postgres or `initdb` ended, or was not ready in time.
    #[error("{what}; the end of its log:\n{tail}")]
    Failed {
        /// Which of them, and how.
        what: String,
        /// The last lines it logged.
        tail: String,
    },

    /// The port this server must come back on, or every port tried, was taken.
    #[error("port {port} on 127.0.0.1 is taken by another program: stop that program and try again")]
    PortTaken {
        /// The port.
        port: u16,
    },

    /// The server runs and answers, but refused what we asked of it.
    #[error("Postgres on port {port} refused `{statement}`: {message}")]
    Refused {
        /// Its port.
        port: u16,
        /// What was asked.
        statement: String,
        /// What it said.
        message: String,
    },

    /// Postgres still runs after a fast and an immediate stop.
    #[error("the Postgres in `{dir}` does not stop: end process {pid} by hand")]
    StillRunning {
        /// The folder.
        dir: PathBuf,
        /// The postmaster.
        pid: u32,
    },

    /// The operating system refused.
    #[error("cannot {what} `{path}`: {source}")]
    Io {
        /// What was tried, as in "create".
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
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
