//! The command line: commands, flags and help. `commands/` has what they do.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use pitwheel_app::output::OutputFormat;

use crate::commands::jobs::JobsArgs;
use crate::commands::rejected::RejectedArgs;
use crate::commands::serve::ServeArgs;
use crate::commands::sources::SourcesCommand;
use crate::commands::sync::SyncArgs;
use crate::commands::upload::UploadArgs;
use crate::commands::versions::{CurrentArgs, PromoteArgs, VersionsArgs};

/// Loads CSV files into the Postgres you already run.
///
/// Example, with nothing but Postgres installed:
///   pitwheel-ingest upload flights.csv --module travel --type flights --year 2025
///   pitwheel-ingest current
#[derive(Debug, Parser)]
#[command(name = "pitwheel-ingest", version, verbatim_doc_comment, arg_required_else_help = true, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    /// The database, as in postgres://user@host:5432/name; without one, a private Postgres is used
    #[arg(long, value_name = "URL", global = true, env = "DATABASE_URL", hide_env_values = true)]
    pub(crate) database_url: Option<String>,

    /// The folder of uploaded files, which all processes that run jobs share
    #[arg(long, value_name = "FOLDER", global = true, env = "PITWHEEL_INGEST_UPLOADS")]
    pub(crate) upload_dir: Option<PathBuf>,

    /// Output as a table or as JSON
    #[arg(short, long, value_name = "FORMAT", value_enum, global = true, default_value = "table")]
    pub(crate) output: OutputFormat,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Jobs, queues, workers and tokens of the same database are managed with `pitwheel`.

Exit codes: 0 success, 1 failure, 2 wrong usage, value or file.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the HTTP API and run jobs, until Ctrl-C.
    ///
    /// Example:
    ///   pitwheel-ingest serve --listen 0.0.0.0:7477
    #[command(verbatim_doc_comment)]
    Serve(ServeArgs),

    /// Load a CSV file. It becomes the current data of its lane when all of it is loaded.
    ///
    /// Example:
    ///   pitwheel-ingest upload flights.csv --module travel --type flights --year 2025 --skip-bad-rows
    #[command(verbatim_doc_comment)]
    Upload(UploadArgs),

    /// Read a source again, or compute emissions: of one entry type, or of a whole module.
    ///
    /// Example:
    ///   pitwheel-ingest sync --module travel --method computed
    ///   pitwheel-ingest sync --target units --method api
    #[command(verbatim_doc_comment)]
    Sync(SyncArgs),

    /// List the jobs of lanes, newest first.
    ///
    /// Example:
    ///   pitwheel-ingest jobs --module travel
    #[command(verbatim_doc_comment)]
    Jobs(JobsArgs),

    /// List lanes and their current versions.
    ///
    /// Example:
    ///   pitwheel-ingest current --module travel
    #[command(verbatim_doc_comment)]
    Current(CurrentArgs),

    /// List the versions of a lane.
    ///
    /// Example:
    ///   pitwheel-ingest versions 1
    #[command(verbatim_doc_comment)]
    Versions(VersionsArgs),

    /// Make a former version the current one again.
    ///
    /// Example:
    ///   pitwheel-ingest promote 7
    #[command(verbatim_doc_comment)]
    Promote(PromoteArgs),

    /// Print the rejected rows of a job as CSV: line, column, reason and row.
    ///
    /// Example:
    ///   pitwheel-ingest rejected 12 > rejected.csv
    #[command(verbatim_doc_comment)]
    Rejected(RejectedArgs),

    /// Say where the method `api` reads: set, list and remove sources.
    ///
    /// Example:
    ///   pitwheel-ingest sources set https://example.com/factors.csv --module travel --target factors
    #[command(subcommand, verbatim_doc_comment)]
    Sources(SourcesCommand),

    /// Load small files, good and bad ones, and show what is current. It takes some seconds.
    ///
    /// Example:
    ///   pitwheel-ingest demo
    #[command(verbatim_doc_comment)]
    Demo,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
