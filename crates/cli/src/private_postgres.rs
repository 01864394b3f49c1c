//! The private Postgres of `pitwheel dev` and `pitwheel demo`.

use std::path::PathBuf;

use pitwheel_devdb::{Options, Server};

use crate::exit::Stop;
use crate::output::say;
use crate::settings::{Database, Origin, Settings};

/// The named database, which is used instead of one of our own, unless a folder was named with it.
pub(crate) fn instead(dir_is_named: bool, settings: &Settings) -> Result<Option<&Database>, Stop> {
    match &settings.database {
        Some(database) if dir_is_named && database.origin == Origin::Flag => {
            Err(Stop::usage("--dir starts a database and --database-url names another: give one of them"))
        }
        _ if dir_is_named => Ok(None),
        database => Ok(database.as_ref()),
    }
}

/// Starts the server of this folder. Cancelled, it goes on until the process ends, and Postgres ends with that.
pub(crate) async fn start(dir: PathBuf) -> anyhow::Result<Server> {
    if !dir.join("data").exists() {
        say(&format!("making a database in {} …", dir.display()));
    }
    Ok(tokio::task::spawn_blocking(move || Server::start(Options::kept(dir))).await??)
}
