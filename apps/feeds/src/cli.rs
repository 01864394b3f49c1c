//! The command line: commands, flags and help. `commands/` has what they do.

use clap::{Parser, Subcommand};

use crate::commands::articles::ArticlesCommand;
use crate::commands::fetch_due::FetchDueArgs;
use crate::commands::opml::OpmlCommand;
use crate::commands::serve::ServeArgs;
use crate::commands::sources::SourcesCommand;
use crate::commands::subscriptions::SubscriptionArgs;
use pitwheel_app::output::OutputFormat;

/// Fetches feeds on the Postgres you already run.
///
/// Example, with nothing but Postgres installed:
///   pitwheel-feeds subscribe https://example.com/feed.xml ada
///   pitwheel-feeds fetch-due
///   pitwheel-feeds articles list
#[derive(Debug, Parser)]
#[command(name = "pitwheel-feeds", version, verbatim_doc_comment, arg_required_else_help = true, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    /// The database, as in postgres://user@host:5432/name; without one, a private Postgres is used
    #[arg(long, value_name = "URL", global = true, env = "DATABASE_URL", hide_env_values = true)]
    pub(crate) database_url: Option<String>,

    /// Output as a table or as JSON
    #[arg(short, long, value_name = "FORMAT", value_enum, global = true, default_value = "table")]
    pub(crate) output: OutputFormat,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Jobs, queues, workers and tokens of the same database are managed with `pitwheel`.

Exit codes: 0 success, 1 failure, 2 wrong usage or value.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the HTTP API and fetch what is due, until Ctrl-C.
    ///
    /// Example, for this machine only; and with hubs that push new articles:
    ///   pitwheel-feeds serve
    ///   pitwheel-feeds serve --listen 0.0.0.0:7476 --public-url https://feeds.example.com
    #[command(verbatim_doc_comment)]
    Serve(ServeArgs),

    /// Fetch the sources that are due now, and end.
    ///
    /// Example:
    ///   pitwheel-feeds fetch-due --max 100
    #[command(verbatim_doc_comment)]
    FetchDue(FetchDueArgs),

    /// Add, list, show, enable, disable and remove sources.
    ///
    /// Example:
    ///   pitwheel-feeds sources add https://example.com/feed.xml --every 30
    #[command(subcommand, verbatim_doc_comment)]
    Sources(SourcesCommand),

    /// Subscribe to a feed. The first subscriber enables its source.
    ///
    /// Example:
    ///   pitwheel-feeds subscribe https://example.com/feed.xml ada
    #[command(verbatim_doc_comment)]
    Subscribe(SubscriptionArgs),

    /// End a subscription. The last subscriber to leave disables the source.
    ///
    /// Example:
    ///   pitwheel-feeds unsubscribe https://example.com/feed.xml ada
    #[command(verbatim_doc_comment)]
    Unsubscribe(SubscriptionArgs),

    /// List articles, newest first.
    ///
    /// Example:
    ///   pitwheel-feeds articles list --subscriber ada
    #[command(subcommand, verbatim_doc_comment)]
    Articles(ArticlesCommand),

    /// Import and export lists of feeds.
    ///
    /// Example:
    ///   pitwheel-feeds opml import feeds.opml --dry-run
    #[command(subcommand, verbatim_doc_comment)]
    Opml(OpmlCommand),

    /// Subscribe to three local feeds and show articles as they arrive. It takes some seconds.
    ///
    /// Example:
    ///   pitwheel-feeds demo
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
