//! `pitwheel pipelines`: lists, shows, creates, cancels and retries pipelines.

use std::path::PathBuf;
use std::time::SystemTime;

use anstyle::AnsiColor;
use anyhow::Context;
use clap::{Args, Subcommand};
use pitwheel::{Pipeline, PipelineDetail, PipelineFilter, PipelinePage, PipelineState};
use pitwheel_server::pipeline_views::{PipelineInFull, PipelineLine, PipelineToCreate};
use pitwheel_server::views;
use serde_json::json;

use crate::commands::jobs::enqueue::stdin;
use crate::database;
use crate::exit::CommandError;
use crate::output::table::{Column, render};
use crate::output::{print, print_json, print_message};
use crate::page::{PageArgs, print_next_page};
use crate::settings::Settings;
use crate::time::relative;

#[derive(Debug, Subcommand)]
pub(crate) enum PipelinesCommand {
    /// List pipelines, newest first.
    ///
    /// Example:
    ///   pitwheel pipelines list --state failed
    #[command(verbatim_doc_comment)]
    List(ListArgs),

    /// Show one pipeline, with its steps.
    ///
    /// Example:
    ///   pitwheel pipelines show 7
    #[command(verbatim_doc_comment)]
    Show(Id),

    /// Create a pipeline from a file, or from standard input (-).
    ///
    /// The file has JSON: {"name": "import", "steps": [{"name": "load", "job": {"kind": "load"}},
    /// {"name": "index", "after": ["load"], "job": {"kind": "index"}}]}
    ///
    /// Example:
    ///   pitwheel pipelines create import.json
    #[command(verbatim_doc_comment)]
    Create(CreateArgs),

    /// Cancel a pipeline: steps that wait will not run, and running jobs are asked to stop.
    ///
    /// Example:
    ///   pitwheel pipelines cancel 7
    #[command(verbatim_doc_comment)]
    Cancel(Id),

    /// Run the steps again that are dead, cancelled or skipped.
    ///
    /// Example:
    ///   pitwheel pipelines retry 7
    #[command(verbatim_doc_comment)]
    Retry(Id),
}

#[derive(Debug, Args)]
pub(crate) struct Id {
    /// The id, from `pitwheel pipelines list`
    #[arg(value_parser = clap::value_parser!(i64).range(1..))]
    id: i64,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only pipelines with this name
    #[arg(long)]
    name: Option<String>,
    /// Only this state: running, done, failed or cancelled
    #[arg(long)]
    state: Option<PipelineState>,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// A file with JSON, or - to read it from standard input
    file: PathBuf,
}

pub(crate) async fn run(command: PipelinesCommand, settings: &Settings) -> anyhow::Result<()> {
    match command {
        PipelinesCommand::List(args) => list(args, settings).await,
        PipelinesCommand::Show(Id { id }) => show(id, settings).await,
        PipelinesCommand::Create(args) => create(args, settings).await,
        PipelinesCommand::Cancel(Id { id }) => cancel(id, settings).await,
        PipelinesCommand::Retry(Id { id }) => retry(id, settings).await,
    }
}

async fn list(args: ListArgs, settings: &Settings) -> anyhow::Result<()> {
    let pipelines = database::open(settings).await?.pipelines();
    let filter = PipelineFilter {
        name: args.name,
        state: args.state,
        before: args.page.before,
        limit: args.page.limit(),
    };
    let filtered = filter.name.is_some() || filter.state.is_some() || filter.before.is_some();
    let PipelinePage { pipelines, next } = pipelines.list(&filter).await?;
    if pipelines.is_empty() && next.is_none() {
        print_message(if filtered {
            "no pipelines match: leave out a filter"
        } else {
            "no pipelines yet: `pitwheel pipelines create --help` shows how to create one"
        });
    }
    if settings.json() {
        print_json(&pipelines.into_iter().map(PipelineLine::from).collect::<Vec<_>>())?;
    } else if !pipelines.is_empty() {
        print(&table(&pipelines, SystemTime::now()))?;
    }
    print_next_page(next);
    Ok(())
}

async fn show(id: i64, settings: &Settings) -> anyhow::Result<()> {
    let pipeline = database::open(settings).await?.pipelines().get(id).await?;
    if settings.json() {
        return print_json(&PipelineInFull::new(pipeline, false));
    }
    Ok(print(&page(&pipeline, SystemTime::now()))?)
}

async fn create(args: CreateArgs, settings: &Settings) -> anyhow::Result<()> {
    let text = if args.file.as_os_str() == "-" {
        stdin()?
    } else {
        std::fs::read_to_string(&args.file)
            .with_context(|| format!("cannot read `{}`", args.file.display()))?
    };
    let new: PipelineToCreate = serde_json::from_str(&text).map_err(|error| {
        CommandError::usage(format!("this is no pipeline: {error}; see `pitwheel pipelines create --help`"))
    })?;
    let new = new.into_new().map_err(|problem| CommandError::usage(problem.detail()))?;
    let id = database::open(settings).await?.pipelines().create(new).await?;
    if settings.json() {
        return print_json(&json!({ "id": id }));
    }
    print(&id.to_string())?;
    print_message(&format!("created; `pitwheel pipelines show {id}` shows its steps"));
    Ok(())
}

async fn cancel(id: i64, settings: &Settings) -> anyhow::Result<()> {
    let changed = database::open(settings).await?.pipelines().cancel(id).await?;
    let words = if changed {
        format!("pipeline {id} is cancelled; `pitwheel pipelines retry {id}` runs what is left of it")
    } else {
        format!("pipeline {id} had ended: nothing was changed")
    };
    print_changed(id, changed, &words, settings)
}

async fn retry(id: i64, settings: &Settings) -> anyhow::Result<()> {
    let changed = database::open(settings).await?.pipelines().retry(id).await?;
    let words = if changed {
        format!("pipeline {id} runs again; `pitwheel pipelines show {id}` shows its steps")
    } else {
        format!("no step of pipeline {id} is dead, cancelled or skipped: nothing was changed")
    };
    print_changed(id, changed, &words, settings)
}

fn print_changed(id: i64, changed: bool, words: &str, settings: &Settings) -> anyhow::Result<()> {
    if settings.json() {
        return print_json(&json!({ "id": id, "changed": changed }));
    }
    print_message(words);
    Ok(())
}

fn table(pipelines: &[Pipeline], now: SystemTime) -> String {
    let when = |time: Option<SystemTime>| time.map_or_else(String::new, |time| relative(time, now));
    render(vec![
        Column::new("ID", pipelines, |one| one.id.to_string()).numeric(),
        Column::new("STATE", pipelines, |one| one.state.as_str().to_owned()).coloured(colour),
        Column::new("NAME", pipelines, |one| one.name.clone()).cut(),
        Column::new("ENDED", pipelines, |one| format!("{} of {}", one.ended, one.steps)),
        Column::new("FAILED", pipelines, |one| match one.failed {
            0 => String::new(),
            failed => failed.to_string(),
        })
        .numeric()
        .optional(),
        Column::new("CREATED", pipelines, |one| relative(one.created_at, now)),
        Column::new("FINISHED", pipelines, |one| when(one.finished_at)).optional(),
    ])
}

fn colour(state: &str) -> Option<AnsiColor> {
    match state {
        "running" | "live" => Some(AnsiColor::Cyan),
        "failed" | "dead" => Some(AnsiColor::Red),
        "cancelled" | "skipped" => Some(AnsiColor::Yellow),
        _ => None,
    }
}

/// One pipeline, and a table of its steps.
fn page(detail: &PipelineDetail, now: SystemTime) -> String {
    let pipeline = &detail.summary;
    let time = |time: SystemTime| format!("{}  ({})", views::time(time), relative(time, now));
    let lines = [
        ("pipeline", Some(pipeline.id.to_string())),
        ("name", Some(pipeline.name.clone())),
        ("state", Some(pipeline.state.as_str().to_owned())),
        ("on failure", Some(pipeline.on_failure.as_str().to_owned())),
        ("created", Some(time(pipeline.created_at))),
        ("cancelled", pipeline.cancelled_at.map(time)),
        ("finished", pipeline.finished_at.map(time)),
    ];
    let mut text = String::new();
    for (name, value) in lines {
        if let Some(value) = value {
            text.push_str(&format!("{name:<13} {value}\n"));
        }
    }
    text.push('\n');
    let steps = &detail.steps[..];
    text.push_str(&render(vec![
        Column::new("STEP", steps, |step| step.name.clone()).cut(),
        Column::new("STATE", steps, |step| step.state.as_str().to_owned()).coloured(colour),
        Column::new("AFTER", steps, |step| step.after.join(", ")).cut().optional(),
        Column::new("KIND", steps, |step| step.kind.clone()).cut(),
        Column::new("JOB", steps, |step| step.job_id.map_or_else(String::new, |id| id.to_string()))
            .numeric()
            .optional(),
        Column::new("ENDED", steps, |step| {
            step.ended_at.map_or_else(String::new, |time| relative(time, now))
        })
        .optional(),
    ]));
    text
}
