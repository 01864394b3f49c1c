//! Which database a command talks to, and a handle on it.

use std::path::PathBuf;

use pitwheel::{Options, Pitwheel};

use crate::exit::Stop;
use crate::settings::{Database, Origin, Settings};

/// A command does one thing at a time.
const CONNECTIONS: usize = 1;

/// The database of a command: the named one, or else the one that `pitwheel dev` or `pitwheel demo` runs.
pub(crate) fn find(settings: &Settings) -> Result<Database, Stop> {
    let database = settings.database.clone().or_else(running);
    database.ok_or_else(|| {
        Stop::usage(
            "no database is named and none runs here: start one with `pitwheel dev`, or set DATABASE_URL",
        )
    })
}

/// What is used when nobody names a database.
pub(crate) fn running() -> Option<Database> {
    let dev = pitwheel_devdb::default_dir().ok()?;
    let url = pitwheel_devdb::running(&dev).or_else(|| pitwheel_devdb::running(demo_dir().ok()?))?;
    Some(Database { url, origin: Origin::Running })
}

/// Where the demo keeps its Postgres: beside the one of `pitwheel dev`.
pub(crate) fn demo_dir() -> Result<PathBuf, pitwheel_devdb::Error> {
    Ok(pitwheel_devdb::default_dir()?.with_file_name("demo"))
}

/// A handle for commands that need the schema: one that this version cannot work with is refused.
pub(crate) async fn open(settings: &Settings) -> anyhow::Result<Pitwheel> {
    let pitwheel = connect(&find(settings)?).await?;
    pitwheel.check_schema().await?;
    Ok(pitwheel)
}

/// A handle on a schema that was brought up to this version.
pub(crate) async fn connect_migrated(database: &Database) -> anyhow::Result<Pitwheel> {
    let pitwheel = connect(database).await?;
    pitwheel.migrate().await?;
    Ok(pitwheel)
}

/// A handle on whatever schema there is.
pub(crate) async fn connect(database: &Database) -> anyhow::Result<Pitwheel> {
    connect_with(database, CONNECTIONS).await
}

/// The same, with connections for more than one thing at a time.
pub(crate) async fn connect_with(database: &Database, connections: usize) -> anyhow::Result<Pitwheel> {
    let mut options = Options::default();
    options.connections = connections;
    options.application = "pitwheel-cli".to_owned();
    let connected = Pitwheel::connect_with(&database.url, options).await;
    connected.map_err(|error| match error {
        error @ pitwheel::Error::Database(_) => {
            Stop::failure(format!("{error}: check the database that {} names", database.origin)).into()
        }
        error @ pitwheel::Error::Url(_) => Stop::usage(format!("{error}, from {}", database.origin)).into(),
        error => anyhow::Error::from(error),
    })
}
