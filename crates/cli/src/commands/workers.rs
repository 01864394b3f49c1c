//! `pitwheel workers`: lists workers, and stops or resumes giving them jobs.

use std::time::SystemTime;

use anstyle::AnsiColor;
use clap::{Args, Subcommand};
use pitwheel::{WorkerCommand, WorkerSummary};
use pitwheel_server::views::Worker;
use serde_json::json;

use crate::database;
use crate::exit::{Code, CommandError};
use crate::output::table::{Column, render};
use crate::output::{print, print_error, print_json, print_message};
use crate::page::{PageArgs, print_next_page};
use crate::settings::Settings;
use crate::time::relative;

#[derive(Debug, Subcommand)]
pub(crate) enum WorkersCommand {
    /// List running workers, newest first. A remote worker has a line for each of its streams.
    ///
    /// Example, running workers, and also those that ended in the last day:
    ///   pitwheel workers list
    ///   pitwheel workers list --dead
    #[command(verbatim_doc_comment)]
    List(ListArgs),

    /// Stop giving jobs to workers. Their running jobs continue.
    ///
    /// Example, and how to undo it:
    ///   pitwheel workers quiet 7
    ///   pitwheel workers resume 7
    #[command(verbatim_doc_comment)]
    Quiet(Ids),

    /// Stop giving jobs to workers, and end them after their running jobs. Cannot be undone.
    ///
    /// Example:
    ///   pitwheel workers drain 7 8
    #[command(verbatim_doc_comment)]
    Drain(Ids),

    /// Give jobs to quiet workers again.
    ///
    /// Example:
    ///   pitwheel workers resume 7
    #[command(verbatim_doc_comment)]
    Resume(Ids),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Also workers that ended in the last day
    #[arg(long)]
    dead: bool,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Ids {
    /// The ids of the workers, from `pitwheel workers list`
    #[arg(value_name = "ID", required = true, value_parser = clap::value_parser!(i64).range(1..))]
    ids: Vec<i64>,
}

pub(crate) async fn run(command: WorkersCommand, settings: &Settings) -> anyhow::Result<()> {
    match command {
        WorkersCommand::List(args) => list(&args, settings).await,
        WorkersCommand::Quiet(Ids { ids }) => send_command(&ids, WorkerCommand::Quiet, settings).await,
        WorkersCommand::Drain(Ids { ids }) => send_command(&ids, WorkerCommand::Drain, settings).await,
        WorkersCommand::Resume(Ids { ids }) => send_command(&ids, WorkerCommand::Resume, settings).await,
    }
}

async fn list(args: &ListArgs, settings: &Settings) -> anyhow::Result<()> {
    let pitwheel = database::open(settings).await?;
    let workers = pitwheel.workers(args.page.before, args.page.limit(), args.dead).await?;
    let next = args.page.next(workers.iter().map(|worker| worker.id));
    if workers.is_empty() {
        print_message(match (args.page.before, args.dead) {
            (Some(_), _) => "there are no older workers",
            (None, true) => "no worker is running, and none ended in the last day",
            (None, false) => "no worker is running: `--dead` shows those that ended in the last day",
        });
    }
    if settings.json() {
        print_json(&workers.into_iter().map(Worker::from).collect::<Vec<_>>())?;
    } else if !workers.is_empty() {
        print(&table(&workers, SystemTime::now()))?;
    }
    print_next_page(next);
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

/// Commands each worker. Continues with the next one when a worker is not running.
async fn send_command(ids: &[i64], command: WorkerCommand, settings: &Settings) -> anyhow::Result<()> {
    let pitwheel = database::open(settings).await?;
    let mut outcomes = Vec::new();
    for &id in ids {
        let (state, words) = match command {
            WorkerCommand::Quiet => (
                "quiet",
                format!("worker {id} gets no more jobs; `pitwheel workers resume {id}` gives it jobs again"),
            ),
            WorkerCommand::Drain => {
                ("draining", format!("worker {id} gets no more jobs, and ends after its running jobs"))
            }
            WorkerCommand::Resume => ("alive", format!("worker {id} gets jobs again")),
        };
        let taken = pitwheel.command_worker(id, command).await?;
        outcomes.push(json!({ "id": id, "outcome": if taken { state } else { "not_found" } }));
        match taken {
            true if !settings.json() => print_message(&words),
            true => {}
            false => print_error(&format!(
                "worker {id} is not running, or is already draining: see `pitwheel workers list --dead`"
            )),
        }
    }
    if settings.json() {
        print_json(&outcomes)?;
    }
    let missing = outcomes.iter().any(|outcome| outcome["outcome"] == "not_found");
    if missing { Err(CommandError::silent(Code::NotFound).into()) } else { Ok(()) }
}
