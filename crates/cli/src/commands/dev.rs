//! `pitwheel dev`: a private Postgres, migrated and ready, until somebody stops it.

use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pitwheel_devdb::{Server, default_dir};
use serde_json::json;

use super::migrate;
use crate::database;
use crate::output::{print, print_json, print_message};
use crate::private_postgres;
use crate::settings::{Database, Origin, Settings};
use crate::signals::Signals;
use crate::suggest::command_for;

/// How often to see whether Postgres is still there.
const LOOK: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// Where Postgres keeps its data; wins over a database named elsewhere [default: a folder of your own]
    #[arg(long)]
    dir: Option<PathBuf>,
}

pub(crate) async fn run(args: DevArgs, settings: &Settings) -> anyhow::Result<()> {
    if let Some(database) = private_postgres::named_database(args.dir.is_some(), settings)? {
        return migrate_named(database).await;
    }
    let dir = args.dir.unwrap_or_else(default_dir);
    let mut signals = Signals::new()?;
    let server = tokio::select! {
        started = private_postgres::start(dir) => started?,
        () = signals.stop_requested() => return Ok(()),
    };
    let ended = serve(server, settings, &mut signals).await;
    match ended {
        Ok(server) => stop(server, &mut signals).await,
        Err(error) => Err(error),
    }
}

async fn migrate_named(database: &Database) -> anyhow::Result<()> {
    let pitwheel = database::connect(database).await?;
    let applied = pitwheel.migrate().await?;
    let version = pitwheel.migration_status().await?.found;
    let origin = &database.origin;
    print_message(&format!("using the database that {origin} names, nothing is started here"));
    print_message(&migrate::describe(&applied, version));
    Ok(())
}

/// Migrates, tells where it is, and watches over it until somebody wants it stopped.
async fn serve(mut server: Server, settings: &Settings, signals: &mut Signals) -> anyhow::Result<Server> {
    let database = Database { url: server.url(), origin: Origin::Running };
    database::connect_migrated(&database).await?;
    announce(&server, settings)?;
    loop {
        tokio::select! {
            () = signals.stop_requested() => return Ok(server),
            () = tokio::time::sleep(LOOK) => {}
        }
        if TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).is_err() {
            print_message("Postgres has ended; starting it again");
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

/// Stops Postgres. Whoever asks a second time does not wait: its supervisor sees to it.
async fn stop(server: Server, signals: &mut Signals) -> anyhow::Result<()> {
    print_message("stopping Postgres …");
    tokio::select! {
        stopped = tokio::task::spawn_blocking(move || server.stop()) => Ok(stopped??),
        () = signals.stop_requested() => Ok(()),
    }
}
