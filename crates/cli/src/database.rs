//! Which database a command talks to, and a handle on it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use pitwheel::{Options, Pitwheel};

use crate::exit::Stop;
use crate::settings::{Database, Origin, Settings};

/// A command does one thing at a time.
const CONNECTIONS: usize = 1;
/// A hundred years: what is meant to be later than that is a mistake of a unit.
const SPAN_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

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
    let dev = pitwheel_devdb::default_dir();
    let url = pitwheel_devdb::running(&dev).or_else(|| pitwheel_devdb::running(demo_dir()))?;
    Some(Database { url, origin: Origin::Running })
}

/// Where the demo keeps its Postgres: beside the one of `pitwheel dev`.
pub(crate) fn demo_dir() -> PathBuf {
    pitwheel_devdb::default_dir().with_file_name("demo")
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

/// A handle on whatever schema there is, for somebody at a terminal: the audit log names them.
pub(crate) async fn connect(database: &Database) -> anyhow::Result<Pitwheel> {
    Ok(connect_with(database, CONNECTIONS).await?.acting_as(&actor()))
}

/// The same, for a process that acts for others and does more than one thing at a time.
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

/// Whoever is logged in here, as far as this machine says.
fn actor() -> String {
    let user = ["USER", "LOGNAME"].into_iter().filter_map(std::env::var_os).find(|name| !name.is_empty());
    format!("cli {}", user.unwrap_or_else(|| OsString::from("unknown")).to_string_lossy())
}

/// A time this much later than now, by the clock of the database: the one here may be wrong.
pub(crate) async fn later(pitwheel: &Pitwheel, span: Duration) -> anyhow::Result<SystemTime> {
    if span > SPAN_MAX {
        return Err(Stop::usage("that is more than 100 years away").into());
    }
    Ok(pitwheel.now().await? + span)
}
