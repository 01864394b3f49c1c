//! `pitwheel workers`: who works, and who shall stop taking more.

use std::time::SystemTime;

use anstyle::AnsiColor;
use clap::{Args, Subcommand};
use pitwheel::{WorkerCommand, WorkerSummary};
use pitwheel_server::views::Worker;
use serde_json::json;

use crate::database;
use crate::exit::{Code, Stop};
use crate::output::table::{Column, render};
use crate::output::{print, print_json, say, say_error};
use crate::page::{PageArgs, say_next};
use crate::settings::Settings;
use crate::time::relative;

#[derive(Debug, Subcommand)]
pub(crate) enum WorkersCommand {
    /// List living workers, newest first. A remote worker has a line for each of its streams.
    ///
    /// Example, those that live, and those that ended in the last day, too:
    ///   pitwheel workers list
    ///   pitwheel workers list --dead
    #[command(verbatim_doc_comment)]
    List(ListArgs),

    /// Give workers nothing more; what they run goes on.
    ///
    /// Example, and how it ends:
    ///   pitwheel workers quiet 7
    ///   pitwheel workers resume 7
    #[command(verbatim_doc_comment)]
    Quiet(Ids),

    /// Give workers nothing more, and let them end with what they run. This cannot be taken back.
    ///
    /// Example:
    ///   pitwheel workers drain 7 8
    #[command(verbatim_doc_comment)]
    Drain(Ids),

    /// Give quiet workers jobs again.
    ///
    /// Example:
    ///   pitwheel workers resume 7
    #[command(verbatim_doc_comment)]
    Resume(Ids),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Those that ended in the last day, too
    #[arg(long)]
    dead: bool,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Ids {
    /// The workers, as `pitwheel workers list` numbers them
    #[arg(value_name = "ID", required = true, value_parser = clap::value_parser!(i64).range(1..))]
    ids: Vec<i64>,
}

pub(crate) async fn run(command: WorkersCommand, settings: &Settings) -> anyhow::Result<()> {
    match command {
        WorkersCommand::List(args) => list(&args, settings).await,
        WorkersCommand::Quiet(Ids { ids }) => order(&ids, WorkerCommand::Quiet, settings).await,
        WorkersCommand::Drain(Ids { ids }) => order(&ids, WorkerCommand::Drain, settings).await,
        WorkersCommand::Resume(Ids { ids }) => order(&ids, WorkerCommand::Resume, settings).await,
    }
}

async fn list(args: &ListArgs, settings: &Settings) -> anyhow::Result<()> {
    let pitwheel = database::open(settings).await?;
    let workers = pitwheel.workers(args.page.before, args.page.limit(), args.dead).await?;
    let next = args.page.next(workers.iter().map(|worker| worker.id));
    if workers.is_empty() {
        say(match (args.page.before, args.dead) {
            (Some(_), _) => "no worker is older than that",
            (None, true) => "no worker lives, and none ended in the last day",
            (None, false) => "no worker lives: `--dead` shows those that ended in the last day",
        });
    }
    if settings.json() {
        print_json(&workers.into_iter().map(Worker::from).collect::<Vec<_>>())?;
    } else if !workers.is_empty() {
        print(&table(&workers, SystemTime::now()))?;
    }
    say_next(next);
    Ok(())
}

fn table(workers: &[WorkerSummary], now: SystemTime) -> String {
    let columns = vec![
        Column::new("ID", workers, |worker| worker.id.to_string()).numeric(),
        Column::new("STATE", workers, |worker| worker.state().to_owned()).coloured(colour),
        Column::new("NAME", workers, |worker| worker.name.clone()).cut(),
        Column::new("VIA", workers, |worker| worker.transport.clone()),
        Column::new("QUEUES", workers, |worker| worker.queues.join(" ")).cut(),
        Column::new("KINDS", workers, |worker| worker.kinds.join(" ")).cut(),
        Column::new("RUNNING", workers, |worker| format!("{}/{}", worker.running, worker.slots)).numeric(),
        Column::new("STARTED", workers, |worker| relative(worker.started_at, now)),
        Column::new("ENDED", workers, |worker| {
            worker.dead_at.map_or_else(String::new, |ended| relative(ended, now))
        })
        .optional(),
    ];
    render(columns)
}

fn colour(state: &str) -> Option<AnsiColor> {
    match state {
        "alive" => Some(AnsiColor::Green),
        "quiet" | "draining" => Some(AnsiColor::Yellow),
        "dead" => Some(AnsiColor::Red),
        _ => None,
    }
}

/// Tells each worker and goes on to the next when one cannot be told.
async fn order(ids: &[i64], command: WorkerCommand, settings: &Settings) -> anyhow::Result<()> {
    let pitwheel = database::open(settings).await?;
    let mut outcomes = Vec::new();
    for &id in ids {
        let (state, words) = match command {
            WorkerCommand::Quiet => (
                "quiet",
                format!("worker {id} is given nothing more; `pitwheel workers resume {id}` ends that"),
            ),
            WorkerCommand::Drain => (
                "draining",
                format!("worker {id} is given nothing more, and ends when what it runs has ended"),
            ),
            WorkerCommand::Resume => ("alive", format!("worker {id} is given jobs again")),
        };
        let taken = pitwheel.command_worker(id, command).await?;
        outcomes.push(json!({ "id": id, "outcome": if taken { state } else { "not_found" } }));
        match taken {
            true if !settings.json() => say(&words),
            true => {}
            false => say_error(&format!(
                "worker {id} does not live, or drains already: see `pitwheel workers list --dead`"
            )),
        }
    }
    if settings.json() {
        print_json(&outcomes)?;
    }
    let missing = outcomes.iter().any(|outcome| outcome["outcome"] == "not_found");
    if missing { Err(Stop::silent(Code::NotFound).into()) } else { Ok(()) }
}
