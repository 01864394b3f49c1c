//! `pitwheel lanes`: the current job and the jobs of a lane.

use std::time::SystemTime;

use clap::{Args, Subcommand};
use pitwheel::{JobPage, LaneFilter};
use pitwheel_server::views::JobLine;
use serde_json::json;

use crate::commands::jobs::enqueue::lane_of;
use crate::commands::jobs::{print_unserved, view};
use crate::database;
use crate::output::{print, print_json, print_message};
use crate::page::{PageArgs, print_next_page};
use crate::settings::Settings;

#[derive(Debug, Subcommand)]
pub(crate) enum LanesCommand {
    /// Show the current job of a lane: the one that was claimed last.
    ///
    /// Example, a lane with a name, and one with several parts:
    ///   pitwheel lanes current tenant-7
    ///   pitwheel lanes current '["energy",3,null,2026]'
    #[command(verbatim_doc_comment)]
    Current {
        /// The lane: a name, or a JSON array
        lane: String,
    },

    /// List the jobs of a lane, live and finished, newest first.
    ///
    /// Example:
    ///   pitwheel lanes jobs tenant-7
    #[command(verbatim_doc_comment)]
    Jobs(LaneJobsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct LaneJobsArgs {
    /// The lane: a name, or a JSON array
    lane: String,
    #[command(flatten)]
    page: PageArgs,
}

pub(crate) async fn run(command: LanesCommand, settings: &Settings) -> anyhow::Result<()> {
    match command {
        LanesCommand::Current { lane } => current(&lane, settings).await,
        LanesCommand::Jobs(args) => jobs(args, settings).await,
    }
}

async fn current(lane: &str, settings: &Settings) -> anyhow::Result<()> {
    let lane = lane_of(lane)?;
    let current = database::open(settings).await?.lane_current(&lane).await?;
    let id = current.as_ref().map(|current| current.id);
    let job = current.and_then(|current| current.job);
    if settings.json() {
        return print_json(&json!({ "id": id, "job": job.map(JobLine::from) }));
    }
    match (id, job) {
        (None, _) => print_message("no job of this lane was claimed, or its history was pruned"),
        (Some(id), None) => print_message(&format!("job {id} is finished, and its kind keeps no history")),
        (Some(_), Some(job)) => print(&view::table(&[job], SystemTime::now()))?,
    }
    Ok(())
}

async fn jobs(args: LaneJobsArgs, settings: &Settings) -> anyhow::Result<()> {
    let lane = lane_of(&args.lane)?;
    let pitwheel = database::open(settings).await?;
    let filter = LaneFilter { before: args.page.before, limit: args.page.limit(), ..LaneFilter::default() };
    let JobPage { jobs, next } = pitwheel.lane_jobs(&lane, &filter).await?;
    if jobs.is_empty() {
        print_message("no jobs of this lane: `pitwheel jobs enqueue KIND --lane LANE` enqueues one");
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
