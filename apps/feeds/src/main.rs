//! The `pitwheel-feeds` command: parses the command line and runs one command.

mod cli;
mod commands;
mod database;

use std::process::ExitCode;

use clap::Parser;
use pitwheel_app::output;

use crate::cli::{Cli, Command};
use crate::commands::{articles, demo, fetch_due, opml, serve, sources, subscriptions};
use crate::database::Database;

fn main() -> ExitCode {
    let cli = Cli::parse();
    output::log_to_stderr();
    let result = tokio::runtime::Runtime::new().map_err(anyhow::Error::from).and_then(|runtime| {
        let result = runtime.block_on(run(cli));
        // Not dropped: that would wait for a start of Postgres that was just interrupted.
        runtime.shutdown_background();
        result
    });
    output::exit_code(result, |error| {
        use pitwheel_feeds::Error;
        matches!(error.downcast_ref(), Some(Error::Invalid(_) | Error::NoSource(_)))
    })
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    let Cli { database_url, output, command } = cli;
    let command = match command {
        Command::Serve(args) => return serve::run(args, database_url.as_deref()).await,
        Command::Demo => return demo::run().await,
        other => other,
    };
    let database = Database::open(database_url.as_deref()).await?;
    let ran = run_on(&database, command, output).await;
    let closed = database.close().await;
    ran.and(closed)
}

async fn run_on(database: &Database, command: Command, output: output::OutputFormat) -> anyhow::Result<()> {
    let feeds = &database.feeds;
    match command {
        // They open their databases themselves.
        Command::Serve(_) | Command::Demo => Ok(()),
        Command::FetchDue(args) => fetch_due::run(database, args, output).await,
        Command::Sources(command) => sources::run(feeds, command, output).await,
        Command::Subscribe(args) => subscriptions::subscribe(feeds, args, output).await,
        Command::Unsubscribe(args) => subscriptions::unsubscribe(feeds, args).await,
        Command::Articles(command) => articles::run(feeds, command, output).await,
        Command::Opml(command) => opml::run(feeds, command, output).await,
    }
}
