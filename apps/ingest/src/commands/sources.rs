//! `pitwheel-ingest sources`.

use clap::Subcommand;
use pitwheel_app::output::{OutputFormat, UsageError, print, print_json, print_message, table};
use pitwheel_ingest::{Ingest, Method};
use serde_json::json;

use super::lane_args::LaneArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum SourcesCommand {
    /// Set where the data of a lane is read.
    Set {
        /// A URL, or the absolute path of a file on the machines that run jobs
        location: String,
        #[command(flatten)]
        lane: LaneArgs,
    },
    /// List sources.
    List,
    /// Remove the source of a lane.
    Remove {
        #[command(flatten)]
        lane: LaneArgs,
    },
}

pub(crate) async fn run(
    ingest: &Ingest,
    command: SourcesCommand,
    output: OutputFormat,
) -> anyhow::Result<()> {
    match command {
        SourcesCommand::Set { location, lane } => {
            let lane = lane.lane(Method::Api);
            ingest.set_source(&lane, &location).await?;
            print_message(&format!("lane {lane} is read from {location}"));
        }
        SourcesCommand::Remove { lane } => {
            let lane = lane.lane(Method::Api);
            if !ingest.remove_source(&lane).await? {
                return Err(UsageError(format!(
                    "lane `{lane}` has no source: see `pitwheel-ingest sources list`"
                ))
                .into());
            }
            print_message(&format!("lane {lane} has no source any more"));
        }
        SourcesCommand::List => {
            let sources = ingest.sources().await?;
            if output == OutputFormat::Json {
                let views =
                    sources.iter().map(|source| json!({ "lane": source.lane, "location": source.location }));
                return print_json(&views.collect::<Vec<_>>());
            }
            let rows = sources.iter().map(|source| vec![source.lane.to_string(), source.location.clone()]);
            print(&table(&["LANE", "LOCATION"], rows))?;
        }
    }
    Ok(())
}
