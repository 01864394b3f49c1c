//! `pitwheel recurring`: lists, shows, creates and changes recurring jobs.

mod create;
mod view;

use std::time::SystemTime;

use clap::{Args, Subcommand};
use pitwheel::{Cadence, Misfire, RecurringFilter, RecurringJob, RecurringPage, RunNow};
use pitwheel_server::recurring_views::{RecurringInFull, RecurringLine};
use pitwheel_server::views::{self, JobLine};
use serde_json::json;

use crate::commands::jobs;
use crate::commands::recurring::create::CreateArgs;
use crate::database;
use crate::exit::CommandError;
use crate::output::{print, print_json, print_message};
use crate::page::{PageArgs, print_next_page};
use crate::settings::Settings;
use crate::time::relative;

#[derive(Debug, Subcommand)]
pub(crate) enum RecurringCommand {
    /// List recurring jobs, newest first.
    ///
    /// Example:
    ///   pitwheel recurring list --disabled
    #[command(verbatim_doc_comment)]
    List(ListArgs),

    /// Show one recurring job, with its payload.
    ///
    /// Example:
    ///   pitwheel recurring show 7
    #[command(verbatim_doc_comment)]
    Show(Id),

    /// Create a recurring job, or enable and change the one with this kind and key.
    ///
    /// CADENCE is `every 15m`, `cron 30 2 * * 1-5 Europe/Zurich` (UTC without a time zone) or
    /// `adaptive 15m..24h`, each with an optional `jitter 30s` at its end.
    ///
    /// Example:
    ///   pitwheel recurring create report tenant-7 'cron 30 2 * * * Europe/Zurich' '{"tenant":7}'
    #[command(verbatim_doc_comment)]
    Create(CreateArgs),

    /// Enable a recurring job: it runs at the time that was kept, or now if it has passed.
    ///
    /// Example:
    ///   pitwheel recurring enable 7
    #[command(verbatim_doc_comment)]
    Enable(Id),

    /// Disable a recurring job. A run in progress finishes; the next time is kept.
    ///
    /// Example:
    ///   pitwheel recurring disable 7
    #[command(verbatim_doc_comment)]
    Disable(Id),

    /// Run a recurring job now, in addition to its planned times.
    ///
    /// Example:
    ///   pitwheel recurring run 7
    #[command(verbatim_doc_comment)]
    Run(Id),

    /// Give a recurring job another cadence. It is planned anew, one interval from now.
    ///
    /// Example:
    ///   pitwheel recurring cadence 7 'every 2h'
    #[command(verbatim_doc_comment)]
    Cadence(CadenceArgs),

    /// List the next times at which a recurring job runs.
    ///
    /// Example:
    ///   pitwheel recurring next 7 --count 10
    #[command(verbatim_doc_comment)]
    Next(NextArgs),

    /// List the runs of a recurring job, newest first.
    ///
    /// Example:
    ///   pitwheel recurring runs 7
    #[command(verbatim_doc_comment)]
    Runs(RunsArgs),

    /// Delete a recurring job. A run in progress finishes.
    ///
    /// Example:
    ///   pitwheel recurring delete 7
    #[command(verbatim_doc_comment)]
    Delete(Id),
}

#[derive(Debug, Args)]
pub(crate) struct Id {
    /// The id, from `pitwheel recurring list`
    #[arg(value_parser = clap::value_parser!(i64).range(1..))]
    id: i64,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only recurring jobs of this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only those whose runs wait in this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only enabled ones
    #[arg(long, conflicts_with = "disabled")]
    enabled: bool,
    /// Only disabled ones
    #[arg(long)]
    disabled: bool,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CadenceArgs {
    #[command(flatten)]
    id: Id,
    /// The cadence, in quotes, as in 'every 2h'
    cadence: Cadence,
    /// What becomes of planned times at which it could not run: skip, one or all
    #[arg(long, value_name = "POLICY")]
    misfire: Option<Misfire>,
}

#[derive(Debug, Args)]
pub(crate) struct NextArgs {
    #[command(flatten)]
    id: Id,
    /// How many times, at most 1000
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    count: u32,
}

#[derive(Debug, Args)]
pub(crate) struct RunsArgs {
    #[command(flatten)]
    id: Id,
    #[command(flatten)]
    page: PageArgs,
}

pub(crate) async fn run(command: RecurringCommand, settings: &Settings) -> anyhow::Result<()> {
    match command {
        RecurringCommand::List(args) => list(args, settings).await,
        RecurringCommand::Show(Id { id }) => show(id, settings).await,
        RecurringCommand::Create(args) => create::run(args, settings).await,
        RecurringCommand::Enable(Id { id }) => enable(id, settings).await,
        RecurringCommand::Disable(Id { id }) => disable(id, settings).await,
        RecurringCommand::Run(Id { id }) => run_now(id, settings).await,
        RecurringCommand::Cadence(args) => cadence(args, settings).await,
        RecurringCommand::Next(args) => next(args, settings).await,
        RecurringCommand::Runs(args) => runs(args, settings).await,
        RecurringCommand::Delete(Id { id }) => delete(id, settings).await,
    }
}

async fn list(args: ListArgs, settings: &Settings) -> anyhow::Result<()> {
    let recurring = database::open(settings).await?.recurring();
    let enabled = (args.enabled || args.disabled).then_some(args.enabled);
    let filter = RecurringFilter {
        kind: args.kind,
        queue: args.queue,
        enabled,
        before: args.page.before,
        limit: args.page.limit(),
    };
    let filtered =
        filter.kind.is_some() || filter.queue.is_some() || enabled.is_some() || filter.before.is_some();
    let RecurringPage { recurring, next } = recurring.list(&filter).await?;
    if recurring.is_empty() && next.is_none() {
        print_message(if filtered {
            "no recurring jobs match: leave out a filter"
        } else {
            "no recurring jobs yet: create one with `pitwheel recurring create greet morning 'every 15m'`"
        });
    }
    if settings.json() {
        print_json(&recurring.into_iter().map(RecurringLine::from).collect::<Vec<_>>())?;
    } else if !recurring.is_empty() {
        print(&view::table(&recurring, SystemTime::now()))?;
    }
    print_next_page(next);
    Ok(())
}

async fn show(id: i64, settings: &Settings) -> anyhow::Result<()> {
    let recurring = database::open(settings).await?.recurring().get(id).await?;
    if settings.json() {
        return print_json(&RecurringInFull::new(recurring, false));
    }
    Ok(print(&view::page(&recurring, SystemTime::now()))?)
}

async fn enable(id: i64, settings: &Settings) -> anyhow::Result<()> {
    let enabled = database::open(settings).await?.recurring().enable(id).await?;
    changed(enabled, settings, |when| format!("recurring job {id} is enabled, and runs {when}"))
}

async fn disable(id: i64, settings: &Settings) -> anyhow::Result<()> {
    let disabled = database::open(settings).await?.recurring().disable(id).await?;
    let running = if disabled.running { "; a run is in progress and finishes" } else { "" };
    changed(disabled, settings, |_| {
        format!("recurring job {id} is disabled{running}; `pitwheel recurring enable {id}` enables it again")
    })
}

async fn cadence(args: CadenceArgs, settings: &Settings) -> anyhow::Result<()> {
    let id = args.id.id;
    let recurring = database::open(settings).await?.recurring();
    let changed_job = recurring.change(id, &args.cadence, args.misfire).await?;
    let cadence = changed_job.cadence.clone();
    changed(changed_job, settings, |when| format!("recurring job {id} runs `{cadence}`, next {when}"))
}

/// Prints the recurring job as JSON, or what was done.
fn changed(
    recurring: RecurringJob,
    settings: &Settings,
    words: impl Fn(&str) -> String,
) -> anyhow::Result<()> {
    if settings.json() {
        return print_json(&RecurringLine::from(recurring));
    }
    let soon = || "as soon as a node has planned it".to_owned();
    print_message(&words(&recurring.next_run_at.map_or_else(soon, |at| relative(at, SystemTime::now()))));
    Ok(())
}

async fn run_now(id: i64, settings: &Settings) -> anyhow::Result<()> {
    let run = database::open(settings).await?.recurring().run_now(id).await?;
    let (outcome, words) = match run {
        RunNow::Due => {
            ("due", format!("recurring job {id} runs now; `pitwheel recurring runs {id}` lists its runs"))
        }
        RunNow::Running => {
            ("running", format!("a run of recurring job {id} is in progress: nothing was changed"))
        }
    };
    if settings.json() {
        return print_json(&json!({ "id": id, "outcome": outcome }));
    }
    print_message(&words);
    Ok(())
}

async fn next(args: NextArgs, settings: &Settings) -> anyhow::Result<()> {
    let recurring = database::open(settings).await?.recurring();
    let times = recurring.next_times(args.id.id, args.count as usize).await?;
    if settings.json() {
        return print_json(&times.into_iter().map(views::time).collect::<Vec<_>>());
    }
    Ok(print(&view::times(&times, SystemTime::now()))?)
}

async fn runs(args: RunsArgs, settings: &Settings) -> anyhow::Result<()> {
    let recurring = database::open(settings).await?.recurring();
    let runs = recurring.runs(args.id.id, args.page.before, args.page.limit()).await?;
    let next = args.page.next(runs.iter().map(|run| run.id));
    if runs.is_empty() {
        print_message("no runs: it is disabled, and its history was pruned or has none");
    }
    if settings.json() {
        print_json(&runs.into_iter().map(JobLine::from).collect::<Vec<_>>())?;
    } else if !runs.is_empty() {
        print(&jobs::view::table(&runs, SystemTime::now()))?;
    }
    print_next_page(next);
    Ok(())
}

async fn delete(id: i64, settings: &Settings) -> anyhow::Result<()> {
    if !database::open(settings).await?.recurring().delete(id).await? {
        return Err(CommandError::not_found(format!(
            "there is no recurring job {id}: see `pitwheel recurring list`"
        ))
        .into());
    }
    if settings.json() {
        return print_json(&json!({ "id": id, "outcome": "deleted" }));
    }
    print_message(&format!("recurring job {id} is deleted"));
    Ok(())
}
