//! The private Postgres of `pitwheel dev` and `pitwheel demo`.

use std::path::{Path, PathBuf};

use pitwheel_devdb::{Options, Server};

use crate::exit::CommandError;
use crate::output::print_message;
use crate::settings::{Database, Origin, Settings};

/// The folder of the Postgres of `pitwheel dev`: `PITWHEEL_DEV_DIR`, or else the default.
pub(crate) fn dev_dir() -> PathBuf {
    let dir = std::env::var_os("PITWHEEL_DEV_DIR").filter(|dir| !dir.is_empty());
    dir.map_or_else(pitwheel_devdb::default_dir, PathBuf::from)
}

/// The folder of the Postgres of `pitwheel demo`.
pub(crate) fn demo_dir() -> PathBuf {
    pitwheel_devdb::default_dir().with_file_name("demo")
}

/// The database that `pitwheel dev` or `pitwheel demo` runs now.
pub(crate) fn running() -> Option<Database> {
    let url = pitwheel_devdb::running(dev_dir()).or_else(|| pitwheel_devdb::running(demo_dir()))?;
    Some(Database { url, origin: Origin::Running })
}

/// An error if another process runs the Postgres of this folder.
pub(crate) fn check_not_running(dir: &Path) -> Result<(), pitwheel_devdb::Error> {
    match pitwheel_devdb::running(dir) {
        Some(url) => Err(pitwheel_devdb::Error::Owned { dir: dir.to_owned(), url: Some(url) }),
        None => Ok(()),
    }
}

/// The database in the settings, which is used instead of a private one; `None` when there is none, or `--dir` is given.
pub(crate) fn named_database(
    dir_is_given: bool,
    settings: &Settings,
) -> Result<Option<&Database>, CommandError> {
    match &settings.database {
        Some(database) if dir_is_given && database.origin == Origin::Flag => Err(CommandError::usage(
            "--dir starts a database and --database-url names another one: give one of them",
        )),
        _ if dir_is_given => Ok(None),
        database => Ok(database.as_ref()),
    }
}

/// Starts the Postgres of this folder. If this is cancelled, the start continues until the process ends, and Postgres ends with it.
pub(crate) async fn start(dir: PathBuf) -> anyhow::Result<Server> {
    if !dir.join("data").exists() {
        print_message(&format!("creating a database in {} …", dir.display()));
    }
    Ok(tokio::task::spawn_blocking(move || Server::start(Options::kept(dir))).await??)
}
