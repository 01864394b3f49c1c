//! `pitwheel jobs`: list, show, enqueue, retry, cancel, delete, reschedule, recover.

mod change;
pub(crate) mod enqueue;
mod filter;
pub(crate) mod view;

use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use pitwheel::{JobPage, JobSummary};
use pitwheel_server::views::{JobInFull, JobLine};
use serde_json::json;

use crate::database;
use crate::output::{print, print_json, print_message};
use crate::page::{PageArgs, print_next_page};
use crate::settings::Settings;
use crate::time::parse_span;
use change::{Action, JobSelectionArgs, RescheduleArgs};
use enqueue::EnqueueArgs;
use filter::FilterArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// List jobs, live and finished, newest first.
    ///
    /// Example, the dead jobs of a queue, and the page after job 4711:
    ///   pitwheel jobs list --queue mail --state dead
    ///   pitwheel jobs list --queue mail --state dead --before 4711
    #[command(verbatim_doc_comment)]
    List(ListArgs),

    /// Show one job with its state, attempts and payload.
    ///
    /// Example, as text and as JSON:
    ///   pitwheel jobs show 42
    ///   pitwheel jobs show 42 -o json | jq .payload
    #[command(verbatim_doc_comment)]
    Show {
        /// The id of the job
        #[arg(value_parser = clap::value_parser!(i64).range(1..))]
        id: i64,
    },

    /// Enqueue a job and print its id.
    ///
    /// Example, now, later, and with a payload from a file:
    ///   pitwheel jobs enqueue greet '{"name":"Ada"}'
    ///   pitwheel jobs enqueue invoice '{"number":7}' --key invoice-7 --delay 10m
    ///   pitwheel jobs enqueue import - < rows.json
    #[command(verbatim_doc_comment)]
    Enqueue(EnqueueArgs),

    /// Retry dead or cancelled jobs: due now, with attempts counted from zero.
    ///
    /// Example, two jobs, and all dead jobs of a queue; `jobs list` takes the same filter:
    ///   pitwheel jobs retry 42 43
    ///   pitwheel jobs retry --state dead --queue mail
    #[command(verbatim_doc_comment)]
    Retry(JobSelectionArgs),

    /// Cancel waiting jobs at once; ask the handlers of running jobs to stop.
    ///
    /// Example, one job, and all waiting jobs of a kind:
    ///   pitwheel jobs cancel 42
    ///   pitwheel jobs cancel --state waiting --kind newsletter
    #[command(verbatim_doc_comment)]
    Cancel(JobSelectionArgs),

    /// Delete waiting or finished jobs. Running jobs must be cancelled first.
    ///
    /// Example, one job, and all dead jobs of a kind:
    ///   pitwheel jobs delete 42
    ///   pitwheel jobs delete --state dead --kind newsletter
    #[command(verbatim_doc_comment)]
    Delete(JobSelectionArgs),

    /// Change when waiting jobs are due: now, unless a time is given.
    ///
    /// Example, now, in an hour, and all waiting jobs of a queue at a given time:
    ///   pitwheel jobs reschedule 42
    ///   pitwheel jobs reschedule 42 --in 1h
    ///   pitwheel jobs reschedule --state waiting --queue mail --at 2030-01-31T08:00:00Z
    #[command(verbatim_doc_comment)]
    Reschedule(RescheduleArgs),

    /// Recover a running job whose worker has not renewed its lease for long: it is due now.
    ///
    /// Example, after 30 minutes, and after 5:
    ///   pitwheel jobs recover 42
    ///   pitwheel jobs recover 42 --stale-after 5m
    #[command(verbatim_doc_comment)]
    Recover {
        /// The id of the job
        #[arg(value_parser = clap::value_parser!(i64).range(1..))]
        id: i64,
        /// For how long the lease was not renewed
        #[arg(long, value_name = "SPAN", default_value = "30m", value_parser = parse_span)]
        stale_after: Duration,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Only finished jobs: done, dead or cancelled
    #[arg(long, conflicts_with = "state")]
    finished: bool,
    #[command(flatten)]
    page: PageArgs,
}

pub(crate) async fn run(command: JobsCommand, settings: &Settings) -> anyhow::Result<()> {
    match command {
        JobsCommand::List(args) => list(args, settings).await,
        JobsCommand::Show { id } => show(id, settings).await,
        JobsCommand::Enqueue(args) => enqueue::run(args, settings).await,
        JobsCommand::Retry(jobs) => change::run(Action::Retry, jobs, settings).await,
        JobsCommand::Cancel(jobs) => change::run(Action::Cancel, jobs, settings).await,
        JobsCommand::Delete(jobs) => change::run(Action::Delete, jobs, settings).await,
        JobsCommand::Reschedule(args) => {
            let (jobs, when) = args.split();
            change::run(Action::Reschedule(when), jobs, settings).await
        }
        JobsCommand::Recover { id, stale_after } => recover(id, stale_after, settings).await,
    }
}

async fn list(args: ListArgs, settings: &Settings) -> anyhow::Result<()> {
    let pitwheel = database::open(settings).await?;
    let filtered = !args.filter.is_empty() || args.finished || args.page.before.is_some();
    let mut filter = args.filter.filter();
    filter.finished = args.finished;
    filter.before = args.page.before;
    filter.limit = args.page.limit();
    let JobPage { jobs, next } = pitwheel.jobs(&filter).await?;
    if jobs.is_empty() && next.is_none() {
        print_message(if filtered {
            "no jobs match: leave out a filter, or see `pitwheel queues list`"
        } else {
            "no jobs yet: enqueue one with `pitwheel jobs enqueue greet '{\"name\":\"Ada\"}'`"
        });
    }
    if settings.json() {
        print_json(&jobs.into_iter().map(JobLine::from).collect::<Vec<_>>())?;
    } else if !jobs.is_empty() {
        print(&view::table(&jobs, SystemTime::now()))?;
        print_unserved(&jobs);
    }
    print_next_page(next);
    Ok(())
}

/// Says which of these jobs no live worker takes.
pub(crate) fn print_unserved(jobs: &[JobSummary]) {
    if let Some(text) = view::unserved(jobs) {
        print_message(&format!("\n{text}"));
    }
}

async fn recover(id: i64, stale_after: Duration, settings: &Settings) -> anyhow::Result<()> {
    database::open(settings).await?.recover(id, stale_after).await?;
    if settings.json() {
        return print_json(&json!({ "id": id, "outcome": "recovered" }));
    }
    print_message(&format!("job {id} is waiting again, due now"));
    Ok(())
}

async fn show(id: i64, settings: &Settings) -> anyhow::Result<()> {
    let job = database::open(settings).await?.job(id).await?;
    if settings.json() {
        return print_json(&JobInFull::new(job, false));
    }
    print(&view::page(&job, SystemTime::now()))?;
    print_unserved(std::slice::from_ref(&job.summary));
    if let Some(hint) = view::hint(&job.summary) {
        print_message(&format!("\n{hint}"));
    }
    Ok(())
}
