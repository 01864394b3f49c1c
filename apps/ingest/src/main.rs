//! The `pitwheel-ingest` command: parses the command line and runs one command.

mod cli;
mod commands;
mod database;

use std::process::ExitCode;

use clap::Parser;
use pitwheel_app::output;

use crate::cli::{Cli, Command};
use crate::commands::{demo, jobs, rejected, serve, sources, sync, upload, versions};
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
        use pitwheel_ingest::Error;
        matches!(error.downcast_ref(), Some(Error::Invalid(_) | Error::NotFound(_) | Error::Csv(_)))
    })
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    let Cli { database_url, upload_dir, output, command } = cli;
    let command = match command {
        Command::Serve(args) => return serve::run(args, database_url.as_deref(), upload_dir).await,
        Command::Demo => return demo::run().await,
        other => other,
    };
    let database = Database::open(database_url.as_deref(), upload_dir).await?;
    let ran = run_on(&database, command, output).await;
    let closed = database.close().await;
    ran.and(closed)
}

async fn run_on(database: &Database, command: Command, output: output::OutputFormat) -> anyhow::Result<()> {
    let ingest = &database.ingest;
    match command {
        // They open their databases themselves.
        Command::Serve(_) | Command::Demo => Ok(()),
        Command::Upload(args) => upload::run(ingest, args, output).await,
        Command::Sync(args) => sync::run(ingest, args, output).await,
        Command::Jobs(args) => jobs::run(ingest, args, output).await,
        Command::Current(args) => versions::current(ingest, args, output).await,
        Command::Versions(args) => versions::list(ingest, args, output).await,
        Command::Promote(args) => versions::promote(ingest, args, output).await,
        Command::Rejected(args) => rejected::run(ingest, args).await,
        Command::Sources(command) => sources::run(ingest, command, output).await,
    }
}
