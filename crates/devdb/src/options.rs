//! Where a server keeps its data, and its settings.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;

use crate::account;

/// Where a server keeps its data, and its settings.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server's folder: data, log, socket and lock. Created when missing.
    pub dir: PathBuf,
    /// Remove the folder when the server stops or its owner dies. The folder must be new or empty.
    pub temporary: bool,
    /// Settings by name and value, as in `postgres -c name=value`. They override the default `max_connections = 200`. They cannot
    /// change where the server listens.
    pub settings: Vec<(String, String)>,
}

impl Options {
    /// A server in a new folder under the system's temporary folder. The folder is removed after the server stops.
    pub fn temporary() -> Options {
        let name = format!("pitwheel-{:016x}", random());
        Options { dir: std::env::temp_dir().join(name), temporary: true, settings: Vec::new() }
    }

    /// A server that keeps its data in `dir` from one start to the next.
    pub fn kept(dir: impl Into<PathBuf>) -> Options {
        Options { dir: dir.into(), temporary: false, settings: Vec::new() }
    }

    /// Adds one setting.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Options {
        self.settings.push((name.into(), value.into()));
        self
    }
}

/// The folder of this user's dev server: `$XDG_DATA_HOME/pitwheel/dev`, else `~/.local/share/pitwheel/dev`.
///
/// For root it is `/var/lib/pitwheel/dev`: the `postgres` user cannot enter root's home.
/// Without a home folder it is `pitwheel/dev` under the system's temporary folder.
pub fn default_dir() -> PathBuf {
    if account::is_root() {
        return PathBuf::from("/var/lib/pitwheel/dev");
    }
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let data = folder("XDG_DATA_HOME")
        .or_else(|| folder("HOME").map(|home| home.join(".local/share")))
        .unwrap_or_else(std::env::temp_dir);
    data.join("pitwheel/dev")
}

/// A number that differs from process to process and from call to call. Not for secrets.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
