//! The command line: commands, flags and help. `commands/` has what they do.

use clap::{Command as Grammar, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::demo::DemoArgs;
use crate::commands::demo::worker::DemoWorkerArgs;
use crate::commands::dev::DevArgs;
use crate::commands::jobs::JobsCommand;
use crate::commands::kinds::KindsCommand;
use crate::commands::lanes::LanesCommand;
use crate::commands::migrate::MigrateCommand;
use crate::commands::outbox::OutboxCommand;
use crate::commands::pipelines::PipelinesCommand;
use crate::commands::queues::QueuesCommand;
use crate::commands::recurring::RecurringCommand;
use crate::commands::relay::RelayArgs;
use crate::commands::serve::ServeArgs;
use crate::commands::tokens::TokensCommand;
use crate::commands::workers::WorkersCommand;
use crate::output::OutputFormat;
use crate::output::log::LogFormat;
use crate::page::PageArgs;

/// Turns the Postgres you already run into your work engine.
///
/// Example, with nothing but Postgres installed:
///   pitwheel dev                                      # Postgres and a server; leave it running
///   pitwheel jobs enqueue greet '{"name":"Ada"}'      # in another terminal
///   pitwheel jobs list
#[derive(Debug, Parser)]
#[command(
    name = "pitwheel",
    version,
    verbatim_doc_comment,
    arg_required_else_help = true,
    after_help = AFTER_HELP
)]
pub(crate) struct Cli {
    /// The database, as in postgres://user@host:5432/name [env: DATABASE_URL]
    #[arg(long, value_name = "URL", global = true, help_heading = "Global options")]
    pub(crate) database_url: Option<String>,

    /// Output as a table or as JSON [env: PITWHEEL_OUTPUT] [default: table]
    #[arg(short, long, value_name = "FORMAT", value_enum, global = true, help_heading = "Global options")]
    pub(crate) output: Option<OutputFormat>,

    /// Logs on stderr as text, or as one JSON object per line [env: PITWHEEL_LOG_FORMAT] [default: text]
    #[arg(long, value_name = "FORMAT", value_enum, global = true, help_heading = "Global options")]
    pub(crate) log_format: Option<LogFormat>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Settings: flags override environment variables, and these override `pitwheel.toml` in the current folder or, if \
there is none, `pitwheel/config.toml` in your configuration folder (keys: database_url, output, log_format). \
Without a database in the settings, commands use the one that `pitwheel dev` runs.

Exit codes: 0 success, 1 failure, 2 wrong usage, value or setting, 3 no such job, worker or token, 5 the schema \
must be migrated.";

impl Cli {
    /// The parsed command line. Help and usage errors are printed here and end the process.
    pub(crate) fn read() -> Cli {
        let matches = lead_with_examples(Cli::command()).get_matches();
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// Help that starts with the purpose of the command and an example, and is the same for `-h` and `--help`.
fn lead_with_examples(grammar: Grammar) -> Grammar {
    let lead = grammar.get_long_about().or(grammar.get_about()).cloned().unwrap_or_default();
    let grammar = grammar
        .before_help(lead)
        .long_about(None::<&'static str>)
        .help_template("{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}\n");
    grammar.mut_subcommands(lead_with_examples)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run everything for development: a private Postgres, and a server for gRPC and HTTP.
    ///
    /// It runs until Ctrl-C and keeps its data; other commands find its database without a setting.
    /// If a database is set (DATABASE_URL), it migrates and serves that one and starts no Postgres.
    ///
    /// Example:
    ///   pitwheel dev
    #[command(verbatim_doc_comment)]
    Dev(DevArgs),

    /// Create or update the engine's tables.
    ///
    /// Example, at every deployment and before the new version starts:
    ///   pitwheel migrate up
    #[command(subcommand, verbatim_doc_comment)]
    Migrate(MigrateCommand),

    /// List, show, enqueue, retry, cancel, delete, reschedule and recover jobs.
    ///
    /// Example:
    ///   pitwheel jobs list --state dead
    #[command(subcommand, verbatim_doc_comment)]
    Jobs(JobsCommand),

    /// List, pause and resume queues.
    ///
    /// Example:
    ///   pitwheel queues list
    #[command(subcommand, verbatim_doc_comment)]
    Queues(QueuesCommand),

    /// Show the current job of a lane, and list its jobs.
    ///
    /// Example:
    ///   pitwheel lanes jobs tenant-7
    #[command(subcommand, verbatim_doc_comment)]
    Lanes(LanesCommand),

    /// List, show, create, enable, disable, run, change and delete recurring jobs.
    ///
    /// Example:
    ///   pitwheel recurring list
    #[command(subcommand, verbatim_doc_comment)]
    Recurring(RecurringCommand),

    /// List, show, create, cancel and retry pipelines.
    ///
    /// Example:
    ///   pitwheel pipelines list --state failed
    #[command(subcommand, verbatim_doc_comment)]
    Pipelines(PipelinesCommand),

    /// List workers, stop giving them jobs, let them end, or give them jobs again.
    ///
    /// Example:
    ///   pitwheel workers list
    #[command(subcommand, verbatim_doc_comment)]
    Workers(WorkersCommand),

    /// List kinds, and redact or reveal them.
    ///
    /// Example:
    ///   pitwheel kinds list
    #[command(subcommand, verbatim_doc_comment)]
    Kinds(KindsCommand),

    /// Create, list and revoke tokens for callers of `pitwheel serve` on other machines.
    ///
    /// Example:
    ///   pitwheel tokens create mailer --role worker
    #[command(subcommand, verbatim_doc_comment)]
    Tokens(TokensCommand),

    /// List who changed what, newest first. Entries are kept for a year.
    ///
    /// Example, the last twenty changes:
    ///   pitwheel audit --limit 20
    #[command(verbatim_doc_comment)]
    Audit(PageArgs),

    /// Serve gRPC for workers in any language, and the HTTP API, on one address.
    ///
    /// Any number of servers can run on one database, and a worker can use any of them. To serve
    /// other machines, create a token first, and use a certificate.
    ///
    /// Example, for this machine only, and for other machines:
    ///   pitwheel serve
    ///   pitwheel tokens create me --role admin
    ///   pitwheel serve --listen 0.0.0.0:7475 --tls-cert server.pem --tls-key server.key
    #[command(verbatim_doc_comment)]
    Serve(ServeArgs),

    /// Show the outbox and what is parked; retry, skip, drop, replay and trace events.
    ///
    /// Example:
    ///   pitwheel outbox status
    #[command(subcommand, verbatim_doc_comment)]
    Outbox(OutboxCommand),

    /// Send the events of the outbox to Kafka, a webhook or standard output.
    ///
    /// Events of one entity arrive in order. Any number of relays can run on one database; they
    /// share the work. `pitwheel serve` and `pitwheel dev` also run a relay, if they have a sink.
    ///
    /// Example:
    ///   pitwheel relay --sink kafka://127.0.0.1:9092
    #[command(verbatim_doc_comment)]
    Relay(RelayArgs),

    /// Run 10,000 jobs with two workers, kill one of them half-way, and count the results.
    ///
    /// Then it runs jobs in lanes, and a pipeline. It starts a Postgres of its own, or uses the
    /// database in the settings. It takes some seconds. In a Postgres of its own it also writes
    /// orders with their events, and sends the events.
    ///
    /// Example:
    ///   pitwheel demo
    #[command(verbatim_doc_comment)]
    Demo(DemoArgs),

    /// One worker process of the demo; it ends when its standard input closes.
    #[command(hide = true)]
    DemoWorker(DemoWorkerArgs),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        lead_with_examples(Cli::command()).debug_assert();
    }
}
