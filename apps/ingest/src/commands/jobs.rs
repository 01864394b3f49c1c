//! `pitwheel-ingest jobs`.

use clap::Args;
use pitwheel_app::output::{OutputFormat, print, print_json, print_message, relative, table};
use pitwheel_ingest::Ingest;
use pitwheel_ingest::http::views::JobView;

use super::lane_args::FilterArgs;

#[derive(Debug, Args)]
pub(crate) struct JobsArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Only ids below this one: the last id of the previous page
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    /// The number of lines, at most 1000
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: i64,
}

pub(crate) async fn run(ingest: &Ingest, args: JobsArgs, output: OutputFormat) -> anyhow::Result<()> {
    let jobs = ingest.jobs(&args.filter.filter(), args.before, args.limit).await?;
    if output == OutputFormat::Json {
        return print_json(&jobs.into_iter().map(JobView::from).collect::<Vec<_>>());
    }
    if jobs.is_empty() {
        print_message("no jobs: load a file with `pitwheel-ingest upload FILE`");
        return Ok(());
    }
    let rows = jobs.iter().map(|job| {
        let state = job.job.as_ref().map_or("pruned", |job| job.state.as_str());
        let note = job.job.as_ref().and_then(|job| job.note.clone()).unwrap_or_default();
        vec![
            job.sync.job_id.to_string(),
            job.sync.kind.clone(),
            job.sync.lane.to_string(),
            state.to_owned(),
            relative(job.sync.requested_at),
            job.sync.file_name.clone().unwrap_or_default(),
            note,
        ]
    });
    Ok(print(&table(&["ID", "KIND", "LANE", "STATE", "REQUESTED", "FILE", "NOTE"], rows))?)
}
