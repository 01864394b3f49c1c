//! The `pitwheel` command: parse, wire, run.

mod cli;
mod database;
mod demo;
mod demo_worker;
mod dev;
mod exit;
mod job_view;
mod jobs;
mod json;
mod migrate;
mod output;
mod queues;
mod serve;
mod settings;
mod signals;
mod table;
mod time;

use std::io::IsTerminal;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command};
use crate::settings::Settings;

fn main() -> ExitCode {
    let cli = Cli::read();
    log_to_stderr();
    let ended = tokio::runtime::Runtime::new().map_err(anyhow::Error::from).and_then(|runtime| {
        let ended = runtime.block_on(run(cli));
        // Not dropped: that would wait for a start of Postgres which somebody has just interrupted.
        runtime.shutdown_background();
        ended
    });
    exit::code(ended)
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    let settings = Settings::load(cli.database_url, cli.output)?;
    match cli.command {
        Command::Dev(args) => dev::run(args, &settings).await,
        Command::Migrate(command) => migrate::run(&command, &settings).await,
        Command::Jobs(command) => jobs::run(command, &settings).await,
        Command::Queues(command) => queues::run(command, &settings).await,
        Command::Serve(args) => serve::run(args, &settings).await,
        Command::Demo(args) => demo::run(args, &settings).await,
        Command::DemoWorker(args) => demo_worker::run(args, &settings).await,
    }
}

/// Warnings of the engine go to stderr; `RUST_LOG` asks for more or less.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(output::coloured(std::io::stderr().is_terminal()))
        .init();
}
