//! `pitwheel-feeds fetch-due`: fetches what is due, and ends.

use anyhow::ensure;
use clap::Args;
use pitwheel_feeds::FetchStats;
use pitwheel_feeds::http::views::FetchStatsView;

use super::serve::FetchArgs;
use crate::database::Database;
use pitwheel_app::output::{OutputFormat, print, print_json, print_message, visible};
use pitwheel_app::{Progress, stop_at_signal};
use tokio_util::sync::CancellationToken;

#[derive(Debug, Args)]
pub(crate) struct FetchDueArgs {
    /// The number of sources to fetch at most
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    max: u32,

    #[command(flatten)]
    fetch: FetchArgs,
}

pub(crate) async fn run(database: &Database, args: FetchDueArgs, output: OutputFormat) -> anyhow::Result<()> {
    let feeds = args.fetch.feeds(database);
    let progress = Progress::new(u64::from(args.max));
    let (options, stop) = (args.fetch.worker_options(), CancellationToken::new());
    let show = |stats: &FetchStats| {
        let done = stats.sources_fetched + stats.sources_postponed + stats.errors.len() as u64;
        progress.reached(done, format!("{} new articles", stats.articles_new));
    };
    let fetching = pitwheel_feeds::fetch_due(&feeds, options, args.max as usize, stop.cancelled(), show);
    let mut fetching = std::pin::pin!(fetching);
    let stats = tokio::select! {
        stats = &mut fetching => stats?,
        signal = stop_at_signal(&stop) => {
            signal?;
            fetching.await?
        }
    };
    progress.finish();
    if output == OutputFormat::Json {
        print_json(&FetchStatsView::from(stats))?;
    } else {
        for (source, error) in &stats.errors {
            print_message(&format!("source {source}: {}", visible(error)));
        }
        let postponed = match stats.sources_postponed {
            0 => String::new(),
            postponed => format!(", {postponed} postponed because their hosts ask for a pause or are busy"),
        };
        print(&format!(
            "{} sources were due, {} fetched, {} failed{postponed}; {} articles, {} of them new",
            stats.sources_checked,
            stats.sources_fetched,
            stats.errors.len(),
            stats.articles_found,
            stats.articles_new
        ))?;
    }
    ensure!(!stop.is_cancelled(), "it was interrupted: what is left is still due");
    Ok(())
}
