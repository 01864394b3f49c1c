//! `pitwheel dev`: a private Postgres, migrated and ready, until somebody stops it.

use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pitwheel_devdb::{Options, Server, default_dir};
use serde_json::json;

use crate::database;
use crate::exit::Stop;
use crate::migrate;
use crate::output::{print, print_json, program, quoted, say};
use crate::settings::{Database, Origin, Settings};
use crate::signals::Signals;

/// How often to see whether Postgres is still there.
const LOOK: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// Where Postgres keeps its data; wins over a database named elsewhere [default: a folder of your own]
    #[arg(long)]
    dir: Option<PathBuf>,
}

pub(crate) async fn run(args: DevArgs, settings: &Settings) -> anyhow::Result<()> {
    if let Some(database) = instead(args.dir.is_some(), settings)? {
        return migrate_named(database).await;
    }
    let dir = match args.dir {
        Some(dir) => dir,
        None => default_dir()?,
    };
    let mut signals = Signals::new()?;
    let server = tokio::select! {
        started = start(dir) => started?,
        () = signals.stop() => return Ok(()),
    };
    let ended = serve(server, settings, &mut signals).await;
    match ended {
        Ok(server) => stop(server, &mut signals).await,
        Err(error) => Err(error),
    }
}

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

async fn migrate_named(database: &Database) -> anyhow::Result<()> {
    let pitwheel = database::connect(database).await?;
    let applied = pitwheel.migrate().await?;
    let version = pitwheel.migration_status().await?.found;
    let origin = &database.origin;
    say(&format!("using the database that {origin} names, nothing is started here"));
    say(&migrate::told(&applied, version));
    Ok(())
}

/// Migrates, tells where it is, and watches over it until somebody wants it stopped.
async fn serve(mut server: Server, settings: &Settings, signals: &mut Signals) -> anyhow::Result<Server> {
    let database = Database { url: server.url(), origin: Origin::Running };
    database::connect_migrated(&database).await?;
    announce(&server, settings)?;
    loop {
        tokio::select! {
            () = signals.stop() => return Ok(server),
            () = tokio::time::sleep(LOOK) => {}
        }
        if TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).is_err() {
            say("Postgres has ended; starting it again");
            tokio::task::block_in_place(|| server.start_again())?;
        }
    }
}

fn announce(server: &Server, settings: &Settings) -> anyhow::Result<()> {
    let (url, dir) = (server.url(), server.dir().display().to_string());
    if settings.json() {
        return print_json(&json!({ "database_url": url, "dir": dir }));
    }
    let command = command_for(&url, settings);
    Ok(print(&format!(
        "Pitwheel is ready. For development only: whoever can log in to this machine can log in to it.\n\n  \
           database  {url}\n  \
           folder    {dir}\n\n\
         Next, in another terminal:\n  \
           {command} jobs enqueue greet '{{\"name\":\"Ada\"}}'\n  \
           {command} jobs list\n\n\
         Ctrl-C stops it; the data stay.\n"
    ))?)
}

/// How to call this program so that it talks to the database at `url`.
pub(crate) fn command_for(url: &str, settings: &Settings) -> String {
    let found = database::find(settings).is_ok_and(|database| database.url == url);
    if found {
        return program();
    }
    format!("{} --database-url {}", program(), quoted(url))
}

/// Stops Postgres. Whoever asks a second time does not wait: its supervisor sees to it.
async fn stop(server: Server, signals: &mut Signals) -> anyhow::Result<()> {
    say("stopping Postgres …");
    tokio::select! {
        stopped = tokio::task::spawn_blocking(move || server.stop()) => Ok(stopped??),
        () = signals.stop() => Ok(()),
    }
}
