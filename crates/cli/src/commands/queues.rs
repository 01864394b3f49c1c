//! `pitwheel queues`: lists, pauses and resumes queues.

use std::time::SystemTime;

use anstyle::AnsiColor;
use clap::{Args, Subcommand};
use pitwheel::{Pitwheel, QueueSummary};
use pitwheel_server::views::Queue;
use serde_json::json;

use crate::database;
use crate::output::table::{Column, render};
use crate::output::{print, print_json, print_message};
use crate::settings::Settings;
use crate::time::relative;

#[derive(Debug, Subcommand)]
pub(crate) enum QueuesCommand {
    /// List the queues that have live jobs or are paused.
    ///
    /// Example:
    ///   pitwheel queues list
    #[command(verbatim_doc_comment)]
    List,

    /// Pause a queue: no worker claims from it. Running jobs continue.
    ///
    /// Example:
    ///   pitwheel queues pause mail
    #[command(verbatim_doc_comment)]
    Pause(QueueArgs),

    /// Resume a paused queue.
    ///
    /// Example:
    ///   pitwheel queues resume mail
    #[command(verbatim_doc_comment)]
    Resume(QueueArgs),
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct QueueArgs {
    /// The name of the queue
    name: Option<String>,
    /// All queues, including future ones
    #[arg(long)]
    all: bool,
}

pub(crate) async fn run(command: QueuesCommand, settings: &Settings) -> anyhow::Result<()> {
    let pitwheel = database::open(settings).await?;
    match command {
        QueuesCommand::List => list(&pitwheel, settings).await,
        QueuesCommand::Pause(args) => pause(&pitwheel, args.name.as_deref(), settings).await,
        QueuesCommand::Resume(args) => resume(&pitwheel, args.name.as_deref(), settings).await,
    }
}

async fn list(pitwheel: &Pitwheel, settings: &Settings) -> anyhow::Result<()> {
    let queues = pitwheel.queues().await?;
    if queues.is_empty() {
        print_message(
            "no queue has live jobs or is paused: `pitwheel jobs enqueue KIND` enqueues a job, which creates its queue",
        );
    }
    if settings.json() {
        return print_json(&queues.into_iter().map(Queue::from).collect::<Vec<_>>());
    }
    if queues.is_empty() {
        return Ok(());
    }
    Ok(print(&table(&queues, SystemTime::now()))?)
}

fn table(queues: &[QueueSummary], now: SystemTime) -> String {
    let at_least =
        |queue: &QueueSummary, count: i64| format!("{count}{}", if queue.capped { "+" } else { "" });
    let since = |time: Option<SystemTime>| time.map_or_else(String::new, |time| relative(time, now));
    let state = |queue: &QueueSummary| if queue.paused_at.is_some() { "paused" } else { "open" };
    let columns = vec![
        Column::new("QUEUE", queues, |queue| queue.name.clone()).cut(),
        Column::new("STATE", queues, |queue| state(queue).to_owned())
            .coloured(|state| (state == "paused").then_some(AnsiColor::Yellow)),
        Column::new("WAITING", queues, |queue| at_least(queue, queue.waiting)).numeric(),
        Column::new("RUNNING", queues, |queue| at_least(queue, queue.running)).numeric(),
        Column::new("LATER", queues, |queue| at_least(queue, queue.later)).numeric(),
        Column::new("BLOCKED", queues, |queue| match queue.blocked {
            0 => String::new(),
            blocked => at_least(queue, blocked),
        })
        .numeric()
        .optional(),
        Column::new("OLDEST DUE", queues, |queue| since(queue.oldest_due_at)).optional(),
        Column::new("PAUSED", queues, |queue| since(queue.paused_at)).optional(),
    ];
    render(columns)
}

async fn pause(pitwheel: &Pitwheel, name: Option<&str>, settings: &Settings) -> anyhow::Result<()> {
    pitwheel.pause(name).await?;
    if settings.json() {
        return print_json(&json!({ "queue": name, "paused": true }));
    }
    let undo = name.unwrap_or("--all");
    print_message(&format!(
        "{} paused, running jobs continue; `pitwheel queues resume {undo}` resumes",
        subject(name)
    ));
    Ok(())
}

async fn resume(pitwheel: &Pitwheel, name: Option<&str>, settings: &Settings) -> anyhow::Result<()> {
    let was_paused = pitwheel.resume(name).await?;
    if !settings.json() {
        let what = if was_paused { "resumed" } else { "not paused, nothing to do" };
        print_message(&format!("{} {what}", subject(name)));
    }
    let mut still = pitwheel.queues().await?;
    still.retain(|queue| queue.paused_at.is_some() && name.is_none_or(|name| queue.name == name));
    match name {
        _ if still.is_empty() => {}
        Some(_) => {
            print_message("but all queues are paused, including this one: run `pitwheel queues resume --all`")
        }
        None => {
            let names: Vec<&str> = still.iter().map(|queue| queue.name.as_str()).collect();
            print_message(&format!("still paused individually: {}", names.join(", ")));
        }
    }
    if settings.json() {
        return print_json(&json!({ "queue": name, "paused": !still.is_empty() && name.is_some() }));
    }
    Ok(())
}

fn subject(name: Option<&str>) -> String {
    name.map_or_else(|| "all queues are".to_owned(), |name| format!("queue `{name}` is"))
}
