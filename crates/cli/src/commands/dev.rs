//! `pitwheel dev`: a private Postgres and a server, in one process.

use std::convert::Infallible;
use std::future;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::FalseyValueParser;
use pitwheel::engine::outbox::RelayOptions;
use pitwheel_devdb::Server as Postgres;
use pitwheel_server::{Options, Readiness, Server};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::migrate;
use crate::database;
use crate::output::{print, print_json, print_message};
use crate::private_postgres;
use crate::relay::{self, SinkArgs};
use crate::server::{self, Endpoints};
use crate::settings::{Database, Origin, Settings};
use crate::signals::Signals;
use crate::suggest::command_for;

/// How often to check that Postgres still runs.
const CHECK_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// The folder of Postgres; overrides a database in the settings [env: PITWHEEL_DEV_DIR] [default: a folder of your user]
    #[arg(long)]
    dir: Option<PathBuf>,

    /// The address to listen on; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS", default_value = server::DEFAULT_ADDRESS, env = "PITWHEEL_LISTEN")]
    listen: SocketAddr,

    /// Only answer calls: send no jobs to workers, and do no maintenance
    #[arg(long, env = "PITWHEEL_NO_WORKER", value_parser = FalseyValueParser::new())]
    no_worker: bool,

    #[command(flatten)]
    sink: SinkArgs,
}

pub(crate) async fn run(args: DevArgs, settings: &Settings) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let mut options = Options::default();
    options.serve_workers = !args.no_worker;
    if let Some(database) = private_postgres::named_database(args.dir.is_some(), settings)? {
        let listener = server::listen(args.listen).await?;
        print_message(&format!("using the database that {} names, no Postgres is started", database.origin));
        return serve(listener, options, database, None, &args.sink, settings, &mut signals).await;
    }
    let dir = args.dir.unwrap_or_else(private_postgres::dev_dir);
    private_postgres::check_not_running(&dir)?;
    // Before Postgres is started, which takes some seconds the first time.
    let listener = server::listen(args.listen).await?;
    let mut postgres = tokio::select! {
        started = private_postgres::start(dir) => started?,
        () = signals.stop_requested() => return Ok(()),
    };
    let database = Database { url: postgres.url(), origin: Origin::Running };
    serve(listener, options, &database, Some(&mut postgres), &args.sink, settings, &mut signals).await?;
    stop(postgres, &mut signals).await
}

/// Migrates the database and serves until a stop is requested, or Postgres ended and cannot be started again.
async fn serve(
    listener: TcpListener,
    options: Options,
    database: &Database,
    mut postgres: Option<&mut Postgres>,
    sink: &SinkArgs,
    settings: &Settings,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let pitwheel = database::connect_with(database, server::CONNECTIONS).await?;
    let applied = pitwheel.migrate().await?;
    if postgres.is_none() {
        print_message(&migrate::describe(&applied, pitwheel.migration_status().await?.found));
    }
    let relay = sink.relay(&pitwheel, RelayOptions::default()).await?;
    let endpoints = Endpoints::new(listener.local_addr()?, &options);
    let dir = postgres.as_deref().map(|postgres| postgres.dir().to_owned());
    let ready = || announce(&endpoints, database, dir.as_deref(), settings);
    let mut failure = None;
    let (stopping, stopped) = oneshot::channel::<()>();
    let stop = async {
        tokio::select! {
            () = signals.stop_requested() => print_message("stopping the server …"),
            Err(error) = keep_running(postgres.as_deref_mut()) => failure = Some(error),
        }
        drop(stopping);
    };
    let readiness = Readiness::default();
    let server = Server::new(&pitwheel).options(options).readiness(&readiness);
    let serve = server::run(server, listener, ready, stop);
    relay::run_beside(relay, &readiness, async { drop(stopped.await) }, serve).await?.0?;
    failure.map_or(Ok(()), |error| Err(error.into()))
}

/// Starts Postgres again whenever it has ended. Returns only if that fails; without a Postgres of our own, never.
async fn keep_running(postgres: Option<&mut Postgres>) -> Result<Infallible, pitwheel_devdb::Error> {
    let Some(postgres) = postgres else { return future::pending().await };
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        if TcpStream::connect((Ipv4Addr::LOCALHOST, postgres.port())).is_err() {
            print_message("Postgres has ended; starting it again");
            tokio::task::block_in_place(|| postgres.start_again())?;
        }
    }
}

/// Prints where everything is, and the next commands. `dir` is the folder of a private Postgres.
fn announce(
    endpoints: &Endpoints,
    database: &Database,
    dir: Option<&Path>,
    settings: &Settings,
) -> anyhow::Result<()> {
    let Endpoints { listen, address, url, tokens, .. } = endpoints;
    let no_worker = endpoints.no_worker();
    let openapi = endpoints.openapi();
    let dir = dir.map(|dir| dir.display().to_string());
    // The URL of another database is not printed: it may have a password.
    let private_url = dir.is_some().then_some(database.url.as_str());
    if settings.json() {
        return print_json(&json!({
            "database_url": private_url, "dir": dir, "listen": listen.to_string(), "url": url,
            "openapi": openapi, "metrics": endpoints.metrics(), "tokens": tokens
        }));
    }
    let postgres = private_url.map_or_else(|| format!("as {} names it", database.origin), str::to_owned);
    let data = dir.map_or_else(String::new, |dir| format!("  data      {dir}\n"));
    let command = command_for(&database.url, settings);
    Ok(print(&format!(
        "Pitwheel is ready, for development only: every user of this machine can use it.\n\n  \
           postgres  {postgres}\n  \
           http      {openapi}\n  \
           grpc      {address}\n\
         {data}\n\
         Next, in a second terminal:\n  \
           {command} jobs enqueue greet '{{\"name\":\"Ada\"}}'\n  \
           {command} jobs list\n\n\
         {no_worker}Ctrl-C stops everything. The data are kept.\n"
    ))?)
}

/// Stops Postgres. At a second signal the process ends without waiting, and the supervisor stops Postgres.
async fn stop(postgres: Postgres, signals: &mut Signals) -> anyhow::Result<()> {
    print_message("stopping Postgres …");
    tokio::select! {
        stopped = tokio::task::spawn_blocking(move || postgres.stop()) => Ok(stopped??),
        () = signals.stop_requested() => Ok(()),
    }
}
