//! The `pitwheel-feeds` command: parses the command line and runs one command.

mod cli;
mod commands;
mod database;

use std::process::ExitCode;

use clap::Parser;
use pitwheel_app::output;

use crate::cli::{Cli, Command};
use crate::commands::{articles, demo, fetch_due, opml, serve, sources, subscriptions};

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
    let url = database_url.as_deref();
    match command {
        Command::Serve(args) => serve::run(args, url).await,
        Command::FetchDue(args) => fetch_due::run(args, url, output).await,
        Command::Sources(command) => sources::run(command, url, output).await,
        Command::Subscribe(args) => subscriptions::subscribe(args, url, output).await,
        Command::Unsubscribe(args) => subscriptions::unsubscribe(args, url).await,
        Command::Articles(command) => articles::run(command, url, output).await,
        Command::Opml(command) => opml::run(command, url, output).await,
        Command::Demo => demo::run().await,
    }
}
