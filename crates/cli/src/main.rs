//! The `pitwheel` command: parses the command line and the settings, and runs one command.

mod cli;
mod commands;
mod database;
mod exit;
mod otlp;
mod output;
mod page;
mod private_postgres;
mod relay;
mod server;
mod settings;
mod signals;
mod suggest;
mod time;

use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::commands::{
    audit, demo, dev, jobs, kinds, lanes, migrate, pipelines, queues, recurring, serve, tokens, workers,
};
use crate::output::log;
use crate::settings::Settings;

fn main() -> ExitCode {
    let cli = Cli::read();
    let result = tokio::runtime::Runtime::new().map_err(anyhow::Error::from).and_then(|runtime| {
        let result = runtime.block_on(run(cli));
        // Not dropped: that would wait for a start of Postgres that was just interrupted.
        runtime.shutdown_background();
        result
    });
    exit::code(result)
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    let settings = Settings::load(cli.database_url, cli.output, cli.log_format)?;
    log::to_stderr(settings.log_format);
    match cli.command {
        Command::Dev(args) => dev::run(args, &settings).await,
        Command::Migrate(command) => migrate::run(&command, &settings).await,
        Command::Jobs(command) => jobs::run(command, &settings).await,
        Command::Queues(command) => queues::run(command, &settings).await,
        Command::Lanes(command) => lanes::run(command, &settings).await,
        Command::Recurring(command) => recurring::run(command, &settings).await,
        Command::Pipelines(command) => pipelines::run(command, &settings).await,
        Command::Workers(command) => workers::run(command, &settings).await,
        Command::Kinds(command) => kinds::run(command, &settings).await,
        Command::Tokens(command) => tokens::run(command, &settings).await,
        Command::Audit(page) => audit::run(&page, &settings).await,
        Command::Serve(args) => serve::run(args, &settings).await,
        Command::Outbox(command) => commands::outbox::run(command, &settings).await,
        Command::Relay(args) => commands::relay::run(args, &settings).await,
        Command::Demo(args) => demo::run(args, &settings).await,
        Command::DemoWorker(args) => demo::worker::run(args, &settings).await,
    }
}
