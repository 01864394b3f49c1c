//! The command line: what can be said. What it does is in the file of each noun.

use clap::{Command as Grammar, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::demo::DemoArgs;
use crate::commands::demo::worker::DemoWorkerArgs;
use crate::commands::dev::DevArgs;
use crate::commands::jobs::JobsCommand;
use crate::commands::kinds::KindsCommand;
use crate::commands::migrate::MigrateCommand;
use crate::commands::queues::QueuesCommand;
use crate::commands::serve::ServeArgs;
use crate::commands::tokens::TokensCommand;
use crate::commands::workers::WorkersCommand;
use crate::output::Output;
use crate::output::log::LogFormat;
use crate::page::PageArgs;

/// Turns the Postgres you already run into your work engine.
///
/// Example, with nothing but Postgres installed:
///   pitwheel dev                                      # a private database; leave it running
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
    /// The database, as postgres://user@host:5432/name [env: DATABASE_URL]
    #[arg(long, value_name = "URL", global = true, help_heading = "Global options")]
    pub(crate) database_url: Option<String>,

    /// A table for people, or JSON for programs [env: PITWHEEL_OUTPUT] [default: table]
    #[arg(short, long, value_name = "FORMAT", value_enum, global = true, help_heading = "Global options")]
    pub(crate) output: Option<Output>,

    /// Logs on stderr: text, or a JSON object a line [env: PITWHEEL_LOG_FORMAT] [default: text]
    #[arg(long, value_name = "FORMAT", value_enum, global = true, help_heading = "Global options")]
    pub(crate) log_format: Option<LogFormat>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Settings: a flag wins over the environment, and that over `pitwheel.toml` in the current folder or else \
`pitwheel/config.toml` in your configuration folder (keys: database_url, output, log_format). When nothing names a \
database, the one that `pitwheel dev` runs is used.

Exit codes: 0 done, 1 failed, 2 wrong usage, value or setting, 3 no such job, worker or token, 5 the schema must be \
migrated.";

impl Cli {
    /// What was said, or the help or the error that answers it; that ends the process.
    pub(crate) fn read() -> Cli {
        let matches = teaching(Cli::command()).get_matches();
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// Help that leads with what the command does and an example of it, and is the same for `-h` and `--help`.
fn teaching(grammar: Grammar) -> Grammar {
    let lead = grammar.get_long_about().or(grammar.get_about()).cloned().unwrap_or_default();
    let grammar = grammar
        .before_help(lead)
        .long_about(None::<&'static str>)
        .help_template("{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}\n");
    grammar.mut_subcommands(teaching)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a private Postgres for development, migrated and ready.
    ///
    /// It runs until Ctrl-C and keeps its data. When a database is named (DATABASE_URL), that one is
    /// migrated instead and nothing is started.
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

    /// List, show, enqueue, retry, cancel, delete and reschedule jobs.
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

    /// List workers, and tell them to take nothing more, to end, or to go on.
    ///
    /// Example:
    ///   pitwheel workers list
    #[command(subcommand, verbatim_doc_comment)]
    Workers(WorkersCommand),

    /// List kinds, and keep their payloads from those who may only look.
    ///
    /// Example:
    ///   pitwheel kinds list
    #[command(subcommand, verbatim_doc_comment)]
    Kinds(KindsCommand),

    /// Make, list and revoke tokens: who may call `pitwheel serve` from other machines.
    ///
    /// Example:
    ///   pitwheel tokens create mailer --role worker
    #[command(subcommand, verbatim_doc_comment)]
    Tokens(TokensCommand),

    /// List who changed what, newest first. It is kept for a year.
    ///
    /// Example, the last twenty changes:
    ///   pitwheel audit --limit 20
    #[command(verbatim_doc_comment)]
    Audit(PageArgs),

    /// Give jobs to workers in any language, over gRPC, and the rest over HTTP, on one address.
    ///
    /// Any number of these may run beside each other on one database; a worker may use any of them.
    /// If other machines are to reach it, make a token first, and give it a certificate.
    ///
    /// Example, for this machine, and for others:
    ///   pitwheel serve
    ///   pitwheel tokens create me --role admin
    ///   pitwheel serve --listen 0.0.0.0:7475 --tls-cert server.pem --tls-key server.key
    #[command(verbatim_doc_comment)]
    Serve(ServeArgs),

    /// See the engine survive: 10,000 jobs, two workers, one of them killed half-way.
    ///
    /// It brings its own Postgres, or uses the database you name; it ends by itself, in some seconds.
    ///
    /// Example:
    ///   pitwheel demo
    #[command(verbatim_doc_comment)]
    Demo(DemoArgs),

    /// One worker process of the demo; it ends when its standard input does.
    #[command(hide = true)]
    DemoWorker(DemoWorkerArgs),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        teaching(Cli::command()).debug_assert();
    }
}
