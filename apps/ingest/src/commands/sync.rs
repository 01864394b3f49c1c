//! `pitwheel-ingest sync`.

use clap::Args;
use pitwheel_app::output::OutputFormat;
use pitwheel_ingest::{CsvOptions, Ingest, Method};

use super::lane_args::LaneArgs;
use super::wait;

#[derive(Debug, Args)]
pub(crate) struct SyncArgs {
    #[command(flatten)]
    lane: LaneArgs,
    /// Read the source (api), or compute emissions (computed)
    #[arg(long, value_enum)]
    method: Method,
    /// Only enqueue the job; a server runs it
    #[arg(long)]
    no_wait: bool,
}

pub(crate) async fn run(ingest: &Ingest, args: SyncArgs, output: OutputFormat) -> anyhow::Result<()> {
    let id = ingest.sync(&args.lane.lane(args.method), &CsvOptions::default(), "cli").await?;
    wait::until_ended(ingest, id, args.no_wait, output).await
}
