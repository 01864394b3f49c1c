//! The database that a command uses.

use std::ffi::OsString;
use std::time::{Duration, SystemTime};

use pitwheel::engine::limits::SPAN_MAX;
use pitwheel::{Options, Pitwheel};

use crate::exit::CommandError;
use crate::private_postgres;
use crate::settings::{Database, Settings};

/// A command runs one statement at a time.
const CONNECTIONS: usize = 1;

/// The database of a command: the one in the settings, or else the one that `pitwheel dev` or `pitwheel demo` runs.
pub(crate) fn find(settings: &Settings) -> Result<Database, CommandError> {
    let database = settings.database.clone().or_else(private_postgres::running);
    database.ok_or_else(|| {
        CommandError::usage(
            "no database is set and `pitwheel dev` is not running: start one with `pitwheel dev`, or set DATABASE_URL",
        )
    })
}

/// Connects and checks the schema: an error if this version cannot work with it.
pub(crate) async fn open(settings: &Settings) -> anyhow::Result<Pitwheel> {
    let pitwheel = connect(&find(settings)?).await?;
    pitwheel.check_schema().await?;
    Ok(pitwheel)
}

/// Connects and migrates the schema to this version.
pub(crate) async fn connect_migrated(database: &Database) -> anyhow::Result<Pitwheel> {
    let pitwheel = connect(database).await?;
    pitwheel.migrate().await?;
    Ok(pitwheel)
}

/// Connects without a check of the schema. The audit log names the user of this terminal.
pub(crate) async fn connect(database: &Database) -> anyhow::Result<Pitwheel> {
    Ok(connect_with(database, CONNECTIONS).await?.acting_as(&actor()))
}

/// Connects with several connections, for a server that acts for its callers.
pub(crate) async fn connect_with(database: &Database, connections: usize) -> anyhow::Result<Pitwheel> {
    let mut options = Options::default();
    options.connections = connections;
    options.application = "pitwheel-cli".to_owned();
    let connected = Pitwheel::connect_with(&database.url, options).await;
    connected.map_err(|error| match error {
        error @ pitwheel::Error::Database(_) => {
            CommandError::failure(format!("{error}: check the database that {} names", database.origin))
                .into()
        }
        error @ pitwheel::Error::Url(_) => {
            CommandError::usage(format!("{error}, from {}", database.origin)).into()
        }
        error => anyhow::Error::from(error),
    })
}

/// The user of this terminal, from `USER` or `LOGNAME`.
fn actor() -> String {
    let user = ["USER", "LOGNAME"].into_iter().filter_map(std::env::var_os).find(|name| !name.is_empty());
    format!("cli {}", user.unwrap_or_else(|| OsString::from("unknown")).to_string_lossy())
}

/// The time of the database plus `span`. The clock of this machine may be wrong.
pub(crate) async fn later(pitwheel: &Pitwheel, span: Duration) -> anyhow::Result<SystemTime> {
    if span > SPAN_MAX {
        return Err(CommandError::usage("this is more than 100 years away: check the unit").into());
    }
    Ok(pitwheel.now().await? + span)
}
