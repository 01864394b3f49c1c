//! `pitwheel-ingest current`, `versions` and `promote`.

use clap::Args;
use pitwheel_app::output::{OutputFormat, print, print_json, print_message, relative, table};
use pitwheel_ingest::Ingest;
use pitwheel_ingest::http::views::{LaneView, VersionView};

use super::lane_args::FilterArgs;

#[derive(Debug, Args)]
pub(crate) struct CurrentArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Only ids above this one: the last id of the previous page
    #[arg(long, value_name = "ID", default_value_t = 0)]
    after: i64,
    /// The number of lines, at most 1000
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: i64,
}

pub(crate) async fn current(ingest: &Ingest, args: CurrentArgs, output: OutputFormat) -> anyhow::Result<()> {
    let lanes = ingest.lanes(&args.filter.filter(), args.after, args.limit).await?;
    if output == OutputFormat::Json {
        return print_json(&lanes.into_iter().map(LaneView::from).collect::<Vec<_>>());
    }
    if lanes.is_empty() {
        print_message("no lanes: load a file with `pitwheel-ingest upload FILE`");
        return Ok(());
    }
    let rows = lanes.iter().map(|state| {
        let text = |number: Option<i64>| number.map(|number| number.to_string()).unwrap_or_default();
        let current = state.current.as_ref();
        vec![
            state.id.to_string(),
            state.lane.to_string(),
            text(current.map(|version| version.id)),
            text(current.map(|version| version.rows)),
            text(current.map(|version| version.rejected)),
            current.and_then(|version| version.loaded_at).map(relative).unwrap_or_default(),
        ]
    });
    Ok(print(&table(&["ID", "LANE", "VERSION", "ROWS", "REJECTED", "LOADED"], rows))?)
}

#[derive(Debug, Args)]
pub(crate) struct VersionsArgs {
    /// The id of the lane
    lane: i64,
    /// Only ids below this one
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    /// The number of lines, at most 1000
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: i64,
}

pub(crate) async fn list(ingest: &Ingest, args: VersionsArgs, output: OutputFormat) -> anyhow::Result<()> {
    let versions = ingest.versions(args.lane, args.before, args.limit).await?;
    if output == OutputFormat::Json {
        return print_json(&versions.into_iter().map(VersionView::from).collect::<Vec<_>>());
    }
    if versions.is_empty() {
        print_message("no versions: list lanes with `pitwheel-ingest current`");
        return Ok(());
    }
    let rows = versions.iter().map(|version| {
        vec![
            version.id.to_string(),
            if version.is_current { "current".to_owned() } else { version.state.clone() },
            version.job_id.to_string(),
            version.rows.to_string(),
            version.rejected.to_string(),
            relative(version.started_at),
            version.error.clone().unwrap_or_default(),
        ]
    });
    Ok(print(&table(&["ID", "STATE", "JOB", "ROWS", "REJECTED", "STARTED", "ERROR"], rows))?)
}

#[derive(Debug, Args)]
pub(crate) struct PromoteArgs {
    /// The id of the version
    version: i64,
}

pub(crate) async fn promote(ingest: &Ingest, args: PromoteArgs, output: OutputFormat) -> anyhow::Result<()> {
    let version = ingest.promote(args.version).await?;
    if output == OutputFormat::Json {
        return print_json(&VersionView::from(version));
    }
    print_message(&format!("version {} is current in lane {}", version.id, version.lane));
    Ok(())
}
