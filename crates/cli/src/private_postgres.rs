//! The private Postgres of `pitwheel dev` and `pitwheel demo`.

use std::path::PathBuf;

use pitwheel_devdb::{Options, Server};

use crate::exit::CommandError;
use crate::output::print_message;
use crate::settings::{Database, Origin, Settings};

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
